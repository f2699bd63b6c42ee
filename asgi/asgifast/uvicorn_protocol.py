"""What asgifast's protocols add to each of uvicorn's."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from wsgifast.errors import WSGIFastError
from wsgifast.imports import needs

from .exporting import begin_under_uvicorn, observed
from .figures import figures
from .file_body import UNKNOWN_PATHSEND, logger
from .idle_timer import IdleTimerLoop
from .kept import Pipeline, forget_request, make_small, shared
from .messages import Receive, Scope, Send
from .reads import read_plainly
from .sending import PROTOCOL_EXTENSIONS
from .transport import CoalescingTransport
from .uploads import Upload
from .uvicorn_response import Response

with needs("asgifast.uvicorn", "uvicorn", "asgi"):
    import uvicorn

if TYPE_CHECKING:
    _Base = asyncio.Protocol
else:
    _Base = object

__all__ = ["FileSending", "MakeResponse", "UnsupportedUvicorn", "check"]

# The versions that the tests run over: the oldest, and the newest known.
OLDEST_UVICORN, NEWEST_UVICORN = "0.30.0", "0.54.0"


class UnsupportedUvicorn(WSGIFastError, ImportError):
    """This uvicorn is built differently from those that asgifast.uvicorn knows."""

    def __init__(self, missing: str) -> None:
        super().__init__(
            f"asgifast.uvicorn does not fit uvicorn {uvicorn.__version__} ({missing}); it is "
            f"tested with {OLDEST_UVICORN} to {NEWEST_UVICORN}: install one of these, or use "
            "uvicorn's own --http"
        )


# Of uvicorn's RequestResponseCycle and its transport.
MakeResponse = Callable[[Any, CoalescingTransport], Response]


class _Anything:
    """Stands for whatever a constructor is given."""

    def __getattr__(self, name: str) -> None:
        return None


def check(module: Any, protocol: str, attributes: set[str], *methods: str) -> None:
    """Look for what is used of uvicorn's internals; its wrong bytes would be ours.

    :param attributes: of the module's RequestResponseCycle.
    :param methods: of its protocol.
    :raises UnsupportedUvicorn: if something is not there.
    """
    cycle = getattr(module, "RequestResponseCycle", None)
    base = getattr(module, protocol, None)
    if cycle is None or base is None:
        raise UnsupportedUvicorn(f"{module.__name__} has no RequestResponseCycle or {protocol}")
    try:
        made = cycle(**dict.fromkeys(inspect.signature(cycle).parameters, _Anything()))
        flow = module.FlowControl(_Anything())
    except Exception as error:
        raise UnsupportedUvicorn(f"RequestResponseCycle or FlowControl: {error}") from error
    for found, used in (
        (made, _OF_THE_CYCLE | attributes),
        (flow, _OF_THE_FLOW),
        (base, _OF_THE_PROTOCOL.union(methods)),
    ):
        if missing := sorted(used - set(dir(found))):
            name = getattr(found, "__name__", type(found).__name__)
            raise UnsupportedUvicorn(f"{name} has no {', '.join(missing)}")


_OF_THE_CYCLE = {
    "body",
    "disconnected",
    "flow",
    "message_event",
    "more_body",
    "on_response",
    "receive",
    "response_complete",
    "response_started",
    "scope",
    "send",
    "transport",
}
_OF_THE_FLOW = {
    "_is_writable_event",
    "drain",
    "read_paused",
    "resume_reading",
    "write_paused",
}
_OF_THE_PROTOCOL = {
    "connection_lost",
    "connection_made",
    "eof_received",
    "resume_writing",
    "shutdown",
}


class _Answering:
    """The app as a protocol calls it: with our send() and receive() in place of the cycle's."""

    __slots__ = ("_app", "_is_http1", "_response_class")

    def __init__(self, app: Any, response_class: MakeResponse, *, is_http1: bool) -> None:
        self._app = app
        self._response_class = response_class
        self._is_http1 = is_http1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> Any:
        cycle = send.__self__  # type: ignore[attr-defined]
        if "extensions" in scope:
            scope["extensions"] = {**scope["extensions"], **PROTOCOL_EXTENSIONS}
        else:
            scope["extensions"] = PROTOCOL_EXTENSIONS.copy()
        response = self._response_class(cycle, cycle.transport)
        upload = None
        if cycle.more_body:
            if self._is_http1:
                upload = Upload(cycle, cycle.flow.resume_reading)
            else:
                read_on = cycle.resume_reading
                upload = Upload(cycle, read_on, read_on.__self__.cycles)
            receive = upload.receive
        try:
            result = await self._app(scope, receive, response.send)
        except Exception:
            await response.sent()  # what is in our hands does not fail with what the app does next
            raise
        finally:
            if upload is not None:
                upload.end()
        if not cycle.response_started and not cycle.disconnected:
            # Behind this uvicorn says that no response was started.
            logger.error("The app has sent nothing. If it sent a file, %s", UNKNOWN_PATHSEND)
        if response.handed_over is not None:
            if self._is_http1:
                forget_request(cycle, scope)
            del scope, receive, send
            await response.sent()
        return result


class FileSending(_Base):
    """What both protocols add to uvicorn's."""

    _response_class: MakeResponse
    # One request at a time.
    _is_http1 = True
    _coalescing: CoalescingTransport
    app: Any
    flow: Any
    pipeline: Any
    server: Any
    # An IdleTimerLoop.
    loop: Any
    shutdown: Callable[[], None]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.app = _Answering(observed(self.app), self._response_class, is_http1=self._is_http1)
        self.loop = IdleTimerLoop(self.loop)
        if hasattr(self, "pipeline"):
            self.pipeline = Pipeline()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._coalescing = CoalescingTransport(transport, self.loop.real)
        figures.accepted += 1
        figures.open[self] = self._coalescing
        super().connection_made(self._coalescing)
        make_small(self.flow._is_writable_event)
        self.server = shared(self.server)

    def connection_lost(self, exc: Exception | None) -> None:
        figures.open.pop(self, None)
        self._coalescing.lost()
        super().connection_lost(exc)
        self.loop.stop()

    def eof_received(self) -> Any:  # uvicorn's have it return None
        """The client sends no more, but may still read; a reset ends a file in any case.

        uvicorn closes at once, which loses what has not been written.
        """
        if not self._coalescing.sends_file:
            return super().eof_received()
        self.shutdown()  # uvicorn's: close behind this response
        return True

    def resume_writing(self) -> None:
        super().resume_writing()
        self._coalescing.drained()

    def handle_websocket_upgrade(self, *args: Any) -> None:
        # uvicorn hands the connection over to its WebSocket protocol, which needs none of this.
        figures.open.pop(self, None)
        self.loop.stop()
        self._coalescing.flush()
        self._coalescing.lost()
        self.transport = self._coalescing.real
        read_plainly(self._coalescing.real)
        super().handle_websocket_upgrade(*args)  # type: ignore[misc]


begin_under_uvicorn()
