"""The server's own CPU time: what a request costs, however fast the client takes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import psutil

from .load import Load
from .servers import RunningServer

__all__ = ["Measured", "cpu_seconds", "measured"]


@dataclass(frozen=True)
class Measured:
    """A load run and the CPU seconds (user and system) that the server spent on it."""

    load: Load
    server_cpu_s: float

    @property
    def cpu_us_per_request(self) -> float:
        return self.server_cpu_s * 1e6 / self.load.requests if self.load.requests else 0.0

    @property
    def cpu_s_per_gb(self) -> float:
        """CPU seconds per GB (10^9 bytes) of payload."""
        return self.server_cpu_s * 1e9 / self.load.body_bytes if self.load.body_bytes else 0.0


def measured(server: RunningServer, run: Callable[[], Load]) -> Measured:
    """Do one load run and note what CPU time the server spent meanwhile.

    The kernel counts in steps of 10 ms: a run should keep the server busy for half a second or
    more before its CPU time says anything.
    """
    before = cpu_seconds(server.pid)
    load = run()
    return Measured(load, cpu_seconds(server.pid) - before)


def cpu_seconds(pid: int) -> float:
    """User and system CPU seconds that a process and all its descendants have spent so far.

    Workers that came and went count too: their time passes to the parent that reaped them.

    :raises psutil.NoSuchProcess: if the process itself has ended.
    """
    root = psutil.Process(pid)
    while True:
        family = [root, *root.children(recursive=True)]
        try:
            spent = sum(sum(process.cpu_times()[:4]) for process in family)
        except psutil.NoSuchProcess:
            if not root.is_running():
                raise
            continue  # a worker ended in between: its time is the parent's now, count again
        if {process.pid for process in family} == {
            pid,
            *(child.pid for child in root.children(recursive=True)),
        }:
            return float(spent)
