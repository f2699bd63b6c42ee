"""Locust in a process of its own, one load run after another.

Locust patches the standard library for gevent when it is imported, and takes a second or two to
start. So the runner starts it once, as `python -m loadtests.bench.locust_process`, and hands it one
run at a time: a JSON line in, a JSON line out. :class:`LocustProcess` is the runner's end.
"""

from __future__ import annotations

import atexit
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from functools import cache
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from .command_line import command_line
from .load import Client, Load, Task, percentile
from .processes import start

__all__ = ["LocustProcess", "Run", "locust"]

# A run in which nothing but failures come back ends after so many of them.
MAX_VAIN_REQUESTS = 20
# What a run may take beyond its time: the requests that are under way, however slow, must end.
OVERTIME_S = 90.0


@dataclass(frozen=True)
class Run:
    """One load run: users that each send a GET after the answer to the one before.

    :ivar url: on this machine's loopback only.
    :ivar seconds: no request is begun after this time.
    :ivar requests: nor after this count, of all users together.
    :ivar expected: bytes that every body must have, where that is known.
    """

    url: str
    users: int = 1
    seconds: float = 2.0
    requests: int = 100_000
    expected: int | None = None

    def __post_init__(self) -> None:
        host = urlsplit(self.url).hostname
        if host not in ("127.0.0.1", "localhost", "::1"):
            raise ValueError(
                f"{self.url} is not on this machine: a comparison starts its own servers and loads "
                "nothing else. For a load on servers of your own, use loadtests/locustfile.py"
            )
        if self.users < 1 or self.seconds <= 0 or self.requests < 1:
            raise ValueError(f"{self}: users, seconds and requests are positive")


def locust(users: int = 1) -> Client:
    """Locust for the runner: so many users, in one process for all runs of this one."""

    def run(task: Task) -> Load:
        host, port = task.address
        url = f"http://{host}:{port}{task.path}"
        return _shared().load(Run(url, users=users, seconds=task.seconds, expected=task.body_bytes))

    return run


@cache
def _shared() -> LocustProcess:
    process = LocustProcess()
    process.__enter__()
    atexit.register(process.__exit__, None, None, None)
    return process


class LocustProcess:
    """The runner's end: a context manager that starts the process and ends it."""

    def __enter__(self) -> LocustProcess:
        self._errors = tempfile.TemporaryFile()
        self._process = start(
            [sys.executable, "-m", "loadtests.bench.locust_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,  # Ctrl-C is the runner's to handle
        )
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            assert stream is not None
            try:
                stream.close()
            except BrokenPipeError:
                pass  # it ended with an order unread

    def load(self, run: Run) -> Load:
        """Do one run; return what it gave.

        :raises RuntimeError: if Locust's process has ended; the message carries its errors.
        """
        assert self._process.stdin is not None  # both are pipes, see above
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(asdict(run)) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self._process.wait()
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace")
            raise RuntimeError(f"Locust's process ended by itself:\n{said[-4000:]}")
        answer = json.loads(line)
        answer["latency_ms"] = {int(p): ms for p, ms in answer["latency_ms"].items()}
        return Load(**answer)


def main() -> None:
    """The process itself: an order a line until the end of its input."""
    command_line("loadtests.bench.locust_process", __doc__).parse_args()
    # Locust patches the standard library: nothing of it may be imported by the runner.
    from locust.log import setup_logging

    setup_logging("WARNING")  # type: ignore[no-untyped-call]
    answers = sys.stdout
    sys.stdout = sys.stderr  # whatever Locust prints is no answer
    for line in sys.stdin:
        answers.write(json.dumps(_carry_out(Run(**json.loads(line)))) + "\n")
        answers.flush()


def _carry_out(run: Run) -> dict[str, Any]:
    import time

    from locust import constant, task
    from locust.env import Environment
    from locust.exception import StopUser

    from .downloads import DownloadUser

    parts = urlsplit(run.url)
    path = run.url[len(f"{parts.scheme}://{parts.netloc}") :] or "/"
    times: list[float] = []
    sizes: list[int] = []
    errors: dict[str, int] = {}
    begun = ended = time.perf_counter()

    class Visitor(DownloadUser):
        host = f"{parts.scheme}://{parts.netloc}"
        wait_time = constant(0)
        left = run.requests

        @task
        def visit(self) -> None:
            failed = sum(errors.values())
            in_vain = not times and failed >= MAX_VAIN_REQUESTS
            if in_vain or Visitor.left <= 0 or time.perf_counter() - begun >= run.seconds:
                raise StopUser
            Visitor.left -= 1
            self.download(path, expected=run.expected)

    def note(response_time: float, response_length: int, exception: object, **_: object) -> None:
        nonlocal ended
        ended = time.perf_counter()
        if exception is None:
            times.append(response_time)
            sizes.append(response_length)
        else:
            errors[str(exception)] = errors.get(str(exception), 0) + 1

    environment = Environment(user_classes=[Visitor], catch_exceptions=False)
    environment.events.request.add_listener(note)  # type: ignore[no-untyped-call]
    runner = environment.create_local_runner()
    cpu = time.process_time()
    begun = time.perf_counter()
    runner.start(run.users, spawn_rate=run.users)
    if runner.spawning_greenlet is not None:
        runner.spawning_greenlet.join()
    runner.user_greenlets.join(timeout=run.seconds + OVERTIME_S)
    stuck = len(runner.user_greenlets)
    cpu = time.process_time() - cpu
    runner.quit()
    if stuck:
        errors[f"no end of the answer after {run.seconds + OVERTIME_S:.0f} s"] = stuck
        ended = time.perf_counter()
    times.sort()
    return {
        "requests": len(times),
        "failures": sum(errors.values()),
        "body_bytes": sum(sizes),
        "seconds": ended - begun,
        "latency_ms": {p: percentile(times, p) for p in (50, 95, 99)} if times else {},
        "errors": errors,
        "client_cpu_s": cpu,
    }


if __name__ == "__main__":
    main()
