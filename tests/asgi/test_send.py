"""What apps do with send(), under ASGIFast on uvicorn's protocols, and under ours."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from asgifast import ASGIFast
from asgifast.messages import Message, Receive, Scope, Send, response_body, response_start
from asgifast.uvicorn import HttpToolsProtocol
from uvicorn.protocols.http import httptools_impl

from .protocols import (
    GET,
    HELLO,
    Client,
    _no_descriptor_is_left,
    body,
    is_sent_whole,
    start,
    talk,
    two_bytes,
)

__all__ = ["_no_descriptor_is_left"]

STACKS = [
    pytest.param((protocol, wrap), id=f"{name}{wrapped}")
    for name, protocol in [
        ("uvicorn", httptools_impl.HttpToolsProtocol), ("ours", HttpToolsProtocol),
    ]
    for wrapped, wrap in [("", None), ("+ASGIFast", ASGIFast)]
]  # fmt: skip


@pytest.fixture(params=STACKS)
def stack(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    protocol, wrap = request.param
    return protocol, wrap or (lambda app: app)


def _answer(stack: tuple[Any, Any], app: Any, request: bytes = GET, end: bytes = b"ok") -> bytes:
    """What is sent up to `end`; the connection then answers another request."""
    protocol, wrap = stack
    answers = []

    async def conversation(client: Client) -> None:
        await client.send(request)
        answers.append(await client.until(end))
        await client.hello()

    talk(protocol, wrap(app), conversation)
    return answers[0]


def test_a_whole_body_does_not_wait_for_the_end(stack: tuple[Any, Any]) -> None:
    """The response is complete when the app says so, and receive() waits for that."""
    has_arrived = asyncio.Event()
    received: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, length=2)
        if scope["path"] == "/":
            await receive()
            listens = asyncio.ensure_future(receive())
            await body(send, b"ok", more=True)
            await has_arrived.wait()
            assert not listens.done()
            await body(send, b"")
            received.append(await listens)
        else:
            await body(send, b"2!")

    protocol, wrap = stack

    async def conversation(client: Client) -> None:
        await client.send(GET + GET.replace(b"/", b"/2", 1))
        first = await client.until(b"ok")
        assert first.count(b"HTTP/1.1 200 OK") == 1
        has_arrived.set()
        assert (await client.until(b"2!")).count(b"HTTP/1.1 200 OK") == 1

    talk(protocol, wrap(app), conversation)
    assert received == [{"type": "http.disconnect"}]


@is_sent_whole
def test_more_than_a_whole_body_is_refused(stack: tuple[Any, Any]) -> None:
    told: list[BaseException] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, length=2)
        await body(send, b"ok", more=True)
        for message in (response_body(b"too much"), response_body()):
            try:
                await send(message)
            except RuntimeError as error:
                told.append(error)

    answer = _answer(stack, app)
    assert answer.endswith(b"\r\n\r\nok")
    assert [str(error) for error in told] == ["Response content longer than Content-Length"]


def test_a_whole_body_without_an_end_is_told_of(
    stack: tuple[Any, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, length=2)
        await body(send, b"ok", more=True)

    protocol, wrap = stack

    async def conversation(client: Client) -> None:
        await client.send(GET)
        assert (await client.to_end()).endswith(b"\r\n\r\nok")

    talk(protocol, wrap(app), conversation)
    assert "without completing response" in caplog.text


def test_an_empty_body_is_whole(stack: tuple[Any, Any]) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, length=0, status=307)
        await body(send, b"")

    assert b"content-length: 0\r\n" in _answer(stack, app, end=b"\r\n\r\n")


def test_an_answer_to_head_that_an_app_takes_for_get_has_no_body(stack: tuple[Any, Any]) -> None:
    protocol, wrap = stack

    async def as_get(scope: Scope, receive: Receive, send: Send) -> None:
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        await wrap(two_bytes)({**scope, "method": method}, receive, send)

    head = b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n"
    answer = _answer((protocol, lambda app: app), as_get, head, b"\r\n\r\n")
    assert b"content-length: 2\r\n" in answer


@pytest.mark.parametrize("status", [204, 304])
def test_a_status_without_a_body_is_answered_at_once(stack: tuple[Any, Any], status: int) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, length=20_000, status=status)
        await body(send, b"x" * 20_000)

    protocol, wrap = stack

    async def conversation(client: Client) -> None:
        await client.send(GET)
        assert b" %d " % status in await client.until(b"\r\n\r\n")

    talk(protocol, wrap(app), conversation)


@pytest.mark.parametrize("declared", [True, False])
def test_messages_that_are_not_awaited_one_by_one_keep_their_order(
    stack: tuple[Any, Any], declared: bool
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        sent = [start(send, length=8 if declared else None), body(send, b"abc", more=True),
                body(send, b"defok")]  # fmt: skip
        await asyncio.gather(*map(asyncio.create_task, sent))

    answer = _answer(stack, app, end=b"ok" if declared else b"ok\r\n0\r\n\r\n")
    assert answer.index(b"abc") < answer.index(b"defok")


def test_a_message_of_another_type_is_refused(stack: tuple[Any, Any]) -> None:
    told: list[BaseException] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, length=2)
        try:
            await send({"type": "http.response.bogus", "body": b"no"})
        except RuntimeError as error:
            told.append(error)
        await body(send, b"ok")

    assert b"no" not in _answer(stack, app).partition(b"\r\n\r\n")[2]
    assert len(told) == 1


def test_what_the_app_makes_of_its_headers_later_is_its_own(stack: tuple[Any, Any]) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"2"), (b"x", b"first")]
        message = {"type": "http.response.start", "status": 200, "headers": headers}
        await send(message)
        headers.append((b"y", b"late"))
        message.clear()
        await body(send, b"ok")

    answer = _answer(stack, app)
    assert b"x: first\r\n" in answer
    assert b"late" not in answer


@pytest.mark.parametrize("declared", [True, False])
def test_headers_may_be_any_iterable(stack: tuple[Any, Any], declared: bool) -> None:
    """As Sanic's, which are a generator."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"x", b"y"), *([(b"content-length", b"2")] if declared else [])]
        message = {"type": "http.response.start", "status": 200}
        await send({**message, "headers": (each for each in headers)})
        await body(send, b"ok")

    answer = _answer(stack, app, end=b"ok" if declared else b"ok\r\n0\r\n\r\n")
    assert b"x: y\r\n" in answer
    assert (b"content-length: 2\r\n" in answer) == declared


