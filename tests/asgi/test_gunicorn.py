"""gunicorn's own ASGI worker with sendfile: HTTP/2, and gunicorns that are built differently.

Over HTTP/1.1 it is among the servers of the other suites.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gunicorn.config
import pytest

from tests.support.http import Connection

from .servers import asgi_server
from .support import expect_http2, expect_websocket


@pytest.mark.skipif(
    "http2_cleartext" not in gunicorn.config.make_settings(),
    reason="HTTP/2 without TLS came with gunicorn 26.2",
)
@pytest.mark.parametrize("app", ["fast", "app"])
def test_http_2(files: Path, app: str) -> None:
    extra = ("--http-protocols=h2,h1", "--http2-cleartext=prior-knowledge")
    name = "ours-gunicorn-asgi"
    with asgi_server(name, f"tests.asgi.app:{app}", files, extra=extra) as server:
        expect_http2(server, files, ranges=app == "fast")


def test_uploads_and_a_websocket_behind_them(files: Path) -> None:
    data = (files / "large").read_bytes()
    with (
        asgi_server("ours-gunicorn-asgi", "tests.asgi.app:app", files) as server,
        Connection(server.address) as connection,
    ):
        for _ in range(2):
            answer = connection.request("/echo", method="POST", body=data)
            assert (answer.status, answer.body) == (200, data)
        expect_websocket(connection)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("del protocol.ASGIProtocol._safe_write", "ASGIProtocol has no _safe_write"),
        ("protocol.ASGIProtocol._send_body = older", "_send_body takes no `last`"),
        ("gasgi.ASGIProtocol = object", "does not take ASGIProtocol from its module"),
    ],
)
def test_a_gunicorn_that_is_built_differently_is_not_run(change: str, told: str) -> None:
    code = (
        "from gunicorn.asgi import protocol\n"
        "from gunicorn.workers import gasgi\n"
        "def older(self, body, chunked=False): ...\n"
        f"{change}\n"
        "from asgifast.workers import FastASGIWorker"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.returncode == 1
    assert "FastASGIWorker does not fit gunicorn" in found.stderr
    assert told in found.stderr
