"""uvicorn's own HTTP protocols, sending with sendfile.

    uvicorn --http asgifast.uvicorn:HttpToolsProtocol module:app     (uvicorn 0.36 or newer)
    uvicorn --http asgifast.uvicorn:AutoZttpProtocol module:app      (HTTP/2 too: uvicorn 0.54)
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

from typing import TYPE_CHECKING, Any

from wsgifast.errors import MissingExtra
from wsgifast.imports import exports_on_demand, needs

from .uvicorn_protocol import FileSending, UnsupportedUvicorn, check
from .uvicorn_response import H11Response, HttpToolsResponse

with needs("asgifast.uvicorn", "uvicorn", "asgi"):
    from uvicorn.protocols.http import h11_impl
try:
    from uvicorn.protocols.http import httptools_impl
except ImportError:
    httptools_impl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from .uvicorn_zttp import AutoZttpProtocol, ZttpH2Protocol, ZttpProtocol

__all__ = [
    "AutoZttpProtocol",
    "H11Protocol",
    "HttpToolsProtocol",
    "UnsupportedUvicorn",
    "ZttpH2Protocol",
    "ZttpProtocol",
]

_UPGRADE = "handle_websocket_upgrade"
check(h11_impl, "H11Protocol", {"conn"}, _UPGRADE)
if httptools_impl is not None:
    _counted = {"chunked_encoding", "expected_content_length"}
    check(httptools_impl, "HttpToolsProtocol", _counted, _UPGRADE)


class H11Protocol(FileSending, h11_impl.H11Protocol):
    """uvicorn's H11Protocol with sendfile."""

    _response_class = H11Response


if httptools_impl is not None:

    class HttpToolsProtocol(FileSending, httptools_impl.HttpToolsProtocol):
        """uvicorn's HttpToolsProtocol with sendfile."""

        _response_class = HttpToolsResponse


_exported = exports_on_demand(
    __name__,
    dict.fromkeys(("AutoZttpProtocol", "ZttpH2Protocol", "ZttpProtocol"), "asgifast.uvicorn_zttp"),
)


def __getattr__(name: str) -> Any:
    if name == "HttpToolsProtocol":
        raise MissingExtra("asgifast.uvicorn.HttpToolsProtocol", "httptools", "asgi")
    return _exported(name)
