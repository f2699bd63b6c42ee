"""wsgiref's development server, with persistent connections, TCP_NODELAY and sendfile.

The names and signatures are those of `wsgiref.simple_server`. Only the import line changes:

    from wsgifast.devservers.simple_server import ThreadingWSGIServer, make_server

    with make_server("127.0.0.1", 8000, app, server_class=ThreadingWSGIServer) as server:
        server.serve_forever()

This server is for development and tests, like that of wsgiref, and not for production.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
import traceback
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, TypeVar, overload
from urllib.parse import unquote, urlsplit
from wsgiref import simple_server

from .connection import KeepAliveHandler

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication, WSGIEnvironment

_Server = TypeVar("_Server", bound="WSGIServer")

__all__ = ["ThreadingWSGIServer", "WSGIRequestHandler", "WSGIServer", "make_server"]

# wsgiref's server has a backlog of 5. In a burst, further clients wait a second until they repeat
# their SYN.
_BACKLOG = 128
# The longest time that server_close() waits for running responses.
STOP_S = 10.0
# After that time it shuts down their connections, and waits this time for their threads.
_SHUTDOWN_S = 2.0


class WSGIServer(simple_server.WSGIServer):
    """Serves one connection at a time.

    An idle connection is closed as soon as another client waits.
    """

    request_queue_size = _BACKLOG
    #: Set while the server stops. Connections are then closed after their response.
    is_stopping = False

    def __init__(
        self,
        server_address: tuple[str, int],
        RequestHandlerClass: type[WSGIRequestHandler],
        bind_and_activate: bool = True,
    ) -> None:
        if ":" in server_address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(server_address, RequestHandlerClass, bind_and_activate)

    def serve_forever(self, poll_interval: float = 0.5) -> None:
        self.is_stopping = False
        super().serve_forever(poll_interval)

    def handle_request(self) -> None:
        """Serve one request, and close its connection."""
        self.is_stopping = True
        try:
            super().handle_request()
        finally:
            self.is_stopping = False

    def shutdown(self) -> None:
        """End serve_forever(), which runs in another thread, and close idle connections."""
        self.is_stopping = True
        super().shutdown()


class ThreadingWSGIServer(ThreadingMixIn, WSGIServer):
    """Serves each connection in a separate thread."""

    daemon_threads = True
    # That of wsgiref: WSGIServer's method would set `is_stopping` only until the thread has begun.
    handle_request = simple_server.WSGIServer.handle_request

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._serving: dict[threading.Thread, socket.socket] = {}
        super().__init__(*arguments, **options)

    def process_request_thread(self, request, client_address):  # type: ignore[no-untyped-def]
        thread = threading.current_thread()
        self._serving[thread] = request
        try:
            super().process_request_thread(request, client_address)
        finally:
            del self._serving[thread]

    def server_close(self) -> None:
        """Stop listening, close idle connections, and wait for running responses.

        After STOP_S seconds, the connections of running responses are shut down.
        """
        self.socket.close()  # is_server_stopping() checks this
        self._join(STOP_S)
        for connection in list(self._serving.values()):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # the connection was closed meanwhile
        self._join(_SHUTDOWN_S)
        super().server_close()

    def _join(self, limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        for thread in list(self._serving):
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))


class WSGIRequestHandler(KeepAliveHandler, simple_server.WSGIRequestHandler):
    """wsgiref's request handler with persistent connections.

    wsgiref's environ contains the environment variables of the process. This environ does not:
    HTTP_PROXY would look like a header of the client.
    """

    server: WSGIServer

    def application(self) -> WSGIApplication:
        application = self.server.get_app()
        if application is None:
            raise RuntimeError("the server has no application: call set_app()")
        return application

    def basic_environ(self) -> WSGIEnvironment:
        environ: WSGIEnvironment = self.get_environ()
        target = urlsplit(self.path)
        if target.scheme and target.netloc:
            # The target is an absolute URI. It takes precedence over Host (RFC 9112, 3.2.2).
            environ["HTTP_HOST"] = target.netloc.rpartition("@")[2]
            environ["PATH_INFO"] = unquote(target.path or "/", "latin-1")
        environ["wsgi.version"] = (1, 0)
        environ["wsgi.url_scheme"] = (
            "https" if isinstance(self.connection, ssl.SSLSocket) else "http"
        )
        environ["wsgi.errors"] = self.get_stderr()
        environ["wsgi.multithread"] = isinstance(self.server, ThreadingMixIn)
        environ["wsgi.multiprocess"] = False
        environ["wsgi.run_once"] = False
        return environ

    def error_application(self) -> WSGIApplication:
        handler = simple_server.ServerHandler(self.rfile, self.wfile, self.get_stderr(), {})  # type: ignore[arg-type]
        return handler.error_output

    def log_failure(self, error: BaseException) -> None:
        traceback.print_exception(error, file=self.get_stderr())


@overload
def make_server(
    host: str, port: int, app: WSGIApplication, *, handler_class: type[WSGIRequestHandler] = ...
) -> WSGIServer: ...


@overload
def make_server(
    host: str,
    port: int,
    app: WSGIApplication,
    server_class: type[_Server],
    handler_class: type[WSGIRequestHandler] = ...,
) -> _Server: ...


def make_server(
    host: str,
    port: int,
    app: WSGIApplication,
    server_class: type[WSGIServer] = WSGIServer,
    handler_class: type[WSGIRequestHandler] = WSGIRequestHandler,
) -> WSGIServer:
    """Return a server that listens. Call its method serve_forever().

    :param host: a host name, or an IPv4 or IPv6 address. "" for all IPv4 addresses.
    :param port: the port. 0 for a free port, which is then in `server_port` of the server.
    :param server_class: :class:`WSGIServer`, :class:`ThreadingWSGIServer`, or a subclass.
    :param handler_class: a subclass may set `timeout`, `keep_alive_timeout` (seconds) and
        `use_sendfile`.
    :raises OSError: if the address is in use.
    """
    server = server_class((host, port), handler_class)
    server.set_app(app)
    return server
