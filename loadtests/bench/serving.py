"""Any of the usual servers, for any app that can be imported, as it is or wrapped.

    python -m loadtests.bench.serving wsgiref module:app 8001

serves under a server that has no command of its own, or none that takes a factory.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from asgifast import ASGIFast

from wsgifast import WSGIFast

from .command_line import command_line
from .processes import HOST
from .runner import Server

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

__all__ = ["SERVERS", "Serving", "gunicorn", "load_app", "wrapped", "wrapped_asgi"]

# uvicorn serves ASGI apps: as they are on uvicorn's own protocol, wrapped on asgifast's.
SERVERS = ("gunicorn", "wsgiref", "werkzeug", "waitress", "uvicorn")
THIS = "loadtests.bench.serving"


def gunicorn(
    app: str,
    *options: str,
    worker_class: str = "gthread",
    threads: int = 4,
    workers: int = 1,
    tls: bool = False,
    env: Mapping[str, str] | None = None,
) -> Server:
    """gunicorn, with one worker process: on a small machine the client needs a core too.

    :param app: what gunicorn takes: "module:app", or "module:factory('argument')".
    :param options: added at the end, such as "--no-sendfile".
    :param threads: of a gthread-like worker; other workers have none and ignore it.
    :param tls: with the certificate "{folder}/server.pem".
    """
    pem = ("--certfile", "{folder}/server.pem", "--keyfile", "{folder}/server.pem")
    return Server(
        (
            *("python", "-m", "gunicorn", app, "--bind", f"{HOST}:{{port}}"),
            *("--worker-class", worker_class, "--threads", str(threads), "--workers", str(workers)),
            # The defaults of 2 s and 30 s would end a paused client's connection, or a slow raw
            # app.
            *("--keep-alive", "30", "--timeout", "120", "--graceful-timeout", "3"),
            *("--log-level", "warning", *(pem if tls else ()), *options),
        ),
        tuple((env or {}).items()),
        tls,
    )


@dataclass(frozen=True)
class Serving:
    """How an app is to be served.

    :ivar app: "module:app", or "module:factory()".
    :ivar server: one of SERVERS; the options after it are gunicorn's.
    :ivar wrapped_worker_class: gunicorn's worker for the wrapped app, where it is another one.
    """

    app: str
    server: str = "gunicorn"
    worker_class: str = "gthread"
    wrapped_worker_class: str | None = None
    threads: int = 4
    workers: int = 1

    def __post_init__(self) -> None:
        if self.server not in SERVERS:
            raise ValueError(f"server {self.server!r} is none of {', '.join(SERVERS)}")
        if self.threads < 1 or self.workers < 1:
            raise ValueError(f"{self.threads} threads, {self.workers} workers: both are positive")

    def side(self, options: Mapping[str, Any] | None) -> Server:
        """The server of the app.

        :param options: those of WSGIFast or ASGIFast; None for the app as it is.
        """
        app = self.app
        if options is not None:
            arguments = [repr(app), *(f"{name}={value!r}" for name, value in options.items())]
            kind = "wrapped_asgi" if self.server == "uvicorn" else "wrapped"
            app = f"{THIS}:{kind}({', '.join(arguments)})"
        if self.server != "gunicorn":
            return Server(("python", "-m", THIS, self.server, app, "{port}"))
        worker_class = self.worker_class
        if options is not None and self.wrapped_worker_class:
            worker_class = self.wrapped_worker_class
        return gunicorn(app, worker_class=worker_class, threads=self.threads, workers=self.workers)

    def __str__(self) -> str:
        if self.server != "gunicorn":
            return self.server
        wrapped = f" (wrapped: {self.wrapped_worker_class})" if self.wrapped_worker_class else ""
        return (
            f"gunicorn {self.worker_class}{wrapped}, {self.workers} worker"
            f"{'s' * (self.workers > 1)}, {self.threads} threads"
        )


def wrapped(app: str, **options: Any) -> WSGIApplication:
    """Import an app and wrap it with WSGIFast, as an import name for servers."""
    return WSGIFast(load_app(app), **options)


def wrapped_asgi(app: str, **options: Any) -> ASGIFast:
    """Import an ASGI app and wrap it with ASGIFast."""
    asgi_app: Any = load_app(app)
    return ASGIFast(asgi_app, **options)


def load_app(name: str) -> WSGIApplication:
    """Import an app as gunicorn names it: "module:app", "module", "module:factory('argument')".

    :raises ImportError, gunicorn.errors.AppImportError: if there is none.
    """
    from gunicorn.util import import_app

    app: WSGIApplication = import_app(name)
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    parser = command_line(THIS, __doc__)
    parser.add_argument("server", choices=SERVERS[1:])
    parser.add_argument("app", help="module:app")
    parser.add_argument("port", nargs="?", type=int, default=8001, help=f"on {HOST}")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _serve(given.server, load_app(given.app), given.port)
    except KeyboardInterrupt:
        pass


def _serve(server: str, app: Any, port: int) -> None:
    if server == "uvicorn":
        import uvicorn
        from asgifast.uvicorn import HttpToolsProtocol

        http: Any = HttpToolsProtocol if isinstance(app, ASGIFast) else "auto"
        uvicorn.run(app, host=HOST, port=port, http=http, access_log=False, log_level="warning")
    elif server == "waitress":
        import waitress

        waitress.serve(app, host=HOST, port=port, _quiet=True)
    elif server == "werkzeug":
        from werkzeug.serving import WSGIRequestHandler, make_server

        class Quiet(WSGIRequestHandler):
            # A line for every request would be measured too.
            def log_request(self, *_: object) -> None: ...

        make_server(HOST, port, app, threaded=True, request_handler=Quiet).serve_forever()
    else:
        from wsgiref import simple_server

        class Silent(simple_server.WSGIRequestHandler):
            def log_request(self, *_: object) -> None: ...

        simple_server.make_server(HOST, port, app, handler_class=Silent).serve_forever()


if __name__ == "__main__":
    main()
