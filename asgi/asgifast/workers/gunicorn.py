"""gunicorn's own ASGI worker, with sendfile.

gunicorn's parsing, limits, logging, keep-alive and flow control stay as they are. For a response of
more than a head and one message two things are different, as under uvicorn: its transport is a
CoalescingTransport, and the app's send() is that of a Response.

Theory of operation. The state of a response, its byte count included, is in the local variables of
gunicorn's send(). So everything is sent through it: coalesced messages as one message, and a range
of a file as an object that has a length and no bytes. gunicorn passes that object to the protocol's
`_send_body`, which here returns the framing before and after it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Coroutine
from functools import partial
from typing import Any, ClassVar

from wsgifast.errors import WSGIFastError
from wsgifast.http.framing import chunk_size_line, has_body
from wsgifast.imports import needs
from wsgifast.sockets import avoid_pacing

from ..exporting import ExportingWorker, instrumented
from ..extensions import PROTOCOL_EXTENSIONS
from ..messages import ASGIApp, Message, Receive, Scope, Send, response_body
from ..middleware import ASGIFast
from ..protocols.idle_timer import IdleTimerLoop
from ..protocols.read_buffer import read_into_buffer, read_plainly
from ..protocols.response import Response
from ..protocols.transport import CoalescingTransport

with needs("asgifast.workers", "gunicorn", "gunicorn"):
    import gunicorn
    from gunicorn.asgi.protocol import ASGIProtocol
    from gunicorn.workers import gasgi

# Tested versions: the oldest supported, and the newest known.
OLDEST_GUNICORN, NEWEST_GUNICORN = "27.0.0", "27.0.1"


class UnsupportedGunicorn(WSGIFastError, ImportError):
    """This gunicorn's internals differ from those that asgifast.workers uses."""

    def __init__(self, missing: str) -> None:
        super().__init__(
            f"asgifast.workers.FastASGIWorker does not fit gunicorn {gunicorn.__version__} "
            f"({missing}); it is tested with {OLDEST_GUNICORN} to {NEWEST_GUNICORN}: install one "
            "of these, or use gunicorn's own -k asgi"
        )


_USED = {
    "_arm_keepalive_timer", "_cancel_keepalive_timer", "_check_h1c_protocol_available",
    "_close_transport", "_h1c_protocol_class", "_handle_websocket", "_http1_buffered",
    "_keepalive_timeout", "_pause_reading", "_resume_reading", "_send_body",
    "_setup_callback_parser", "connection_lost", "connection_made",
}  # fmt: skip
if missing := sorted(_USED - set(dir(ASGIProtocol))):
    raise UnsupportedGunicorn(f"ASGIProtocol has no {', '.join(missing)}")
if "last" not in inspect.signature(ASGIProtocol._send_body).parameters:
    raise UnsupportedGunicorn("ASGIProtocol._send_body takes no `last`")
if getattr(gasgi, "ASGIProtocol", None) is not ASGIProtocol:
    raise UnsupportedGunicorn("its worker does not take ASGIProtocol from its module")


def _prepare_parser() -> None:
    """Enable gunicorn's parser in C, if it is installed.

    gunicorn imports it on first use and caches the result in the class: a subclass would cache it
    for itself, and gunicorn, which reads ASGIProtocol's, would not use it. The parser keeps little
    of what follows a complete request, and gunicorn closes the connection if there was more. Here
    it keeps all of it, which FastASGIProtocol counts against the read limit.
    """
    protocol: Any = ASGIProtocol
    if protocol._check_h1c_protocol_available():
        parser = protocol._h1c_protocol_class
        if hasattr(parser, "remaining_truncated"):
            protocol._h1c_protocol_class = partial(parser, limit_remaining=0)


_prepare_parser()


