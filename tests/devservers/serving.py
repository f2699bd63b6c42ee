"""Development servers in a thread of the test's process, with recorded logs, and their apps."""

from __future__ import annotations

import contextlib
import io
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from werkzeug import serving

from tests.support.http import Connection
from tests.support.wsgi import answering
from wsgifast.devservers import (
    ThreadingWSGIServer,
    WerkzeugRequestHandler,
    WSGIRequestHandler,
    WSGIServer,
    make_server,
)

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

THREADED = ("wsgiref", "werkzeug")
SINGLE = ("wsgiref-single", "werkzeug-single")
KINDS = (*THREADED, *SINGLE)
each_threaded = pytest.mark.parametrize("kind", THREADED)
each_single = pytest.mark.parametrize("kind", SINGLE)


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
    """A running server and a connection to it: see :func:`serve`."""
    with serve(app, kind, **handler) as served, Connection(served.address) as client:
        yield served, client


class _Lines(io.TextIOBase):
    def __init__(self, lines: list[str]) -> None:
        self._lines = lines

    def write(self, text: str) -> int:
        self._lines.append(text)
        return len(text)


def path_of(environ: WSGIEnvironment) -> list[bytes]:
    return [environ["PATH_INFO"].encode("latin-1")]


def assert_alive(connection: Connection) -> None:
    """Require that the connection answers a request of its own, and not with a leftover."""
    response = connection.request("/still-here")
    assert (response.status, response.body) == (200, b"/still-here"), str(response)


def router(**apps: WSGIApplication) -> WSGIApplication:
    """Apps by their path. The response to any other request is its path."""

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        chosen = apps.get(environ["PATH_INFO"][1:], answering(path_of))
        return chosen(environ, start_response)

    return app
