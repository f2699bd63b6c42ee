"""Count the instructions of a request. The count does not depend on the load of the machine.

valgrind counts the instructions of a process, without those of the kernel. The process is a server,
or a program that makes calls (calls.py). A figure is the difference of two runs with different
numbers of requests, so it does not include the start of the process.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from subprocess import DEVNULL, Popen

from wsgifast.commands.bench.loads import Load
from wsgifast.commands.bench.processes import (
    HOST,
    Server,
    free_port,
    is_listening,
    started,
    temporary_folder,
    wait_until,
)

from .bench import row, table
from .calls import CALLS
from .harness.servers import uvicorn
from .harness.tables import Client, Row, Task, Unit

INSTRUCTIONS = Unit("instructions", lambda m: m.facts["instructions"], difference=True)
# The number of connections that send requests at the same time, like clients of a busy server. One
# iteration of the server's event loop handles all these requests.
CONNECTIONS = 16
# The number of requests, and of calls, in the shorter run. During this run, CPython specializes its
# bytecode. The longer run has twice as many requests or calls.
REQUESTS, CALL_COUNT = 100 * CONNECTIONS, 1000
_START_S = 120.0
# This command switches off the garbage collector. After some number of allocations, the collector
# examines all objects of the process. One such collection needs more instructions than most
# differences have.
_RUN = (
    "import gc, runpy, sys; gc.disable(); del sys.argv[0]; "
    "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)
_COUNTED = re.compile(r"I\s+refs:\s+([\d,]+)")


def _count_instructions(module: Sequence[str], load: Callable[[Popen[bytes]], object]) -> list[int]:
    """Return the instructions of a process and of its forks, in ascending order.

    :param module: the name of the module to run, and its arguments.
    :param load: a function that gets the process, and sends requests. If the process still runs
        afterwards, it gets SIGTERM.
    """
    if shutil.which("valgrind") is None:
        raise RuntimeError("valgrind is not installed: apt-get install valgrind (Debian, Ubuntu)")
    tool = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    # The hashes of strings affect the count.
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


def _server_client(server: Server, path: str) -> Client:
    def counted(count: int) -> int:
        port = free_port()
        (_, _, *module), _ = server.placed({"{host}": HOST, "{port}": str(port)})
        (found,) = _count_instructions(module, lambda process: _send_requests(port, path, count))
        return found

    return lambda task: _difference(counted(REQUESTS), counted(2 * REQUESTS), REQUESTS)


def _send_requests(port: int, path: str, count: int) -> None:
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


def _call_client(call: str) -> Client:
    def run(task: Task) -> Load:
        module = ["loadtests.calls", call, str(CALL_COUNT), str(2 * CALL_COUNT)]
        _, less, more = _count_instructions(module, lambda process: process.wait(_START_S))
        return _difference(less, more, CALL_COUNT)

    return run


_APPS = {
    "uvicorn": "app", "one that does nothing": "nothing", "a bare middleware": "limit",
    "ASGIFast": "fast", "ASGIFast with metrics": "metered",
}  # fmt: skip


def _row(key: str, title: str, sides: Mapping[str, Client]) -> Row:
    return row(f"instructions.{key}", title, sides, unit=INSTRUCTIONS, rounds=1)


TABLE = table("instructions", "Instructions of a request", [
    *(_row(key, title, {side: _call_client(f"{key}:{side}") for side in sides})
      for key, (title, sides, _) in CALLS.items()),
    _row("uvicorn", "Starlette's Response of 1 KiB on uvicorn",
         {**{name: _server_client(uvicorn(f"loadtests.asgi_app:{app}"), "/plain")
             for name, app in _APPS.items()},
          "our protocol": _server_client(uvicorn("loadtests.asgi_app:app", ours=True), "/plain")}),
])  # fmt: skip
