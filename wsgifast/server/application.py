"""Call the WSGI app for each request, respond if the app fails, and log the request.

:meth:`Application.end_exchange` handles the end of each response.
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
)
from ..bodies.server_timing import wait_sources
from ..bodies.wrappers import closes_file_alone
from ..deadlines import QueueTimeout
from ..errors import ClientGone, RequestError
from ..sockets.sending import FileTruncated
from .backlog import Backlog
from .channel import Channel, Headers, exchange_of_this_thread
from .endpoint import Endpoint
from .output import OutputQueue
from .probes import Probes
from .receiving import Exchange
from .response import Response, ResponseSettings
from .shared import Shared

# Errors of a socket whose client has left: classes, and the numbers of errors that have no class.
_FROM_CLIENT = (ConnectionError, ssl.SSLError)
_LOST = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.ENOTCONN)

# A function that adds keys to an environ.
AddDetails = Callable[[dict[str, Any]], object]
LogAccess = Callable[[Any, Any, dict[str, Any], float, AddDetails | None], object]


@dataclass(kw_only=True, eq=False)
class Application:
    """Runs a WSGI app. It is thread-safe.

    The server sets `on_max_requests`, `write_late` and `postpone`.

    :param app: the WSGI app.
    :param make_environ: makes the environ from an exchange and its connection. With check=False it
        accepts any path. The log of a refused request needs this.
    :param file_wrapper: the environ's `wsgi.file_wrapper`.
    :param log_access: writes a line of the access log. Its arguments are the response, the request,
        the environ, the duration in seconds, and None or a function that adds details to the
        environ. None if there is no access log.
    :param line_needs_thread: returns whether user code, such as a logging filter, may see which
        thread writes a line. `write_late` then writes it.
    :param pre_request: called before the app with the exchange and its connection, or None. It may
        change the request.
    :param post_request: called after the app, even if the app failed, or None. Its arguments are
        the request, the environ ({} if there is none), the response (None if there is none) and the
        request's number (see `requests`, or 0 if the app was not called).
    :param answer_error: responds to an exception, if nothing was sent before. It also logs the
        exception. Its arguments are the channel, the request (None if it could not be read) and the
        exception. It returns the status and the size of the body. Without a request, it also writes
        the access log.
    :param on_answered: called after a response was sent or failed, before the access log is
        written, or None. Its arguments are the output, the exchange and the monotonic time. It must
        not raise.
    :param readiness: returns whether this worker is ready for requests, and the reason.
    :ivar requests: the number of requests for which the app was called or is about to be called.
    :ivar max_requests: the number of requests after which `on_max_requests` is called once. It may
        change at any time.
    :ivar write_late: passes a function that writes a log line to a thread that never runs an app.
    :ivar postpone: see :meth:`.Pool.postpone`.
    :ivar probes: responds to health checks.
    """

    shared: Shared
    app: Callable[..., Any]
    make_environ: Callable[..., dict[str, Any]]
    file_wrapper: type
    settings: ResponseSettings
    log_access: LogAccess | None
    pre_request: Callable[[Exchange, Endpoint], object] | None
    post_request: Callable[[Any, dict[str, Any], Response | None, int], object] | None
    answer_error: Callable[[Channel, Any, BaseException], tuple[str, int]]
    on_answered: Callable[[OutputQueue, Exchange, float], object] | None = None
    line_needs_thread: Callable[[], bool] = lambda: True
    readiness: Callable[[], tuple[bool, str]] = lambda: (True, "ready")
    requests: int = 0
    max_requests: float = math.inf
    on_max_requests: Callable[[], object] | None = None
    write_late: Callable[[Callable[[], object]], object] = field(init=False)
    postpone: Callable[[Callable[[], object], Any], Callable[[], object]] = field(init=False)

    def __post_init__(self) -> None:
        self.log = self.shared.log
        options = self.shared.options
        self.probes = Probes(self.shared, self.settings, self.file_wrapper, self.readiness)
        self._unlogged = {options.health_path, options.ready_path, *options.access_log_skip}

    def run(self, channel: Channel, *, may_persist: bool) -> None:
        """Call the app for a request. The caller then finishes the response.

        :param may_persist: whether the connection may stay open after the response.
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
                # The GIL makes this line atomic, because the line calls no function.
                self.requests = number = self.requests + 1
                if number == self.max_requests and self.on_max_requests is not None:
                    self.on_max_requests()
                exchange.resp = resp = channel.response_class(req, channel.output, self.settings)
                environ = self.make_environ(exchange, connection)
                resp.offer(environ)
                exchange.environ = environ
                resp.must_close = not may_persist
                if self.log_access is not None:
                    exchange.begun = time.monotonic()
                try:
                    resp.write_body(self.app(environ, resp.start_response), self.file_wrapper)
                finally:
                    if resp.close_body is not None:
                        self._close_when_sent(channel, exchange, resp)
                if resp.dropped or (resp.sent != resp.length and resp.length is not None):
                    self._check_body(resp)
            except BaseException as error:  # noqa: BLE001 - sys.exit() must not end the thread
                if isinstance(error, StopIteration) and connection.hijacked:
                    # By gunicorn's convention, an app that took over the socket raises this
                    # exception when it has finished.
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
        """Close a body. If the output still reads a file of the app, postpone the close().

        close() may reuse or remove that file, so it is called after the last byte was sent. File
        objects of Python are closed at once, because the output has its own descriptor.
        """
        close, resp.close_body = resp.close_body, None
        assert close is not None
        if channel.output.is_sent() or not resp.sends_file or closes_file_alone(close):
            close()
        else:
            exchange.schedule_close = self.postpone(close, exchange.req)

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
        """Respond to an exception of the app. If the response has begun, cut it off."""
        # If the request's body could not be read, any error of the app is a consequence of this
        # failure.
        unread = exchange.streamed and exchange.streamed.failure
        error = unread or error
        is_lost = error is unread or channel.output.error is not None
        # While bytes of a forbidden body are dropped, write() raises ClientGone to end an endless
        # body. Any other ClientGone of the app may come from another request.
        is_endless = resp is not None and resp.dropped and isinstance(error, ClientGone)
        if resp is not None:
            resp.force_close()
        if isinstance(error, ConnectionError) and (is_lost or is_endless):
            self.log.debug("Ignoring a lost connection: %s", error)
            exchange.resp = None if resp is not None and not resp.headers_sent else resp
            return
        if resp is not None and resp.headers_sent:
            # An error page would appear in the middle of the body.
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
        """End the response to a request after its deadline. Any thread may call it.

        :param error: the reason. The app's next write raises ClientGone with its text.
        :returns: how the response ended, for the log. None if the app has returned in the meantime.
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
            page = channel.error_page(*_error_page(refusal))
            status = f"503 {refusal.reason}"
            exchange.replaced_by = self._error_response(channel, exchange, status, len(page.body))
            channel.end_early(error, page)
            return "the client gets 503"

    def refuse(self, channel: Channel, exchange: Exchange | None, error: Exception) -> None:
        """Respond to an error that occurred before the app was called, and log it.

        This runs in an empty context, because this thread's context belongs to another request.
        """
        # The client caused the error, unless it is an OSError of the disk.
        default = 500 if isinstance(error, OSError) else 400
        self.shared.counters.refused[getattr(error, "status", default)] += 1
        Context().run(self._refuse, channel, exchange, error)

    def _refuse(self, channel: Channel, exchange: Exchange | None, error: Exception) -> None:
        status, size = self._answer(channel, exchange, error)
        if exchange is not None and self.log_access is not None:
            resp = self._error_response(channel, exchange, status, size)
            exchange.context = Context()
            self._log_access(resp, exchange)
            exchange.environ = None  # Without it, no metrics are recorded: no app was called

    def _answer(
        self, channel: Channel, exchange: Exchange | None, error: Exception
    ) -> tuple[str, int]:
        """Respond with an error instead of the app. Return the status and the size of the body."""
        if not isinstance(error, RequestError):
            return self.answer_error(channel, exchange and exchange.req, error)
        if isinstance(error, QueueTimeout):
            pass  # QueueTimeouts logs all of them once a minute
        elif error.status >= 500:
            self.log.error("A request from %s is not served: %s", channel.connection().peer, error)
        elif error.status not in (408, 413):
            self.log.warning("Invalid request from %s: %s", channel.connection().peer, error)
        size = 0
        try:
            size = channel.send_error(*_error_page(error))
        except ClientGone as gone:
            self.log.debug("Failed to send error message: %s", gone)
        return f"{error.status} {error.reason}", size

    def _error_response(
        self, channel: Channel, exchange: Exchange, status: str, size: int
    ) -> Response:
        """Return the response to log for an error. The exchange then has an environ."""
        if exchange.environ is None:
            exchange.environ = self.make_environ(exchange, channel.connection(), check=False)
        resp = channel.response_class(exchange.req, channel.output, self.settings)
        resp.status, resp.status_code = status, int(status[:3])
        resp.sent = size
        resp.must_close = True
        return resp

    def end_exchange(self, output: OutputQueue, exchange: Exchange, now: float) -> None:
        """Record and log a request whose response was sent or has failed, and close its bodies.

        :param now: the monotonic time.
        """
        if exchange.replaced_by is not None:
            exchange.resp = exchange.replaced_by
        elif output.error is not None and exchange.resp is not None:
            exchange.resp.sent = max(0, exchange.resp.sent - output.unsent_bytes())
        if self.on_answered is not None:
            self.on_answered(output, exchange, now)
        if self.log_access is not None:
            self._log_exchange(output, exchange)
        if exchange.schedule_close is not None:
            exchange.schedule_close()
        if output.error is not None and isinstance(output.error, FileTruncated):
            warn = partial(self.log.warning, "Cutting off %s: %s", exchange.req.uri, output.error)
            if exchange.context is None:
                warn()
            else:
                self.write_late(partial(exchange.context.run, warn))
        if exchange.body is not None:
            exchange.body.close()
            exchange.req.body = None  # a log or a traceback may refer to the request

    # The access log.

    def _log_exchange(self, output: OutputQueue, exchange: Exchange) -> None:
        resp = exchange.resp
        if resp is None or resp.status is None or exchange.environ is None:
            return
        if resp is exchange.replaced_by or (output.error is None and not resp.is_cut_off):
            outcome = SENT
        else:
            outcome = CUT_OFF if self._has_cut_off(output.error) else CLIENT_LEFT
        add_details = partial(_add_details, exchange, output.backlog, outcome)
        self._log_access(resp, exchange, add_details)

    def _has_cut_off(self, error: BaseException | None) -> bool:
        """Return whether the server ended a response early. False if the client left.

        :param error: the error of the output. None if the app has failed or sent too little.
        """
        if self.shared.is_disconnecting or error is None:
            return True
        # A TimeoutError without an errno means that the server has disconnected a slow client.
        return not isinstance(error, _FROM_CLIENT) and getattr(error, "errno", None) not in _LOST

    def _log_access(
        self, resp: Response, exchange: Exchange, add_details: AddDetails | None = None
    ) -> None:
        environ: Any = exchange.environ
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
        """Write a line of the access log in a thread without thread-local values of a request.

        :param write: writes the line. The calling thread may have run the app of another request.
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
        except Exception:  # of the user's logger
            self.log.exception("Error in the access log")


