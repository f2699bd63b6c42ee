"""What the middleware itself costs a response that is well shaped, without a server.

    python -m loadtests.overhead

The app is called in a loop, raw and wrapped in turn; the difference is the middleware's. The
environ carries what gunicorn puts there, so TCP_NODELAY is looked after as it is in production.
ASGIFast stands beside the least that an ASGI middleware can be that looks at the app's messages.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterable
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

from asgifast import ASGIFast

from wsgifast import WSGIFast

from .asgi_app import app as starlette_app
from .asgi_app import in_the_least_middleware
from .command_line import command_line
from .measuring import alternate, save, table

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment
    from asgifast.messages import ASGIApp, Message, Receive, Scope, Send

__all__ = ["asgi_overheads_us", "main", "overheads_us"]

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


async def _two_messages(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": _LENGTH})
    await send({"type": "http.response.body", "body": BODY[0]})


async def _without_length(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": BODY[0]})


_LENGTH = [(b"content-length", b"512")]
ASGI_APPS: dict[str, ASGIApp] = {
    "a head and a body": _two_messages,
    "the same without Content-Length": _without_length,
    "Starlette's Response": starlette_app,
}
# As uvicorn makes it.
_SCOPE: dict[str, Any] = {
    "type": "http",
    "asgi": {"version": "3.0", "spec_version": "2.3"},
    "http_version": "1.1",
    "server": ("127.0.0.1", 8000),
    "client": ("127.0.0.1", 50000),
    "scheme": "http",
    "method": "GET",
    "root_path": "",
    "path": "/plain",
    "raw_path": b"/plain",
    "query_string": b"",
    "headers": [(b"host", b"127.0.0.1:8000")],
    "state": {},
}


def asgi_overheads_us(calls: int = CALLS, rounds: int = 7) -> dict[str, dict[str, float]]:
    """Microseconds of one call, raw and in each middleware, medians over the rounds."""
    figures = {}
    for name, app in ASGI_APPS.items():
        sides = {
            side: partial(_each_asgi_us, side_app, calls)
            for side, side_app in (
                ("raw", app),
                ("least", in_the_least_middleware(app)),
                ("wrapped", ASGIFast(app)),
            )
        }
        times = {side: median(found) for side, found in alternate(sides, rounds=rounds).items()}
        figures[name] = {
            **times,
            "least overhead": times["least"] - times["raw"],
            "overhead": times["wrapped"] - times["raw"],
        }
    return figures


def _each_asgi_us(app: ASGIApp, calls: int) -> float:
    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        pass

    async def run() -> float:
        begun = time.perf_counter()
        for number in range(calls):
            await app(_SCOPE.copy(), receive, send)
            if number % 10 == 0:
                await asyncio.sleep(0)  # as many requests a turn as a busy server has
        return (time.perf_counter() - begun) / calls * 1e6

    return asyncio.run(run())


def main() -> int:
    """Print the table and write reports/overhead.json."""
    command_line("loadtests.overhead", __doc__).parse_args()
    figures = overheads_us()
    rows = [[name, us["raw"], us["wrapped"], us["overhead"]] for name, us in figures.items()]
    print(table(["the app returns", "us raw", "us wrapped", "us of the middleware"], rows))
    asgi = asgi_overheads_us()
    columns = ["raw", "least", "wrapped", "least overhead", "overhead"]
    print(
        table(
            ["the ASGI app sends", *(f"us {column}" for column in columns)],
            [[name, *(us[column] for column in columns)] for name, us in asgi.items()],
        )
    )
    print(save("overhead", {"us": figures, "ASGI us": asgi}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
