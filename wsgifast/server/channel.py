"""What the application needs of a connection of HTTP/1, or of a stream of HTTP/2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from .app_socket import Owner
from .exchange import Exchange
from .output import OutputQueue
from .response import Response


class Channel(Protocol):
    """A connection of HTTP/1, or a stream of HTTP/2.

    :ivar exchange: the request to run.
    :ivar output: where its response goes.
    :ivar response_class: what writes the response.
    """

    @property
    def exchange(self) -> Exchange | None: ...

    @property
    def output(self) -> OutputQueue: ...

    @property
    def response_class(self) -> type[Response]: ...

    def connection(self) -> Owner:
        """Return the connection: itself, or the stream's."""

    def begin_app(self) -> bool:
        """The app is about to be called; False if nobody waits for the response any more."""

    def close_when_sent(self, close: Callable[[], object]) -> None:
        """Have this thread, which has run the app, call the body's close() after the last byte."""

    def app_is_done(self) -> None:
        """The app has returned, or failed: the rest of the response is sent without its thread."""

    def send_error(self, status: int, page: bytes) -> int:
        """Answer with an error, if nothing has been sent; without a body to HEAD.

        :param page: the whole response as HTTP/1 has it, head and body.
        :returns: the size of the body, in bytes.
        :raises ClientGone: if the client has gone.
        """

    def close(self) -> None:
        """Give up, whatever has been sent."""
