"""Invalid messages of apps: the app gets uvicorn's error, and the client gets an end."""

from __future__ import annotations

import array
import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asgifast
import pytest
from asgifast import ASGIFast
from asgifast.messages import ASGIApp, Receive, Scope, Send, open_for_pathsend
from asgifast.uvicorn import H11Protocol, HttpToolsProtocol
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http import h11_impl, httptools_impl

from .layers import adds_a_header
from .protocols import GET, PROTOCOLS, TOO_MUCH, each_protocol, serving
from .support import length, pathsend, sending, start_message

pytestmark = pytest.mark.usefixtures("no_descriptor_is_left")

# uvicorn's own protocol, and ours.
PAIRS: dict[str, tuple[Any, Any]] = {
    "h11": (h11_impl.H11Protocol, H11Protocol),
    "httptools": (httptools_impl.HttpToolsProtocol, HttpToolsProtocol),
}
if "zttp" in PROTOCOLS:
    from uvicorn.protocols.http.zttp_impl import ZttpProtocol as PlainZttpProtocol

    PAIRS["zttp"] = PlainZttpProtocol, PROTOCOLS["zttp"]
pairs = pytest.mark.parametrize("name", PAIRS)


LENGTH = length(3)


def start(**other: Any) -> dict[str, Any]:
    return {**start_message(LENGTH), **other}


