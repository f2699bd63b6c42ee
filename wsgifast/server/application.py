"""Calls the WSGI app for each request, responds for it when it fails, and logs the request.

The end of a response is here, too: :meth:`Application.end_exchange`.
"""

from __future__ import annotations

import errno
import html
import math
import ssl
import time
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..bodies.access_log import (
    APP_US,
    CLIENT_LEFT,
    CUT_OFF,
    OUTCOME,
    QUEUE_US,
    SEND_US,
    SENDFILE_BYTES,
    SENT,
    WAIT_US,
    queue_seconds,
)
from ..bodies.server_timing import wait_sources
from ..bodies.wrappers import closes_file_alone
from ..deadlines import QueueTimeout
from ..errors import ClientGone, RequestError
from ..sockets.sending import FileTruncated
from .backlog import Backlog
from .channel import AcceptedSocket, Channel, Headers
from .monitor import this_thread
from .output import OutputQueue
from .receiving import Exchange
from .response import Response, ResponseSettings
from .shared import Shared

# Errors of a socket after its client has left, and numbers of those without a class of Python's.
_FROM_CLIENT = (ConnectionError, ssl.SSLError)
_LOST = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.ENOTCONN)

# Adds keys to an environ.
AddDetails = Callable[[dict[str, Any]], object]
LogAccess = Callable[[Any, Any, dict[str, Any], float, AddDetails | None], object]


