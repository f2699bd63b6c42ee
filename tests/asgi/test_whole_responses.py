"""Responses of a head and one message: in one write, and otherwise as uvicorn's send() has them."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvicorn
from asgifast import ASGIFast, whole_senders
from asgifast.messages import Message, Receive, Scope, Send, response_start
from asgifast.middleware import _Exchange
from asgifast.uvicorn import HttpToolsProtocol, whole_httptools
from asgifast.uvicorn.protocol import NEWEST_UVICORN, SimpleResponse
from asgifast.uvicorn.whole_responses import sample, sends_alike
from asgifast.whole_senders import whole_sender_for
from hypothesis import example, given
from hypothesis import strategies as st
from uvicorn.protocols.http import httptools_impl

from .protocols import (
    GET,
    Client,
    _no_descriptor_is_left,
    body,
    is_sent_whole,
    serving,
    start,
    talk,
    two_bytes,
)
from .support import scope_of

__all__ = ["_no_descriptor_is_left"]


def test_the_newest_known_uvicorn_is_stood_for() -> None:
    if uvicorn.__version__ == NEWEST_UVICORN:
        assert whole_httptools.whole_sender is not None


def _modules() -> Iterator[Any]:
    """Those that send whole responses, uvicorn's of each, and what makes a connection."""
    yield pytest.param((whole_httptools, httptools_impl, lambda: None), id="httptools")
    try:
        from asgifast.uvicorn import whole_zttp
        from uvicorn.protocols.http import zttp_impl
    except ImportError as error:
        skipped = pytest.mark.skip(reason=f"{error}: pip install 'wsgifast[zttp]'")
        yield pytest.param(None, id="zttp", marks=skipped)
    else:
        yield pytest.param((whole_zttp, zttp_impl, whole_zttp._connection), id="zttp")


class Sides:
    """uvicorn's protocol, and what sends for it."""

    def __init__(self, module: Any, uvicorns: Any, connection: Callable[[], Any]) -> None:
        self.cycle_class = uvicorns.RequestResponseCycle
        self.send_whole = module.send_whole
        self.connection = connection
        assert module.whole_sender is module.send_whole

    def ours(self, start: Message, body: bytes, **given: Any) -> Any:
        return sample(self.cycle_class, self.send_whole, start, body,
                      connection=self.connection(), **given)  # fmt: skip

    def uvicorns(self, start: Message, body: bytes, **given: Any) -> Any:
        return sample(self.cycle_class, None, start, body,
                      connection=self.connection(), **given)  # fmt: skip

    def sends_alike(self) -> bool:
        return sends_alike(self.cycle_class, self.send_whole, self.connection)


@pytest.fixture(params=_modules(), scope="module")
def sides(request: pytest.FixtureRequest) -> Sides:
    return Sides(*request.param)


NAMES = st.sampled_from([
    b"content-type", b"Content-Type", b"set-cookie", b"x", b"connection", b"transfer-encoding",
    b"content-length", b"Content-Length", b"bad name", b"",
]) | st.binary(max_size=5)  # fmt: skip
VALUES = st.sampled_from([b"3", b"03", b"+3", b"close", b"chunked", b"a\r\nb: c"]) | st.binary()
HEADERS = st.lists(
    st.tuples(NAMES, VALUES)
    | st.sampled_from([(b"content-length", b"3"), (b"content-length", b"0")])
    | st.just(["x", b"y"]),
    max_size=5,
)


@is_sent_whole
@given(
    headers=HEADERS,
    own=st.lists(st.tuples(NAMES, VALUES), max_size=2),
    status=st.sampled_from([200, 204, 205, 304, 404, 100, 599, 600, 7]),
    body=st.sampled_from([b"abc", b"ab", b"abcd", b"", bytes(70_000)]),
    keep_alive=st.booleans(),
    more_body=st.booleans(),
)
@example([(b"content-length", b"3"), (b"set-cookie", b"a=b")], [], 200, b"abc", True, False)
@example([(b"content-length", b"3")], [], 200, b"abc", True, True)
@example([], [], 200, b"abc", True, False)
@example([], [], 200, b"", False, False)
@example([], [], 200, b"abc", True, True)
@example(
    [(b"Content-Type", b"a"), (b"content-length", b"3")],
    [(b"date", b"now")], 404, b"abc", False, False,
)  # fmt: skip
def test_what_is_sent_is_what_uvicorn_sends(
    sides: Sides, headers: list[Any], own: list[Any], status: int, body: bytes,
    keep_alive: bool, more_body: bool,
) -> None:  # fmt: skip
    given: Any = {"own_headers": own, "keep_alive": keep_alive, "more_body": more_body}
    start = {"type": "http.response.start", "status": status, "headers": headers}
    try:
        ours = sides.ours(start, body, **given)
    except Exception as error:  # noqa: BLE001 - zttp's, of what it cannot send
        with pytest.raises(type(error)):
            sides.uvicorns(start, body, **given)
        return
    if ours is not None:
        assert ours == sides.uvicorns(start, body, **given)


