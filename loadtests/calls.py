"""Make calls whose instructions instructions.py counts. Each call is a request to an app.

For each COUNT, a forked process makes the call COUNT times. The WSGI environ contains the keys of
gunicorn, so that WSGIFast sets TCP_NODELAY as in production. Under valgrind an import takes
seconds, so this module imports only what a call needs.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from wsgifast import WSGIFast
from wsgifast.bodies.files import close_body

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

# This environ is as large as gunicorn's. In a smaller dictionary, a new key would often cause a
# resize.
_ENVIRON: dict[str, Any] = {
    "wsgi.version": (1, 0), "wsgi.errors": sys.stderr, "wsgi.multithread": True,
    "wsgi.multiprocess": False, "wsgi.run_once": False, "wsgi.input_terminated": True,
    "wsgi.url_scheme": "http", "REQUEST_METHOD": "GET", "PATH_INFO": "/plain",
    "RAW_URI": "/plain", "QUERY_STRING": "", "SCRIPT_NAME": "", "SERVER_NAME": "127.0.0.1",
    "SERVER_PORT": "8000", "SERVER_PROTOCOL": "HTTP/1.1", "SERVER_SOFTWARE": "gunicorn",
    "REMOTE_ADDR": "127.0.0.1", "REMOTE_PORT": "50000", "HTTP_HOST": "127.0.0.1:8000",
    "HTTP_USER_AGENT": "loadtests", "HTTP_ACCEPT": "*/*",
    "HTTP_ACCEPT_ENCODING": "gzip, deflate", "HTTP_CONNECTION": "keep-alive",
}  # fmt: skip


def _wsgi(
    wrap: Callable[[Any], Any],
    headers: tuple[tuple[str, str], ...] = (),
    kind: Callable[[list[bytes]], Iterable[bytes]] = list,
    pattern: str | None = None,
    content_type: str = "text/plain",
    size: int = 512,
    accepts: str | None = "gzip, deflate",
) -> Callable[[], None]:
    """Return a call of a wrapped app with one body.

    :param wrap: a function that wraps the app.
    :param kind: a function that makes the body from a list of blocks.
    :param pattern: the URL pattern, which the app stores in the environ. None to store none.
    :param size: the size of the body in bytes.
    :param accepts: the request's Accept-Encoding. None for no such header.
    """
    body = [b"x" * size]

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if pattern is not None:
            environ["wsgifast.pattern"] = pattern
        start_response("200 OK", [("Content-Type", content_type), *headers])
        return kind(body)

    return _request(wrap(app), _accepting(accepts))


def _accepting(accepts: str | None) -> dict[str, Any]:
    environ = {**_ENVIRON, "HTTP_ACCEPT_ENCODING": accepts}
    return {name: value for name, value in environ.items() if value is not None}


def _request(app: Any, environ: Mapping[str, Any]) -> Callable[[], None]:
    """Return a call that does what a server does: make an environ, iterate and close the body."""
    environ = {**environ, "gunicorn.socket": socket.socket()}

    def call() -> None:
        body = app(environ.copy(), _start_response)
        for _block in body:
            pass
        close_body(body)

    return call


def _start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
    return None


def _with_opentelemetry(app: Any) -> Any:
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    metrics.set_meter_provider(MeterProvider([InMemoryMetricReader()]))
    return WSGIFast(app, metrics="opentelemetry")


def _flask(
    wrap: Callable[[Any], Any], path: str = "/page", accepts: str | None = "gzip, deflate"
) -> Callable[[], None]:
    from .flask_app import app as flask_app  # imported here, because other calls do not need Flask

    return _request(wrap(flask_app), {**_accepting(accepts), "PATH_INFO": path})


_ONE_KIB = b"x" * 1024
_GET = b"GET /plain HTTP/1.1\r\nHost: a.example\r\nUser-Agent: loadtests\r\nAccept: */*\r\n\r\n"


def _one_kib(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "1024")])
    return [_ONE_KIB]


def _fast_worker(wrap: Callable[[Any], Any]) -> Callable[[], None]:
    """Return a call that makes a request on an open connection.

    The calling thread does all work.
    """
    from types import SimpleNamespace

    from gunicorn.config import Config
    from gunicorn.glogging import Logger

    from wsgifast.workers import FastWorker

    cfg = Config()
    worker = FastWorker(0, os.getppid(), [], SimpleNamespace(), 30, cfg, Logger(cfg))
    worker.wsgi = wrap(_one_kib)
    server = worker.make_server()
    near, client = socket.socketpair()
    connection = server.connect(near, ("192.0.2.1", 4711), ("192.0.2.2", 80))
    if connection is None:
        raise RuntimeError("FastWorker has refused the connection")
    connection.begin()
    pool = server.pool
    pool.monitor.guard_at = float("inf")  # the monitor does not check the time of a step

    def call() -> None:
        client.sendall(_GET)
        pool._serve(pool.leader)  # polls
        pool._serve(pool.leader)  # receives, and runs the app
        if not client.recv(65536).endswith(_ONE_KIB):
            raise RuntimeError("FastWorker has not sent the response in one piece")

    return call


_LENGTH, _LONGER = ("Content-Length", "512"), ("Content-Length", "20000")
_WSGI: dict[str, Any] = {"raw": lambda app: app, "WSGIFast": WSGIFast}
_COMPRESS: dict[str, Any] = {
    "WSGIFast": WSGIFast,
    "WSGIFast that compresses": partial(WSGIFast, compress=True),
}
_METRICS: dict[str, Any] = {
    "none": WSGIFast,
    "prometheus": partial(WSGIFast, metrics="prometheus"),
    "opentelemetry, its SDK": _with_opentelemetry,
}
_ROUTED: dict[str, Any] = {"headers": (_LENGTH,), "pattern": "/items/<int:number>"}
# Maps the key of a row to its title, to its contenders, and to the function that makes a
# contender's call.
CALLS: dict[str, tuple[str, dict[str, Any], Callable[..., Callable[[], Any]]]] = {
    "wsgi.declared": ("WSGI: [bytes] with Content-Length", _WSGI,
                      partial(_wsgi, headers=(_LENGTH,))),
    "wsgi.undeclared": ("WSGI: [bytes] without", _WSGI, _wsgi),
    "wsgi.iterator": ("WSGI: an iterator of one chunk", _WSGI, partial(_wsgi, kind=iter)),
    "wsgi.flask": ("WSGI: a page of Flask's", _WSGI, _flask),
    # Responses that WSGIFast with compress=True does not compress.
    "uncompressed.unasked": ("WSGI: text for a client that accepts no coding", _COMPRESS,
                             partial(_wsgi, headers=(_LONGER,), size=20_000, accepts=None)),
    "uncompressed.small": ("WSGI: a small text", _COMPRESS, partial(_wsgi, headers=(_LENGTH,))),
    "uncompressed.image": ("WSGI: an image", _COMPRESS,
                           partial(_wsgi, headers=(_LONGER,), size=20_000,
                                   content_type="image/png")),
    "uncompressed.flask.unasked": ("A page of Flask's for a client that accepts no coding",
                                   _COMPRESS, partial(_flask, path="/long", accepts=None)),
    "uncompressed.flask.small": ("A small page of Flask's", _COMPRESS, _flask),
    "uncompressed.flask.image": ("An image of Flask's", _COMPRESS,
                                 partial(_flask, path="/image")),
    "fastworker": ("A response of 1 KiB", {"FastWorker": _WSGI["raw"]}, _fast_worker),
    "metrics": ("WSGIFast with metrics", _METRICS, partial(_wsgi, **_ROUTED)),
}  # fmt: skip


def main() -> None:
    """Make a call as often as requested, under valgrind."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.calls", description=__doc__)
    names = [f"{key}:{side}" for key, (_, sides, _) in CALLS.items() for side in sides]
    parser.add_argument("call", choices=names, metavar="CALL", help="one of " + ", ".join(names))
    parser.add_argument("count", type=int, nargs="+", metavar="COUNT", help="how often")
    options = parser.parse_args()
    key, _, side = options.call.partition(":")
    _, sides, make = CALLS[key]
    for count in options.count:
        pid = os.fork()
        if not pid:
            call = make(sides[side])  # after the fork, because this may start threads
            for _ in range(count):
                call()
            return
        if os.waitpid(pid, 0)[1]:
            sys.exit(1)
    os._exit(0)  # this exit needs the fewest instructions, so this process has the smallest count


if __name__ == "__main__":
    main()
