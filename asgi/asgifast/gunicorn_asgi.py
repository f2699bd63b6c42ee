"""gunicorn's own ASGI worker, sending with sendfile.

gunicorn's parsing, limits, logging, keep-alive and flow control stay as they are. Two things are
put between, as under uvicorn: its transport is a CoalescingTransport, and the app's send() is that
of a Response.

Theory of operation. gunicorn keeps the state of a response in its send() alone, which also counts
its bytes. So whatever is sent passes it: coalesced messages as one message, and a run of a file as
a stand-in that has a length and no bytes. gunicorn hands that to the protocol's `_send_body`, here
to ours, which says what stands before and behind it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine
from typing import Any

from wsgifast.errors import WSGIFastError
from wsgifast.http import chunk_size_line, has_body
from wsgifast.imports import needs

from .exporting import observed
from .gunicorn_metrics import Exporting
from .messages import ASGIApp, Message, Receive, Scope, Send, response_body
from .middleware import ASGIFast
from .reads import read_into_buffer, read_plainly
from .sending import COALESCING, FILE_EXTENSIONS
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
    "_handle_websocket", "_pause_reading", "_safe_write", "_send_body", "connection_lost",
    "connection_made",
}  # fmt: skip
if missing := sorted(_USED - set(dir(ASGIProtocol))):
    raise UnsupportedGunicorn(f"ASGIProtocol has no {', '.join(missing)}")
if "last" not in inspect.signature(ASGIProtocol._send_body).parameters:
    raise UnsupportedGunicorn("ASGIProtocol._send_body takes no `last`")
if getattr(gasgi, "ASGIProtocol", None) is not ASGIProtocol:
    raise UnsupportedGunicorn("its worker does not take ASGIProtocol from its module")


class _Run(bytes):
    """Stands for a run of a file that gunicorn counts and frames, but does not see.

    :ivar framing: what is sent before and behind it; None if gunicorn has sent nothing.
    """

    __class__ = bytes  # type: ignore[assignment] # gunicorn copies what is none
    size: int
    framing: tuple[bytes, bytes] | None

    def __new__(cls, size: int) -> _Run:
        run = super().__new__(cls)
        run.size = size
        run.framing = None
        return run

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, key: Any) -> Any:
        # gunicorn cuts off what is more than was declared.
        raise RuntimeError("Response content longer than Content-Length")


class _Cycle:
    """A request as uvicorn's RequestResponseCycle has it: what Response looks at."""

    __slots__ = ("_protocol", "_send", "disconnected_here", "flow", "is_bodyless",
                 "response_complete", "response_started", "scope", "transport")  # fmt: skip

    def __init__(self, protocol: Any, scope: Scope, send: Send) -> None:
        self._protocol = protocol
        self._send = send
        self.scope = scope
        self.transport = protocol.coalescing
        self.flow = protocol._flow_control
        self.response_started = self.response_complete = self.disconnected_here = False
        self.is_bodyless = False

    @property
    def disconnected(self) -> bool:
        return self.disconnected_here or bool(self._protocol._closed)

    @disconnected.setter
    def disconnected(self, value: bool) -> None:
        self.disconnected_here = value

    async def send(self, message: Message) -> None:
        if self.disconnected:
            return
        await self._send(message)
        kind = message["type"]
        if kind == "http.response.start":
            self.response_started = True
            self.is_bodyless = not has_body(self.scope["method"], message["status"])
        elif kind == "http.response.body" and not message.get("more_body"):
            self.response_complete = True


class _GunicornResponse(Response):
    __slots__ = ()

    def _is_bodyless(self) -> bool:
        return bool(self._cycle.is_bodyless)

    def _frame(self, data: bytes) -> bytes:
        _begin(self._cycle.send(response_body(data, more_body=True)))
        return b""  # gunicorn has written it

    def _announce(self, size: int) -> tuple[bytes, bytes]:
        run = _Run(size)
        _begin(self._cycle.send(response_body(run, more_body=True)))
        return run.framing or (b"", b"")


def _begin(sending: Coroutine[Any, Any, None]) -> None:
    """Run gunicorn's send() as far as it does not wait: the last that it does is to wait for room,
    as the next message will."""
    try:
        sending.send(None)
    except StopIteration:
        return
    sending.close()


class _Answering:
    """The app as the protocol calls it: with our send() in place of gunicorn's."""

    __slots__ = ("_app", "_framed", "_protocol")

    def __init__(self, app: ASGIApp, protocol: FastASGIProtocol) -> None:
        self._app = app
        self._protocol = protocol
        # For HTTP/2, whose frames are gunicorn's: files are read from the page cache.
        self._framed = ASGIFast(app, ranges=False, conditional=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if not scope["http_version"].startswith("1."):
            await self._framed(scope, receive, send)
            return
        extensions = scope.get("extensions") or {}
        scope["extensions"] = {**extensions, **FILE_EXTENSIONS, COALESCING: {}}
        cycle = _Cycle(self._protocol, scope, send)
        response = _GunicornResponse(cycle, cycle.transport)
        try:
            await self._app(scope, receive, response.send)
        except Exception:
            await response.sent()  # what is in our hands does not fail with what the app does next
            raise
        if response.handed_over is not None:
            await response.sent()


class FastASGIProtocol(ASGIProtocol):  # type: ignore[misc, unused-ignore]
    """gunicorn's ASGIProtocol with sendfile."""

    coalescing: CoalescingTransport
    _response_buffer: bytes | None

    def __init__(self, worker: Any) -> None:
        super().__init__(worker)
        self.app: Any = _Answering(observed(worker.asgi), self)

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.coalescing = CoalescingTransport(transport, self.worker.loop)
        super().connection_made(self.coalescing)

    def connection_lost(self, exc: Exception | None) -> None:
        self.coalescing.lost()
        super().connection_lost(exc)

    def resume_writing(self) -> None:
        super().resume_writing()
        self.coalescing.drained()

    def _pause_reading(self) -> None:
        """The client sends faster than the app receives."""
        super()._pause_reading()
        if self._reading_paused and self._callback_parser is not None:  # not HTTP/2
            read_into_buffer(self.coalescing.real)

    def _send_body(self, body: bytes, chunked: bool = False, *more: Any) -> None:
        if type(body) is not _Run:
            super()._send_body(body, chunked, *more)
            return
        head = self._response_buffer or b""
        self._response_buffer = None
        if chunked:
            body.framing = head + chunk_size_line(body.size), b"\r\n"
        else:
            body.framing = head, b""

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