def _wait_of_this_thread() -> float | None:
    """Return how long this thread's request has waited for its app, in seconds."""
    exchange = exchange_of_this_thread()
    return None if exchange is None else exchange.waited_s()


wait_sources.append(_wait_of_this_thread)


def _add_details(
    exchange: Exchange, backlog: Backlog | None, outcome: str, environ: dict[str, Any]
) -> None:
    """Add keys about the sent response that the access log may show."""
    environ[OUTCOME] = outcome
    queued, begun, answered = exchange.queued, exchange.begun, exchange.answered
    if not begun:
        return
    waited_s = 0.0 if backlog is None else backlog.waited_s
    environ[WAIT_US] = int((begun - queued) * 1e6) if queued else 0
    environ[APP_US] = int((answered - begun - waited_s) * 1e6)
    environ[SEND_US] = int((time.monotonic() - answered + waited_s) * 1e6)
    if (queued_s := exchange.waited_in_proxy_s()) is not None:
        environ[QUEUE_US] = int(queued_s * 1e6)
    environ[SENDFILE_BYTES] = 0 if backlog is None else backlog.by_sendfile


def _error_page(error: RequestError) -> tuple[int, str, Headers, bytes]:
    """Return the status, reason, headers and body of an error response.

    The page has the same form as gunicorn's error pages.
    """
    reason = error.reason
    page = (
        f"<html>\n  <head>\n    <title>{reason}</title>\n  </head>\n  <body>\n"
        f"    <h1><p>{reason}</p></h1>\n    {html.escape(str(error))}\n  </body>\n</html>\n"
    ).encode("latin-1", "replace")
    size = str(len(page))
    headers = [("Content-Type", "text/html"), ("Content-Length", size), *error.headers]
    return error.status, reason, headers, page
