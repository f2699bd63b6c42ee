"""What apps see of their connection's socket."""

from __future__ import annotations

import socket
from typing import Any, Protocol

__all__ = ["AppSocket"]


class Owner(Protocol):
    """Whoever has the connection."""

    @property
    def sock(self) -> socket.socket: ...

    def hijack(self) -> socket.socket:
        """Hand the socket to the app.

        :raises OSError: where others use it too.
        """


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

    __slots__ = ("__weakref__", "_owner", "_sock")

    def __init__(self, owner: Owner) -> None:
        self._sock = owner.sock
        self._owner = owner

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _HARMLESS:
            return getattr(self._sock, name)
        if not hasattr(self._sock, name):
            raise AttributeError(f"a socket has no attribute {name!r}")
        return getattr(self._owner.hijack(), name)