class _FileRange(bytes):
    """Stands for a range of a file that gunicorn counts and frames, but does not see."""

    __class__ = bytes  # type: ignore[assignment] # gunicorn copies any other type
    size: int

    def __new__(cls, size: int) -> _FileRange:
        run = super().__new__(cls)
        run.size = size
        return run

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, key: Any) -> Any:
        # gunicorn truncates a body that is longer than declared.
        raise RuntimeError("Response content longer than Content-Length")


class _Cycle:
    """One request, with the attributes of uvicorn's RequestResponseCycle that Response uses.

    Most responses are a head and one message of bytes, which gunicorn sends in one write: they are
    passed on. Any other message makes a Response, which handles it and all that follow; until the
    body's end gunicorn then writes to the CoalescingTransport.

    :ivar gunicorn_send: gunicorn's send() for this request.
    :ivar start: the head, as the app sent it.
    """

    __slots__ = (
        "gunicorn_send", "protocol", "response", "response_complete", "response_started", "scope",
        "start",
    )  # fmt: skip

    protocol: FastASGIProtocol
    scope: Scope
    gunicorn_send: Send
    start: Message | None
    response: _GunicornResponse | None
    response_started: bool
    response_complete: bool

    @property
    def flow(self) -> Any:
        return self.protocol._flow_control

    @property
    def disconnected(self) -> bool:
        return self.protocol._closed

    def app_send(self, message: Message) -> Awaitable[None]:
        """The send() that the app is given."""
        if self.response is None:
            kind = message["type"]
            if kind == "http.response.body":
                if "more_body" not in message or not message["more_body"]:
                    self.response_complete = True
                    return self.gunicorn_send(message)
            elif kind == "http.response.start" and type(message.get("headers")) is list:
                # The app may change its list; gunicorn's send() has encoded it by then.
                self.start = {**message, "headers": message["headers"].copy()}
                return self.gunicorn_send(message)
            self.response = self._make_response()
        return self.response.send(message)

    def _make_response(self) -> _GunicornResponse:
        protocol = self.protocol
        # gunicorn holds the head until the body's first bytes.
        self.response_started = self.response_complete or protocol._response_buffer is not None
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

    def _cut_off(self) -> None:
        self._cycle.protocol._close_transport()

    def _is_bodyless(self) -> bool:
        cycle = self._cycle
        return not has_body(cycle.scope["method"], cycle.start["status"])

    def _frame(self, data: bytes) -> bytes:
        self._transport.flush_follows = True
        try:
            _begin(self._cycle.send(response_body(data, more_body=True)))
        finally:
            self._transport.flush_follows = False
        return b""  # gunicorn has written it

    def _frame_for(self, size: int) -> tuple[bytes, bytes]:
        protocol = self._cycle.protocol
        framing = b"", b""

        def framed(body: bytes, chunked: bool = False, *more: Any) -> None:
            nonlocal framing
            head = protocol._response_buffer or b""
            protocol._response_buffer = None
            framing = (head + chunk_size_line(size), b"\r\n") if chunked else (head, b"")

        protocol._send_body = framed
        try:
            _begin(self._cycle.send(response_body(_FileRange(size), more_body=True)))
        finally:
            del protocol._send_body
        return framing


def _begin(sending: Coroutine[Any, Any, None]) -> None:
    """Run gunicorn's send() until it suspends: at its end, where it waits for room to write.

    The next message waits for that, too.
    """
    try:
        sending.send(None)
    except StopIteration:
        return
    sending.close()


