"""The handler of one client connection, for both development servers.

Theory of operation. `socketserver` creates a handler for each connection, and runs it in one thread
(or process) until the connection is closed. Only that thread changes the state of the connection:

    waiting     The handler waits for the first byte of a request. It closes the connection if the
                client leaves, the keep-alive timeout expires, or the server shuts down. A server
                with one thread also closes it if another client waits to be accepted.
    reading     http.server's parser reads the headers of a request through CheckedLines.
    responding  The application runs, and Response sends.
    skipping    The handler discards unread bytes of the request's body, up to a limit. The next
                state is waiting.
    closing     The request has failed, or the handler does not know where the next request begins.
                If the client may still send, its bytes are read and discarded for some time. If a
                socket is closed with unread input, the kernel resets the connection, and the client
                may lose the response (RFC 9112, 9.6).
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

# The size of a read from the client.
_INPUT_BYTES = 64 * 1024
# The longest line in a chunked body: a chunk size with its extensions, or a trailer.
_LINE_BYTES = 4096
# The limit of http.server for a request line.
_MAX_REQUEST_LINE_BYTES = 65_536
# A new connection is not closed in this time, even if other clients wait. Its client will send a
# request soon, and would report a close as an error. A browser's speculative connection is idle for
# longer than this.
FRESH_GRACE_S = 0.5
# The interval of checks whether the server stops. serve_forever() uses the same interval.
_CHECK_S = 0.5
# A forking server accepts a client within this time. If a client has waited longer, the number of
# processes is at its limit, and the server cannot accept the client yet.
_FORKING_GRACE_S = 0.05


class KeepAliveHandler(BaseHTTPRequestHandler):
    """http.server's handler with persistent connections, for WSGI applications.

    Subclasses provide the application, the environ and the logging.
    """

    protocol_version = "HTTP/1.1"
    # With HTTP/0.9, the response to a malformed request line would have no status line.
    default_request_version = "HTTP/1.0"
    rbufsize = _INPUT_BYTES
    #: Seconds in which the client must send or receive at least one byte. None: no limit.
    timeout: ClassVar[float | None] = 30.0
    #: Seconds for which an idle connection stays open (Apache's and uvicorn's default).
    keep_alive_timeout: ClassVar[float] = 5.0
    #: False: read files and send their bytes, for file systems on which sendfile() fails.
    use_sendfile: ClassVar[bool] = True

    # Methods for subclasses to override.

    def application(self) -> WSGIApplication:
        """Return the application that the server runs."""
        raise NotImplementedError

    def basic_environ(self) -> WSGIEnvironment:
        """Return the environ of the parsed request, without the keys for its body."""
        raise NotImplementedError

    def error_application(self) -> WSGIApplication:
        """Return an application that sends the error page for a failed application."""
        raise NotImplementedError

    def log_failure(self, error: BaseException) -> None:
        """Log an application's exception with its traceback."""
        raise NotImplementedError

    def connection_dropped(
        self, error: BaseException, environ: WSGIEnvironment | None = None
    ) -> None:
        """Handle a client that has left too early, or no longer receives. The default does nothing.

        :param environ: the environ of the request. None if the application was not called.
        """

    def has_left_http(self, error: Exception) -> bool:
        """Return whether this error means that the application uses the socket for WebSocket."""
        return False

    def passes_errors_through(self) -> bool:
        """Return whether the handler re-raises an exception of the application."""
        return False

    # Methods that socketserver and http.server call.

    def setup(self) -> None:
        super().setup()
        set_nodelay(self.connection)
        self._stream = cast(io.BufferedReader, self.rfile)
        self._outlet = Outlet(self.connection, kernel_sends_files=self.use_sendfile)
        self._waiting = Waiting(self.connection, cast(socketserver.TCPServer, self.server))
        self._client_may_send = False  # whether more input may arrive after the last response
        self._is_dropped = False
        self._error_to_raise: BaseException | None = None

    def handle(self) -> None:
        self.close_connection = False
        timeout_s, grace_s = self.timeout, FRESH_GRACE_S
        try:
            while not self.close_connection and self._has_request(timeout_s, grace_s):
                self.handle_one_request()
                timeout_s, grace_s = self.keep_alive_timeout, 0.0
            if not self._is_dropped and (self._client_may_send or self._has_input()):
                self._linger()
        except (OSError, EOFError) as error:  # _respond() handles errors of the application
            self.connection_dropped(error)
        if self._error_to_raise is not None:
            raise self._error_to_raise

    def finish(self) -> None:
        self._end_tls()
        super().finish()

    def handle_one_request(self) -> None:
        # Log lines of this request must not contain values of the previous request.
        for stale in ("path", "headers", "command"):
            vars(self).pop(stale, None)
        self.close_connection = True  # _respond() sets it to False after a success
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
            self.close_connection = True  # only _respond() may set it to False
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
        """Answer with an error page in one write. The connection is closed after it."""
        page = io.BytesIO()
        self.wfile, wfile = page, self.wfile
        # Werkzeug's log fails if `path` is not a valid URL. Without `path` it logs the request
        # line.
        vars(self).pop("path", None)
        try:
            super().send_error(code, message, explain)
        finally:
            self.wfile = wfile
        self._client_may_send = True
        self._outlet.write(page.getvalue())

    # Handling of one request.

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
            # Tells the application that wsgi.input has an end, although there is no Content-Length.
            # Werkzeug, gunicorn and mod_wsgi set this key too.
            environ["wsgi.input_terminated"] = True
        try:
            try:
                self._run(self.application(), environ, response)
            except Exception as error:  # noqa: BLE001 - the application may raise any exception
                response.keep_alive = False
                if self._handle_app_error(error, response):
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
        if response.keep_alive and self._discard_body(body):
            self.close_connection = False
        else:
            self._client_may_send = not body.at_end

    def _run(
        self, application: WSGIApplication, environ: WSGIEnvironment, response: Response
    ) -> None:
        response.write_body(application(environ, response.start_response), FileWrapper)
        if response.missing:
            response.keep_alive = False
        complaint = response.complaint(self.command, response.status_code)
        if complaint:
            self.log_error("%s: %s", self.requestline, complaint)

    def _handle_app_error(self, error: Exception, response: Response) -> bool:
        """Handle an error of the application. Return False if an error page has to be sent.

        :raises ClientGone: if `error` is a ClientGone.
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
            self._error_to_raise = error
            return True
        self.log_failure(error)
        self._client_may_send = response.headers_sent
        return response.headers_sent

    # Handling of the connection between requests.

    def _has_request(self, timeout_s: float | None, grace_s: float) -> bool:
        return self._has_input() or self._waiting.for_request(timeout_s, grace_s)

    def _has_input(self) -> bool:
        """Return whether there is unread input, in the socket, in TLS or in our buffer."""
        self.connection.settimeout(0)
        try:
            return bool(self._stream.peek(1))
        except ssl.SSLWantReadError:
            return False
        finally:
            self.connection.settimeout(self.timeout)

    def _read_request_line(self) -> bytes:
        line = self._stream.readline(_MAX_REQUEST_LINE_BYTES + 1)
        if line in (b"\r\n", b"\n"):  # RFC 9112, 2.2: some clients send an empty line after a body
            line = self._stream.readline(_MAX_REQUEST_LINE_BYTES + 1)
        return line

    def _discard_body(self, body: RequestBody) -> bool:
        """Discard the unread bytes of a request body. Return whether all were discarded."""
        if body.at_end:
            return True
        # The client has its response. If it sends nothing, it is like an idle client.
        self.connection.settimeout(self.keep_alive_timeout)
        try:
            return body.skip(UNREAD_BODY_BYTES)
        except (RequestError, ClientGone):
            return False
        finally:
            self.connection.settimeout(self.timeout)

    def _linger(self) -> None:
        """Discard further input of the client for some time, so that it can read the response."""
        self._end_tls()
        self.connection.shutdown(socket.SHUT_WR)
        lingering = Lingering(time.monotonic())
        if not self._waiting.is_threaded:
            lingering.hurry()  # other clients wait for this thread
        scratch = bytearray(_INPUT_BYTES)
        while (left_s := lingering.deadline - time.monotonic()) > 0:
            self.connection.settimeout(left_s)
            if not lingering.should_continue(self.connection.recv_into(scratch), time.monotonic()):
                break

    def _end_tls(self) -> None:
        if isinstance(self.connection, ssl.SSLSocket):
            try:  # send close_notify, and do not wait for that of the client
                self.connection.settimeout(0)
                self.connection.unwrap()
            except (OSError, ValueError):
                pass


class Waiting:
    """Waits for the next request of a connection, until the server stops or another client waits.

    :ivar is_threaded: whether each connection has its own thread. If not, other clients
        may have to wait for this connection.
    """

    def __init__(self, connection: socket.socket, server: socketserver.TCPServer) -> None:
        self._server = server
        self._client = connection.fileno()
        self.is_threaded = isinstance(server, socketserver.ThreadingMixIn)
        is_forking = isinstance(server, socketserver.ForkingMixIn)
        self._grace_s = _FORKING_GRACE_S if is_forking else 0.0
        self._listener = -1 if self.is_threaded else server.fileno()

    def for_request(self, timeout_s: float | None, grace_s: float) -> bool:
        """Wait until the client sends a byte. Return False if the connection must be closed.

        :param timeout_s: the longest wait in seconds. None: no limit.
        :param grace_s: the longest wait in seconds while other clients wait to be accepted.
        """
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            ready = _readable(min(left_s, _CHECK_S), self._client, self._listener)
            if self._client in ready:
                return True
            if self.is_server_stopping():
                return False
            if ready and self.is_other_client_locked_out(grace_s):
                return bool(_readable(0, self._client))
        return False

    def is_other_client_locked_out(self, grace_s: float = 0.0) -> bool:
        """Return whether another client cannot be accepted until this connection is closed.

        :param grace_s: seconds to wait for a request of this client before the result is True.
        """
        if not _readable(0, self._listener):
            return False
        grace_s = max(grace_s, self._grace_s)
        if not grace_s:
            return True
        return not _readable(grace_s, self._client) and bool(_readable(0, self._listener))

    def is_server_stopping(self) -> bool:
        """Return whether the server stops, or has closed its listening socket."""
        return self._server.fileno() < 0 or bool(getattr(self._server, "is_stopping", False))


def _readable(within_s: float, *fds: int) -> set[int]:
    """Wait until a descriptor is readable. Return the readable ones, and ignore -1."""
    poll = select.poll()
    for fd in fds:
        if fd >= 0:
            poll.register(fd, select.POLLIN)
    return {fd for fd, _ in poll.poll(within_s * 1e3)}
