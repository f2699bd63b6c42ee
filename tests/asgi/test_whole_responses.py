"""send_whole() sends a small response in one write. It otherwise acts like uvicorn's send()."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import re
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from asgifast import ASGIFast, whole_responses
from asgifast.exchange import Exchange
from asgifast.messages import Message, Receive, Scope, Send, response_body, response_start
from asgifast.protocols.queue_wire import QueueWire
from asgifast.uvicorn import HttpToolsProtocol
from asgifast.whole_responses import KNOWN_SENDS, digest_of_send, send_whole, whole_sender_for
from hypothesis import example, given
from hypothesis import strategies as st
from uvicorn.protocols.http import httptools_impl

from tests.support.calls import recorded
from wsgifast.hosts import UVICORN

from .protocols import GET, Client, body, is_sent_whole, serving, start, two_bytes
from .support import no_body, scope_of
from .transports import Recorded

pytestmark = pytest.mark.usefixtures("no_descriptor_is_left")

# Typed as Any because the tests pass arguments that its types do not allow.
RequestResponseCycle: Any = httptools_impl.RequestResponseCycle


def _uvicorns_send() -> Any:
    return object.__new__(RequestResponseCycle).send


@pytest.fixture
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """As before the first response."""
    monkeypatch.setattr(whole_responses, "_known_senders", {})
    whole_responses._log_unknown.cache_clear()


def test_newest_uvicorn_has_a_known_send() -> None:
    (known,) = [digest for digest, versions in KNOWN_SENDS.items() if UVICORN.newest in versions]
    if uvicorn.__version__ == UVICORN.newest:
        assert digest_of_send(httptools_impl) == known
        assert whole_sender_for(_uvicorns_send()) is send_whole


@is_sent_whole
@pytest.mark.usefixtures("nothing_known")
def test_send_is_known_whatever_the_version_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvicorn, "__version__", "0.99.1")
    assert whole_sender_for(_uvicorns_send()) is send_whole


@is_sent_whole
@pytest.mark.usefixtures("nothing_known")
def test_send_with_another_pattern_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(httptools_impl, "HEADER_RE", re.compile(b"[^a-z]"))
    assert whole_sender_for(_uvicorns_send()) is None


@pytest.mark.usefixtures("nothing_known")
@pytest.mark.parametrize("protocol", [httptools_impl.HttpToolsProtocol, HttpToolsProtocol])
async def test_unknown_uvicorn_is_logged_once(
    protocol: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(uvicorn, "__version__", "0.99.1")
    monkeypatch.setattr(whole_responses, "KNOWN_SENDS", {"another": ("0.99.0",)})

    for app in (two_bytes, two_bytes):
        async with serving(protocol, ASGIFast(app)) as client:
            for _ in range(3):
                await client.send(GET)
                await client.until(b"\r\n\r\nok")
    logged = [r for r in caplog.records if "does not know" in r.getMessage()]
    assert [(r.name, r.levelname, r.getMessage()) for r in logged] == [
        (
            "uvicorn.error", "WARNING",
            "asgifast does not know the send() of uvicorn 0.99.1, and uses it for small responses. "
            "That is slower than with uvicorn 0.99.0",
        )
    ]  # fmt: skip


@pytest.mark.usefixtures("nothing_known")
@pytest.mark.parametrize("module", ["h11_impl", "zttp_impl", "zttp_h2_impl"])
def test_other_uvicorn_protocols_send_without_a_log(
    module: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    uvicorns = pytest.importorskip(f"uvicorn.protocols.http.{module}", exc_type=ImportError)
    monkeypatch.setattr(uvicorn, "__version__", "0.99.1")
    assert whole_sender_for(object.__new__(uvicorns.RequestResponseCycle).send) is None
    assert not caplog.records


def _run(sending: Any) -> None:
    """Run a coroutine that does not wait."""
    with pytest.raises(StopIteration):
        sending.send(None)


def _sample(
    is_ours: bool, start: Message, body: bytes, *, more_body: bool = False,
    http_version: str = "1.1", keep_alive: bool = True,
    own_headers: Any = ((b"server", b"uvicorn"),),
) -> tuple[object, ...] | None:  # fmt: skip
    """Send a response. Return the bytes written, the calls made, and the state of the cycle.

    :param is_ours: whether send_whole() sends it. Otherwise uvicorn's send() does, and may raise.
    :param more_body: whether the end is a separate message, which uvicorn sends.
    :returns: None if send_whole() does not send it, and has changed nothing.
    """
    calls: list[tuple[object, ...]] = []
    written: list[bytes] = []
    given: dict[str, Any] = {
        "scope": {
            "method": "GET", "path": "/", "query_string": b"a=b", "http_version": http_version,
            "client": ("192.0.2.1", 1), "headers": [(b"connection", b"close")],
        },
        "transport": SimpleNamespace(write=written.append, close=lambda: calls.append(("close",))),
        "flow": SimpleNamespace(write_paused=False),
        "access_logger": SimpleNamespace(info=lambda *line: calls.append(line)),
        "access_log": True,
        "default_headers": list(own_headers),
        "message_event": SimpleNamespace(set=lambda: calls.append(("set",))),
        "keep_alive": keep_alive,
        "on_response": lambda: calls.append(("on_response",)),
    }  # fmt: skip
    names = inspect.signature(RequestResponseCycle).parameters
    cycle = RequestResponseCycle(**{name: given.get(name) for name in names})
    before = dict(vars(cycle))
    message = response_body(body, more_body=more_body)
    if not is_ours:
        _run(cycle.send(start))
        _run(cycle.send(message))
    elif not send_whole(cycle, start, message):
        assert (written, calls, vars(cycle)) == ([], [], before)
        return None
    found: tuple[object, ...] = ()
    for ends in (True, False) if more_body else (False,):
        state = {name: value for name, value in vars(cycle).items() if name not in given}
        found += b"".join(written), calls.copy(), state, cycle.keep_alive
        if ends:
            _run(cycle.send(response_body()))
    return found


_CHUNKED = [(b"Content-Type", b"text/plain")]
_DECLARED = [*_CHUNKED, (b"content-length", b"2")]


@is_sent_whole
@pytest.mark.parametrize(
    ("status", "headers", "http_version", "keep_alive", "more_body"),
    [
        (200, _DECLARED, "1.1", True, False),
        (404, _DECLARED, "1.1", False, False),
        (200, _DECLARED, "1.0", False, False),
        (200, _DECLARED, "1.1", True, True),
        (404, _DECLARED, "1.1", False, True),
        (200, _CHUNKED, "1.1", True, False),
        (404, _CHUNKED, "1.1", False, False),
        (200, _CHUNKED, "1.0", False, False),
    ],
)
def test_plain_response_is_whole_like_uvicorns(
    status: int, headers: Any, http_version: str, keep_alive: bool, more_body: bool
) -> None:
    start = response_start(status, headers)
    given: Any = {"http_version": http_version, "keep_alive": keep_alive, "more_body": more_body}
    ours = _sample(True, start, b"ok", **given)
    assert ours is not None
    assert ours == _sample(False, start, b"ok", **given)


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
def test_any_whole_response_equals_uvicorns(
    headers: list[Any], own: list[Any], status: int, body: bytes, keep_alive: bool, more_body: bool
) -> None:  # fmt: skip
    given: Any = {"own_headers": own, "keep_alive": keep_alive, "more_body": more_body}
    start = {"type": "http.response.start", "status": status, "headers": headers}
    ours = _sample(True, start, body, **given)
    if ours is not None:
        assert ours == _sample(False, start, body, **given)


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
def test_response_that_is_not_plain_is_not_sent_whole(headers: list[Any]) -> None:
    start = {"type": "http.response.start", "status": 200, "headers": headers}
    assert _sample(True, start, b"abc") is None


@is_sent_whole
def test_cached_header_lines_are_bounded_no_cookies() -> None:
    def send(name: bytes, value: bytes) -> None:
        start_message = response_start(200, [(name, value), (b"content-length", b"2")])
        assert _sample(True, start_message, b"ok") == _sample(False, start_message, b"ok")

    cached = whole_responses._lines
    cached.clear()
    send(b"set-cookie", b"secret")
    send(b"Set-Cookie", b"secret")
    send(b"x", b"long" * 100)
    assert not cached
    for number in range(2 * whole_responses._MAX_LINES):
        send(b"x", b"%d" % number)
    assert 0 < len(cached) <= whole_responses._MAX_LINES


@is_sent_whole
def test_only_uvicorns_own_send_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    cycle = RequestResponseCycle
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
@pytest.mark.usefixtures("nothing_known")
def test_cycle_from_another_module_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, httptools_impl.__name__)
    assert whole_sender_for(_uvicorns_send()) is None


async def _two_bytes_and_an_end(scope: Scope, receive: Receive, send: Send) -> None:
    """Starlette's BaseHTTPMiddleware passes on responses in this form."""
    await start(send, length=2)
    await body(send, b"ok", more=True)
    await body(send, b"")


