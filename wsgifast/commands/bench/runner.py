"""Runs the servers of a comparison in turn, and measures them.

The contenders run in turn (A B A B ...), so that a slow minute of the machine affects all of them.
The base runs again at the end of each round. The difference between its two figures is the noise.
Before the load each contender gets one request, and the first contender two. These requests show
whether the bodies differ.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from ..arguments import STATUS_INTERRUPTED, STATUS_NOT_STARTED, STATUS_USAGE
from ..terminal import progress_line, show
from .loads import FirstResponse, Load, Task, cpu_seconds, request_once
from .locust_client import LocustFailed
from .processes import RunningServer, Server, ServerFailed, running_server
from .results import Result

_Task = TypeVar("_Task", bound=Task)
_Result = TypeVar("_Result", bound=Result)
# A function that is called with the name of each step.
Report = Callable[[str], None]
# The base's second run in a round.
_AGAIN = "the first again, for the noise"


class Servers(contextlib.ExitStack):
    """The servers of a comparison. Each starts when it is first needed, and ends with the block.

    :param folder: the files of the servers.
    """

    def __init__(self, host: str, folder: Path) -> None:
        super().__init__()
        self._host = host
        self._folder = folder
        self._running: dict[Server, RunningServer] = {}

    def get(self, server: Server, name: str = "") -> RunningServer:
        if server not in self._running:
            self._running[server] = self.enter_context(self.started(server, name))
        return self._running[server]

    def started(self, server: Server, name: str) -> AbstractContextManager[RunningServer]:
        """Start another process of a server, which ends with the block."""
        return running_server(server, name, folder=self._folder, host=self._host)

    def stop(self) -> None:
        """End all servers. They may start again."""
        self._running.clear()
        self.close()

    def first_responses(
        self, servers: Mapping[str, Server], tasks: Mapping[str, Task]
    ) -> tuple[dict[str, FirstResponse], bool]:
        """Request each contender once, and return whether the first one's body changes.

        :raises ServerFailed: if a server has ended.
        """
        found: dict[str, FirstResponse] = {}
        for name, server in servers.items():
            found[name] = request_once(tasks[name], tls=server.tls)
            self.get(server).check()
        first = next(iter(servers), None)
        if first is None or not found[first].ok:
            return found, False
        again = request_once(tasks[first], tls=servers[first].tls)
        differ = len({one.digest for one in found.values() if one.ok}) > 1
        if differ and again.digest == found[first].digest:
            # Some apps put a token of their process into each page, so request another process.
            with self.started(servers[first], first) as other:
                again = request_once(at(tasks[first], other), tls=servers[first].tls)
        return found, again.ok and again.digest != found[first].digest


def at(task: _Task, server: RunningServer) -> _Task:
    """Return the task for this server."""
    return replace(task, address=server.address, pid=server.pid)


def sized(tasks: Mapping[str, _Task], first: Mapping[str, FirstResponse]) -> dict[str, _Task]:
    """Return the tasks with the size that each contender's body must have.

    Sizes may differ, since one contender may compress. A compressed body has no required size,
    because it may change each time.
    """
    sizes = {n: one.body_bytes for n, one in first.items() if one.ok and not one.coding}
    return {name: replace(task, body_bytes=sizes.get(name)) for name, task in tasks.items()}


def one_run(client: Callable[[_Task], Load], task: _Task, server: RunningServer) -> Load:
    """Make one run, and measure the CPU time of the server.

    :raises ServerFailed: if the server has ended.
    """
    before = cpu_seconds(task.pid)
    load = client(task)
    load = replace(load, server_cpu_s=cpu_seconds(task.pid) - before)
    server.check()
    return load


def take_turns(
    runs: Mapping[str, Callable[[], Load]],
    base: str,
    rounds: int,
    *,
    limit_s: float,
    noise: bool,
    report: Report,
) -> tuple[dict[str, list[Load]], list[Load]]:
    """Call the contenders in turn, and return their loads, and those of the base's second runs.

    :param limit_s: no round starts after this time, except the first.
    :param noise: the base runs twice in each round.
    """
    turns = dict(runs)
    if noise and len(runs) > 1:
        turns[_AGAIN] = runs[base]
    samples: dict[str, list[Load]] = {name: [] for name in turns}
    begun = time.monotonic()
    for turn in range(1, rounds + 1):
        if turn > 1 and time.monotonic() - begun > limit_s:
            break
        for name, run in turns.items():
            report(f"{turn}/{rounds} {name}")
            samples[name].append(run())
    again = samples.pop(_AGAIN, [])
    return samples, again


def all_results(
    title: str, names: Sequence[str], measure: Callable[[int, Report], _Result], servers: Servers
) -> tuple[list[_Result], int]:
    """Return the results that could be measured, and an exit status.

    The status is 3 if a server or a client failed, and 130 after Ctrl-C. A failure of the first
    result ends the run, because the app itself may be the cause.

    :param names: of the results, for messages.
    :param measure: returns the result of a number.
    """
    results: list[_Result] = []
    status = 0
    for number, name in enumerate(names):
        try:
            with progress_line() as progress:

                def report(step: str, number: int = number, name: str = name) -> None:
                    progress(number, len(names), f"{name}: {step}")

                results.append(measure(number, report))
        except KeyboardInterrupt:
            servers.stop()
            show("Stopped. The servers have ended.", error=True)
            return results, STATUS_INTERRUPTED
        except (ServerFailed, RuntimeError, OSError, subprocess.SubprocessError) as error:
            show(f"error: {title}, {name}: {error}", error=True)
            if isinstance(error, LocustFailed):
                return results, STATUS_USAGE
            status = STATUS_NOT_STARTED
            servers.stop()
            if not results:
                break
    return results, status
