"""What a call costs without a server: the middleware, and StaticFiles compared to WhiteNoise.

pyperf measures the CPU time, in a process of its own for every run; `python -m loadtests.calls
--call NAME` is that process. The WSGI environ contains what gunicorn puts there, so that
TCP_NODELAY is set as in production. ASGIFast is compared to a minimal ASGI middleware that sees the
app's messages.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any
from wsgiref.util import FileWrapper

import pyperf
from asgifast import ASGIFast

from wsgifast import WSGIFast
from wsgifast.benchmark.load import Client, Load, Task
from wsgifast.benchmark.processes import started, temporary_folder
from wsgifast.benchmark.tables import Row, Unit

from .asgi_app import app as starlette_app
from .asgi_app import in_the_least_middleware
from .bench import row, table
from .static_app import static_files, whitenoise

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment
    from asgifast.messages import ASGIApp, Message, Receive, Scope, Send

BODY = [b"x" * 512]
# Of one value; a run gives five of them and the median, after one to warm up.
LOOPS = {False: 1000, True: 10_000}
# So many requests does a busy server serve in one turn of its event loop.
REQUESTS_A_TURN = 10
MICROSECONDS = Unit("us", lambda m: m.seconds * 1e6, difference=True, less=True)
CALLS_A_SECOND = Unit("calls/s", lambda m: m.requests_per_s)
# Of the size of gunicorn's: what is put into a dictionary of three costs more than its place.
ENVIRON: dict[str, Any] = {
    "wsgi.version": (1, 0), "wsgi.errors": sys.stderr, "wsgi.multithread": True,
    "wsgi.multiprocess": False, "wsgi.run_once": False, "wsgi.input_terminated": True,
    "wsgi.url_scheme": "http", "REQUEST_METHOD": "GET", "PATH_INFO": "/plain",
    "RAW_URI": "/plain", "QUERY_STRING": "", "SCRIPT_NAME": "", "SERVER_NAME": "127.0.0.1",
    "SERVER_PORT": "8000", "SERVER_PROTOCOL": "HTTP/1.1", "SERVER_SOFTWARE": "gunicorn",
    "REMOTE_ADDR": "127.0.0.1", "REMOTE_PORT": "50000", "HTTP_HOST": "127.0.0.1:8000",
    "HTTP_USER_AGENT": "loadtests", "HTTP_ACCEPT": "*/*",
    "HTTP_ACCEPT_ENCODING": "gzip, deflate", "HTTP_CONNECTION": "keep-alive",
}  # fmt: skip
# As uvicorn makes it.
_SCOPE: dict[str, Any] = {
    "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1",
    "server": ("127.0.0.1", 8000), "client": ("127.0.0.1", 50000), "scheme": "http",
    "method": "GET", "root_path": "", "path": "/plain", "raw_path": b"/plain",
    "query_string": b"", "headers": [(b"host", b"127.0.0.1:8000")], "state": {},
}  # fmt: skip


def _wsgi(
    wrap: Callable[[Any], Any],
    headers: tuple[tuple[str, str], ...] = (),
    kind: Callable[[list[bytes]], Any] = list,
    pattern: str | None = None,
) -> Callable[[], None]:
    """:param pattern: of the URL, told as a framework tells it."""

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if pattern is not None:
            environ["wsgifast.pattern"] = pattern
        start_response("200 OK", [("Content-Type", "text/plain"), *headers])
        body: Iterable[bytes] = kind(BODY)
        return body

    # As gunicorn hands it over.
    return request(wrap(app), {**ENVIRON, "gunicorn.socket": socket.socket()})


def request(app: Any, environ: Mapping[str, Any]) -> Callable[[], None]:
    """As a server makes it: a new environ, the body read, and closed."""

    def call() -> None:
        body = app(environ.copy(), _start_response)  # type: ignore[attr-defined]
        for _block in body:
            pass
        close = getattr(body, "close", None)
        if close is not None:
            close()

    return call


def _start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
    return None


def _asgi(wrap: Callable[[Any], Any], inner: Any) -> Callable[[], Awaitable[None]]:
    app: ASGIApp = wrap(inner)

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        pass

    async def turn() -> None:
        for _ in range(REQUESTS_A_TURN):
            await app(_SCOPE.copy(), receive, send)
        await asyncio.sleep(0)

    return turn


def _asgi_app(*headers: tuple[bytes, bytes]) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [*headers]})
        await send({"type": "http.response.body", "body": BODY[0]})

    return app


def _static(make: Callable[[], Any], **headers: str) -> Callable[[], None]:
    app = make()
    environ = {
        "REQUEST_METHOD": "GET",
        "PATH_INFO": "/1024.bin",
        "QUERY_STRING": "",
        "wsgi.file_wrapper": FileWrapper,
    }
    if "HTTP_IF_NONE_MATCH" in headers:
        found: dict[str, str] = {}
        body = app(environ.copy(), lambda status, sent, exc_info=None: found.update(sent))
        getattr(body, "close", lambda: None)()
        headers = {"HTTP_IF_NONE_MATCH": found["ETag"]}
    return request(app, {**environ, **headers})


def _itself(app: Any) -> Any:
    return app


def _with_opentelemetry(app: Any) -> Any:
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    metrics.set_meter_provider(MeterProvider([InMemoryMetricReader()]))
    return WSGIFast(app, metrics="opentelemetry")


_LENGTH = ("Content-Length", "512")
_DECLARED = _asgi_app((b"content-length", b"512"))
WSGI: dict[str, Any] = {"raw": _itself, "WSGIFast": WSGIFast}
_ASGI: dict[str, Any] = {
    "raw": _itself, "least middleware": in_the_least_middleware, "ASGIFast": ASGIFast
}  # fmt: skip
_METRICS: dict[str, Any] = {
    "none": WSGIFast,
    "prometheus": partial(WSGIFast, metrics="prometheus"),
    "opentelemetry, its SDK": _with_opentelemetry,
}
_ASGI_METRICS: dict[str, Any] = {
    "none": ASGIFast, "prometheus": partial(ASGIFast, metrics="prometheus")
}  # fmt: skip
_STATIC: dict[str, Any] = {
    "WhiteNoise": whitenoise,
    "WhiteNoise, autorefresh": partial(whitenoise, autorefresh=True),
    "StaticFiles": static_files,
    "StaticFiles, recheck_s=1": partial(static_files, recheck_s=1),
}
_NOTED: dict[str, Any] = {"headers": (_LENGTH,), "pattern": "/items/<int:number>"}
# A row's key -> its title, unit, contenders, and what makes the call of a contender.
ROWS: dict[str, tuple[str, Unit, dict[str, Any], Callable[..., Callable[[], Any]]]] = {
    "wsgi.declared": ("WSGI: [bytes] with Content-Length", MICROSECONDS, WSGI,
                      partial(_wsgi, headers=(_LENGTH,))),
    "wsgi.undeclared": ("WSGI: [bytes] without", MICROSECONDS, WSGI, _wsgi),
    "wsgi.iterator": ("WSGI: an iterator of one chunk", MICROSECONDS, WSGI,
                      partial(_wsgi, kind=iter)),
    "metrics": ("WSGIFast with metrics", MICROSECONDS, _METRICS, partial(_wsgi, **_NOTED)),
    "asgi_metrics": ("ASGIFast with metrics", MICROSECONDS, _ASGI_METRICS,
                     partial(_asgi, inner=_DECLARED)),
    "asgi.declared": ("ASGI: a head and a body", MICROSECONDS, _ASGI,
                      partial(_asgi, inner=_DECLARED)),
    "asgi.undeclared": ("ASGI: the same without Content-Length", MICROSECONDS, _ASGI,
                        partial(_asgi, inner=_asgi_app())),
    "asgi.starlette": ("ASGI: Starlette's Response", MICROSECONDS, _ASGI,
                       partial(_asgi, inner=starlette_app)),
    "static.200": ("1 KiB file: 200", CALLS_A_SECOND, _STATIC, _static),
    "static.encodings": ("1 KiB file: 200, Accept-Encoding", CALLS_A_SECOND, _STATIC,
                         partial(_static, HTTP_ACCEPT_ENCODING="gzip, deflate, br, zstd")),
    "static.304": ("1 KiB file: 304", CALLS_A_SECOND, _STATIC,
                   partial(_static, HTTP_IF_NONE_MATCH="the ETag")),
    "static.206": ("1 KiB file: 206", CALLS_A_SECOND, _STATIC,
                   partial(_static, HTTP_RANGE="bytes=100-199")),
}  # fmt: skip
CALLS = [f"{key}:{name}" for key, (_, _, sides, _) in ROWS.items() for name in sides]


def _timed(call: str) -> Client:
    def run(task: Task) -> Load:
        with temporary_folder("calls") as folder:
            path = folder / "times.json"
            loops = LOOPS[task.full]
            if call.startswith("asgi"):
                loops //= REQUESTS_A_TURN
            options = [f"--loops={loops}", "--values=5", "--warmups=1", f"--output={path}"]
            command = [sys.executable, "-m", "loadtests.calls", "--call", call, "--worker"]
            with started([*command, *options], stdout=subprocess.DEVNULL) as process:
                status = process.wait(120)
            if status:
                raise RuntimeError(f"pyperf ended with status {status}; see above")
            values = pyperf.Benchmark.load(str(path)).get_values()
        return Load(1, 0, 0, median(values))

    return run


def _row(key: str) -> Row:
    title, unit, sides, _ = ROWS[key]
    clients = {name: _timed(f"{key}:{name}") for name in sides}
    return row(f"calls.{key}", title, clients, unit=unit)


TABLE = table("calls", "What a call costs", [_row(key) for key in ROWS])


def main() -> None:
    """Time a call, in this process; the other options are pyperf's."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.calls",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--call", choices=CALLS, required=True, help="what is timed")
    name = parser.parse_known_args()[0].call
    runner = pyperf.Runner()
    runner.argparser.add_argument("--call")
    key, _, side = name.partition(":")
    _, _, sides, make = ROWS[key]
    call = make(sides[side])
    if key.startswith("asgi"):
        runner.bench_time_func(name, partial(_cpu_of_turns, call), inner_loops=REQUESTS_A_TURN)
    else:
        runner.bench_time_func(name, partial(_cpu_of_calls, call))


def _cpu_of_calls(call: Callable[[], object], loops: int) -> float:
    """Seconds of processor time: others may have the machine meanwhile."""
    began = time.process_time()
    for _ in range(loops):
        call()
    return time.process_time() - began


def _cpu_of_turns(turn: Callable[[], Awaitable[object]], loops: int) -> float:
    async def run() -> float:
        began = time.process_time()
        for _ in range(loops):
            await turn()
        return time.process_time() - began

    return asyncio.run(run())


if __name__ == "__main__":
    main()