async def _two_bytes_of_unknown_length(scope: Scope, receive: Receive, send: Send) -> None:
    """Sanic sends such responses."""
    await send(response_start(200, []))
    await body(send, b"ok")


@is_sent_whole
@pytest.mark.parametrize("app", [two_bytes, _two_bytes_and_an_end, _two_bytes_of_unknown_length])
@pytest.mark.parametrize("wrap", [lambda app: app, ASGIFast], ids=["app", "ASGIFast"])
@pytest.mark.parametrize(
    "protocol", [httptools_impl.HttpToolsProtocol, HttpToolsProtocol], ids=["uvicorn's", "ours"]
)
async def test_headers_and_their_body_leave_in_one_write(
    protocol: Any, wrap: Any, app: Any, caplog: pytest.LogCaptureFixture
) -> None:
    made: list[Recorded] = []
    is_chunked = app is _two_bytes_of_unknown_length
    end = b"\r\n\r\n2\r\nok\r\n0\r\n\r\n" if is_chunked else b"\r\n\r\nok"

    class Counted(protocol):  # type: ignore[misc]
        def connection_made(self, transport: asyncio.Transport) -> None:
            made.append(Recorded(transport))
            super().connection_made(made[0])

    async def conversation(client: Client) -> None:
        for request in (GET, GET, b"GET /?a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"):
            await client.send(request)
            assert (await client.until(end)).startswith(b"HTTP/1.1 200 OK\r\n")
        assert await client.receive() == b""

    with caplog.at_level(logging.INFO, "uvicorn.access"):
        async with serving(Counted, wrap(app)) as client:
            await asyncio.wait_for(conversation(client), 60)
    are_two = protocol is httptools_impl.HttpToolsProtocol and wrap is not ASGIFast
    assert len(made[0].writes) == (6 if are_two else 3)
    access = [r.getMessage() for r in caplog.records if r.name == "uvicorn.access"]
    assert [line.split(" - ")[1] for line in access] == [
        '"GET / HTTP/1.1" 200', '"GET / HTTP/1.1" 200', '"GET /?a HTTP/1.1" 200',
    ]  # fmt: skip


@is_sent_whole
@pytest.mark.parametrize("app", [two_bytes, _two_bytes_and_an_end])
async def test_plain_response_is_not_examined(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its messages are not examined or queued. Both are sent at once."""
    monkeypatch.setattr(Exchange, "_examine", pytest.fail)
    given = recorded(monkeypatch, QueueWire, "send", lambda self, message: message["type"])
    async with serving(HttpToolsProtocol, ASGIFast(app)) as client:
        for _ in range(2):
            await client.send(GET)
            await client.until(b"ok")
    assert given == ["http.response.body"] * (2 if app is _two_bytes_and_an_end else 0)


def test_headers_refused_by_server_are_not_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
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

    monkeypatch.setattr(whole_responses, "_known_senders", {Cycle: (Cycle.send, Cycle.refuse)})
    asyncio.run(ASGIFast(app)(scope_of(), no_body, Cycle().send))
    assert not sent
