"""Whether a server is alive, and ready for requests: pure, by the state of each of its workers.

*Alive* is what would not be better after a restart. A worker's main thread gives a sign of life
each second, whatever its other threads do; a worker that gives none is replaced by its arbiter. So
only a server all of whose workers have been silent for longer than that takes is not alive.

*Ready* is what would answer a request soon: a server with at least one worker that accepts, is not
silent, and has had a free thread of late. Workers leave new connections to each other while their
own threads are taken, so one is enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# A worker whose last sign of life is older answers nobody: its interpreter stands still.
_SILENT_S = 10.0


class SlowClient(NamedTuple):
    """A client that does not take its response as fast as it comes.

    :ivar client: its address.
    :ivar path: of its request, without the query.
    :ivar queued_bytes: that wait for it.
    :ivar waited_s: for how long something has waited for it.
    :ivar bytes_per_s: what it has taken since then, on average.
    """

    client: str
    path: str
    queued_bytes: int
    waited_s: float
    bytes_per_s: float


class State(NamedTuple):
    """What a worker says of itself.

    :ivar beat_at: its main thread's last sign of life.
    :ivar exhausted_since: since when no thread has been free; None while one is.
    :ivar accepts: False if it is to end, or has as many connections as it may.
    :ivar unready_after_s: for how long its threads may all be taken.
    :ivar lost_after_s: what silence its arbiter would have ended long ago.
    :ivar slow_clients: the slowest of them.

    Times are the monotonic clock's, which all processes of a system share.
    """

    pid: int
    beat_at: float
    exhausted_since: float | None
    accepts: bool
    unready_after_s: float
    lost_after_s: float
    slow_clients: list[SlowClient]

    def silent_s(self, now: float) -> float:
        return now - self.beat_at

    def exhausted_s(self, now: float) -> float:
        return 0.0 if self.exhausted_since is None else now - self.exhausted_since


class Verdict(NamedTuple):
    """An answer to a probe.

    :ivar text: why, in one line.
    """

    ok: bool
    text: str


def liveness(workers: Sequence[State], now: float) -> Verdict:
    """Whether the server is alive; one that has no worker yet is."""
    if workers and all(worker.silent_s(now) > worker.lost_after_s for worker in workers):
        silent_s = min(worker.silent_s(now) for worker in workers)
        return Verdict(False, f"no worker has given a sign of life for {silent_s:.0f} s")
    return Verdict(True, "alive")


def readiness(workers: Sequence[State], now: float) -> Verdict:
    """Whether the server is ready for requests."""
    serving = [worker for worker in workers if worker.accepts and worker.silent_s(now) <= _SILENT_S]
    if not serving:
        return Verdict(False, "no worker accepts connections")
    free = sum(worker.exhausted_s(now) <= worker.unready_after_s for worker in serving)
    if not free:
        least_s = min(worker.exhausted_s(now) for worker in serving)
        text = f"no thread of {_workers(len(serving))} has been free for {least_s:.0f} s"
        return Verdict(False, text)
    return Verdict(True, f"ready: {free} of {_workers(len(serving))}")


def _workers(count: int) -> str:
    return f"{count} worker" if count == 1 else f"{count} workers"
