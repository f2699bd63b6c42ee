"""uvicorn's zttp protocols: HTTP/2 live, what HTTP/1.1 has of its own, and what metrics look at.

HTTP/1.1 is also among the servers of the other suites.
"""

from __future__ import annotations

import itertools
import socket
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import asgifast.uvicorn
import pytest
from asgifast.messages import Receive, Scope, Send

from tests.support.http import Connection
from tests.support.http2 import Client
from tests.support.servers import LiveServer
from tests.support.tls import client_context, write_certificate

from . import protocols
from .http2_wire import start
from .protocols import LARGE_BYTES, PATHSEND, large
from .servers import asgi_server
from .support import Http2, expect_http2

__all__ = ["large"]

AUTO = "ours-AutoZttpProtocol-uvloop"


@pytest.fixture(scope="module")
def server(files: Path) -> Any:
    with asgi_server(AUTO, "tests.asgi.app:fast", files) as server:
        yield server


def test_http_2_with_prior_knowledge(server: LiveServer, files: Path) -> None:
    expect_http2(server, files)


def test_http_1_1_beside_it(server: LiveServer, files: Path) -> None:
    with Connection(server.address) as connection:
        assert connection.request("/pathsend").body == (files / "large").read_bytes()
        assert connection.request("/hello").body == b"hello"


def test_http_2_by_alpn(files: Path, tmp_path: Path) -> None:
    context = client_context("h2", "http/1.1")
    extra = ("--ssl-certfile", write_certificate(tmp_path / "cert"))
    with asgi_server(AUTO, "tests.asgi.app:app", files, extra=extra) as server:
        assert isinstance(server.address, tuple)
        plain = socket.create_connection(server.address, 20.0)
        with context.wrap_socket(plain, server_hostname="localhost") as sock:
            assert sock.selected_alpn_protocol() == "h2"
            http2 = Http2(sock, Client())
            assert http2.get("/pathsend").body == (files / "large").read_bytes()


@pytest.mark.parametrize("close", [True, False])
def test_the_head_of_a_large_file_over_http_1_1(large: Path, close: bool) -> None:
    """As that of a small one, which zttp makes."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({**start(LARGE_BYTES), "headers": [(b"x-Transfer-Encoding", b"chunked"),
                    (b"content-length", b"%d" % LARGE_BYTES)]})  # fmt: skip
        await send({"type": PATHSEND, "path": str(large)})

    async def conversation(client: protocols.Client) -> None:
        request = b"GET / HTTP/1.1\r\nHost: x\r\n"
        await client.send(request + b"Connection: close\r\n" * close + b"\r\n")
        head = (await client.until(b"\r\n\r\n")).lower().split(b"\r\n")
        assert (b"connection: close" in head) is close
        assert b"content-length: %d" % LARGE_BYTES in head
        assert b"x-transfer-encoding: chunked" in head
        assert b"transfer-encoding: chunked" not in head
        assert await client.exactly(LARGE_BYTES) == large.read_bytes()

    protocols.talk(asgifast.uvicorn.ZttpProtocol, app, conversation)


def test_metrics_look_at_a_connection_whose_requests_come_and_go() -> None:
    """They do so in another thread, which any instruction may hand the interpreter back from."""
    protocol = asgifast.uvicorn.ZttpH2Protocol.__new__(asgifast.uvicorn.ZttpH2Protocol)
    cycles: dict[int, Any] = {1: object()}
    protocol.cycles = cycles
    numbers = itertools.count(2)

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        if frame.f_code.co_name != "cycle":
            return None
        frame.f_trace_opcodes = True
        cycles[next(numbers)] = object()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        found = protocol.cycle
    finally:
        sys.settrace(before)
    assert found is cycles[1]
    assert len(cycles) > 3
