"""gunicorn's own ASGI worker, sending with sendfile.

gunicorn's parsing, limits, logging, keep-alive and flow control stay as they are. Two things are
put between, as under uvicorn, where a response is more than a head and one message: its transport
is a CoalescingTransport, and the app's send() is that of a Response.

Theory of operation. gunicorn keeps the state of a response in its send() alone, which also counts
its bytes. So whatever is sent passes it: coalesced messages as one message, and a run of a file as
a stand-in that has a length and no bytes. gunicorn hands that to the protocol's `_send_body`, here
to ours, which says what stands before and behind it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Coroutine
from functools import partial
from typing import Any

from wsgifast.errors import WSGIFastError
from wsgifast.http import chunk_size_line, has_body
from wsgifast.imports import needs

from .exporting import observed
from .gunicorn_metrics import Exporting
from .idle_timer import IdleTimerLoop
from .messages import ASGIApp, Message, Receive, Scope, Send, response_body
from .middleware import ASGIFast
from .reads import read_into_buffer, read_plainly
from .sending import PROTOCOL_EXTENSIONS
from .transport import CoalescingTransport
from .uvicorn_response import Response

with needs("asgifast.workers", "gunicorn", "gunicorn"):
    import gunicorn
    from gunicorn.asgi.protocol import ASGIProtocol
    from gunicorn.workers import gasgi

__all__ = ["FastASGIWorker", "UnsupportedGunicorn"]

# The versions that the tests run over: the oldest, and the newest known.
OLDEST_GUNICORN, NEWEST_GUNICORN = "27.0.0", "27.0.1"


class UnsupportedGunicorn(WSGIFastError, ImportError):
    """This gunicorn's ASGI worker is built differently from those that asgifast knows."""

    def __init__(self, missing: str) -> None:
        super().__init__(
            f"asgifast.workers.FastASGIWorker does not fit gunicorn {gunicorn.__version__} "
            f"({missing}); it is tested with {OLDEST_GUNICORN} to {NEWEST_GUNICORN}: install one "
            "of these, or use gunicorn's own -k asgi"
        )


_USED = {
    "_arm_keepalive_timer", "_cancel_keepalive_timer", "_check_h1c_protocol_available",
    "_h1c_protocol_class", "_handle_websocket", "_http1_buffered", "_keepalive_timeout",
    "_pause_reading", "_resume_reading", "_send_body", "_setup_callback_parser",
    "connection_lost", "connection_made",
}  # fmt: skip
if missing := sorted(_USED - set(dir(ASGIProtocol))):
    raise UnsupportedGunicorn(f"ASGIProtocol has no {', '.join(missing)}")
if "last" not in inspect.signature(ASGIProtocol._send_body).parameters:
    raise UnsupportedGunicorn("ASGIProtocol._send_body takes no `last`")
if getattr(gasgi, "ASGIProtocol", None) is not ASGIProtocol:
    raise UnsupportedGunicorn("its worker does not take ASGIProtocol from its module")


def _prepare_parser() -> None:
    """Have gunicorn's parser in C used, where there is one.

    gunicorn looks for it when it is first asked to, and notes in the class that was asked that it
    is there: a subclass would note it for itself, and gunicorn, which asks ASGIProtocol, would do
    without. The parser keeps little of what comes behind a whole request, and gunicorn closes the
    connection where that was more. FastASGIProtocol counts it with what it holds, so all is kept.
    """
    protocol: Any = ASGIProtocol
    if protocol._check_h1c_protocol_available():
        parser = protocol._h1c_protocol_class
        if hasattr(parser, "remaining_truncated"):
            protocol._h1c_protocol_class = partial(parser, limit_remaining=0)


_prepare_parser()


class _Run(bytes):
    """Stands for a run of a file that gunicorn counts and frames, but does not see."""

    __class__ = bytes  # type: ignore[assignment] # gunicorn copies what is none
    size: int

    def __new__(cls, size: int) -> _Run:
        run = super().__new__(cls)
        run.size = size
        return run

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, key: Any) -> Any:
        # gunicorn cuts off what is more than was declared.
        raise RuntimeError("Response content longer than Content-Length")