@is_sent_whole
@pytest.mark.parametrize(
    "headers",
    [
        [(b"content-length", b"4")],
        [(b"content-length", b"3"), (b"content-length", b"3")],
        [(b"content-length", b"3"), (b"connection", b"close")],
        [(b"content-length", b"3"), (b"transfer-encoding", b"chunked")],
        [(b"content-length", b"3"), (b"a b", b"c")],
        [(b"content-length", b"3"), (b"a", b"b\r\nc: d")],
        [(b"content-length", b"3"), ["a", "b"]],
        [(b"content-length", b"3"), (b"a",)],
    ],
)
def test_what_is_not_plain_is_left_to_uvicorn(headers: list[Any]) -> None:
    start = {"type": "http.response.start", "status": 200, "headers": headers}
    sides = Sides(whole_httptools, httptools_impl, lambda: None)
    assert sides.ours(start, b"abc") is None


@is_sent_whole
def test_neither_cookies_nor_long_values_are_kept_and_the_others_not_for_ever() -> None:
    sides = Sides(whole_httptools, httptools_impl, lambda: None)

    def send(name: bytes, value: bytes) -> None:
        head = response_start(200, [(name, value), (b"content-length", b"2")])
        assert sides.ours(head, b"ok") == sides.uvicorns(head, b"ok")

    kept = whole_httptools._lines
    kept.clear()
    send(b"set-cookie", b"secret")
    send(b"Set-Cookie", b"secret")
    send(b"x", b"long" * 100)
    assert not kept
    for number in range(2 * whole_httptools._MAX_LINES):
        send(b"x", b"%d" % number)
    assert 0 < len(kept) <= whole_httptools._MAX_LINES


