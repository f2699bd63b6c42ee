"""`wsgifast top` as a command: once, for scripts, as plain text, and on a terminal."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.process import open_terminal
from tests.support.servers import ROOT, STOP_S, free_port, wait_for
from tests.top.test_view import exposition
from wsgifast.commands import cli
from wsgifast.metrics.health import SlowClient

SLOW = SlowClient("192.0.2.1:50000", "/movie", 300_000, 12.5, 800.0)
COMMAND = [sys.executable, "-m", "wsgifast", "top"]


class Metrics(http.server.BaseHTTPRequestHandler):
    """A metrics address whose server answers ten requests more at each scrape."""

    scrapes = 0

    def do_GET(self) -> None:
        if self.path == "/metrics":
            Metrics.scrapes += 1
            body = exposition(quick=10 * Metrics.scrapes, slow=0, failed=0, cpu=1.0).encode()
        else:
            assert self.path == "/clients"
            body = json.dumps([SLOW._asdict() | {"pid": 11}]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Metrics) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_once_and_json_print_one_view(
    address: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WSGIFAST_METRICS", address)
    assert cli.main(["top", "--once", "--json", "--interval", "0.1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["threads"] == 8
    assert found["requests_per_s"] * found["seconds"] == pytest.approx(10)
    assert found["endpoints"][0]["pattern"] == "/page"
    assert found["clients"] == [SLOW._asdict() | {"pid": 11}]
    url = f"http://{address}/metrics"
    assert cli.main(["top", url, "--once", "--interval", "0.1"]) == 0
    assert "threads   8 of 8 busy" in capsys.readouterr().out


def test_view_without_a_terminal_is_printed_repeatedly(address: str) -> None:
    process = subprocess.Popen(
        [*COMMAND, address, "--interval", "0.05"], stdout=subprocess.PIPE, cwd=ROOT, text=True
    )
    try:
        assert process.stdout is not None
        seen = 0
        for line in process.stdout:
            seen += line.startswith("threads")
            assert "\x1b" not in line
            if seen == 3:
                break
    finally:
        process.terminate()
        process.wait()
        process.stdout and process.stdout.close()


def test_error_is_one_sentence(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    assert cli.main(["top", f"127.0.0.1:{port}"]) == 2
    said = capsys.readouterr().err
    assert f"nothing listens on 127.0.0.1:{port}" in said
    assert f"WSGIFAST_METRICS=127.0.0.1:{port}" in said
    assert cli.main(["top", "nosuchhost.invalid:9100"]) == 2
    assert "wsgifast: nosuchhost.invalid:9100: " in capsys.readouterr().err
    assert cli.main(["top", "9100x"]) == 2
    assert "ADDRESS='9100x': expected a host and a port" in capsys.readouterr().err


def test_server_without_metrics_is_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer(*said: bytes) -> None:
            for text in said:
                client, _ = listener.accept()
                client.recv(1000)
                client.sendall(text)
                client.close()

        page = b"HTTP/1.0 200 OK\r\n\r\n<p>hello"
        thread = threading.Thread(
            target=answer,
            args=(
                page,
                b"HTTP/1.0 404 Not Found\r\n\r\n",
                b"HTTP/1.0 500 Internal Server Error\r\n\r\nThe disk is full\n",
                b"no HTTP",
            ),
        )
        thread.start()
        name = f"127.0.0.1:{listener.getsockname()[1]}"
        for said in (
            "not Prometheus's text format", "answers 404", "answers 500: The disk is full",
            "the answer is not HTTP (no HTTP",
        ):  # fmt: skip
            assert cli.main(["top", name]) == 2
            assert said in capsys.readouterr().err
        thread.join()


def test_missing_extra_is_named(
    address: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client.parser", None)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert cli.main(["top", address]) == 2
    assert "wsgifast[prometheus]" in capsys.readouterr().err


@contextlib.contextmanager
def on_a_terminal(
    *arguments: str, kind: str = "xterm"
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The command on a terminal of 24 lines; yields its process and the terminal's other end."""
    near, far = open_terminal(columns=60)
    environment = {**os.environ, "TERM": kind}
    process = subprocess.Popen(
        [*COMMAND, *arguments], stdin=far, stdout=far, stderr=far, cwd=ROOT, env=environment
    )
    os.close(far)
    try:
        yield process, near
    finally:
        process.kill()
        process.wait()
        os.close(near)


def test_view_on_a_terminal_is_live_until_q(address: str) -> None:
    with on_a_terminal(address, "--interval", "0.1") as (process, terminal):
        shown = b""

        def show(text: bytes) -> bool:
            nonlocal shown
            shown += os.read(terminal, 65536)
            return text in shown

        wait_for(lambda: show(b"8 of 8 busy"), "the threads are shown")
        scrapes = Metrics.scrapes
        wait_for(lambda: show(b"") and Metrics.scrapes > scrapes + 2, "it looks again")
        os.write(terminal, b"q")
        with contextlib.suppress(OSError):  # EIO: the other end is closed
            while rest := os.read(terminal, 65536):
                shown += rest
        assert process.wait(STOP_S) == 0
    assert b"q quits" in shown
    assert b"/page" in shown
    assert b"Traceback" not in shown
    assert re.search(rb"\x1b\[\?1049l", shown), "the terminal is given back"


def test_unknown_terminal_gets_plain_text(address: str) -> None:
    with on_a_terminal(address, "--interval", "0.05", kind="nonsense") as (_, terminal):
        shown = b""
        while shown.count(b"8 of 8 busy") < 2:
            shown += os.read(terminal, 65536)
    assert b"\x1b" not in shown
