"""Locust as a client, in processes of its own.

The import of Locust patches the standard library for gevent, and takes a second or two. So a
benchmark starts Locust once, see `locust_process`. The process reads each run as a line of JSON,
and responds with a line of JSON.
"""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO, Any, ClassVar, Self

from ...errors import WSGIFastError
from ..loading.servers import MODULE
from .loads import Client, Load, Task
from .processes import HOST, Address, free_port, started

# The maximum time in which Locust's master stops its workers. It takes half a second.
_STOP_WORKERS_S = 5.0
# The interval between checks of the workers on this machine.
_CHECK_S = 1.0


class LocustFailed(WSGIFastError, RuntimeError):
    """Locust's process ended, or its workers did not connect. The text has Locust's last output."""


@dataclass
class Locust:
    """The processes of Locust. They start with the first run, and end with the context manager.

    :cvar module: the module that its processes run.
    :ivar processes: workers to start on this machine. With 0, one process has all users.
    :ivar expect_workers: workers on other machines, started by :func:`worker_command`.
    :ivar master: the address of the master for these workers.
    :ivar within: the beginning of Locust's command, such as "ip netns exec NAME".
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
                # The master stops its workers at the end of its input.
                with contextlib.suppress(subprocess.TimeoutExpired, BrokenPipeError):
                    process.communicate(timeout=_STOP_WORKERS_S)

    def client(self, users: int = 1) -> Client:
        """Return a client with some users. It raises LocustFailed if Locust has ended."""
        return lambda task: self.load(task, users)

    def load(self, task: Task, users: int, **more: object) -> Load:
        """Make one run.

        :param more: further fields of the run, for a subclass with its own `module`.
        :raises LocustFailed: if Locust's process has ended.
        """
        self._runs += 1
        host, port = task.address
        run = {
            "host": f"http://{host}:{port}", "path": task.path, "users": users,
            "seconds": task.seconds, "expected": task.body_bytes, "headers": task.headers,
            "number": self._runs,
        }  # fmt: skip
        process = self.start()
        assert process.stdin is not None  # a pipe, see start()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps({**run, **more}) + "\n")
            process.stdin.flush()
        response = self._response(process)
        response["latency_ms"] = {int(p): ms for p, ms in response["latency_ms"].items()}
        return Load(**response)

    def start(self) -> subprocess.Popen[str]:
        """Start Locust, unless it runs already, and wait for its workers.

        :raises LocustFailed: if Locust ends, or a worker does not connect.
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
            command = [*self.within, sys.executable, *MODULE, self.module, *role]
            self._process = self._start(command, subprocess.PIPE)
            self._response(self._process)
        return self._process

    def _start(self, command: list[str], pipe: int) -> subprocess.Popen[str]:
        child = started(command, stdin=pipe, stdout=pipe, stderr=self._errors, text=True)
        return self._stack.enter_context(child)

    def _response(self, process: subprocess.Popen[str]) -> Any:
        assert process.stdout is not None  # a pipe, see start()
        while not select.select([process.stdout], [], [], _CHECK_S)[0]:
            # The master does not notice the end of a worker that has not connected yet.
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
    """Return the command that starts a Locust worker. The worker ends when its master ends."""
    return [sys.executable, *MODULE, module, "worker", *map(str, master)]
