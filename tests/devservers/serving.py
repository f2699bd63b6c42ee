"""The dev servers, in a thread of the test's own process, with their logs kept."""

from __future__ import annotations

import contextlib
import io
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from werkzeug import serving

from tests.support.http import Connection
from wsgifast.devservers import (
    ThreadingWSGIServer,
    WerkzeugRequestHandler,
    WSGIRequestHandler,
    WSGIServer,
    make_server,
)

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

THREADED = ("wsgiref", "werkzeug")
SINGLE = ("wsgiref-single", "werkzeug-single")
KINDS = (*THREADED, *SINGLE)


@dataclass
class Served:
    """A running server."""

    address: tuple[str, int]
    server: Any
    lines: list[str] = field(default_factory=list)

    @property
    def log(self) -> str:
        return "\n".join(self.lines)


@contextlib.contextmanager
def serve(
    app: WSGIApplication, kind: str, *, tls: ssl.SSLContext | None = None, **handler: Any
) -> Iterator[Served]:
    """Run a server of a kind until the end of the block.

    :param handler: class attributes of the request handler, such as `timeout=0.2`.
    """
    lines: list[str] = []
    threaded = kind in THREADED
    server: Any
    if kind.startswith("wsgiref"):
        errors = _Lines(lines)
        attributes = {
            "log_message": lambda self, text, *args: lines.append(text % args),
            "get_stderr": lambda self: errors,
            **handler,
        }
        handler_class = type("Handler", (WSGIRequestHandler,), attributes)
        server_class = ThreadingWSGIServer if threaded else WSGIServer
        server = make_server("127.0.0.1", 0, app, server_class, handler_class)
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        port = server.server_port
    else:
        attributes = {"log": lambda self, kind, text, *args: lines.append(text % args), **handler}
        server = serving.make_server(
            "127.0.0.1",
            0,
            app,
            threaded=threaded,
            request_handler=type("Handler", (WerkzeugRequestHandler,), attributes),
            ssl_context=tls,
        )
        server.log = lambda kind, text, *args: lines.append(text % args)
        port = server.port
    thread = threading.Thread(target=server.serve_forever, args=(0.002,))
    thread.start()
    try:
        yield Served(("127.0.0.1", port), server, lines)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def talking(app: WSGIApplication, kind: str, **handler: Any) -> Iterator[tuple[Served, Connection]]:
    """A running server and a connection to it; see :func:`serve`."""
    with serve(app, kind, **handler) as served, Connection(served.address) as client:
        yield served, client


class _Lines(io.TextIOBase):
    def __init__(self, lines: list[str]) -> None:
        self._lines = lines

    def write(self, text: str) -> int:
        self._lines.append(text)
        return len(text)
