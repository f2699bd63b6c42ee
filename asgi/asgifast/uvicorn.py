"""uvicorn's own HTTP protocols, sending with sendfile.

    uvicorn --http asgifast.uvicorn:HttpToolsProtocol module:app     (uvicorn 0.36 or newer)
    uvicorn.run(app, http=H11Protocol)

uvicorn's parsing, limits, logging, keep-alive and flow control stay as they are. Two things are put
between: its transport is a CoalescingTransport, and the app's send() is that of a Response, which
coalesces small body messages, carries out http.response.pathsend and http.response.zerocopysend,
and passes everything else to uvicorn's own.

A pathsend of more than 64 KiB does not hold the app for as long as its client reads: send() returns
once the file is open, and what the app does next (background tasks, giving a database connection
back) is done meanwhile. The file may then be removed or replaced; to write into it would change
what is sent.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from wsgifast.errors import MissingExtra, WSGIFastError
from wsgifast.imports import needs

from .figures import figures
from .messages import PATHSEND, ZEROCOPYSEND, Receive, Scope, Send
from .sending import COALESCING, PLANNED
from .transport import CoalescingTransport
from .uvicorn_response import H11Response, HttpToolsResponse, Response

with needs("asgifast.uvicorn", "uvicorn", "asgi"):
    import uvicorn
    from uvicorn.protocols.http import h11_impl
try:
    from uvicorn.protocols.http import httptools_impl
except ImportError:
    httptools_impl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    _Base = asyncio.Protocol
else:
    _Base = object

__all__ = ["H11Protocol", "HttpToolsProtocol", "UnsupportedUvicorn"]

# The versions that the tests run over: the oldest, and the newest known.
OLDEST_UVICORN, NEWEST_UVICORN = "0.30.0", "0.54.0"

# What is offered to apps, and to ASGIFast.
_EXTENSIONS: dict[str, dict[str, Any]] = {
    PATHSEND: {},
    ZEROCOPYSEND: {},
    COALESCING: {},
    PLANNED: {},
}


class UnsupportedUvicorn(WSGIFastError, ImportError):
    """This uvicorn is built differently from those that asgifast.uvicorn knows."""

    def __init__(self, missing: str) -> None:
        super().__init__(
            f"asgifast.uvicorn does not fit uvicorn {uvicorn.__version__} ({missing}); it is "
            f"tested with {OLDEST_UVICORN} to {NEWEST_UVICORN}: install one of these, or use "
            "uvicorn's own --http"
        )


class _Anything:
    """Stands for whatever a constructor is given."""

    def __getattr__(self, name: str) -> None:
        return None


def _check(module: Any, protocol: str, attributes: set[str]) -> None:
    """Look for what is used of uvicorn's internals; its wrong bytes would be ours."""
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
        (flow, {"drain", "write_paused"}),
        (base, _OF_THE_PROTOCOL),
    ):
        if missing := sorted(used - set(dir(found))):
            name = getattr(found, "__name__", type(found).__name__)
            raise UnsupportedUvicorn(f"{name} has no {', '.join(missing)}")


_OF_THE_CYCLE = {
    "disconnected",
    "flow",
    "response_complete",
    "response_started",
    "scope",
    "send",
    "transport",
}
_OF_THE_PROTOCOL = {
    "_unset_keepalive_if_required",
    "connection_lost",
    "connection_made",
    "handle_websocket_upgrade",
    "resume_writing",
}
_check(h11_impl, "H11Protocol", {"conn"})
if httptools_impl is not None:
    _check(httptools_impl, "HttpToolsProtocol", {"chunked_encoding", "expected_content_length"})


class _Answering:
    """The app as a protocol calls it: with our send() in place of the cycle's."""

    __slots__ = ("_app", "_response_class")

    def __init__(self, app: Any, response_class: type[Response]) -> None:
        self._app = app
        self._response_class = response_class

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> Any:
        cycle = send.__self__  # type: ignore[attr-defined]
        if "extensions" in scope:
            scope["extensions"] = {**scope["extensions"], **_EXTENSIONS}
        else:
            scope["extensions"] = _EXTENSIONS.copy()
        response = self._response_class(cycle, cycle.transport)
        try:
            result = await self._app(scope, receive, response.send)
        except Exception:
            await response.sent()  # what is in our hands does not fail with what the app does next
            raise
        if response.handed_over is not None:
            await response.sent()
        return result


class _FileSending(_Base):
    """What both protocols add to uvicorn's."""

    _response_class: type[Response]
    _coalescing: CoalescingTransport
    app: Any
    loop: asyncio.AbstractEventLoop
    _unset_keepalive_if_required: Callable[[], None]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.app = _Answering(self.app, self._response_class)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._coalescing = CoalescingTransport(transport, self.loop)
        figures.accepted += 1
        figures.open[self] = self._coalescing
        super().connection_made(self._coalescing)

    def connection_lost(self, exc: Exception | None) -> None:
        figures.open.pop(self, None)
        self._coalescing.lost()
        super().connection_lost(exc)
        # uvicorn leaves the keep-alive timer of a connection that was reset, and the timer would
        # keep all that the connection had.
        self._unset_keepalive_if_required()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._coalescing.drained()

    def handle_websocket_upgrade(self, *args: Any) -> None:
        # uvicorn hands the connection over to its WebSocket protocol, which needs none of this.
        figures.open.pop(self, None)
        self._coalescing.flush()
        self._coalescing.lost()
        self.transport = self._coalescing.real
        super().handle_websocket_upgrade(*args)  # type: ignore[misc]


class H11Protocol(_FileSending, h11_impl.H11Protocol):
    """uvicorn's H11Protocol with sendfile."""

    _response_class = H11Response


if httptools_impl is not None:

    class HttpToolsProtocol(_FileSending, httptools_impl.HttpToolsProtocol):
        """uvicorn's HttpToolsProtocol with sendfile."""

        _response_class = HttpToolsResponse

else:

    def __getattr__(name: str) -> Any:
        if name == "HttpToolsProtocol":
            raise MissingExtra("asgifast.uvicorn.HttpToolsProtocol", "httptools", "asgi")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