def test_a_second_response_is_refused_when_it_begins(stack: tuple[Any, Any]) -> None:
    told: list[BaseException] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await two_bytes(scope, receive, send)
        try:
            await two_bytes(scope, receive, send)
        except RuntimeError as error:
            told.append(error)

    _answer(stack, app)
    assert len(told) == 1


def test_a_response_that_does_not_wait_for_the_body_asks_for_none() -> None:
    """The head is the answer to Expect, held or not (RFC 9110, section 10.1.1)."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, length=2)
        listens = asyncio.ensure_future(receive())
        await asyncio.sleep(0)
        await body(send, b"ok")
        listens.cancel()

    request = b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n"

    async def conversation(client: Client) -> None:
        await client.send(request)
        assert b"100 Continue" not in await client.until(b"ok")

    talk(HttpToolsProtocol, app, conversation)


def test_a_head_behind_a_head_is_refused(stack: tuple[Any, Any]) -> None:
    told: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, length=2)
        for sending in (start(send, length=2), body(send, b"ok")):
            try:
                await sending
            except RuntimeError as error:
                told.append(str(error))

    protocol, wrap = stack

    async def conversation(client: Client) -> None:
        await client.send(GET)
        await client.until(b"\r\n\r\n")

    talk(protocol, wrap(app), conversation)
    assert told == ["Expected ASGI message 'http.response.body', but got 'http.response.start'."]


@pytest.mark.parametrize("headers", [None, 1, [(b"a",)], [b"abc"]])
def test_headers_that_are_none_are_refused_at_once(stack: tuple[Any, Any], headers: Any) -> None:
    refused: list[Exception] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        except (TypeError, ValueError) as error:
            refused.append(error)

    protocol, wrap = stack

    async def conversation(client: Client) -> None:
        await client.send(GET)
        await client.to_end()

    talk(protocol, wrap(app), conversation)
    assert len(refused) == 1


@pytest.mark.parametrize("ends", ["returns", "raises"])
def test_a_head_without_a_body_is_not_lost(ends: str, caplog: pytest.LogCaptureFixture) -> None:
    """Held until the app has ended: uvicorn tells of what is missing, or sends a 500."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, length=2)
        if ends == "raises":
            raise RuntimeError("of the app")

    async def conversation(client: Client) -> None:
        await client.send(GET)
        answer = await client.to_end()
        if ends == "returns":
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert "without completing response" in caplog.text
        else:
            assert answer.startswith(b"HTTP/1.1 500 ")
            assert "of the app" in caplog.text

    talk(HttpToolsProtocol, app, conversation)


def test_what_follows_a_held_head_is_uvicorns_to_refuse() -> None:
    told: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, length=2)
        for message in (response_start(200, []), response_body(b"ok"), response_body(b"ok")):
            try:
                await send(message)
            except RuntimeError as error:
                told.append(str(error))

    async def conversation(client: Client) -> None:
        await client.send(GET)
        await client.until(b"\r\n\r\nok")
        await client.send(HELLO)
        await client.until(b"hello")

    talk(HttpToolsProtocol, app, conversation)
    assert len(told) == 2
    assert "http.response.body" in told[0]
    assert "after response already completed" in told[1]
