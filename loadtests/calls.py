"""What a call costs without a server: the middleware, and StaticFiles beside WhiteNoise.

    python -m loadtests.calls [wsgi | asgi | metrics | static] [--profile release]

pyperf takes the processor time, in a process of its own for every run. The WSGI environ carries
what gunicorn puts there, so TCP_NODELAY is looked after as it is in production. ASGIFast stands
beside the least that an ASGI middleware can be that looks at the app's messages.
"""

from __future__ import annotations

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
from whitenoise import WhiteNoise

from wsgifast import StaticFiles, WSGIFast

from .asgi_app import app as starlette_app
from .asgi_app import in_the_least_middleware
from .bench import Client, Contender, Load, Row, Table, Task, Unit, started, temporary_folder
from .command import main
from .shapes import PAYLOADS, payload_files
from .static_files import no_app

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment
    from asgifast.messages import ASGIApp, Message, Receive, Scope, Send

__all__ = ["CALLS", "TABLES"]

BODY = [b"x" * 512]
# Of one value; a run gives five of them and the median, after one to warm up.
LOOPS = {"quick": 1000, "full": 10_000}
# So many requests does a busy server serve in one turn of its event loop.
REQUESTS_A_TURN = 10


def _wsgi_app(*headers: tuple[str, str], kind: Callable[[list[bytes]], Any] = list) -> Any:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain"), *headers])
        body: Iterable[bytes] = kind(BODY)
        return body

    return app


WSGI_APPS = {
    "declared": ("[bytes] with Content-Length", _wsgi_app(("Content-Length", "512"))),
    "undeclared": ("[bytes] without", _wsgi_app()),
    "iterator": ("an iterator of one chunk", _wsgi_app(kind=iter)),
}


def _wsgi_call(app: Any, environ: Mapping[str, Any]) -> Callable[[], None]:
    """A request as a server makes it: a new environ, the body read, and closed."""

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


# Of the size of gunicorn's: what is put into a dictionary of three costs more than its place.
_ENVIRON: dict[str, Any] = {
    "wsgi.version": (1, 0),
    "wsgi.errors": sys.stderr,
    "wsgi.multithread": True,
    "wsgi.multiprocess": False,
    "wsgi.run_once": False,
    "wsgi.input_terminated": True,
    "wsgi.url_scheme": "http",
    "REQUEST_METHOD": "GET",
    "PATH_INFO": "/plain",
    "RAW_URI": "/plain",
    "QUERY_STRING": "",
    "SCRIPT_NAME": "",
    "SERVER_NAME": "127.0.0.1",
    "SERVER_PORT": "8000",
    "SERVER_PROTOCOL": "HTTP/1.1",
    "SERVER_SOFTWARE": "gunicorn",
    "REMOTE_ADDR": "127.0.0.1",
    "REMOTE_PORT": "50000",
    "HTTP_HOST": "127.0.0.1:8000",
    "HTTP_USER_AGENT": "loadtests",
    "HTTP_ACCEPT": "*/*",
    "HTTP_ACCEPT_ENCODING": "gzip, deflate",
    "HTTP_CONNECTION": "keep-alive",
}


def _wsgi_request(wrap: Callable[[Any], Any], app: Any) -> Callable[[], None]:
    sock = socket.socket()  # as gunicorn hands it over
    return _wsgi_call(wrap(app), {**_ENVIRON, "gunicorn.socket": sock})


