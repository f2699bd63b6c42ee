"""uvicorn's zttp protocols: live HTTP/2, files over HTTP/2, and features of HTTP/1.1 alone.

The other suites also run zttp over HTTP/1.1. test_zttp_streams.py has the other HTTP/2 tests.
"""

from __future__ import annotations

import itertools
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import asgifast.uvicorn
import pytest
from asgifast import ASGIFast, FileResponse
from asgifast.messages import PATHSEND, ZEROCOPYSEND, Message, Receive, Scope, Send

from tests.support.http import Connection
from tests.support.http2 import Connected, Response
from tests.support.process import open_descriptors
from tests.support.servers import LiveServer
from tests.support.tls import client_context, write_certificate

from .app import crumbs
from .http2_wire import connected, stands_still
from .protocols import LARGE_BYTES, serving
from .servers import asgi_server
from .support import body, length, pathsend, sending, start_message

AUTO = "ours-AutoZttpProtocol-uvloop"
wrapped_or_bare = pytest.mark.parametrize(
    "wrap", [ASGIFast, lambda app: app], ids=["wrapped", "bare"]
)


# Live


LOOPS = ("asyncio", "uvloop")


@pytest.fixture(scope="module", params=LOOPS)
def server(request: pytest.FixtureRequest, folder: Path) -> Iterator[LiveServer]:
    with asgi_server(
        AUTO, "tests.asgi.app:fast", folder, extra=("--loop", request.param)
    ) as running:
        yield running


def get(client: Connected, target: str, method: str = "GET", **options: Any) -> Response:
    stream = client.ask(target, method, **options)
    client.flush()
    return client.response(stream)


def test_app_is_served_over_http2_by_prior_knowledge(server: LiveServer, files: Path) -> None:
    large = (files / "large").read_bytes()
    assert isinstance(server.address, tuple)
    with socket.create_connection(server.address, 20.0) as sock:
        client = Connected(sock)
        client.begin()
        for file in sorted(files.iterdir()):
            assert get(client, f"/pathsend?file={file.name}").body == file.read_bytes(), file.name
        assert get(client, "/crumbs").body == b"".join(crumbs()) + b"end"
        assert get(client, "/mixed").body == b"m" * 170_018 + b"!"
        assert get(client, "/zerocopy").body == b"<1>" + large[500:201_500] + b"</1>"
        assert get(client, "/pathsend", "HEAD").body == b""
        ranged = get(client, "/pathsend", headers=[("range", "bytes=5-9,200000-399999")])
        assert ranged.status == 206
        assert large[200_000:400_000] in ranged.body
        for way in ("file", "ours", "static"):
            assert get(client, f"/stack/base-gzip/{way}/large").body == large


@pytest.mark.parametrize("loop", LOOPS)
def test_http2_is_negotiated_by_alpn(files: Path, tmp_path: Path, loop: str) -> None:
    context = client_context("h2", "http/1.1")
    extra = ("--loop", loop, "--ssl-certfile", write_certificate(tmp_path / "cert"))
    with asgi_server(AUTO, "tests.asgi.app:app", files, extra=extra) as server:
        assert isinstance(server.address, tuple)
        plain = socket.create_connection(server.address, 20.0)
        with context.wrap_socket(plain, server_hostname="localhost") as sock:
            assert sock.selected_alpn_protocol() == "h2"
            client = Connected(sock)
            client.begin()
            assert get(client, "/pathsend").body == (files / "large").read_bytes()


# In this process


@pytest.mark.parametrize("close", [True, False])
async def test_head_of_large_file_is_as_of_a_small_one(large: Path, close: bool) -> None:
    """zttp itself sends the headers of a small file."""
    headers = (b"x-Transfer-Encoding", b"chunked"), length(LARGE_BYTES)
    app = sending(start_message(*headers), pathsend(str(large)))
    async with serving(asgifast.uvicorn.ZttpProtocol, app) as client:
        request = b"GET / HTTP/1.1\r\nHost: x\r\n"
        found = await client.ask(request + b"Connection: close\r\n" * close + b"\r\n")
        lines = found.lower().split(b"\r\n")
        assert (b"connection: close" in lines) is close
        assert b"content-length: %d" % LARGE_BYTES in lines
        assert b"x-transfer-encoding: chunked" in lines
        assert b"transfer-encoding: chunked" not in lines
        assert await client.exactly(LARGE_BYTES) == large.read_bytes()


def test_metrics_may_look_at_a_busy_connection() -> None:
    """Metrics run in another thread, and any instruction may switch threads."""
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


def file_messages(path: Path, kind: str) -> list[Message]:
    if kind == PATHSEND:
        return [start_message(length(LARGE_BYTES)), pathsend(str(path))]
    return [
        start_message(length(LARGE_BYTES + 2)),
        body(b"<"),
        {"type": ZEROCOPYSEND, "file": path.open("rb"), "more_body": True},
        body(b">", False),
    ]


