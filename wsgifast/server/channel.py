"""A channel serves one request at a time: a connection of HTTP/1, or a stream of HTTP/2.

The application (application.py) runs the app on a :class:`Channel`, and knows no version of HTTP.

The end of a response
---------------------
The thread that ran the app calls :meth:`Channel.finish_when_sent`. If bytes are left for a slow
client, the thread that sends the last of them goes on. Either of them calls
:meth:`Channel.finish`, once. It hands the exchange to :meth:`.Application.end_exchange`, which
closes bodies and logs. Then HTTP/1 waits for the next request, and a stream is over.
"""

from __future__ import annotations

import socket
from abc import abstractmethod
from contextvars import copy_context
from typing import Any, Final, NamedTuple

from .output import OutputQueue
from .receiving import Exchange
from .response import Response, header_lines
from .sending import Owner

# The states of a connection, and those that may follow. CLOSED follows every other one.
#
#     HANDSHAKE: IDLE, LINGERING                   SENDING: IDLE, SKIPPING, LINGERING
#     IDLE: RECEIVING, RUNNING, SENDING, STREAMS   SKIPPING: IDLE, LINGERING
#     RECEIVING: RUNNING, SENDING, STREAMS         STREAMS: LINGERING
#     RUNNING: SENDING, IDLE, SKIPPING, LINGERING
#
# Only the connection's owner changes its state. The metrics have the same names. A stream has some
# of them too (http2/stream.py).
HANDSHAKE: Final = "handshake"  # TLS handshake
IDLE: Final = "idle"  # nothing of the next request has been received
RECEIVING: Final = "receiving"  # a part of a request has been received
RUNNING: Final = "running"  # the app runs, or waits for a thread
SENDING: Final = "sending"  # the app has returned, or was not called: the queue has more
SKIPPING: Final = "body"  # all is sent: unread bytes of the body still arrive
STREAMS: Final = "http2"  # HTTP/2 (http2/connection.py). Its streams have their own states
LINGERING: Final = "closing"  # all is sent: the client closes first (RFC 9112 section 9.6)
CLOSED: Final = "closed"

Headers = list[tuple[str, str]]


class ErrorPage(NamedTuple):
    """A whole response with an error."""

    status: int
    reason: str
    headers: Headers
    body: bytes


class AcceptedSocket:
    """An accepted socket, as the apps of its requests know it.

    :param peer: the client's address as accept() returned it.
    :param address: the listener's.
    :ivar app_socket: `gunicorn.socket` for its apps, or None until it is made.
    :ivar hijacked: whether an app has taken the socket over.
    :ivar proxy: environ keys from its PROXY header.
    """

    __slots__ = ("address", "app_socket", "peer", "proxy", "sock")

    hijacked = False

    def __init__(self, sock: socket.socket, peer: Any, address: Any) -> None:
        self.sock = sock
        self.peer = peer
        self.address = address
        self.app_socket: Any = None
        self.proxy: dict[str, Any] | None = None

    def hijack(self) -> socket.socket:
        """Hand the socket to the app.

        :raises OSError: if other streams use it too.
        """
        raise NotImplementedError


class Channel(Owner):
    """Receives one request after the other, or just one, and sends its response.

    :ivar exchange: the request that runs or is being answered, and its response.
    :ivar output: sends the response.
    :ivar state: SENDING once the app has returned and output waits for the client. See above.
    :cvar response_class: the class of its responses.
    """

    __slots__ = ()

    exchange: Exchange | None
    output: OutputQueue
    state: str
    response_class: type[Response]

    @abstractmethod
    def connection(self) -> AcceptedSocket:
        """Return the connection: itself, or the stream's."""

    @abstractmethod
    def begin_app(self) -> bool:
        """The app is about to be called. Return False if the client no longer waits for it."""

    @abstractmethod
    def has_left(self) -> bool:
        """Return whether the client has left, or sends no more. For the owner."""

    @abstractmethod
    def end_early(self, error: Exception, page: ErrorPage | None) -> None:
        """End the response while the app runs, under the output's lock. For any thread.

        :param error: the output's from then on.
        :param page: sent in place of the response, if that has not begun.
        """

    @abstractmethod
    def finish(self) -> None:
        """The response has been sent, or never will be."""

    @abstractmethod
    def close(self) -> None:
        """Give up after an internal error."""

    @abstractmethod
    def _is_head(self) -> bool:
        """Return whether the request's method is HEAD, also if the request is refused."""

    @abstractmethod
    def _write_error(self, page: ErrorPage) -> bool:
        """Send a whole response with an error. Return False if another one has begun."""

    def send_error(self, status: int, reason: str, headers: Headers, body: bytes) -> int:
        """Respond with an error, if nothing has been sent. HEAD gets no body.

        :param headers: of the response, without Date.
        :returns: the size of the body that is sent, in bytes.
        :raises ClientGone: if the client has disconnected.
        """
        page = self.error_page(status, reason, headers, body)
        return len(page.body) if self._write_error(page) else 0

    def error_page(self, status: int, reason: str, headers: Headers, body: bytes) -> ErrorPage:
        """Return a response with an error as this request gets it: dated, without body to HEAD."""
        if self._is_head():  # RFC 9110 section 9.3.2
            body = b""
        # RFC 9110 section 6.6.1
        return ErrorPage(status, reason, [*headers, ("Date", header_lines.date())], body)

    def finish_when_sent(self) -> None:
        """The response is complete: finish it, or let the thread do so that sends its last byte."""
        output = self.output
        if output.delayed is not None:
            output.flush()
        # Under the lock: the monitor's tick may have taken blocks that it has not queued yet.
        with output.lock:
            if self.exchange is not None:
                self.exchange.has_ended = True
            if output.draining:
                if self.state is not SENDING:  # a refused connection is already
                    self.state = SENDING  # type: ignore[misc]  # a slot of each subclass
                    if self.exchange is not None:
                        self.exchange.context = copy_context()
                output.closing = True
                return
        self.finish()