class _Cycle:
    """A request as uvicorn's RequestResponseCycle has it: what Response looks at.

    Most responses are a head and one message of bytes, which gunicorn makes one write of: nothing
    is put between. Any other message makes a Response, which has all messages from then on, and
    until the body's end gunicorn writes to the CoalescingTransport.

    :ivar gunicorn_send: gunicorn's send() for this request.
    :ivar start: the head, as the app sent it.
    """

    __slots__ = (
        "disconnected_here", "gunicorn_send", "protocol", "response", "response_complete",
        "response_started", "scope", "start",
    )  # fmt: skip

    protocol: FastASGIProtocol
    scope: Scope
    gunicorn_send: Send
    start: Message | None
    response: _GunicornResponse | None
    response_started: bool
    response_complete: bool
    disconnected_here: bool

    @property
    def flow(self) -> Any:
        return self.protocol._flow_control

    @property
    def disconnected(self) -> bool:
        return self.disconnected_here or bool(self.protocol._closed)

    @disconnected.setter
    def disconnected(self, value: bool) -> None:
        self.disconnected_here = value

    def take(self, message: Message) -> Awaitable[None]:
        """The send() that the app is given."""
        if self.response is None:
            kind = message["type"]
            if kind == "http.response.body":
                if "more_body" not in message or not message["more_body"]:
                    self.response_complete = True
                    return self.gunicorn_send(message)
            elif kind == "http.response.start" and type(message.get("headers")) is list:
                self.start = message
                return self.gunicorn_send(message)
            self.response = self._look()
        return self.response.send(message)

    def _look(self) -> _GunicornResponse:
        protocol = self.protocol
        # gunicorn holds a head that it took until the body's first bytes.
        self.response_started = self.response_complete or protocol._response_buffer is not None
        self.disconnected_here = False
        if not self.response_complete:
            protocol.transport = protocol.coalescing
        return _GunicornResponse(self)

    async def send(self, message: Message) -> None:
        if self.disconnected:
            return
        await self.gunicorn_send(message)
        kind = message["type"]
        if kind == "http.response.start":
            self.response_started = True
            self.start = message
        elif kind == "http.response.body" and not message.get("more_body"):
            self.response_complete = True
            self.protocol.write_plainly()


class _GunicornResponse(Response):
    __slots__ = ()

    def __init__(self, cycle: _Cycle) -> None:
        super().__init__(cycle, cycle.protocol.coalescing)
        if cycle.start is not None:
            self._headers = cycle.start["headers"]

    def _is_bodyless(self) -> bool:
        cycle = self._cycle
        return not has_body(cycle.scope["method"], cycle.start["status"])

    def _frame(self, data: bytes) -> bytes:
        _begin(self._cycle.send(response_body(data, more_body=True)))
        return b""  # gunicorn has written it

    def _announce(self, size: int) -> tuple[bytes, bytes]:
        protocol = self._cycle.protocol
        framing = b"", b""

        def framed(body: bytes, chunked: bool = False, *more: Any) -> None:
            nonlocal framing
            head = protocol._response_buffer or b""
            protocol._response_buffer = None
            framing = (head + chunk_size_line(size), b"\r\n") if chunked else (head, b"")

        protocol._send_body = framed
        try:
            _begin(self._cycle.send(response_body(_Run(size), more_body=True)))
        finally:
            del protocol._send_body
        return framing


def _begin(sending: Coroutine[Any, Any, None]) -> None:
    """Run gunicorn's send() as far as it does not wait: the last that it does is to wait for room,
    as the next message will."""
    try:
        sending.send(None)
    except StopIteration:
        return
    sending.close()


