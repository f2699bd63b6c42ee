"""The handler of one client connection, which both development servers share.

Theory of operation. `socketserver` makes a handler for each connection and runs it in one thread
(or process) to its end. The connection is in one of these states, which only that thread changes:

    waiting     for the first byte of a request. Ended by a request, the client leaving, the
                keep-alive timeout, or the server shutting down. If one thread serves all
                connections, another client that waits to be accepted also ends it.
    reading     a request's headers. http.server's parser reads them through CheckedLines.
    responding  the application runs, and Response sends.
    skipping    the unread bytes of the request's body are discarded, up to a limit. Then waiting
                again.
    closing     after every failure, and if it is not certain where the next request begins. If the
                client may still be sending, its bytes are read for a while. A close with unread
                input makes the kernel reset the connection, and the client may lose the response
                (RFC 9112, 9.6).
"""

from __future__ import annotations

import io
import math
import select
import socket
import socketserver
import ssl
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, cast
from wsgiref.util import FileWrapper

from ..errors import ClientGone, RequestError
from ..http.chunked import ChunkDecoder, LengthDecoder
from ..http.framing import wants_to_persist
from ..sockets.closing import UNREAD_BODY_BYTES, Lingering
from ..sockets.options import set_nodelay
from .request import CheckedLines, RequestBody, check_headers
from .response import Outlet, Response

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication, WSGIEnvironment

# The size of the reads of request bodies.
_INPUT_BYTES = 64 * 1024
# The longest line of a chunk size with its extensions, or of a trailer.
_LINE_BYTES = 4096
# http.server's own limit for a request line.
_MAX_REQUEST_LINE_BYTES = 65_536
# A client that has just connected is about to send a request, and would report a close as an error.
# A speculative connection of a browser is silent for longer than this.
FRESH_GRACE_S = 0.5
# How often a waiting connection looks whether the server stops, as serve_forever() does.
_LOOK_S = 0.5
# A forking server accepts within this time, unless it has reached its limit of processes: only then
# a waiting client is locked out.
_FORKING_GRACE_S = 0.05


