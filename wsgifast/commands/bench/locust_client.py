"""Locust as a client for the runner: in processes of its own, one load run after another.

Locust patches the standard library for gevent when it is imported, and takes a second or two to
start. So a benchmark starts it once, see `locust_process`, and hands it one run at a time: a JSON
line in, a JSON line out.
"""

from __future__ import annotations

import contextlib
import json
import re
import select
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from ...errors import WSGIFastError
from ..loading.servers import START
from .processes import HOST, Address, free_port, started
from .tables import Client, Load, Task

# A request without a byte for so long has failed. A body of many chunks takes seconds.
GIVE_UP_S = 60.0
# A master takes half a second to stop its workers.
_STOP_WORKERS_S = 5.0
# How often the workers on this machine are looked at.
_LOOK_S = 1.0
_PROCESS = "wsgifast.commands.bench.locust_process"


class LocustFailed(WSGIFastError, RuntimeError):
    """Locust's process ended, or its workers did not connect; with its message."""


@dataclass(frozen=True)
class Run:
    """One load run: users that each send a request after the answer to the one before.

    :ivar host: such as "http://127.0.0.1:8000".
    :ivar seconds: no request is begun after this time.
    :ivar expected: bytes that every body must have, where that is known.
    :ivar headers: lines to add to each request.
    :ivar posts: bytes of the body that each request sends, by POST; 0: it is a GET.
    :ivar form: the field of a form in which they are a file; "": they are the body.
    :ivar report: the file for Locust's own report of this run, in HTML; "": none.
    """

    host: str
    path: str = "/"
    users: int = 1
    seconds: float = 2.0
    expected: int | None = None
    headers: tuple[str, ...] = ()
    number: int = 0
    posts: int = 0
    form: str = ""
    report: str = ""


@dataclass
class Locust:
    """Locust, started when it is first needed; a context manager, which ends it.

    :ivar processes: workers to start on this machine; 0: a single process without workers.
    :ivar expect_workers: workers that are started elsewhere, by :func:`worker_command`.
    :ivar master: where these find their master.
    :ivar within: what its command begins with, such as "ip netns exec NAME".
    """

    processes: int = 0
    expect_workers: int = 0
    master: Address = (HOST, 0)
    within: Sequence[str] = ()
    _process: subprocess.Popen[str] | None = None
    _workers: Sequence[subprocess.Popen[str]] = ()
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _runs: int = 0

    def __enter__(self) -> Locust:
        return self

    def __exit__(self, *exc_info: object) -> None:
        process, self._process = self._process, None
        with self._stack:
            if process is not None and self.expect_workers:
                # At the end of its input it stops them.
                with contextlib.suppress(subprocess.TimeoutExpired, BrokenPipeError):
                    process.communicate(timeout=_STOP_WORKERS_S)

    def client(
        self, users: int = 1, *, posts: int = 0, form: str = "", reports: Path | None = None
    ) -> Client:
        """For the runner; see :class:`Run`. The answer to a POST may have any length.

        It raises LocustFailed if Locust's process has ended.

        :param reports: an existing folder for Locust's own reports, see :func:`report_name`. A
            later run of the same contender replaces the report of an earlier one.
        """

        def run(task: Task) -> Load:
            process = self.start()
            self._runs += 1
            host, port = task.address
            order = Run(
                f"http://{host}:{port}",
                task.path,
                users,
                task.seconds,
                expected=None if posts else task.body_bytes,
                headers=task.headers,
                number=self._runs,
                posts=posts,
                form=form,
                report=str(reports / report_name(task.row, task.contender)) if reports else "",
            )
            assert process.stdin is not None  # a pipe, see start()
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps(asdict(order)) + "\n")
                process.stdin.flush()
            answer = self._answer(process)
            answer["latency_ms"] = {int(p): ms for p, ms in answer["latency_ms"].items()}
            return Load(**answer)

        return run

    def start(self) -> subprocess.Popen[str]:
        """Start it, if it is not running yet, and wait until its workers are there.

        :raises LocustFailed: if it ends, or they do not come.
        """
        if self._process is None:
            self._errors: IO[bytes] = self._stack.enter_context(tempfile.TemporaryFile())
            role = ["alone"]
            if workers := self.processes or self.expect_workers:
                host, port = (HOST, free_port()) if self.processes else self.master
                role = ["master", host, str(port), str(workers)]
                self._workers = [
                    self._start(worker_command((host, port)), subprocess.DEVNULL)
                    for _ in range(self.processes)
                ]
            command = [*self.within, sys.executable, "-c", START, _PROCESS, *role]
            self._process = self._start(command, subprocess.PIPE)
            self._answer(self._process)
        return self._process

    def _start(self, command: list[str], pipe: int) -> subprocess.Popen[str]:
        child = started(command, stdin=pipe, stdout=pipe, stderr=self._errors, text=True)
        return self._stack.enter_context(child)

    def _answer(self, process: subprocess.Popen[str]) -> Any:
        assert process.stdout is not None  # a pipe, as above
        # Each answer is one line, so that none waits in Python's buffer.
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


def report_name(row: str, contender: str) -> str:
    """The file name of Locust's report of a contender.

    :param row: its row's key.
    """
    return re.sub(r"[^A-Za-z0-9.]+", "-", f"{row}-{contender}").strip("-") + ".html"


def worker_command(master: Address) -> list[str]:
    """The command of one of Locust's workers, which ends with its master."""
    return [sys.executable, "-c", START, _PROCESS, "worker", *map(str, master)]
