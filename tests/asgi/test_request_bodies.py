"""The limit of request bodies under ASGIFast, in process and on live servers."""

from __future__ import annotations

import asyncio
import gzip
from typing import Any

import anyio
import pytest
from asgifast import ASGIFast
from asgifast.messages import ASGIApp, Message, Receive, Scope, Send
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from tests.support.http import Connection
from tests.support.limited_app import LIMIT
from tests.support.servers import LiveServer
from wsgifast.errors import BodyTooLarge
from wsgifast.sockets import closing

from .servers import servers_with
from .support import Received, no_body, nothing, noting, recording, scope_of


def messages(pieces: list[bytes]) -> list[Message]:
    last = len(pieces) - 1
    return [
        {"type": "http.request", "body": piece, "more_body": number < last}
        for number, piece in enumerate(pieces)
    ]


async def talk(app: ASGIApp, scope: Scope, received: list[Message]) -> Received:
    """Call an app with these messages. After them the client waits for its response."""
    response = Received()

    async def receive() -> Message:
        if received:
            return received.pop(0)
        return await (nothing() if scope.get("silent") else no_body())

    await app(scope, receive, recording(response.messages))
    return response


def chunked(**headers: str) -> Scope:
    return scope_of(method="POST", transfer_encoding="chunked", **headers)


def answered(app: ASGIApp, pieces: list[bytes], limit: int = 10, **scope: Any) -> Received:
    limited = ASGIFast(app, body_limit_bytes=limit)
    return asyncio.run(talk(limited, {**chunked(), **scope}, messages(pieces)))


async def read_all(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return body
        body += bytes(message.get("body", b""))
        if not message.get("more_body"):
            return body


async def start(send: Send, status: int = 200, *headers: tuple[bytes, bytes]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [*headers]})


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    body = await read_all(receive)
    await start(send)
    await send({"type": "http.response.body", "body": body})


@given(pieces=st.lists(st.binary(max_size=12), min_size=1, max_size=6), limit=st.integers(0, 40))
def test_any_body_messages_pass_or_are_refused_once(pieces: list[bytes], limit: int) -> None:
    response = answered(echo, pieces, limit)
    body = b"".join(pieces)
    statuses = [m["status"] for m in response.messages if m["type"] == "http.response.start"]
    if len(body) <= limit:
        assert statuses == [200]
        assert response.body == body
    else:
        assert statuses == [413]
        assert response.body == f"The request body is longer than {limit} bytes\n".encode()
    assert [m.get("more_body", False) for m in response.messages[1:]][-1] is False


def test_asgifast_refuses_declared_body_before_app() -> None:
    called: list[str] = []
    limited = ASGIFast(noting(called, "method", echo), body_limit_bytes=5)
    for length, status in ((5, 200), (6, 413)):
        scope = scope_of(method="POST", content_length=str(length))
        response = asyncio.run(talk(limited, scope, messages([b"x" * length])))
        assert response.status == status
    assert called == ["POST"]
    assert ("connection", "close") in response.headers
    assert response.body == b"The request body is longer than 5 bytes\n"


def test_body_within_its_length_comes_from_the_server() -> None:
    seen: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(receive)
        await start(send)
        await send({"type": "http.response.body"})

    for scope in (scope_of(), scope_of(method="POST", content_length="5"), chunked()):
        asyncio.run(talk(ASGIFast(app, body_limit_bytes=5), scope, []))
    exchange = [type(receive.__self__) for receive in seen]
    assert len(set(exchange)) == 1


def test_asgifast_ignores_a_length_beside_chunks() -> None:
    limited = ASGIFast(echo, body_limit_bytes=10)
    response = asyncio.run(talk(limited, chunked(content_length="1"), messages([b"x" * 11])))
    assert response.status == 413


def test_http2_body_is_counted_and_ends_no_connection() -> None:
    scope = {**scope_of(method="POST"), "http_version": "2"}
    limited = ASGIFast(echo, body_limit_bytes=10)
    response = asyncio.run(talk(limited, scope, messages([b"x" * 6, b"x" * 6, b"more"])))
    assert response.status == 413
    assert not any(name == "connection" for name, _ in response.headers)
    assert [m.get("more_body") for m in response.messages[1:]] == [False]


async def caught(scope: Scope, receive: Receive, send: Send) -> None:
    try:
        await read_all(receive)
    except OSError:
        headers = (b"access-control-allow-origin", b"*"), (b"content-type", b"text/html")
        await start(send, 200, *headers, (b"content-length", b"14"), (b"etag", b'"1"'))
        await send({"type": "http.response.body", "body": b"the app's page"})
        return
    raise AssertionError("it was not limited")


async def caught_in_parts(scope: Scope, receive: Receive, send: Send) -> None:
    try:
        await read_all(receive)
    except OSError:
        await start(send, 500, (b"access-control-allow-origin", b"*"))
        for _ in range(3):
            await send({"type": "http.response.body", "body": b"part", "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body"})
        raise


async def to_starlette(request: Request) -> PlainTextResponse:
    return PlainTextResponse(str(len(await request.body())))


# ServerErrorMiddleware sends responses outside CORS. The handlers of an app send them inside it.
cors = Middleware(CORSMiddleware, allow_origins=["*"])


async def handled(request: Request, error: Exception) -> PlainTextResponse:
    return PlainTextResponse("handled", status_code=400)


star = Starlette(
    routes=[Route("/", to_starlette, methods=["POST"])],
    middleware=[cors],
    exception_handlers={OSError: handled},
)


