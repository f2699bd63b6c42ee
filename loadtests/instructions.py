"""How many instructions a request costs: the same on every run, however busy the machine is.

valgrind counts those of a process, without the kernel's; a row is the difference of two runs, so
that starting is no part of it. The process is a server, or `python -m loadtests.instructions CALL
COUNT...`, which forks one for each count, to make a call of the table so often. The WSGI environ
contains what gunicorn puts there, so that TCP_NODELAY is set as in production.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import os
import re
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from subprocess import DEVNULL, Popen
from typing import TYPE_CHECKING, Any

from wsgifast import WSGIFast
from wsgifast.benchmark.load import Client, Load, Task
from wsgifast.benchmark.processes import (
    HOST,
    free_port,
    is_listening,
    started,
    temporary_folder,
    wait_until,
)
from wsgifast.benchmark.tables import Row, Server, Unit

from .bench import row, table
from .servers import uvicorn

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

INSTRUCTIONS = Unit("instructions", lambda m: m.facts["instructions"], difference=True)
# So many connections ask at once, as they do of a busy server: one turn of its loop serves them.
CONNECTIONS = 16
# The requests of the shorter run, after which CPython has adapted to them; the other has twice.
REQUESTS, CALLS = 100 * CONNECTIONS, 1000
BODY = [b"x" * 512]
_START_S = 120.0
# The garbage collector looks at all that a process has imported, after so many allocations: a look
# more or less would be most of a difference.
_RUN = (
    "import gc, runpy, sys; gc.disable(); del sys.argv[0]; "
    "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)
_COUNTED = re.compile(r"I\s+refs:\s+([\d,]+)")
# Of the size of gunicorn's: what is put into a dictionary of three costs more than its place.
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


def _counted(module: Sequence[str], load: Callable[[Popen[bytes]], object]) -> list[int]:
    """The instructions of a process and of those that it forks, the fewest first.

    :param module: its name and its arguments.
    :param load: what it is to do; it ends by itself before this returns, or by SIGTERM then.
    """
    if shutil.which("valgrind") is None:
        raise RuntimeError("valgrind is not installed: apt-get install valgrind (Debian, Ubuntu)")
    tool = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    # A dictionary's order of strings is part of the count.
    env = {**os.environ, "PYTHONHASHSEED": "0"}
    with temporary_folder("instructions") as folder:
        with started(
            [*tool, f"--log-file={folder}/%p", sys.executable, "-c", _RUN, *module],
            env=env,
            stop_s=_START_S,
            stdout=DEVNULL,
            stderr=DEVNULL,
        ) as process:
            load(process)
        found = [_COUNTED.search(log.read_text()) for log in folder.iterdir()]
    if process.returncode not in (0, -signal.SIGTERM) or None in found:
        raise RuntimeError(f"{' '.join(module)} ended with status {process.returncode}")
    return sorted(int(each[1].replace(",", "")) for each in found if each)


def _difference(less: int, more: int, size: int) -> Load:
    return Load(1, 0, 0, 1.0, facts={"instructions": (more - less) / size})


def _served(server: Server, path: str) -> Client:
    def counted(count: int) -> int:
        port = free_port()
        (_, _, *module), _ = server.placed({"{host}": HOST, "{port}": str(port)})
        (found,) = _counted(module, lambda process: _ask(port, path, count))
        return found

    return lambda task: _difference(counted(REQUESTS), counted(2 * REQUESTS), REQUESTS)


def _ask(port: int, path: str, count: int) -> None:
    wait_until(lambda: is_listening((HOST, port)), _START_S)
    with contextlib.ExitStack() as stack:
        clients = [http.client.HTTPConnection(HOST, port, timeout=60) for _ in range(CONNECTIONS)]
        for client in clients:
            stack.callback(client.close)
        for _ in range(count // CONNECTIONS):
            for client in clients:
                client.request("GET", path)
            for client in clients:
                client.getresponse().read()


def _called(call: str) -> Client:
    def run(task: Task) -> Load:
        module = ["loadtests.instructions", call, str(CALLS), str(2 * CALLS)]
        _, less, more = _counted(module, lambda process: process.wait(_START_S))
        return _difference(less, more, CALLS)

    return run


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

    return _request(wrap(app), _ENVIRON)


def _request(app: Any, environ: Mapping[str, Any]) -> Callable[[], None]:
    """As a server makes it: a new environ, the body read, and closed."""
    environ = {**environ, "gunicorn.socket": socket.socket()}

    def call() -> None:
        body = app(environ.copy(), _start_response)
        for _block in body:
            pass
        close = getattr(body, "close", None)
        if close is not None:
            close()

    return call


def _start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
    return None


def _itself(app: Any) -> Any:
    return app


def _with_opentelemetry(app: Any) -> Any:
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    metrics.set_meter_provider(MeterProvider([InMemoryMetricReader()]))
    return WSGIFast(app, metrics="opentelemetry")


def _flask(wrap: Callable[[Any], Any]) -> Callable[[], None]:
    from .flask_app import app as flask_app  # here: other calls need not wait for its import

    return _request(wrap(flask_app), {**_ENVIRON, "PATH_INFO": "/page"})


_LENGTH = ("Content-Length", "512")
_WSGI: dict[str, Any] = {"raw": _itself, "WSGIFast": WSGIFast}
_METRICS: dict[str, Any] = {
    "none": WSGIFast,
    "prometheus": partial(WSGIFast, metrics="prometheus"),
    "opentelemetry, its SDK": _with_opentelemetry,
}
_NOTED: dict[str, Any] = {"headers": (_LENGTH,), "pattern": "/items/<int:number>"}
# A row's key -> its title, contenders, and what makes the call of a contender.
_CALLS: dict[str, tuple[str, dict[str, Any], Callable[..., Callable[[], Any]]]] = {
    "wsgi.declared": ("WSGI: [bytes] with Content-Length", _WSGI,
                      partial(_wsgi, headers=(_LENGTH,))),
    "wsgi.undeclared": ("WSGI: [bytes] without", _WSGI, _wsgi),
    "wsgi.iterator": ("WSGI: an iterator of one chunk", _WSGI, partial(_wsgi, kind=iter)),
    "wsgi.flask": ("WSGI: a page of Flask's", _WSGI, _flask),
    "metrics": ("WSGIFast with metrics", _METRICS, partial(_wsgi, **_NOTED)),
}  # fmt: skip
_APPS = {
    "uvicorn": "app", "one that does nothing": "nothing", "a bare middleware": "limit",
    "ASGIFast": "fast", "ASGIFast with metrics": "metered",
}  # fmt: skip


def _row(key: str, title: str, sides: Mapping[str, Client]) -> Row:
    return row(f"instructions.{key}", title, sides, unit=INSTRUCTIONS, rounds=1)


TABLE = table("instructions", "Instructions of a request", [
    *(_row(key, title, {side: _called(f"{key}:{side}") for side in sides})
      for key, (title, sides, _) in _CALLS.items()),
    _row("uvicorn", "Starlette's Response of 1 KiB on uvicorn",
         {n: _served(uvicorn(f"loadtests.asgi_app:{a}"), "/plain") for n, a in _APPS.items()}),
])  # fmt: skip


def main() -> None:
    """What valgrind counts."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.instructions",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [f"{key}:{side}" for key, (_, sides, _) in _CALLS.items() for side in sides]
    parser.add_argument("call", choices=names, metavar="CALL", help="one of " + ", ".join(names))
    parser.add_argument("count", type=int, nargs="+", metavar="COUNT", help="how often")
    given = parser.parse_args()
    key, _, side = given.call.partition(":")
    _, sides, make = _CALLS[key]
    for count in given.count:
        pid = os.fork()
        if not pid:
            call = make(sides[side])  # here: a fork has no thread of its parent's
            for _ in range(count):
                call()
            return
        _, status = os.waitpid(pid, 0)
        if status:
            sys.exit(1)
    os._exit(0)  # the end that takes the fewest instructions, so that the counts are in order


if __name__ == "__main__":
    main()
