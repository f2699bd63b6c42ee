"""A request with its response, and what apps and error pages see of its connection's socket."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .connection import Connection

__all__ = ["AppSocket", "ErrorSocket", "Exchange"]


class Exchange:
    """A request and its response."""

    __slots__ = ("body", "environ", "req", "resp", "started")

    def __init__(self, req: Any) -> None:
        self.req = req
        self.resp: Any = None
        self.environ: dict[str, Any] | None = None
        self.body: Any = req.body
        self.started = time.monotonic()


# What may be asked of a connection's socket, and set on it, without taking it over.
_HARMLESS = frozenset(
    {
        "cipher", "family", "getpeercert", "getpeername", "getsockname", "getsockopt",
        "gettimeout", "proto", "selected_alpn_protocol", "setsockopt", "type", "version",
    }
)  # fmt: skip


class AppSocket:
    """What an app finds as `gunicorn.socket`: the client's socket, for those who take it over.

    Its addresses, its certificate and its options can be looked at, and options set, as middleware
    does. Any other use makes it a blocking socket, as the app expects it, and ends HTTP on it:
    after the app the connection is closed.
    """

    __slots__ = ("__weakref__", "_connection")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _HARMLESS:
            return getattr(self._connection.sock, name)
        if not hasattr(self._connection.sock, name):
            raise AttributeError(f"a socket has no attribute {name!r}")
        return getattr(self._connection.hijack(), name)


class ErrorSocket:
    """What gunicorn's own error pages are written to."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def gettimeout(self) -> float:
        return 0.0

    def sendall(self, data: bytes) -> None:
        self._connection.output.write(data)

    send = sendall