@pytest.mark.parametrize("app", [caught, caught_in_parts, star])
def test_asgifast_replaces_any_headers_by_413(app: ASGIApp) -> None:
    limited = ASGIFast(app, body_limit_bytes=10)
    received = messages([b"x" * 20, b"y"])
    response = asyncio.run(talk(limited, chunked(origin="https://example.org"), received))
    assert response.status == 413
    headers = dict(response.headers)
    assert headers["access-control-allow-origin"] == "*"
    assert headers["content-type"] == "text/plain; charset=utf-8"
    assert headers["connection"] == "close"
    assert "etag" not in headers
    assert response.body == b"The request body is longer than 10 bytes\n"
    assert len([name for name, _ in response.headers if name == "content-length"]) == 1


def test_app_that_only_raises_is_answered_413() -> None:
    assert answered(echo, [b"x" * 11]).status == 413
    plain = Starlette(routes=[Route("/", to_starlette, methods=["POST"])])
    assert answered(plain, [b"x" * 5, b"x" * 6]).status == 413


async def test_asgi_app_with_begun_response_gets_the_error() -> None:
    sent: list[Message] = []

    async def begun(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send)
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        await read_all(receive)

    async def receive() -> Message:
        return messages([b"x" * 11])[0]

    with pytest.raises(BodyTooLarge):
        await ASGIFast(begun, body_limit_bytes=10)(chunked(), receive, recording(sent))
    assert [m["type"] for m in sent] == ["http.response.start", "http.response.body"]
    assert sent[0]["status"] == 200


def test_streaming_response_is_whole_within_the_limit() -> None:
    """Starlette reads the body at the same time, to detect a disconnect."""

    async def stream(request: Request) -> StreamingResponse:
        async def parts() -> Any:
            for _ in range(3):
                await asyncio.sleep(0)
                yield b"part"

        return StreamingResponse(parts())

    app = Starlette(routes=[Route("/", stream, methods=["POST"])])
    response = answered(app, [b"x" * 5, b"x" * 5], silent=True)
    assert response.body == b"part" * 3


def test_asgi_413_to_head_has_no_body() -> None:
    response = answered(echo, [b"x" * 11], method="HEAD")
    assert (response.status, response.body) == (413, b"")


def test_decoded_body_counts_as_well() -> None:
    limited = ASGIFast(echo, body_limit_bytes=1000, decompress=True)
    for size, status in ((1000, 200), (1001, 413)):
        body = gzip.compress(b"x" * size)
        scope = scope_of(method="POST", content_encoding="gzip", content_length=str(len(body)))
        response = asyncio.run(talk(limited, scope, messages([body[:9], body[9:]])))
        assert response.status == status
    wrong = messages([b"nonsense"])
    response = asyncio.run(talk(limited, chunked(content_encoding="gzip"), wrong))
    assert response.status == 400
    assert not any(name == "connection" for name, _ in response.headers), "the body has been read"


def test_wrong_coding_is_refused_before_the_app_runs() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("it was called")

    limited = ASGIFast(app, decompress=True)
    scope = chunked(content_encoding="gzip")
    assert asyncio.run(talk(limited, scope, messages([b"nonsense"]))).status == 400


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_response_is_ended_once_the_client_is_silent(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client sends the headers and the whole body at once.

    So the client is not sending any more.
    """
    monkeypatch.setattr(closing, "LINGER_S", 0.05)
    sent: list[Message] = []
    received_after: list[int] = []

    async def talk_on() -> None:
        pieces = messages([b"x" * 20, b"y" * 30, b"z" * 40, b""])[:-1]

        async def receive() -> Message:
            if pieces:
                if sent:
                    received_after.append(len(pieces[0]["body"]))
                return pieces.pop(0)
            await anyio.sleep_forever()
            raise AssertionError

        await ASGIFast(echo, body_limit_bytes=10)(chunked(), receive, recording(sent))

    anyio.run(talk_on, backend=backend)
    assert sent[0]["status"] == 413
    assert [message.get("more_body") for message in sent[1:]] == [True, False]
    assert received_after == [30, 40]


# Live servers


server = servers_with("tests.asgi.limited_app:limited")


@pytest.mark.long
@pytest.mark.parametrize("path", ["/whole", "/raw", "/unread"])
def test_asgi_server_limits_a_declared_body(server: LiveServer, path: str) -> None:
    for size, status in ((LIMIT, 200), (LIMIT + 1, 413), (30 * LIMIT, 413)):
        with Connection(server.address) as connection:
            response = connection.request(path, method="POST", body=bytes(size))
            assert response.status == status, response
    assert server.get("/whole", method="POST", body=b"12345").body == b"5"


@pytest.mark.long
@pytest.mark.parametrize("path", ["/whole", "/raw", "/json"])
def test_asgi_server_limits_a_chunked_body(server: LiveServer, path: str) -> None:
    headers = [("Transfer-Encoding", "chunked"), ("Content-Type", "application/json")]
    for blocks, status in ((10, 400 if path == "/json" else 200), (11, 413), (300, 413)):
        with Connection(server.address) as connection:
            connection.send_request(path, method="POST", headers=headers)
            connection.send((b"2710\r\n" + b"1" * 10_000 + b"\r\n") * blocks + b"0\r\n\r\n")
            response = connection.read_response()
            assert response.status == status, response
            if status == 413:
                assert response.body == b"The request body is longer than 100000 bytes\n"


@pytest.mark.long
def test_asgi_413_reaches_a_client_that_waits_to_send(
    server: LiveServer, request: pytest.FixtureRequest
) -> None:
    if "daphne" in request.node.name:
        pytest.skip("daphne calls the app when the whole body is there")
    headers = [("Expect", "100-continue"), ("Content-Length", str(LIMIT + 1))]
    with Connection(server.address) as connection:
        connection.send_request("/whole", method="POST", headers=headers)
        response = connection.read_response()
        if response.status == 100:  # some servers send 100 for every body
            response = connection.read_response()
        assert response.status == 413, response
