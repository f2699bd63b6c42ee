"""What the middleware itself costs a response that is well shaped, without a server.

    python -m loadtests.overhead

The app is called in a loop, raw and wrapped in turn; the difference is the middleware's. The
environ carries what gunicorn puts there, so TCP_NODELAY is looked after as it is in production.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

from wsgifast import WSGIFast

from .measuring import alternate, save, table

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

__all__ = ["main", "overheads_us"]

CALLS = 20_000
BODY = [b"x" * 512]


def _declared(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "512")])
    return BODY


def _undeclared(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return BODY


def _generator(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return iter(BODY)


APPS: dict[str, WSGIApplication] = {
    "[bytes] with Content-Length": _declared,
    "[bytes] without": _undeclared,
    "an iterator of one chunk": _generator,
}


def overheads_us(calls: int = CALLS, rounds: int = 7) -> dict[str, dict[str, float]]:
    """Microseconds of one call, raw and wrapped, medians over the rounds."""
    ours, theirs = socket.socketpair()  # a socket, as gunicorn hands it over
    with ours, theirs:
        environ = {"REQUEST_METHOD": "GET", "gunicorn.socket": ours}
        figures = {}
        for name, app in APPS.items():
            sides = {"raw": partial(_each_us, app, environ, calls)}
            sides["wrapped"] = partial(_each_us, WSGIFast(app), environ, calls)
            times = alternate(sides, rounds=rounds)
            raw, wrapped = median(times["raw"]), median(times["wrapped"])
            figures[name] = {"raw": raw, "wrapped": wrapped, "overhead": wrapped - raw}
    return figures


def _each_us(app: WSGIApplication, environ: dict[str, Any], calls: int) -> float:
    start_response: Callable[..., Any] = lambda status, headers, exc_info=None: None  # noqa: E731
    begun = time.perf_counter()
    for _ in range(calls):
        result = app(environ, start_response)
        for _chunk in result:
            pass
        close = getattr(result, "close", None)
        if close is not None:
            close()
    return (time.perf_counter() - begun) / calls * 1e6


def main() -> int:
    """Print the table and write reports/overhead.json."""
    figures = overheads_us()
    rows = [[name, us["raw"], us["wrapped"], us["overhead"]] for name, us in figures.items()]
    print(table(["the app returns", "us raw", "us wrapped", "us of the middleware"], rows))
    print(save("overhead", {"us": figures}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
