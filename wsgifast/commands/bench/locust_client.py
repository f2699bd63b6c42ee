"""Locust as a client, in its own processes.

Locust patches the standard library for gevent when it is imported, and takes a second or two to
start. So a benchmark starts it once, see `locust_process`. Each run is a JSON line to its input,
and a JSON line from its output.
"""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import IO, Any, ClassVar, Self

from ...errors import WSGIFastError
from ..loading.servers import START
from .loads import Client, Load, Task
from .processes import HOST, Address, free_port, started

# A request without a byte for so long has failed. A body of many chunks takes seconds.
GIVE_UP_S = 60.0
# A master takes half a second to stop its workers.
_STOP_WORKERS_S = 5.0
# How often the workers on this machine are looked at.
_LOOK_S = 1.0


class LocustFailed(WSGIFastError, RuntimeError):
    """Locust's process ended, or its workers did not connect. The text is its message."""


@dataclass(frozen=True)
class Run:
    """One load run: each user sends a request after the response to the one before.

    :ivar host: such as "http://127.0.0.1:8000".
    :ivar seconds: no request starts after this time.
    :ivar expected: the size that every body must have, if it is known.
    :ivar headers: lines to add to each request.
    """

    host: str
    path: str = "/"
    users: int = 1
    seconds: float = 2.0
    expected: int | None = None
    headers: tuple[str, ...] = ()
    number: int = 0


@dataclass
class Locust:
    """Locust, started when it is first needed. The context manager ends it.

    :cvar module: the module that its processes run.
    :ivar processes: workers to start on this machine. 0: a single process without workers.
    :ivar expect_workers: workers on other machines, started by :func:`worker_command`.
    :ivar master: the address where these find their master.
    :ivar within: the beginning of its command, such as "ip netns exec NAME".
    """

    module: ClassVar[str] = "wsgifast.commands.bench.locust_process"
    processes: int = 0
    expect_workers: int = 0
    master: Address = (HOST, 0)
    within: Sequence[str] = ()
    _process: subprocess.Popen[str] | None = None
    _workers: Sequence[subprocess.Popen[str]] = ()
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _runs: int = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        process, self._process = self._process, None
        with self._stack:
            if process is not None and self.expect_workers:
                # At the end of its input it stops them.
                with contextlib.suppress(subprocess.TimeoutExpired, BrokenPipeError):
                    process.communicate(timeout=_STOP_WORKERS_S)

    def client(self, users: int = 1) -> Client:
        """Return a client of so many users. It raises LocustFailed if Locust has ended."""
        return lambda task: self.load(self.run(task, users))

    def run(self, task: Task, users: int) -> Run:
        """Return the run of a task."""
        self._runs += 1
        host, port = task.address
        return Run(
            f"http://{host}:{port}",
            task.path,
            users,
            task.seconds,
            expected=task.body_bytes,
            headers=task.headers,
            number=self._runs,
        )

    def load(self, run: Run) -> Load:
        """Make one run.

        :raises LocustFailed: if Locust's process has ended.
        """
        process = self.start()
        assert process.stdin is not None  # a pipe, see start()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(asdict(run)) + "\n")
            process.stdin.flush()
        response = self._answer(process)
        response["latency_ms"] = {int(p): ms for p, ms in response["latency_ms"].items()}
        return Load(**response)

    def start(self) -> subprocess.Popen[str]:
        """Start it, unless it runs already, and wait for its workers.

        :raises LocustFailed: if it ends, or a worker does not connect.
        """
        if self._process is None:
            self._errors: IO[bytes] = self._stack.enter_context(tempfile.TemporaryFile())
            role = ["alone"]
            if workers := self.processes or self.expect_workers:
                host, port = (HOST, free_port()) if self.processes else self.master
                role = ["master", host, str(port), str(workers)]
                self._workers = [
                    self._start(worker_command((host, port), self.module), subprocess.DEVNULL)
                    for _ in range(self.processes)
                ]
            command = [*self.within, sys.executable, "-c", START, self.module, *role]
            self._process = self._start(command, subprocess.PIPE)
            self._answer(self._process)
        return self._process

    def _start(self, command: list[str], pipe: int) -> subprocess.Popen[str]:
        child = started(command, stdin=pipe, stdout=pipe, stderr=self._errors, text=True)
        return self._stack.enter_context(child)

    def _answer(self, process: subprocess.Popen[str]) -> Any:
        assert process.stdout is not None  # a pipe, as above
        # Each response is one line, so that none waits in Python's buffer.
        while not select.select([process.stdout], [], [], _LOOK_S)[0]:
            # The master knows a worker only after it has connected.
            if any(worker.poll() is not None for worker in self._workers):
                process.kill()
        line = process.stdout.readline()
        if not line:
            process.wait()
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace").strip()
            lost = [worker for worker in self._workers if worker.poll() is not None]
            whose = "one of Locust's workers" if lost else "Locust's process"
            raise LocustFailed(f"{whose} has ended: {said[-4000:]}")
        return json.loads(line)


def worker_command(master: Address, module: str = Locust.module) -> list[str]:
    """Return the command of one of Locust's workers, which ends with its master."""
    return [sys.executable, "-c", START, module, "worker", *map(str, master)]