def _answering(app: ASGIApp, protocol: FastASGIProtocol) -> ASGIApp:
    """The app as the protocol calls it: with our send() in place of gunicorn's."""
    # For HTTP/2, whose frames are gunicorn's: files are read from the page cache.
    framed = ASGIFast(app, ranges=False, conditional=False)

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        if scope["http_version"] == "2":
            await framed(scope, receive, send)
            return
        if offered := scope.get("extensions"):
            scope["extensions"] = {**offered, **PROTOCOL_EXTENSIONS}
        else:
            scope["extensions"] = PROTOCOL_EXTENSIONS.copy()
        # Attribute by attribute: a constructor is a call more, for every request.
        cycle = _Cycle()
        cycle.protocol = protocol
        cycle.scope = scope
        cycle.gunicorn_send = send
        cycle.start = cycle.response = None
        cycle.response_complete = False
        try:
            await app(scope, receive, cycle.take)
        except Exception:
            if cycle.response is not None:
                # What is in our hands does not fail with what the app does next.
                await cycle.response.sent()
            raise
        if cycle.response is not None:
            await cycle.response.sent()
            cycle.response = None  # they know each other

    return answer


class _Ready:
    """The asyncio.Event by which a connection of gunicorn's waits for its next request.

    One task waits, which needs no queue of waiters and no coroutine, for every request.
    """

    __slots__ = ("_is_set", "_loop", "_waiter")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def clear(self) -> None:
        self._is_set = False

    def wait(self) -> asyncio.Future[None]:
        self._waiter = waiter = self._loop.create_future()
        if self._is_set:
            self.set()
        return waiter


class FastASGIProtocol(ASGIProtocol):  # type: ignore[misc, unused-ignore]
    """gunicorn's ASGIProtocol with sendfile."""

    coalescing: CoalescingTransport
    _response_buffer: bytes | None

    def __init__(self, worker: Any) -> None:
        super().__init__(worker)
        self._idle_timer = IdleTimerLoop(worker.loop)
        self._cancel_keepalive_timer = self._idle_timer.cancel
        self.app: Any = _answering(observed(worker.asgi), self)

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.coalescing = CoalescingTransport(transport, self.worker.loop)
        super().connection_made(self.coalescing)
        if self._callback_parser is not None:  # not HTTP/2
            self.write_plainly()

    def _setup_callback_parser(self) -> None:
        """The first that gunicorn does when it has made its Event."""
        super()._setup_callback_parser()
        self._request_ready = _Ready(self.worker.loop)

    def write_plainly(self) -> None:
        """Have gunicorn write to the real transport: what it writes of a response is one piece."""
        self.coalescing.flush()
        self.transport = self.coalescing.real

    def connection_lost(self, exc: Exception | None) -> None:
        self.coalescing.lost()
        super().connection_lost(exc)
        self._idle_timer.stop()

    def _arm_keepalive_timer(self) -> None:
        if self._keepalive > 0:
            self._idle_timer.arm(self._keepalive, self._keepalive_timeout)

    def resume_writing(self) -> None:
        super().resume_writing()
        self.coalescing.drained()

    def _http1_buffered(self) -> int:
        """What the app has not received, and what came behind its request, whichever the parser."""
        held = 0 if self._body_receiver is None else self._body_receiver.buffered
        parser = self._callback_parser
        return held + len(parser.remaining()) if parser.is_complete else held

    def _pause_reading(self) -> None:
        """The client sends faster than the app receives."""
        super()._pause_reading()
        if self._reading_paused and self._callback_parser is not None:  # not HTTP/2
            read_into_buffer(self.coalescing.real)

    async def _handle_websocket(self, *args: Any) -> None:
        # gunicorn hands the connection over to its WebSocket protocol, which needs none of this.
        self.coalescing.flush()
        self.transport = self.writer = self.coalescing.real
        read_plainly(self.coalescing.real)
        await super()._handle_websocket(*args)


class FastASGIWorker(Exporting, gasgi.ASGIWorker):  # type: ignore[misc, unused-ignore]
    """gunicorn's ASGI worker (`-k asgi`) with files sent by sendfile over HTTP/1."""

    def init_process(self) -> None:
        # The worker, alone in its process, asks its module for the protocol.
        gasgi.ASGIProtocol = FastASGIProtocol
        super().init_process()