class _RequestReady:
    """The asyncio.Event on which gunicorn's connection waits for its next request.

    Only one task waits: no queue of waiters is needed, and no coroutine for each request.
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
    """gunicorn's ASGIProtocol with sendfile.

    :cvar lingering: those of this process that are closed behind what their clients are sending.
    """

    lingering: ClassVar[set[FastASGIProtocol]] = set()
    coalescing: CoalescingTransport
    transport: Any
    _closed: bool
    _response_buffer: bytes | None

    def __init__(self, worker: Any) -> None:
        super().__init__(worker)
        self._idle_timer = IdleTimerLoop(worker.loop)
        self._cancel_keepalive_timer = self._idle_timer.cancel
        self._app: ASGIApp = instrumented(worker.asgi)
        self._app_over_http2: ASGIApp | None = None
        self.app: Any = self._answer

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.coalescing = CoalescingTransport(transport, self.worker.loop)
        self.coalescing.is_receiving = self._is_receiving
        super().connection_made(self.coalescing)
        if self._callback_parser is not None:  # not HTTP/2
            self.write_plainly()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The app as gunicorn calls it: it gives the app a _Cycle's send()."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["http_version"] == "2":
            if self._app_over_http2 is None:
                # gunicorn makes the frames: files are read from the page cache.
                self._app_over_http2 = ASGIFast(self._app, ranges=False, conditional=False)
            await self._app_over_http2(scope, receive, send)
            return
        scope["extensions"] = (scope.get("extensions") or {}) | PROTOCOL_EXTENSIONS
        # Attribute by attribute: a constructor would be one more call for every request.
        cycle = _Cycle()
        cycle.protocol = self
        cycle.scope = scope
        cycle.gunicorn_send = send
        cycle.start = cycle.response = None
        cycle.response_complete = False
        try:
            await self._app(scope, receive, cycle.app_send)
            if cycle.response is not None:
                cycle.response.write_held()
        except Exception:
            if cycle.response is not None:
                await cycle.response.failed()
            raise
        if cycle.response is not None:
            await cycle.response.sent()
            cycle.response = None  # break the reference cycle

    def _setup_callback_parser(self) -> None:
        """Called by gunicorn right after it has made its Event."""
        super()._setup_callback_parser()
        self._request_ready = _RequestReady(self.worker.loop)

    def write_plainly(self) -> None:
        """Have gunicorn write to the loop's transport, a response at a time."""
        self.coalescing.flush()
        self.transport = self.coalescing.real

    def connection_lost(self, exc: Exception | None) -> None:
        self.lingering.discard(self)
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
        """Bytes that the app has not received, and bytes after its request, with either parser."""
        held = 0 if self._body_receiver is None else self._body_receiver.buffered
        parser = self._callback_parser
        return held + len(parser.remaining()) if parser.is_complete else held

    def _pause_reading(self) -> None:
        """The app receives more slowly than the client sends."""
        super()._pause_reading()
        if self._reading_paused and self._callback_parser is not None:  # not HTTP/2
            read_into_buffer(self.coalescing.real)

    def _is_receiving(self) -> bool:
        return self._body_receiver is not None and not self._body_receiver._complete

    def _close_transport(self) -> None:
        if not self._closed:
            self.coalescing.close()  # sends what is held back, which is dropped once _closed is set
            self._closed = True
            if not self.coalescing.real.is_closing():
                self.lingering.add(self)
                if not self.worker.alive:
                    self.coalescing.close()  # soon, whatever the client is still sending

    async def _handle_websocket(self, *args: Any) -> None:
        # gunicorn gives the connection to its WebSocket protocol, which needs none of this.
        self.coalescing.flush()
        self.transport = self.writer = self.coalescing.real
        read_plainly(self.coalescing.real)
        await super()._handle_websocket(*args)


class FastASGIWorker(ExportingWorker, gasgi.ASGIWorker):  # type: ignore[misc, unused-ignore]
    """gunicorn's ASGI worker (`-k asgi`) with files sent by sendfile over HTTP/1."""

    def init_process(self) -> None:
        # The worker, which has a process of its own, looks the protocol up in its module.
        gasgi.ASGIProtocol = FastASGIProtocol
        for listener in self.sockets:
            avoid_pacing(listener)
        super().init_process()

    async def _shutdown(self) -> None:
        for protocol in FastASGIProtocol.lingering:
            protocol.coalescing.close()  # as above
        await super()._shutdown()
