"""What the application asks of whatever carries a request and its response."""

from __future__ import annotations

import socket
from typing import Any, Protocol

from .app_socket import AppSocket
from .exchange import Exchange
from .output import OutputQueue
from .response import Response

__all__ = ["Channel"]


class Channel(Protocol):
    """A connection of HTTP/1, or a stream of HTTP/2.

    :ivar exchange: the request that is to run.
    :ivar output: where its response goes.
    :ivar response_class: how that is said.
    :ivar app_socket: what the apps of its connection find as `gunicorn.socket`; None until it is
        made.
    :ivar proxy: what a proxy has said of the connection, for the environs of its requests.
    :ivar address: the listener's.
    """

    app_socket: AppSocket | None
    proxy: dict[str, Any] | None

    @property
    def exchange(self) -> Exchange | None: ...

    @property
    def output(self) -> OutputQueue: ...

    @property
    def response_class(self) -> type[Response]: ...

    @property
    def sock(self) -> socket.socket: ...

    @property
    def peer(self) -> Any: ...

    @property
    def address(self) -> Any: ...

    def is_wanted(self) -> bool:
        """Begin its turn; False if there is nobody to answer any more."""

    def hijack(self) -> socket.socket:
        """Hand the socket to the app.

        :raises OSError: where others use it too.
        """

    def send_error(self, status: int, page: bytes) -> None:
        """Answer an error, as long as nothing is sent; to HEAD without a body.

        :param page: all that HTTP/1 says of it, head and body.
        :raises ClientGone: if the client has gone.
        """

    def app_is_done(self) -> None:
        """The app has done what it will: the response goes on by itself."""

    def close(self) -> None:
        """Give up, whatever has been sent."""
