"""How many instructions a request costs: the same on every run, however busy the machine is.

valgrind counts those of the server, without the kernel's; a row is the difference of two runs, so
that starting is no part of it. `python -m loadtests.instructions CALL COUNT` makes a call of the
table so often.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from wsgifast.benchmark.load import Client, Load
from wsgifast.benchmark.processes import HOST, free_port, started, temporary_folder
from wsgifast.benchmark.tables import Row, Server, Unit

from .bench import row, table
from .calls import ENVIRON, REQUESTS_A_TURN, ROWS, WSGI, request
from .flask_app import app as flask_app
from .servers import uvicorn

INSTRUCTIONS = Unit("instructions", lambda m: m.facts["instructions"], difference=True)
# So many connections ask at once, as they do of a busy server: one turn of its loop serves them.
CONNECTIONS = 16
# The requests of the shorter run, after which CPython has adapted to them; the other has twice.
REQUESTS, CALLS = 100 * CONNECTIONS, 1000
_START_S, _PAUSE_S = 120.0, 0.1
_COUNTED = re.compile(r"I\s+refs:\s+([\d,]+)")


def _counted(command: Sequence[str], load: Callable[[], None], log: Path) -> int:
    """The instructions of a process, which ends by itself or by SIGTERM.

    :param load: what it is to do meanwhile.
    """
    if shutil.which("valgrind") is None:
        raise RuntimeError("valgrind is not installed: apt-get install valgrind (Debian, Ubuntu)")
    tool = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    # A dictionary's order of strings is part of the count.
    env = {**os.environ, "PYTHONHASHSEED": "0"}
    quiet = subprocess.DEVNULL
    with started(
        [*tool, f"--log-file={log}", *command], env=env, stop_s=_START_S, stdout=quiet, stderr=quiet
    ) as process:
        load()
    found = _COUNTED.search(log.read_text())
    if found is None:
        raise RuntimeError(f"{' '.join(command)} ended with status {process.returncode}")
    return int(found[1].replace(",", ""))


def _difference(counted: Callable[[int, Path], int], size: int) -> Load:
    with temporary_folder("instructions") as folder:
        less, more = (counted(count, folder / str(count)) for count in (size, 2 * size))
    return Load(1, 0, 0, 1.0, facts={"instructions": (more - less) / size})


def _served(server: Server, path: str) -> Client:
    def counted(count: int, log: Path) -> int:
        port = free_port()
        (_, *argv), _ = server.placed({"{host}": HOST, "{port}": str(port)})
        return _counted([sys.executable, *argv], partial(_ask, port, path, count), log)

    return lambda task: _difference(counted, REQUESTS)


def _ask(port: int, path: str, count: int) -> None:
    _wait_for(port)
    with contextlib.ExitStack() as stack:
        clients = [http.client.HTTPConnection(HOST, port, timeout=60) for _ in range(CONNECTIONS)]
        for client in clients:
            stack.callback(client.close)
        for _ in range(count // CONNECTIONS):
            for client in clients:
                client.request("GET", path)
            for client in clients:
                client.getresponse().read()


def _wait_for(port: int) -> None:
    end = time.monotonic() + _START_S
    while True:
        try:
            socket.create_connection((HOST, port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(_PAUSE_S)


def _called(call: str) -> Client:
    def counted(count: int, log: Path) -> int:
        command = [sys.executable, "-m", "loadtests.instructions", call, str(count)]

        def until_it_ends() -> None:
            while not (log.exists() and _COUNTED.search(log.read_text())):
                time.sleep(_PAUSE_S)

        return _counted(command, until_it_ends, log)

    return lambda task: _difference(counted, CALLS)


def _flask(wrap: Callable[[Any], Any]) -> Callable[[], None]:
    environ = {**ENVIRON, "PATH_INFO": "/page", "gunicorn.socket": socket.socket()}
    return request(wrap(flask_app), environ)


_CALLS: dict[str, tuple[str, dict[str, Any], Callable[..., Callable[[], Any]]]] = {
    **{
        key: (title, sides, make)
        for key, (title, _, sides, make) in ROWS.items()
        if key.startswith(("wsgi.", "asgi."))
    },
    "wsgi.flask": ("WSGI: a page of Flask's", WSGI, _flask),
}
_APPS = {
    "uvicorn": "app", "one that does nothing": "nothing", "a bare middleware": "limit",
    "ASGIFast": "fast",
}  # fmt: skip


def _on_uvicorn(loop: str) -> Row:
    sides: dict[str, Any] = {
        name: _served(uvicorn(f"loadtests.asgi_app:{app}", f"--loop={loop}"), "/plain")
        for name, app in _APPS.items()
    }
    title = f"Starlette's Response of 1 KiB on uvicorn, {loop}"
    return row(f"instructions.uvicorn.{loop}", title, sides, unit=INSTRUCTIONS, rounds=1)


TABLE = table("instructions", "Instructions of a request", [
    *(row(f"instructions.{key}", title, {side: _called(f"{key}:{side}") for side in sides},
          unit=INSTRUCTIONS, rounds=1)
      for key, (title, sides, _) in _CALLS.items()),
    *map(_on_uvicorn, ("uvloop", "asyncio")),
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
    parser.add_argument("count", type=int, metavar="COUNT", help="how often")
    given = parser.parse_args()
    key, _, side = given.call.partition(":")
    _, sides, make = _CALLS[key]
    call = make(sides[side])
    if key.startswith("asgi"):
        asyncio.run(_turns(call, given.count))
    else:
        for _ in range(given.count):
            call()


async def _turns(turn: Callable[[], Any], count: int) -> None:
    for _ in range(count // REQUESTS_A_TURN):
        await turn()


if __name__ == "__main__":
    main()