@dataclass(kw_only=True, eq=False)
class Application:
    """Runs a WSGI app. Thread-safe.

    The server sets `on_max_requests`, `write_late`, `postpone`, `probe_paths` and `answer_probe`.

    :param app: the WSGI app.
    :param make_environ: makes the environ of an exchange, given its connection. With check=False it
        accepts any path, for the log of a request that is refused anyway.
    :param file_wrapper: the environ's `wsgi.file_wrapper`.
    :param log_access: writes a line of the access log, given the response, the request, its environ
        and its duration in seconds. The last argument is None or a function that adds details to
        the environ, for a line that may show them. None if there is no access log.
    :param line_needs_thread: returns whether code of the user's, such as a filter, sees by which
        thread a line is written.
    :param pre_request: called with each exchange and its connection before the app, and may change
        the request. Or None.
    :param post_request: called after the app, even if it failed. It gets the request, its environ
        ({} if there is none), its response (None if there is none) and its number (see `requests`,
        0 if the app was not called). Or None.
    :param answer_error: responds to an exception. It gets the channel, the request (None if it
        could not be read) and the exception. It returns the status and the size of the body. It
        logs the exception, and without a request the response. Called only if nothing was sent.
    :param on_answered: called when a response has been sent or given up, before it is logged, with
        its output, the exchange and the monotonic time. Or None. Must not raise.
    :ivar requests: for how many the app has been called, or is about to be.
    :ivar max_requests: after how many `on_max_requests` is called, once. It may change.
    :ivar write_late: has a line written by a thread that never runs an app.
    :ivar postpone: see :meth:`.Pool.postpone`.
    :ivar probe_paths: of the health checks that the server answers itself.
    :ivar answer_probe: responds to a request for such a path. It returns False if the app gets it.
    """

    shared: Shared
    app: Callable[..., Any]
    make_environ: Callable[..., dict[str, Any]]
    file_wrapper: type
    settings: ResponseSettings
    log_access: LogAccess | None
    pre_request: Callable[[Exchange, AcceptedSocket], object] | None
    post_request: Callable[[Any, dict[str, Any], Response | None, int], object] | None
    answer_error: Callable[[Channel, Any, BaseException], tuple[str, int]]
    on_answered: Callable[[OutputQueue, Exchange, float], object] | None = None
    line_needs_thread: Callable[[], bool] = lambda: True
    requests: int = 0
    max_requests: float = math.inf
    on_max_requests: Callable[[], object] | None = None
    write_late: Callable[[Callable[[], object]], object] = field(init=False)
    postpone: Callable[[Callable[[], object], Any], Callable[[], object]] = field(init=False)
    probe_paths: frozenset[str] = frozenset()
    answer_probe: Callable[[Channel], bool] = field(init=False)

    def __post_init__(self) -> None:
        self.log = self.shared.log
        options = self.shared.options
        self._unlogged = {options.health_path, options.ready_path, *options.access_log_skip}

    def run(self, channel: Channel, *, stays: bool) -> None:
        """Call the app for a request. The caller then finishes the response.

        :param stays: whether the server may keep its connection open after the response.
        """
        exchange = channel.exchange
        assert exchange is not None
        connection = channel.connection()
        req = exchange.req
        req.body = exchange.body
        resp = None
        number = 0
        environ: dict[str, Any] = {}
        try:
            try:
                if self.pre_request is not None:
                    self.pre_request(exchange, connection)
                # Under the GIL no other thread counts between: nothing is called.
                self.requests = number = self.requests + 1
                if number == self.max_requests and self.on_max_requests is not None:
                    self.on_max_requests()
                exchange.resp = resp = channel.response_class(req, channel.output, self.settings)
                environ = self.make_environ(exchange, connection)
                resp.offer(environ)
                exchange.environ = environ
                resp.must_close = not stays
                if self.log_access is not None:
                    exchange.begun = time.monotonic()
                try:
                    resp.write_body(self.app(environ, resp.start_response), self.file_wrapper)
                finally:
                    if resp.close_body is not None:
                        self._close_when_sent(channel, exchange, resp)
                if resp.dropped or (resp.sent != resp.length and resp.length is not None):
                    self._check_body(resp)
            except BaseException as error:  # noqa: BLE001 - sys.exit() in an app ends no thread
                if isinstance(error, StopIteration) and connection.hijacked:
                    # gunicorn's convention for an app that has taken the socket over, and is done.
                    self.log.debug("Closing connection. %s", error)
                    if resp is not None:
                        resp.force_close()
                else:
                    self._answer_failure(channel, exchange, resp, error)
        finally:
            if self.log_access is not None:
                exchange.answered = time.monotonic()
            if self.post_request is not None:
                try:
                    self.post_request(req, environ, resp, number)
                except Exception:
                    self.log.exception("Exception in post_request hook")

    def _close_when_sent(self, channel: Channel, exchange: Exchange, resp: Response) -> None:
        """Close a body, at once unless the output still reads from a file of the app.

        Then this thread closes it after the last byte, because close() may reuse or remove the
        file. A file of Python's own is closed at once, since the output has a descriptor of its
        own.
        """
        close, resp.close_body = resp.close_body, None
        assert close is not None
        if channel.output.is_sent() or not resp.sends_file or closes_file_alone(close):
            close()
        else:
            exchange.make_close_due = self.postpone(close, exchange.req)

    def _check_body(self, resp: Response) -> None:
        if resp.missing:
            resp.is_cut_off = True
            resp.force_close()
        complaint = resp.complaint(resp.req.method, resp.status_code)
        if complaint:
            self.log.warning("%s %s: %s", resp.req.method, resp.req.uri, complaint)

    def _answer_failure(
        self, channel: Channel, exchange: Exchange, resp: Response | None, error: Any
    ) -> None:
        """Answer an exception of the app or its body, or cut the response off if it has begun."""
        # If the request's body could not be read, that is the cause of any error of the app.
        unread = exchange.streamed and exchange.streamed.failure
        error = unread or error
        is_lost = error is unread or channel.output.error is not None
        # Not any ClientGone: it may be that of another request.
        has_all = resp is not None and resp.dropped and isinstance(error, ClientGone)
        if isinstance(error, ConnectionError) and (is_lost or has_all):
            self.log.debug("Ignoring a lost connection: %s", error)
            exchange.resp = None if resp is not None and not resp.headers_sent else resp
            if resp is not None:
                resp.force_close()
            return
        if resp is not None:
            resp.force_close()
        if resp is not None and resp.headers_sent:
            # An error page would land in the middle of the body.
            resp.is_cut_off = True
            if isinstance(error, RequestError):
                self.log.warning("Cutting off %s: %s", exchange.req.uri, error)
            else:
                self.log.exception(
                    "Error handling request %s %s", exchange.req.method, exchange.req.uri
                )
            return
        status, size = self._answer(channel, exchange, error)
        exchange.resp = self._error_response(channel, exchange, status, size)

    def time_out(self, channel: Channel, exchange: Exchange, error: Exception) -> str | None:
        """End the response to a request after its deadline. For any thread.

        :param error: of its output from then on.
        :returns: the client's result, for the log. None if the app has returned by now.
        """
        output = channel.output
        with output.lock:
            if exchange.response_is_complete or channel.exchange is not exchange:
                return None
            exchange.is_timed_out = True
            if exchange.resp is not None and exchange.resp.headers_sent:
                channel.end_early(error, None)
                return "the client is disconnected"
            refusal = RequestError(503, "The response has taken too long")
            page = channel.error_page(503, refusal.reason, *_error_page(refusal))
            status = f"503 {refusal.reason}"
            exchange.replaced_by = self._error_response(channel, exchange, status, len(page.body))
            channel.end_early(error, page)
            return "the client gets 503"

    def refuse(self, channel: Channel, exchange: Exchange | None, error: Exception) -> None:
        """Answer an error before the app's turn, and log it, with the request if there is one.

        This thread's context is that of another request.
        """
        # A fault of the client, unless it is the disk's error.
        default = 500 if isinstance(error, OSError) else 400
        self.shared.counters.refused[getattr(error, "status", default)] += 1
        Context().run(self._refuse, channel, exchange, error)

    def _refuse(self, channel: Channel, exchange: Exchange | None, error: Exception) -> None:
        status, size = self._answer(channel, exchange, error)
        if exchange is not None and self.log_access is not None:
            resp = self._error_response(channel, exchange, status, size)
            exchange.context = Context()
            self._log_access(resp, exchange, exchange.environ)
            exchange.environ = None  # the app has not been called: no response is recorded

    def _answer(
        self, channel: Channel, exchange: Exchange | None, error: Exception
    ) -> tuple[str, int]:
        """Respond with an error in place of the app. Return the status and the size sent."""
        if not isinstance(error, RequestError):
            return self.answer_error(channel, exchange and exchange.req, error)
        if isinstance(error, QueueTimeout):
            pass  # it is logged for all of them, once a minute
        elif error.status >= 500:
            self.log.error("A request from %s is not served: %s", channel.connection().peer, error)
        elif error.status not in (408, 413):
            self.log.warning("Invalid request from %s: %s", channel.connection().peer, error)
        size = 0
        try:
            headers, body = _error_page(error)
            size = channel.send_error(error.status, error.reason, headers, body)
        except ClientGone as gone:
            self.log.debug("Failed to send error message: %s", gone)
        return f"{error.status} {error.reason}", size

    def _error_response(
        self, channel: Channel, exchange: Exchange, status: str, size: int
    ) -> Response:
        """Return the response that is logged for an error. The exchange then has an environ."""
        if exchange.environ is None:
            exchange.environ = self.make_environ(exchange, channel.connection(), check=False)
        resp = channel.response_class(exchange.req, channel.output, self.settings)
        resp.status, resp.status_code = status, int(status[:3])
        resp.sent = size
        resp.must_close = True
        return resp

    def end_exchange(self, output: OutputQueue, exchange: Exchange, now: float) -> None:
        """The response to a request has been sent, or never will be: record it, and close bodies.

        :param now: monotonic.
        """
        if exchange.replaced_by is not None:
            exchange.resp = exchange.replaced_by
        if self.on_answered is not None:
            self.on_answered(output, exchange, now)
        if self.log_access is not None:
            self._log_exchange(output, exchange)
        if exchange.make_close_due is not None:
            exchange.make_close_due()
        if output.error is not None and isinstance(output.error, FileTruncated):
            warn = partial(self.log.warning, "Cutting off %s: %s", exchange.req.uri, output.error)
            if exchange.context is None:
                warn()
            else:
                self.write_late(partial(exchange.context.run, warn))
        if exchange.body is not None:
            exchange.body.close()
            exchange.req.body = None  # a log or a traceback may keep the request

    # The access log

    def _log_exchange(self, output: OutputQueue, exchange: Exchange) -> None:
        resp = exchange.resp
        if resp is None or resp.status is None or exchange.environ is None:
            return
        is_replaced = resp is exchange.replaced_by
        left = output.bytes_left()
        if left and not is_replaced:
            resp.sent = max(0, resp.sent - left)
        if is_replaced or (output.error is None and not resp.is_cut_off):
            outcome = SENT
        else:
            outcome = CUT_OFF if self._has_cut_off(output.error) else CLIENT_LEFT
        add_details = partial(_add_details, exchange, output.backlog, outcome)
        self._log_access(resp, exchange, exchange.environ, add_details)

    def _has_cut_off(self, error: BaseException | None) -> bool:
        """Return whether the server has ended a response early, not the client.

        :param error: of its output, or None if the app has failed or sent too little.
        """
        if self.shared.is_disconnecting or error is None:
            return True
        # A client that takes nothing in time is dropped by a TimeoutError without a number.
        return not isinstance(error, _FROM_CLIENT) and getattr(error, "errno", None) not in _LOST

    def _log_access(
        self,
        resp: Response,
        exchange: Exchange,
        environ: Any,
        add_details: AddDetails | None = None,
    ) -> None:
        if exchange.req.path in self._unlogged:
            return
        seconds = time.monotonic() - exchange.started
        if exchange.context is None:
            self._write_line(resp, exchange.req, environ, seconds, add_details)
            return
        if add_details is not None:
            add_details(environ)
        write = partial(self._write_line, resp, exchange.req, environ, seconds, None)
        self.write_elsewhere(partial(exchange.context.run, write))

    def write_elsewhere(self, write: Callable[[], object]) -> None:
        """Write a line of the access log where no value of another request can be seen in it.

        :param write: writes it. This thread may have run another request's app since.
        """
        if self.line_needs_thread():
            self.write_late(write)
        else:
            write()

    def _write_line(
        self, resp: Response, req: Any, environ: Any, seconds: float, add_details: AddDetails | None
    ) -> None:
        assert self.log_access is not None
        try:
            self.log_access(resp, req, environ, seconds, add_details)
        except Exception:  # in a logger of the user's
            self.log.exception("Error in the access log")


