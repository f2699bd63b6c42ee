"""Werkzeug's development server, with persistent connections, TCP_NODELAY and sendfile.

    app.run(request_handler=WerkzeugRequestHandler)                                    # Flask
    werkzeug.serving.run_simple(host, port, app, request_handler=WerkzeugRequestHandler)

Werkzeug closes every connection, since http.server does not know where an unread request body ends.
Here the body is a stream with an end. Its unread bytes are read before the next request. If they
are too many, the connection is closed too. Debugger, reloader, TLS, threads and processes are
Werkzeug's own.
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

    Under the debugger files are read and sent in blocks: its own iterator hides them from the
    server.
    """

    def handle_one_request(self) -> None:
        # address_string() reads the client's address from the environ, where ProxyFix may have set
        # it: not from that of the previous request.
        self.environ: WSGIEnvironment = {}
        super().handle_one_request()

    def application(self) -> WSGIApplication:
        return self.server.app

    def basic_environ(self) -> WSGIEnvironment:
        self.environ = self.make_environ()
        self.environ["REMOTE_PORT"] = str(self.environ["REMOTE_PORT"])  # PEP 3333: all are str
        return self.environ

    def error_application(self) -> WSGIApplication:
        return InternalServerError()

    def log_failure(self, error: BaseException) -> None:
        text = "".join(traceback.format_exception(error))
        self.server.log("error", "Error on request:\n%s", text)

    def has_left_http(self, error: Exception) -> bool:
        # simple-websocket and Flask-Sock speak WebSocket on environ["werkzeug.socket"], and raise a
        # plain ConnectionError when they are done.
        return type(error) is ConnectionError

    def passes_errors_through(self) -> bool:
        return self.server.passthrough_errors
