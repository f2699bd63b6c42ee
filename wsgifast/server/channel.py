"""A channel serves one request at a time: an HTTP/1 connection or an HTTP/2 stream.

The application (application.py) runs the app for a :class:`Channel`. It does not depend on the
version of HTTP.

The end of a response
---------------------
The thread that ran the app calls :meth:`Channel.finish_when_sent`. If all bytes have been sent,
this thread calls :meth:`Channel.finish`. Otherwise the thread that sends the last byte calls
:meth:`Channel.finish`. So it is called once for each response. It passes the exchange to
:meth:`.Application.end_exchange`, which closes bodies and writes the log. Then an HTTP/1 connection
waits for the next request, and an HTTP/2 stream is closed.
"""

from __future__ import annotations

from abc import abstractmethod
from contextvars import copy_context
from typing import NamedTuple

from .endpoint import SENDING, Endpoint
from .monitor import this_thread
from .output import OutputQueue
from .receiving import Exchange
from .response import Response, header_lines
from .sending import Owner

Headers = list[tuple[str, str]]


class ErrorPage(NamedTuple):
    """A complete error response."""

    status: int
    reason: str
    headers: Headers
    body: bytes


class Channel(Owner):
    """Receives requests and sends their responses, one at a time.

    :ivar exchange: the current request and its response.
    :ivar output: the queue that sends the response.
    :ivar state: one of the states in endpoint.py. It is SENDING if the app has returned and the
        output waits for the client.
    :cvar response_class: the class of the responses.
    """

    __slots__ = ()

    exchange: Exchange | None
    output: OutputQueue
    state: str
    response_class: type[Response]

    @abstractmethod
    def connection(self) -> Endpoint:
        """Return the HTTP/1 connection itself, or the connection of the stream."""

    @abstractmethod
    def begin_app(self) -> bool:
        """Prepare for the call of the app. Return False if the client has already left."""

    @abstractmethod
    def has_left(self) -> bool:
        """Return whether the client has left or shut down its sending side.

        Only the connection's owner may call it.
        """

    @abstractmethod
    def end_early(self, error: Exception, page: ErrorPage | None) -> None:
        """End the response while the app runs. Any thread may call it with the output's lock.

        :param error: the reason. The app's next write raises ClientGone with its text.
        :param page: the error response to send, if the app's response has not begun.
        """

    @abstractmethod
    def finish(self) -> None:
        """Finish the exchange after its response was sent, or after an error."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection or reset the stream after an internal error."""

    @abstractmethod
    def _is_head(self) -> bool:
        """Return whether the request's method is HEAD, even if the request is refused."""

    @abstractmethod
    def _write_error(self, page: ErrorPage) -> bool:
        """Send an error response. Return False if another response has begun."""

    def send_error(self, status: int, reason: str, headers: Headers, body: bytes) -> int:
        """Send an error response, if no other response has begun. HEAD gets no body.

        :param headers: the headers without Date.
        :returns: the size of the sent body in bytes.
        :raises ClientGone: if the client has disconnected.
        """
        page = self.error_page(status, reason, headers, body)
        return len(page.body) if self._write_error(page) else 0

    def error_page(self, status: int, reason: str, headers: Headers, body: bytes) -> ErrorPage:
        """Return an error response with a Date header. For HEAD, the response has no body."""
        if self._is_head():  # RFC 9110 section 9.3.2
            body = b""
        # RFC 9110 section 6.6.1
        return ErrorPage(status, reason, [*headers, ("Date", header_lines.date())], body)

    def finish_when_sent(self) -> None:
        """Finish a complete response, or let the thread that sends its last byte finish it."""
        output = self.output
        if output.delayed is not None:
            output.flush()
        # The monitor moves delayed blocks into the backlog while it has the lock. Without the lock,
        # this thread might read `is_waiting` in the middle of this move.
        with output.lock:
            if self.exchange is not None:
                self.exchange.response_is_complete = True
            if output.is_waiting:
                # The state is already SENDING if the request was refused.
                if self.state is not SENDING:
                    self.state = SENDING  # type: ignore[misc]  # a slot of each subclass
                    if self.exchange is not None:
                        self.exchange.context = copy_context()
                output.is_complete = True
                return
        self.finish()


def exchange_of_this_thread() -> Exchange | None:
    """Return the exchange for which this thread runs the app, or None."""
    member = this_thread.member
    channel: Channel | None = None if member is None else member.job
    return None if channel is None else channel.exchange
