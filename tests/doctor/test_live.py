"""`doctor --live`: stock servers with each fault, and our servers without faults."""

from __future__ import annotations

import contextlib
import gc
import gzip
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import gunicorn
from tests.support.servers import free_port, live_server
from tests.workers.serving import fast_worker
from wsgifast import ConfigurationError
from wsgifast.commands import cli
from wsgifast.commands.client import NoResponse
from wsgifast.commands.doctor import as_text
from wsgifast.commands.doctor.live import examine_server

pytestmark = pytest.mark.long

# Responses of servers with one fault: (method, headers in lower case, and ":path") -> packets, with
# pauses.
Response = Callable[[str, dict[str, str]], list[bytes]]
_SOON_S = 0.06


@contextmanager
def faulty(response: Response) -> Iterator[str]:
    """A server with deliberate faults, with one thread for each connection."""

    class Handler(socketserver.StreamRequestHandler):
        disable_nagle_algorithm = True

        def handle(self) -> None:
            with contextlib.suppress(OSError):  # the client has disconnected
                while self.response():
                    pass

        def response(self) -> bool:
            """Respond to one request. Return whether another may follow."""
            method, path, *_ = self.rfile.readline().decode().split() or ["", ""]
            fields = {":path": path}
            while (field := self.rfile.readline()) not in (b"\r\n", b""):
                name, _, value = field.decode().partition(":")
                fields[name.lower()] = value.strip()
            packets = response(method, fields) if method else []
            for number, packet in enumerate(packets):
                if number:
                    time.sleep(_SOON_S)
                self.request.sendall(packet)
            return bool(packets) and b"connection: close" not in packets[0].lower()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


BODY = b"0123456789" * 100
_LENGTH = b"Content-Length: %d\r\n" % len(BODY)


def good(method: str, headers: dict[str, str], more: bytes = b"") -> list[bytes]:
    block = b"HTTP/1.1 200 OK\r\n" + _LENGTH + more + b"\r\n"
    return [block if method == "HEAD" else block + BODY]


def late_body(method: str, headers: dict[str, str]) -> list[bytes]:
    (whole,) = good(method, headers)
    block, blank, body = whole.partition(b"\r\n\r\n")
    return [block + blank, body] if body else [whole]


def closing(method: str, headers: dict[str, str]) -> list[bytes]:
    return good(method, headers, b"Connection: close\r\n")


def gzip_without_vary(method: str, headers: dict[str, str]) -> list[bytes]:
    if "gzip" in headers.get("accept-encoding", ""):
        compressed = gzip.compress(BODY)
        block = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
        return [block % len(compressed) + compressed]
    return good(method, headers)


def large_text(method: str, headers: dict[str, str]) -> list[bytes]:
    (response,) = good(method, headers, b"Content-Type: application/json\r\n")
    block, blank, body = response.replace(b"1000", b"20000").partition(b"\r\n\r\n")
    return [block + blank + body * 20]