def _noted(app: Any) -> Any:
    """An app whose framework tells the URL pattern."""

    def call(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        environ["wsgifast.pattern"] = "/items/<int:number>"
        return app(environ, start_response)

    return call


def _asgi_app(headers: list[tuple[bytes, bytes]]) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": BODY[0]})

    return app


ASGI_APPS: dict[str, tuple[str, Any]] = {
    "declared": ("a head and a body", _asgi_app([(b"content-length", b"512")])),
    "undeclared": ("the same without Content-Length", _asgi_app([])),
    "starlette": ("Starlette's Response", starlette_app),
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


def _asgi_turn(wrap: Callable[[Any], Any], inner: Any) -> Callable[[], Awaitable[None]]:
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


STATIC_APPS: dict[str, Callable[[], Any]] = {
    "WhiteNoise": lambda: WhiteNoise(no_app, root=str(PAYLOADS), prefix="/"),
    "WhiteNoise, autorefresh": lambda: WhiteNoise(
        no_app, root=str(PAYLOADS), prefix="/", autorefresh=True
    ),
    "StaticFiles": lambda: StaticFiles(directory=PAYLOADS),
    "StaticFiles, recheck_s=1": lambda: StaticFiles(directory=PAYLOADS, recheck_s=1),
}
STATIC_REQUESTS: dict[str, tuple[str, dict[str, str]]] = {
    "200": ("200", {}),
    "encodings": ("200, Accept-Encoding", {"HTTP_ACCEPT_ENCODING": "gzip, deflate, br, zstd"}),
    "304": ("304", {"HTTP_IF_NONE_MATCH": "the ETag"}),
    "206": ("206", {"HTTP_RANGE": "bytes=100-199"}),
}


def _static_call(make: Callable[[], Any], headers: Mapping[str, str]) -> Callable[[], None]:
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
    return _wsgi_call(app, {**environ, **headers})


def _itself(app: Any) -> Any:
    return app


def _with_opentelemetry(app: Any) -> Any:
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    metrics.set_meter_provider(MeterProvider([InMemoryMetricReader()]))
    return WSGIFast(app, metrics="opentelemetry")


WSGI_SIDES = {"raw": _itself, "WSGIFast": WSGIFast}
METRICS_SIDES: dict[str, Callable[[Any], Any]] = {
    "none": WSGIFast,
    "prometheus": lambda app: WSGIFast(app, metrics="prometheus"),
    "opentelemetry, its SDK": _with_opentelemetry,
}
ASGI_METRICS_SIDES: dict[str, Callable[[Any], Any]] = {
    "none": ASGIFast, "prometheus": lambda app: ASGIFast(app, metrics="prometheus")
}  # fmt: skip
ASGI_SIDES: dict[str, Callable[[Any], Any]] = {
    "raw": _itself, "least middleware": in_the_least_middleware, "ASGIFast": ASGIFast
}  # fmt: skip
# What can be timed: name -> makes the call. Those of ASGI are coroutine functions.
CALLS: dict[str, Callable[[], Callable[[], Any]]] = {
    **{
        f"wsgi.{name}:{side}": partial(_wsgi_request, wrap, app)
        for name, (_, app) in WSGI_APPS.items()
        for side, wrap in WSGI_SIDES.items()
    },
    **{
        f"metrics:{side}": partial(_wsgi_request, wrap, _noted(WSGI_APPS["declared"][1]))
        for side, wrap in METRICS_SIDES.items()
    },
    **{
        f"asgi_metrics:{side}": partial(_asgi_turn, wrap, ASGI_APPS["declared"][1])
        for side, wrap in ASGI_METRICS_SIDES.items()
    },
    **{
        f"asgi.{name}:{side}": partial(_asgi_turn, wrap, app)
        for name, (_, app) in ASGI_APPS.items()
        for side, wrap in ASGI_SIDES.items()
    },
    **{
        f"static.{name}:{side}": partial(_static_call, make, headers)
        for name, (_, headers) in STATIC_REQUESTS.items()
        for side, make in STATIC_APPS.items()
    },
}

MICROSECONDS = Unit("us", lambda m: m.load.seconds * 1e6, difference=True)
CALLS_A_SECOND = Unit("calls/s", lambda m: m.load.requests_per_s)


def _timed(name: str) -> Client:
    def run(task: Task) -> Load:
        with temporary_folder("calls") as folder:
            path = folder / "times.json"
            loops = LOOPS["full" if task.full else "quick"]
            if name.startswith("asgi"):
                loops //= REQUESTS_A_TURN
            options = [f"--loops={loops}", "--processes=1", "--values=5", "--warmups=1", "--quiet"]
            command = [sys.executable, "-m", "loadtests.calls", "--call", name, *options]
            command += ["--inherit-environ=PYTHONPATH", f"--output={path}"]
            with started(command, stdout=subprocess.DEVNULL) as process:
                status = process.wait(120)
            if status:
                raise RuntimeError(f"pyperf ended with status {status}; see above")
            values = pyperf.Benchmark.load(str(path)).get_values()
        return Load(1, 0, 0, median(values))

    return run


def _row(key: str, title: str, unit: Unit) -> Row:
    names = [name for name in CALLS if name.startswith(f"{key}:")]
    contenders = tuple(Contender(name.split(":")[1], client=_timed(name)) for name in names)
    return Row(f"calls.{key}", title, contenders, _timed(names[0]), unit, http=False)


TABLES = [
    Table(
        "calls",
        "What a call costs",
        [
            *(_row(f"wsgi.{n}", f"WSGI: {t}", MICROSECONDS) for n, (t, _) in WSGI_APPS.items()),
            _row("metrics", "WSGIFast with metrics", MICROSECONDS),
            _row("asgi_metrics", "ASGIFast with metrics", MICROSECONDS),
            *(_row(f"asgi.{n}", f"ASGI: {t}", MICROSECONDS) for n, (t, _) in ASGI_APPS.items()),
            *(
                _row(f"static.{n}", f"1 KiB file: {t}", CALLS_A_SECOND)
                for n, (t, _) in STATIC_REQUESTS.items()
            ),
        ],
        prepare=payload_files(1024),
    )
]


def _time() -> None:
    """As pyperf has it: this process starts a worker, which times the call."""
    runner = pyperf.Runner(
        program_args=("-m", "loadtests.calls"),
        add_cmdline_args=lambda command, args: command.extend(("--call", args.call)),
    )
    runner.argparser.add_argument("--call", choices=CALLS)
    name = runner.parse_args().call
    call = CALLS[name]()
    is_async = name.startswith("asgi")
    timed = partial(_cpu_of_turns if is_async else _cpu_of_calls, call)
    runner.bench_time_func(name, timed, inner_loops=REQUESTS_A_TURN if is_async else 1)


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
    if "--call" in sys.argv:
        _time()
    else:
        raise SystemExit(main("loadtests.calls", __doc__, TABLES))
