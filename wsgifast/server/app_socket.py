"""`gunicorn.socket`: an app's access to the socket of its connection."""

from __future__ import annotations

import socket
from typing import Any, Protocol


class Owner(Protocol):
    """What all requests of a connection share.

    :ivar peer: the client's address as accept() returned it.
    :ivar address: the listener's.
    :ivar app_socket: `gunicorn.socket` for its apps; None until it is made.
    :ivar proxy: environ keys from its PROXY header.
    """

    sock: socket.socket
    peer: Any
    address: Any
    app_socket: AppSocket | None
    proxy: dict[str, Any] | None

    def hijack(self) -> socket.socket:
        """Hand the socket to the app.

        :raises OSError: if other streams use it too.
        """


# What an app may use without taking the socket over.
_HARMLESS = frozenset(
    {
        "cipher", "family", "getpeercert", "getpeername", "getsockname", "getsockopt",
        "gettimeout", "proto", "selected_alpn_protocol", "setsockopt", "type", "version",
    }
)  # fmt: skip


class AppSocket:
    """The client's socket, for apps that take it over.

    Addresses, certificate and options can be read, and options set, as middleware does. Any other
    use makes the socket blocking, as apps expect it, and ends HTTP on it: the connection is closed
    when the app returns.
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