def body(data: Any = b"abc", more: Any = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


WRONG: dict[str, list[Any]] = {
    "a str": [start(), body("abc")],
    "a str in two": [start(), body("a", True), body(b"bc")],
    "a str behind bytes": [start(), body(b"a", True), body("bc")],
    "a str in chunks": [start_message(), body("abc")],
    "a str behind a chunk": [start_message(), body(b"a", True), body("abc")],
    "None": [start(), body(None)],
    "None behind a chunk": [start_message(), body(b"a", True), body(None)],
    "an int": [start(), body(7)],
    "a list": [start(), body([b"abc"])],
    "an empty dict": [start_message(), body({})],
    "no type": [{"status": 200}],
    "no status": [{"type": "http.response.start", "headers": [LENGTH]}, body()],
    "no status or length": [{"type": "http.response.start", "headers": []}, body()],
    "a status in text": [start(status="200"), body()],
    "no such status": [start(status=999), body()],
    "headers in text": [start(headers=[("content-length", "3")]), body()],
    "a value in text": [start(headers=[LENGTH, (b"x", "3")]), body()],
    "a length that is none": [start(headers=[(b"content-length", b"x")]), body()],
    "body first": [body(), start()],
    "only a body": [body()],
    "two starts": [start(), start(), body()],
    "two starts in chunks": [start_message(), start_message(), body()],
    "a start behind the body": [start(), body(), start()],
    "a body behind the end": [start(), body(), body()],
    "a chunk behind the end": [start_message(), body(), body()],
    "only a start": [start()],
    "only a start in chunks": [start_message()],
    "an unknown type": [start(), {"type": "http.nonsense"}, body()],
    "None as a message": [None],
    "too long": [start(), body(b"abcd")],
    "too long in three": [start(), body(b"a", True), body(b"b", True), body(b"cdef")],
    "too long before the end": [start(), body(b"a", True), body(b"b", True), body(b"cdef", True)],
    "too short": [start(), body(b"ab")],
    "beyond a whole body": [start(), body(b"abc", True), body(b"d")],
    "a whole body without an end": [start(), body(b"abc", True)],
    "too short in two": [start(), body(b"a", True), body(b"b")],
    "CR LF in a value": [start(headers=[LENGTH, (b"x", b"a\r\nevil: 1")]), body()],
    "LF in a value": [start(headers=[LENGTH, (b"x", b"a\nevil: 1")]), body()],
    "CR in a value": [start(headers=[LENGTH, (b"x", b"a\revil: 1")]), body()],
    "NUL in a value": [start(headers=[LENGTH, (b"x", b"a\0evil: 1")]), body()],
    "CR LF in a name": [start(headers=[LENGTH, (b"x\r\nevil", b"1")]), body()],
    "a blank in a name": [start(headers=[LENGTH, (b"evil x", b"1")]), body()],
    "LF in chunks": [start_message((b"x", b"a\nevil: 1")), body(b"a", True), body()],
}
if not httptools_impl.HEADER_RE.search(b"x\r\n"):  # the oldest uvicorns let such a name pass
    del WRONG["CR LF in a name"], WRONG["a blank in a name"]
# uvicorn sends no response to these, or only headers. We send a 500.
BROKEN_HEADERS: dict[str, list[Any]] = {
    "None as headers": [start(headers=None), body()],
    "a header of three": [start(headers=[(b"a", b"b", b"c")]), body()],
    "an int as headers": [start(headers=5), body()],
    "a body without a type": [start(), {"body": b"abc"}],
    "None behind the start": [start(), None],
}


async def outcome(protocol: Any, messages: list[Any], wrap: Any = None) -> Any:
    """Return the bytes that the client received, and the errors that the app got."""
    raised: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            for message in messages:
                await send({**message} if isinstance(message, dict) else message)
        except BaseException as error:
            raised.append(type(error).__name__)
            raise

    served = wrap(app) if wrap is not None else app
    async with serving(protocol, served, pathsend=None, timeout_keep_alive=1) as client:
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        response = await asyncio.wait_for(client.to_end(), 30)
    start_message, _, data = response.partition(b"\r\n\r\n")
    lines = start_message.split(b"\r\n")
    remaining = [line for line in lines if not line.lower().startswith((b"date:", b"server:"))]
    return sorted(remaining), data, raised


# What ASGIFast sends in place of uvicorn's error. "" for an error page.
REPAIRED = {
    "a str": b"abc",
    "a str in two": b"abc",
    "a str behind bytes": b"abc",
    "a str in chunks": b"3\r\nabc\r\n0\r\n\r\n",
    "a str behind a chunk": b"4\r\naabc\r\n0\r\n\r\n",
    **dict.fromkeys(("an int", "a list", "an empty dict"), b""),
    "a start behind the body": b"abc",  # it would be an error at its first body message
}


@pairs
@pytest.mark.parametrize("stack", ["ours", "ours + ASGIFast", "uvicorn's + ASGIFast"])
@pytest.mark.parametrize("wrong", WRONG)
async def test_wrong_messages_end_as_on_uvicorn(name: str, stack: str, wrong: str) -> None:
    plain, our = PAIRS[name]
    wrap = ASGIFast if "ASGIFast" in stack else None
    theirs = await outcome(plain, WRONG[wrong])
    found = await outcome(our if "ours" in stack else plain, WRONG[wrong], wrap)
    assert not any(line.startswith(b"evil") for line in found[0])
    if wrap is None or wrong not in {*REPAIRED, "None"}:
        assert found == theirs
    elif wrong == "None":
        assert (found[:2], len(found[2])) == (theirs[:2], 1)
    elif data := REPAIRED[wrong]:
        assert found == (theirs[0], data, [])
    else:
        assert b"HTTP/1.1 500 Internal Server Error" in found[0]
        assert found[2] == ["BodyError"]


@each_protocol
@pytest.mark.parametrize("wrap", [None, ASGIFast])
@pytest.mark.parametrize("wrong", BROKEN_HEADERS)
async def test_headers_that_cannot_be_sent_are_a_500(protocol: Any, wrap: Any, wrong: str) -> None:
    lines, data, raised = await outcome(protocol, BROKEN_HEADERS[wrong], wrap)
    assert b"HTTP/1.1 500 Internal Server Error" in lines
    assert b"Internal Server Error" in data
    assert raised


@each_protocol
@pytest.mark.parametrize(
    "data",
    [bytearray(b"abc"), memoryview(b"abc"), array.array("B", b"abc")],
    ids=["bytearray", "memoryview", "array"],
)
async def test_buffers_are_sent_by_our_protocols(protocol: Any, data: Any) -> None:
    for messages in ([start(), body(data)], [start(), body(data, True), body(b"")]):
        lines, sent, raised = await outcome(protocol, messages)
        if protocol is not H11Protocol or not isinstance(data, array.array):
            assert (sent, raised) == (b"abc", []), lines


VALUES: Any = st.one_of(
    st.none(), st.integers(-1, 3), st.text(max_size=2), st.binary(max_size=3), st.lists(st.none()),
    st.binary(max_size=3).map(bytearray), st.just({}), st.booleans(),
)  # fmt: skip
MESSAGES: Any = st.one_of(
    st.just(start()), st.just(start_message()), st.just(body()), st.just(body(b"a", True)),
    st.fixed_dictionaries({"type": st.just("http.response.start")},
                          optional={"status": VALUES, "headers": VALUES}),
    st.fixed_dictionaries({"type": st.just("http.response.body")},
                          optional={"body": VALUES, "more_body": VALUES}),
    st.fixed_dictionaries({}, optional={"type": VALUES, "body": VALUES}), VALUES,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(MESSAGES, max_size=4), st.sampled_from(sorted(PAIRS)))
def test_any_messages_end_connection_like_uvicorn(messages: list[Any], name: str) -> None:
    plain, our = PAIRS[name]

    async def both() -> Any:
        return await asyncio.gather(outcome(plain, messages), outcome(our, messages))

    (theirs, _, their_errors), (found, _, errors) = asyncio.run(both())
    is_500 = any(b" 500 " in line for line in found)
    assert bool(errors) == bool(their_errors)
    assert found == theirs or is_500


# Return values


@each_protocol
@pytest.mark.parametrize("wrap", ["bare", "wrapped", "metered"])
async def test_value_that_an_app_returns_is_logged(
    protocol: Any, wrap: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> Any:
        await send(start())
        await send(body())
        return "a value"

    served: dict[str, ASGIApp] = {
        "bare": app,
        "wrapped": ASGIFast(app),
        "metered": ASGIFast(app, traces=False, report_slow_shapes=1.0),
    }
    async with serving(protocol, served[wrap], pathsend=None) as client:
        await client.send(GET)
        await client.to_end()
    assert "should return None, but returned 'a value'" in caplog.text


# Malformed requests


CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"
MALFORMED = b"ZZ\r\nnonsense"


@each_protocol
@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"], indirect=True)
@pytest.mark.usefixtures("loop")
async def test_malformed_chunk_ends_a_begun_response(protocol: Any, reads: bool) -> None:
    """No error reaches the app or the event loop."""
    failed: list[Any] = []
    seen: list[str] = []
    broken = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if reads:
            await receive()
        await send(start_message())
        await send(body(b"first", True))
        await broken.wait()
        for _ in range(50):
            await send(body(b"more", True))
            await asyncio.sleep(0)
        await send(body(bytes(100_000), True))
        await send(body(b"last"))
        seen.append((await receive())["type"])

    asyncio.get_running_loop().set_exception_handler(lambda loop, context: failed.append(context))
    async with serving(protocol, app, pathsend=None) as client:
        await client.send(CHUNKED)
        await client.until(b"first")
        connection: Any = next(iter(client.state.connections))
        await client.send(MALFORMED)
        while not connection.cycle.disconnected:
            await asyncio.sleep(0)
        broken.set()
        rest = await client.to_end()
        assert b"400" not in rest
        assert b"last" not in rest
    assert not failed
    assert seen == ["http.disconnect"]


@each_protocol
@pytest.mark.parametrize("parts", [[CHUNKED, MALFORMED], [CHUNKED + MALFORMED]])
async def test_malformed_chunk_before_the_response_is_a_400(
    protocol: Any, parts: list[bytes]
) -> None:
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (message := await receive())["type"] == "http.request":
            assert message["more_body"]
        seen.append(message["type"])
        await send(start())
        await send(body())

    async with serving(protocol, app, pathsend=None) as client:
        for part in parts:
            await client.send(part)
            await asyncio.sleep(0)
        response = await client.to_end()
        assert response.startswith(b"HTTP/1.1 400 ")
        assert response.count(b"HTTP/1.1") == 1
    if len(parts) == 2:
        assert seen == ["http.disconnect"]


@each_protocol
async def test_malformed_request_is_refused_after_response(
    protocol: Any,
) -> None:
    """Its body is malformed while it waits for earlier requests."""
    paths: list[str] = []
    go = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        paths.append(scope["path"])
        await send(start_message())
        await send(body(b"first", True))
        await go.wait()
        await send(body(b"last"))

    async with serving(protocol, app, pathsend=None) as client:
        await client.send(
            b"GET /1 HTTP/1.1\r\nHost: a\r\n\r\n"
            b"POST /2 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n"
        )
        await client.until(b"first")
        go.set()
        assert b"last\r\n0\r\n\r\nHTTP/1.1 400 Bad Request\r\n" in await client.to_end()
    if protocol is HttpToolsProtocol:  # which parses ahead
        assert paths == ["/1"]


# Files that have gone


def gone_app(folder: Path, *, base: bool) -> Starlette:
    (folder / "directory").mkdir()
    large = folder / "large"
    large.write_bytes(bytes(300_000))
    stat_result = large.stat()
    made: dict[str, Callable[[], Response]] = {
        "/missing": lambda: FileResponse(folder / "nothing"),
        "/vanished": lambda: FileResponse(folder / "nothing", stat_result=stat_result),
        "/directory": lambda: FileResponse(folder / "directory", stat_result=stat_result),
        "/our_own": lambda: asgifast.FileResponse(folder / "nothing"),
        "/forbidden": lambda: FileResponse(large),
    }

    def respond(request: Request) -> Response:
        return made[request.url.path]()

    middleware = [Middleware(BaseHTTPMiddleware, dispatch=adds_a_header)] if base else []
    return Starlette(routes=[Route("/{name}", respond)], middleware=middleware)


def _open_all_but_large(path: str) -> Any:
    if os.path.basename(path) == "large":
        raise PermissionError(13, "Permission denied", path)
    return open_for_pathsend(path)


@each_protocol
@pytest.mark.parametrize("wrapped", [True, False])
@pytest.mark.parametrize("base", [True, False])
@pytest.mark.parametrize("why", ["missing", "vanished", "directory", "our_own", "forbidden"])
async def test_file_that_cannot_be_opened_is_a_500(
    protocol: Any, wrapped: bool, base: bool, why: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    app: ASGIApp = gone_app(tmp_path, base=base)
    monkeypatch.setattr("asgifast.files.open_for_pathsend", _open_all_but_large)
    async with serving(protocol, ASGIFast(app) if wrapped else app, pathsend=None) as client:
        await client.send(b"GET /%b HTTP/1.1\r\nHost: a\r\n\r\n" % why.encode())
        response = await client.to_end()
    assert response.startswith(b"HTTP/1.1 500 "), response
    assert b"Internal Server Error" in response.partition(b"\r\n\r\n")[2]


# The server's end


@each_protocol
async def test_download_cut_by_shutdown_is_one_log_line(
    protocol: Any, sparse: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = sending(start_message(length(TOO_MUCH)), pathsend(sparse))
    caplog.set_level(logging.INFO)
    async with serving(protocol, app) as client:
        await client.ask()
        [task] = client.state.tasks
        for _ in range(50):
            await asyncio.sleep(0)  # the app has returned
        for connection in client.state.connections:
            connection.shutdown()
        task.cancel(msg="Task cancelled, timeout graceful shutdown exceeded")
        assert len(await client.to_end()) < TOO_MUCH
    [record] = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert "'/'" in record.getMessage()
    assert "shuts down" in record.getMessage()
    assert record.exc_info is None
