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
from asgifast.messages import Message, Receive, Scope, Send, response_body, response_start
from asgifast.middleware import _Exchange
from asgifast.uvicorn import HttpToolsProtocol, whole_httptools
from asgifast.uvicorn.protocol import NEWEST_UVICORN, SimpleResponse
from asgifast.uvicorn.whole_responses import sample, sends_alike
from asgifast.whole_senders import whole_sender_for
from hypothesis import example, given
from hypothesis import strategies as st
from uvicorn.protocols.http import httptools_impl

from .protocols import HELLO, Client, _no_descriptor_is_left, body, serving, start, talk
from .support import scope_of

__all__ = ["_no_descriptor_is_left"]

is_sent_whole = pytest.mark.skipif(
    whole_httptools.whole_sender is None, reason="this uvicorn's send() is another one"
)


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


GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
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


async def _two_bytes(scope: Scope, receive: Receive, send: Send) -> None:
    await start(send, length=2)
    await body(send, b"ok")


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
@pytest.mark.parametrize("app", [_two_bytes, _two_bytes_and_an_end, _two_bytes_of_unknown_length])
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
@pytest.mark.parametrize("app", [_two_bytes, _two_bytes_and_an_end])
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


# What apps do with send(), under ASGIFast on uvicorn's protocols, and under ours.
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
        await wrap(_two_bytes)({**scope, "method": method}, receive, send)

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
        await _two_bytes(scope, receive, send)
        try:
            await _two_bytes(scope, receive, send)
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