class KeepAliveHandler(BaseHTTPRequestHandler):
    """http.server's handler with persistent connections, running a WSGI application.

    Subclasses provide the application, the environ and the logging.
    """

    protocol_version = "HTTP/1.1"
    # Not HTTP/0.9: the response to a malformed request line has a status line too.
    default_request_version = "HTTP/1.0"
    rbufsize = _INPUT_BYTES
    #: Seconds in which the client has to send or receive at least one byte. None: no limit.
    timeout: ClassVar[float | None] = 30.0
    #: Seconds for which an idle connection stays open (Apache's and uvicorn's default).
    keep_alive_timeout: ClassVar[float] = 5.0
    #: False: read files and send their bytes. For file systems on which sendfile fails.
    use_sendfile: ClassVar[bool] = True

    # For subclasses.

    def application(self) -> WSGIApplication:
        """Return the application that the server runs."""
        raise NotImplementedError

    def basic_environ(self) -> WSGIEnvironment:
        """Return the environ of the parsed request, without the keys for its body."""
        raise NotImplementedError

    def error_application(self) -> WSGIApplication:
        """Return the application that answers if the other one failed before its first byte."""
        raise NotImplementedError

    def log_failure(self, error: BaseException) -> None:
        """Log an application's exception with its traceback."""
        raise NotImplementedError

    def connection_dropped(
        self, error: BaseException, environ: WSGIEnvironment | None = None
    ) -> None:
        """Do nothing. Called once if the client leaves too early or receives nothing any more.

        :param environ: that of the request, if the application was called.
        """

    def has_left_http(self, error: Exception) -> bool:
        """Whether the application raised this because it has taken over the socket."""
        return False

    def passes_errors_through(self) -> bool:
        """Whether the handler re-raises an application's exception."""
        return False

    # Called by socketserver and http.server.

    def setup(self) -> None:
        super().setup()
        set_nodelay(self.connection)
        self._stream = cast(io.BufferedReader, self.rfile)
        self._outlet = Outlet(self.connection, kernel_sends_files=self.use_sendfile)
        self._waiting = Waiting(self.connection, cast(socketserver.TCPServer, self.server))
        self._may_send_on = False  # the client, after our last response
        self._is_dropped = False
        self._passed_through: BaseException | None = None

    def handle(self) -> None:
        self.close_connection = False
        patience_s, grace_s = self.timeout, FRESH_GRACE_S
        try:
            while not self.close_connection and self._has_request(patience_s, grace_s):
                self.handle_one_request()
                patience_s, grace_s = self.keep_alive_timeout, 0.0
            if not self._is_dropped and (self._may_send_on or self._has_input()):
                self._linger()
        except (OSError, EOFError) as error:  # of the connection, not of the application
            self.connection_dropped(error)
        if self._passed_through is not None:
            raise self._passed_through

    def finish(self) -> None:
        self._end_tls()
        super().finish()

    def handle_one_request(self) -> None:
        for stale in ("path", "headers", "command"):  # the previous request's, for log lines
            vars(self).pop(stale, None)
        self.close_connection = True  # unless all goes well
        self.raw_requestline = self._read_request_line()
        if len(self.raw_requestline) > _MAX_REQUEST_LINE_BYTES:
            self.requestline, self.request_version, self.command = "", "", ""
            self.send_error(HTTPStatus.REQUEST_URI_TOO_LONG)
            return
        if not self.raw_requestline.endswith(b"\n"):
            return  # the client has left
        self.rfile = cast(Any, CheckedLines(cast(BinaryIO, self._stream)))
        try:
            parsed = self.parse_request()  # sends an error itself if it returns False
            self.close_connection = True  # not as it reads Connection
            if not parsed:
                return
            length = check_headers(self.requestline, self.headers)
        except RequestError as error:
            self.send_error(error.status, str(error))
            return
        except TimeoutError:
            self.send_error(HTTPStatus.REQUEST_TIMEOUT)
            return
        finally:
            self.rfile = self._stream
        self._respond(length)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer with an error page, in one send, and close the connection."""
        page = io.BytesIO()
        self.wfile, wfile = page, self.wfile
        # Without a path the request line is logged: Werkzeug's log fails for a path that is no URL.
        vars(self).pop("path", None)
        try:
            super().send_error(code, message, explain)
        finally:
            self.wfile = wfile
        self._may_send_on = True
        self._outlet.write(page.getvalue())

    # One request.

    def _respond(self, length: int | None) -> None:
        http11 = not self.requestline.endswith("HTTP/1.0")
        options = self.headers.get_all("Connection", [])
        wants_more = wants_to_persist(options, http11=http11) and self.command != "CONNECT"

        def may_stay() -> bool:
            return (
                wants_more
                and not body.exceeds(UNREAD_BODY_BYTES)
                and not self._waiting.is_server_stopping()
                and not self._waiting.is_other_client_locked_out()
            )

        def new_response() -> Response:
            return Response(self._outlet, self, http11=http11, may_stay=may_stay)

        response = new_response()
        decoder = ChunkDecoder(line_limit=_LINE_BYTES) if length is None else LengthDecoder(length)
        body = RequestBody(self._stream, decoder)
        environ = self.basic_environ()
        environ["wsgi.input"] = io.BufferedReader(body, _INPUT_BYTES)
        environ["wsgi.file_wrapper"] = FileWrapper
        if length is None:
            # Werkzeug, gunicorn and mod_wsgi set it too: without a Content-Length, wsgi.input can
            # be read to its end.
            environ["wsgi.input_terminated"] = True
        try:
            try:
                self._run(self.application(), environ, response)
            except Exception as error:  # noqa: BLE001 - whatever the application raises
                response.keep_alive = False
                if self._gives_up(error, response):
                    return
                response = new_response()
                self._run(self.error_application(), environ, response)
        except ClientGone as error:
            response.keep_alive = False
            self._is_dropped = True
            self.connection_dropped(error, environ)
            return
        finally:
            body.finish()
            if response.headers_sent:
                self.log_request(response.status_code, response.body_bytes)
        if response.keep_alive and self._skips(body):
            self.close_connection = False
        else:
            self._may_send_on = not body.at_end

    def _run(
        self, application: WSGIApplication, environ: WSGIEnvironment, response: Response
    ) -> None:
        response.write_body(application(environ, response.start_response), FileWrapper)
        if response.missing:
            response.keep_alive = False
        complaint = response.complaint(self.command, response.status_code)
        if complaint:
            self.log_error("%s: %s", self.requestline, complaint)

    def _gives_up(self, error: Exception, response: Response) -> bool:
        """Log a failed response. Return whether the response must end here.

        :raises ClientGone: if that was the error.
        """
        if isinstance(error, ClientGone):
            raise error
        if isinstance(error, RequestError):
            if not response.headers_sent:
                self.send_error(error.status, str(error))
            return True
        if self.has_left_http(error):
            return True
        if self.passes_errors_through():
            self._passed_through = error
            return True
        self.log_failure(error)
        self._may_send_on = response.headers_sent
        return response.headers_sent

    # Between requests.

    def _has_request(self, patience_s: float | None, grace_s: float) -> bool:
        return self._has_input() or self._waiting.for_request(patience_s, grace_s)

    def _has_input(self) -> bool:
        """Return whether there is unread input from the client. Decrypted input counts."""
        self.connection.settimeout(0)
        try:
            return bool(self._stream.peek(1))
        except ssl.SSLWantReadError:
            return False
        finally:
            self.connection.settimeout(self.timeout)

    def _read_request_line(self) -> bytes:
        line = self._stream.readline(_MAX_REQUEST_LINE_BYTES + 1)
        if line in (b"\r\n", b"\n"):  # RFC 9112, 2.2: some clients end a body with it
            line = self._stream.readline(_MAX_REQUEST_LINE_BYTES + 1)
        return line

    def _skips(self, body: RequestBody) -> bool:
        """Discard the unread bytes of a request body. Return whether its end was reached."""
        if body.at_end:
            return True
        # The client has its response: if it does not send, it is idle.
        self.connection.settimeout(self.keep_alive_timeout)
        try:
            return body.skip(UNREAD_BODY_BYTES)
        except (RequestError, ClientGone):
            return False
        finally:
            self.connection.settimeout(self.timeout)

    def _linger(self) -> None:
        """Discard further input from the client, so that it can read the response."""
        self._end_tls()
        self.connection.shutdown(socket.SHUT_WR)
        lingering = Lingering(time.monotonic())
        if not self._waiting.has_thread_of_its_own:
            lingering.hurry()  # the other clients wait
        scratch = bytearray(_INPUT_BYTES)
        while (left_s := lingering.deadline - time.monotonic()) > 0:
            self.connection.settimeout(left_s)
            if not lingering.should_continue(self.connection.recv_into(scratch), time.monotonic()):
                break

    def _end_tls(self) -> None:
        if isinstance(self.connection, ssl.SSLSocket):
            try:  # send close_notify without waiting for the client's
                self.connection.settimeout(0)
                self.connection.unwrap()
            except (OSError, ValueError):
                pass


class Waiting:
    """Waits for a connection's next request, unless the server stops or another client waits."""

    def __init__(self, connection: socket.socket, server: socketserver.TCPServer) -> None:
        self._server = server
        self._client = connection.fileno()
        # A server with one thread accepts no connection while it waits here.
        self.has_thread_of_its_own = isinstance(server, socketserver.ThreadingMixIn)
        is_forking = isinstance(server, socketserver.ForkingMixIn)
        self._grace_s = _FORKING_GRACE_S if is_forking else 0.0
        self._listener = -1 if self.has_thread_of_its_own else server.fileno()

    def for_request(self, patience_s: float | None, grace_s: float) -> bool:
        """Wait until the client sends something. Return False if the connection must be closed.

        :param patience_s: the longest wait in seconds. None: no limit.
        :param grace_s: seconds to wait for this client while others wait to be accepted.
        """
        deadline = math.inf if patience_s is None else time.monotonic() + patience_s
        while (left_s := deadline - time.monotonic()) > 0:
            ready = _readable(min(left_s, _LOOK_S), self._client, self._listener)
            if self._client in ready:
                return True
            if self.is_server_stopping():
                return False
            if ready and self.is_other_client_locked_out(grace_s):
                return bool(_readable(0, self._client))
        return False

    def is_other_client_locked_out(self, grace_s: float = 0.0) -> bool:
        """Whether another client cannot be accepted until this connection ends.

        :param grace_s: seconds to wait for this client's request first.
        """
        if not _readable(0, self._listener):
            return False
        grace_s = max(grace_s, self._grace_s)
        if not grace_s:
            return True
        return not _readable(grace_s, self._client) and bool(_readable(0, self._listener))

    def is_server_stopping(self) -> bool:
        return self._server.fileno() < 0 or bool(getattr(self._server, "is_stopping", False))


def _readable(within_s: float, *fds: int) -> set[int]:
    """Return the descriptors that are readable within the time. A descriptor of -1 is ignored."""
    poll = select.poll()
    for fd in fds:
        if fd >= 0:
            poll.register(fd, select.POLLIN)
    return {fd for fd, _ in poll.poll(within_s * 1e3)}