@is_sent_whole
def test_another_uvicorn_sends_for_itself(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = sides.cycle_class.send

    async def counts(self: Any, message: Any) -> None:
        self.sent = 1
        await sent(self, message)

    async def counts_chunks(self: Any, message: Any) -> None:
        await sent(self, message)
        if self.chunked_encoding and self.scope["http_version"] == "1.0":
            self.sent = 1

    async def waits(self: Any, message: Any) -> None:
        await asyncio.sleep(0)

    def no_coroutine(self: Any, message: Any) -> None: ...

    assert sides.sends_alike()
    for another in (counts, counts_chunks, waits, no_coroutine):
        monkeypatch.setattr(sides.cycle_class, "send", another)
        assert not sides.sends_alike()


@is_sent_whole
def test_only_uvicorns_own_send_is_stood_for(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    cycle = sides.cycle_class
    own = object.__new__(cycle)
    assert whole_sender_for(own.send) is not None

    @functools.wraps(cycle.send)
    async def traced(self: Any, message: Message) -> None: ...

    async def patched(self: Any, message: Message) -> None: ...

    class Proxy:
        def __init__(self, send: Any) -> None:
            self._send = send

        def __getattr__(self, name: str) -> Any:
            return getattr(self._send, name)

    class Sub(cycle):  # type: ignore[misc, valid-type]
        pass

    assert whole_sender_for(functools.partial(patched, None)) is None
    assert whole_sender_for(Proxy(own.send)) is None  # type: ignore[arg-type]
    assert whole_sender_for(object.__new__(Sub).send) is None
    for other in (traced, patched):
        monkeypatch.setattr(cycle, "send", other)
        assert whole_sender_for(own.send) is None


@is_sent_whole
def test_a_uvicorn_without_what_is_used_sends_for_itself(
    sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str, package: str | None = None) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(whole_senders, "_known", {})
    monkeypatch.setattr(whole_senders, "import_module", missing)
    assert whole_sender_for(object.__new__(sides.cycle_class).send) is None


class _Writes:
    """Counts what a protocol writes to the loop's transport."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        if data:
            self.written.append(bytes(data))
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


async def _two_bytes_and_an_end(scope: Scope, receive: Receive, send: Send) -> None:
    """As Starlette's BaseHTTPMiddleware passes on a response."""
    await start(send, length=2)
    await body(send, b"ok", more=True)
    await body(send, b"")


async def _two_bytes_of_unknown_length(scope: Scope, receive: Receive, send: Send) -> None:
    """As Sanic answers."""
    await send(response_start(200, []))
    await body(send, b"ok")


@is_sent_whole
@pytest.mark.parametrize("app", [two_bytes, _two_bytes_and_an_end, _two_bytes_of_unknown_length])
@pytest.mark.parametrize("wrap", [lambda app: app, ASGIFast], ids=["app", "ASGIFast"])
@pytest.mark.parametrize(
    "protocol", [httptools_impl.HttpToolsProtocol, HttpToolsProtocol], ids=["uvicorn's", "ours"]
)
def test_a_head_and_its_body_leave_in_one_write(
    protocol: Any, wrap: Any, app: Any, caplog: pytest.LogCaptureFixture
) -> None:
    made: list[_Writes] = []
    is_chunked = app is _two_bytes_of_unknown_length
    end = b"\r\n\r\n2\r\nok\r\n0\r\n\r\n" if is_chunked else b"\r\n\r\nok"

    class Counted(protocol):  # type: ignore[misc]
        def connection_made(self, transport: asyncio.Transport) -> None:
            made.append(_Writes(transport))
            super().connection_made(made[0])

    async def conversation(client: Client) -> None:
        for request in (GET, GET, b"GET /?a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"):
            await client.send(request)
            assert (await client.until(end)).startswith(b"HTTP/1.1 200 OK\r\n")
        assert await client.receive() == b""

    async def run() -> None:
        async with serving(Counted, wrap(app)) as client:
            await asyncio.wait_for(conversation(client), 60)

    with caplog.at_level(logging.INFO, "uvicorn.access"):
        asyncio.run(run())
    are_two = protocol is httptools_impl.HttpToolsProtocol and wrap is not ASGIFast
    assert len(made[0].written) == (6 if are_two else 3)
    access = [r.getMessage() for r in caplog.records if r.name == "uvicorn.access"]
    assert [line.split(" - ")[1] for line in access] == [
        '"GET / HTTP/1.1" 200', '"GET / HTTP/1.1" 200', '"GET /?a HTTP/1.1" 200',
    ]  # fmt: skip


@is_sent_whole
@pytest.mark.parametrize("app", [two_bytes, _two_bytes_and_an_end])
def test_a_plain_response_needs_little(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No message of it is examined, none makes a Response, and both leave at once."""
    monkeypatch.setattr(_Exchange, "_examine", pytest.fail)
    monkeypatch.setattr(HttpToolsProtocol, "_response_class", pytest.fail)
    given: list[str] = []
    passed_on = SimpleResponse._send

    async def noted(self: Any, message: Message) -> None:
        given.append(message["type"])
        await passed_on(self, message)

    monkeypatch.setattr(SimpleResponse, "_send", noted)

    async def conversation(client: Client) -> None:
        for _ in range(2):
            await client.send(GET)
            await client.until(b"ok")

    talk(HttpToolsProtocol, ASGIFast(app), conversation)
    assert given == ["http.response.body"] * (2 if app is _two_bytes_and_an_end else 0)


def test_a_head_that_the_server_refuses_is_not_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """zttp makes the head, and may raise."""
    sent: list[Message] = []

    class Cycle:
        async def send(self, message: Message) -> None:
            sent.append(message)

        def refuse(self, *messages: object) -> bool:
            raise ValueError("refused")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, length=2)
        with pytest.raises(ValueError, match="refused"):
            await body(send, b"ok")

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    monkeypatch.setattr(whole_senders, "_known", {})
    whole_senders.add_sender(Cycle, Cycle.send, Cycle.refuse)
    asyncio.run(ASGIFast(app)(scope_of(), receive, Cycle().send))
    assert not sent