def failing(method: str, headers: dict[str, str]) -> list[bytes]:
    return [b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"]


def cut_off(method: str, headers: dict[str, str]) -> list[bytes]:
    block = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\n"
    return [block if method == "HEAD" else block + b"abc"]


FAULTS: dict[str, list[Response]] = {
    "": [good],
    "WF015": [failing],
    "WF025": [large_text],
    "WF027": [gzip_without_vary],
    "WF040": [late_body],
    "WF041": [closing],
}


@pytest.mark.parametrize(
    ("expected", "response"),
    [(id_, response) for id_, responses in FAULTS.items() for response in responses],
)
def test_fault_of_a_server_is_found(expected: str, response: Response) -> None:
    with faulty(response) as url:
        report = examine_server(url, limit_s=5)
    found = {finding.id: finding.fix for finding in report.findings}
    assert list(found) == [expected] * bool(expected), as_text(report)
    assert found.get("WF025") in (None, "compress it in the app, the server or a proxy")


def test_missing_keep_alive_names_a_server_that_has_it() -> None:
    with faulty(closing) as url:
        (finding,) = examine_server(url, limit_s=5).findings
    assert finding.id == "WF041"
    assert finding.fix == "a server that keeps connections open: gunicorn's gthread or FastWorker"


def test_cut_off_body_is_found() -> None:
    with faulty(cut_off) as url:
        report = examine_server(url, limit_s=5)
    found = [finding for finding in report.findings if finding.id == "WF013"]
    assert [each.what for each in found] == ["Content-Length says 5 bytes, the body has 3"]


def test_refusal_is_not_good() -> None:
    with faulty(lambda method, headers: [b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n"]) as url:
        report = examine_server(url)
    assert [left.reason for left in report.unreached] == ["404"]
    assert report.good == 0


def test_slow_readers_that_block_gthread_are_found() -> None:
    paths = ["/small/100", "/chunks/100-100000"]
    with live_server(gunicorn("gthread", "tests.workers.app:app", "--threads=4")) as server:
        report = examine_server(server.url, paths, limit_s=2)
        assert [finding.id for finding in report.findings] == ["WF045"], as_text(report)


def test_fastworker_has_no_finding() -> None:
    with fast_worker() as server:
        report = examine_server(server.url, ["/small/100", "/file"], limit_s=5)
        assert not report.of("wrong", "slow"), as_text(report)


def test_silenced_or_known_finding_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def doctor(url: str, *arguments: str) -> int:
        return cli.main(["doctor", "--live", url, *arguments])

    baseline = tmp_path / "baseline.json"
    with faulty(closing) as url:
        assert doctor(url, "--format=json") == 1
        baseline.write_text(capsys.readouterr().out)
        assert doctor(url, f"--baseline={baseline}") == 0
        assert doctor(url, "--silence=wf041") == 0
        assert doctor(url, "--silence=WF999") == 2
        assert "WF999 is not the id of a finding" in capsys.readouterr().err


def test_endless_response_is_not_waited_for() -> None:
    def endless(method: str, headers: dict[str, str]) -> list[bytes]:
        return [b"HTTP/1.1 200 OK\r\n\r\n", *[b"data: more\n\n"] * 1000]

    with faulty(endless) as url, pytest.raises(NoResponse, match="no end of the response"):
        examine_server(url, limit_s=0.3)
    gc.collect()  # a socket that stays open is an error


def events(method: str, headers: dict[str, str]) -> list[bytes]:
    block = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n\r\n"
    return [block, *[b"data: more\n\n"] * 1000]


def test_event_stream_needs_no_end() -> None:
    with faulty(events) as url:
        report = examine_server(url, limit_s=0.3)
        silenced = examine_server(url, limit_s=0.3, silence=["WF023"])
    (finding,) = report.findings
    assert (finding.id, finding.what) == ("WF023", "an event stream without end")
    assert "1 endpoint: 1 good." in as_text(report)
    assert not silenced.findings
    gc.collect()


def test_event_stream_is_not_tried_by_slow_readers() -> None:
    """The fault is found although only a little of the body has arrived."""
    large = bytes(1 << 20)

    def response(method: str, headers: dict[str, str]) -> list[bytes]:
        if headers[":path"] == "/events":
            return events(method, headers)
        block = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(large)
        return [block if method == "HEAD" else block + large]

    with faulty(response) as url:
        report = examine_server(url, ["/events", "/large"], limit_s=2)
    assert [finding.id for finding in report.findings] == ["WF023"], as_text(report)
    gc.collect()


def test_path_without_responses_is_counted_once() -> None:
    is_broken = False

    def breaks_off(method: str, headers: dict[str, str]) -> list[bytes]:
        """Applies from the first request that accepts compression."""
        nonlocal is_broken
        is_broken = is_broken or "accept-encoding" in headers
        return [b"Connection: close\r\n"] if is_broken else good(method, headers)

    with faulty(breaks_off) as url:
        report = examine_server(url, ["/", "/more"])
    assert [left.name for left in report.unreached] == ["/", "/more"]
    assert "2 endpoints: 0 good, 2 not reached." in as_text(report)


def test_unreachable_server_is_an_error() -> None:
    with pytest.raises(NoResponse, match="refused"):
        examine_server(f"http://127.0.0.1:{free_port()}")
    for url in ("ftp://host", "http://", "http://host:port"):
        with pytest.raises(ConfigurationError, match="expected a URL"):
            examine_server(url)