def queued_seconds(exchange: Exchange) -> float | None:
    """How long a request that has an environ waited before it came, by its trusted proxy's header.

    Any other client could write anything into the metric.
    """
    assert exchange.environ is not None
    request_start = exchange.environ.get("HTTP_X_REQUEST_START")
    if request_start is None or not exchange.req.cfg.trusts(exchange.req.peer_addr):
        return None
    arrived = time.time() - (time.monotonic() - exchange.started)
    return queue_seconds(request_start, arrived)


def _wait_of_this_thread() -> float | None:
    """Return how long the request of this thread has waited for its app, in seconds."""
    member = getattr(this_thread, "member", None)
    exchange = None if member is None or member.job is None else member.job.exchange
    if exchange is None or exchange.environ is None:
        return None
    waited_s = time.monotonic() - exchange.queued if exchange.queued else 0.0
    return waited_s + (queued_seconds(exchange) or 0.0)


wait_sources.append(_wait_of_this_thread)


def _add_details(
    exchange: Exchange, backlog: Backlog | None, outcome: str, environ: dict[str, Any]
) -> None:
    """Add the keys that an access log can print about the response just sent."""
    environ[OUTCOME] = outcome
    queued, begun, answered = exchange.queued, exchange.begun, exchange.answered
    if not begun:
        return
    waited_s = 0.0 if backlog is None else backlog.waited_s
    environ[WAIT_US] = int((begun - queued) * 1e6) if queued else 0
    environ[APP_US] = int((answered - begun - waited_s) * 1e6)
    environ[SEND_US] = int((time.monotonic() - answered + waited_s) * 1e6)
    if (queued_s := queued_seconds(exchange)) is not None:
        environ[QUEUE_US] = int(queued_s * 1e6)
    environ[SENDFILE_BYTES] = 0 if backlog is None else backlog.by_sendfile


def _error_page(error: RequestError) -> tuple[Headers, bytes]:
    """Return the headers and body of a response with an error.

    It has the form of gunicorn's error pages, so that all errors look alike.
    """
    reason = error.reason
    page = (
        f"<html>\n  <head>\n    <title>{reason}</title>\n  </head>\n  <body>\n"
        f"    <h1><p>{reason}</p></h1>\n    {html.escape(str(error))}\n  </body>\n</html>\n"
    ).encode("latin-1", "replace")
    size = str(len(page))
    return [("Content-Type", "text/html"), ("Content-Length", size), *error.headers], page