@wrapped_or_bare
@pytest.mark.parametrize("kind", [PATHSEND, ZEROCOPYSEND])
@pytest.mark.parametrize("window", [None, 1000])
async def test_file_arrives_whole_over_http2(
    large: Path, kind: str, wrap: Any, window: int | None
) -> None:
    messages = file_messages(large, kind)
    async with connected(wrap(sending(*messages)), window=window) as (wire, client):
        response = await wire.response(client.ask())
        expected = large.read_bytes()
        if kind == ZEROCOPYSEND:
            expected = b"<" + expected + b">"
            messages[2]["file"].close()
        assert response.body == expected


async def test_slow_http2_client_holds_no_app_little_memory(large: Path) -> None:
    returned = False

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal returned
        await sending(*file_messages(large, PATHSEND))(scope, receive, send)
        returned = True

    async with connected(app, window=5000, reads=False) as (wire, client):
        slow = client.ask()
        await wire.until(lambda: returned)
        await wire.until(lambda: len(client.responses[slow].body) >= 5000)
        assert await stands_still(lambda: len(client.responses[slow].body)) == 5000
        [cycle] = wire.protocol.cycles.values()
        assert cycle.stream.pending_bytes <= 16 * 1024, "no more was read than one frame"
        client.reads = True
        client.open(LARGE_BYTES)
        client.open(LARGE_BYTES, slow)
        assert (await wire.response(slow)).body == large.read_bytes()


@pytest.mark.parametrize("how", ["reset", "left"])
async def test_file_is_closed_if_http2_client_stops(large: Path, how: str) -> None:
    before = open_descriptors()
    app = sending(*file_messages(large, PATHSEND))
    async with connected(app, window=5000, reads=False) as (wire, client):
        stream = client.ask()
        wire.pump()
        await stands_still(lambda: len(client.responses[stream].body))
        if how == "reset":
            client.state.reset_stream(stream)
            wire.pump()
        else:
            wire.is_closed = True
            wire.protocol.connection_lost(None)
        await wire.until(lambda: open_descriptors() <= before)


async def test_file_that_ends_early_resets_its_stream_alone(large: Path) -> None:
    short = sending(start_message(length(LARGE_BYTES + 1)), pathsend(str(large)))
    hello = sending(start_message(length(5)), body(b"hello", False))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await (short if scope["path"] == "/file" else hello)(scope, receive, send)

    async with connected(app) as (wire, client):
        assert not (await wire.reset(client.ask("/file"))).ended
        assert (await wire.response(client.ask())).body == b"hello"
        assert not wire.is_closed


@wrapped_or_bare
async def test_early_hints_and_trailers_surround_http2_file(large: Path, wrap: Any) -> None:
    offered: list[object] = []
    messages = sending(
        {"type": "http.response.early_hint", "links": [b"</a.css>; rel=preload"]},
        {**start_message(length(LARGE_BYTES)), "trailers": True},
        pathsend(str(large)),
        {"type": "http.response.trailers", "headers": [(b"x-sum", b"7")]},
    )

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        offered.extend(scope["extensions"])
        await messages(scope, receive, send)

    async with connected(wrap(app)) as (wire, client):
        response = await wire.response(client.ask(headers=[("te", "trailers")]))
        assert "http.response.early_hint" in offered
        assert response.early == [{":status": "103", "link": "</a.css>; rel=preload"}]
        assert response.body == large.read_bytes()
        assert response.trailers == {"x-sum": "7"}


async def test_head_and_304_have_no_file_bytes_over_http2(large: Path) -> None:
    not_modified = sending(start_message(status=304), body(b"x"), pathsend(str(large)))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        response: Any = not_modified if scope["path"] == "/304" else FileResponse(large)
        await response(scope, receive, send)

    async with connected(app) as (wire, client):
        for path, method, status in (("/", "HEAD", 200), ("/304", "GET", 304)):
            response = await wire.response(client.ask(path, method))
            assert (response.status, response.body) == (status, b"")


@wrapped_or_bare
async def test_file_that_has_gone_is_a_500_over_http2(large: Path, wrap: Any) -> None:
    app = sending(start_message(length(LARGE_BYTES)), pathsend(str(large.parent / "gone")))
    async with connected(wrap(app)) as (wire, client):
        response = await wire.response(client.ask())
        assert (response.status, response.body) == (500, b"Internal Server Error")


@pytest.mark.parametrize("value", [b"a\r\nevil: 1", b"a\nb", b"a\rb", b"a\0b"])
async def test_header_value_with_line_end_resets_stream(value: bytes) -> None:
    app = sending(start_message(length(2), (b"x", value)), body(b"ok", False))
    async with connected(app) as (wire, client):
        assert not (await wire.reset(client.ask())).headers


def test_http_1_1_is_served_beside_http2(server: LiveServer, files: Path) -> None:
    with Connection(server.address) as connection:
        assert connection.request("/pathsend").body == (files / "large").read_bytes()
        assert connection.request("/hello").body == b"hello"
