"""Any of the usual servers, for any app that can be imported.

    python -m loadtests.serving wsgiref module:app 8001

serves under a server that has no command of its own, or none that takes a factory. Without
arguments it serves the bundled app on gunicorn, raw and wrapped, for locustfiles run by hand.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .command_line import command_line
from .measuring import ServerFailed, gunicorn_command, running
from .wrapping import load_app, target

__all__ = ["SERVERS", "Serving"]

# uvicorn serves ASGI apps: as they are on uvicorn's own protocol, wrapped on asgifast's.
SERVERS = ("gunicorn", "wsgiref", "werkzeug", "waitress", "uvicorn")
APP = "loadtests.app:app"
HOST = "127.0.0.1"


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

    def command(self, address: tuple[str, int], options: dict[str, Any] | None) -> list[str]:
        """The command line that serves the app.

        :param options: those of WSGIFast or ASGIFast; None for the app as it is.
        """
        app = target(self.app, options, asgi=self.server == "uvicorn")
        if self.server != "gunicorn":
            return ["python", "-m", "loadtests.serving", self.server, app, str(address[1])]
        worker_class = self.worker_class
        if options is not None and self.wrapped_worker_class:
            worker_class = self.wrapped_worker_class
        return gunicorn_command(
            app, address, worker_class=worker_class, threads=self.threads, workers=self.workers
        )

    def __str__(self) -> str:
        if self.server != "gunicorn":
            return self.server
        wrapped = f" (wrapped: {self.wrapped_worker_class})" if self.wrapped_worker_class else ""
        return (
            f"gunicorn {self.worker_class}{wrapped}, {self.workers} worker"
            f"{'s' * (self.workers > 1)}, {self.threads} threads"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until Ctrl-C."""
    parser = command_line("loadtests.serving", __doc__)
    parser.add_argument("server", nargs="?", choices=SERVERS[1:], help="of one app")
    parser.add_argument("app", nargs="?", default=APP, help="module:app")
    parser.add_argument("port", nargs="?", type=int, default=8001, help="on 127.0.0.1")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if given.server is None:
            return _serve_both(given.port)
        _serve(given.server, given.app, given.port)
    except KeyboardInterrupt:
        pass
    except ServerFailed as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _serve_both(port: int) -> int:
    serving = Serving(APP)
    with contextlib.ExitStack() as stack:
        sides: dict[str, dict[str, Any] | None] = {"raw": None, "wrapped": {}}
        for number, (name, options) in enumerate(sides.items()):
            address = (HOST, port + number)
            server = stack.enter_context(running(serving.command(address, options), address))
            print(f"{name:<8} {server.url}")
        print(
            f"\nIn another terminal:\n  locust -f loadtests/locustfiles/bodies.py -H {server.url}"
        )
        print("Ctrl-C ends both servers.")
        while True:
            time.sleep(1)
            server.check()


def _serve(server: str, name: str, port: int) -> None:
    app: Any = load_app(name)
    if server == "uvicorn":
        import uvicorn
        from asgifast import ASGIFast
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
    raise SystemExit(main())
