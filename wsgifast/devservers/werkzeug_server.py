"""Werkzeug's development server, with persistent connections, TCP_NODELAY and sendfile.

    app.run(request_handler=WerkzeugRequestHandler)                                    # Flask
    werkzeug.serving.run_simple(host, port, app, request_handler=WerkzeugRequestHandler)

Werkzeug closes every connection, since http.server does not know where an unread request body ends.
This handler knows the end of the body, and discards unread bytes before the next request. If there
are too many of them, it also closes the connection. Debugger, reloader, TLS, threads and processes
are those of Werkzeug.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

from ..checks import needs
from .connection import KeepAliveHandler

with needs("wsgifast.devservers.WerkzeugRequestHandler", "werkzeug", "devservers"):
    from werkzeug import serving
    from werkzeug.exceptions import InternalServerError

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication, WSGIEnvironment


class WerkzeugRequestHandler(KeepAliveHandler, serving.WSGIRequestHandler):
    """A `request_handler` for run_simple, make_server, and Flask's app.run.

    With the debugger, files are read and sent in blocks: the debugger's iterator hides them from
    the server.
    """

    def handle_one_request(self) -> None:
        # address_string() reads the client's address from the environ, where ProxyFix may have set
        # it. It must not read the environ of the previous request.
        self.environ: WSGIEnvironment = {}
        super().handle_one_request()

    def application(self) -> WSGIApplication:
        return self.server.app

    def basic_environ(self) -> WSGIEnvironment:
        self.environ = self.make_environ()
        self.environ["REMOTE_PORT"] = str(self.environ["REMOTE_PORT"])  # PEP 3333 requires str
        return self.environ

    def error_application(self) -> WSGIApplication:
        return InternalServerError()

    def log_failure(self, error: BaseException) -> None:
        text = "".join(traceback.format_exception(error))
        self.server.log("error", "Error on request:\n%s", text)

    def has_left_http(self, error: Exception) -> bool:
        # simple-websocket and Flask-Sock use environ["werkzeug.socket"] for WebSocket. When the
        # WebSocket is closed, they raise a plain ConnectionError.
        return type(error) is ConnectionError

    def passes_errors_through(self) -> bool:
        return self.server.passthrough_errors
