"""What a small addition costs: pairs of new servers, with and without it, each on its own core.

Two starts of the same server differ by more than the addition costs, because their memory layouts
differ. So the cost is the median difference of many pairs, and a second server without the addition
shows the noise.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping

from wsgifast.benchmark.load import Client, Load, Task, family
from wsgifast.benchmark.tables import Contender, Row, Server, Unit

from .clients import Connection, wrk

_ROUNDS = 40
# After so many, CPython has adapted to what the server does.
_WARM_UP_REQUESTS = 1000


def pinned_row(
    key: str,
    title: str,
    sides: Mapping[str, Server],
    path: str,
    ready: Mapping[str, Callable[[], object]] | None = None,
) -> Row:
    """The CPU time of a request by wrk, 32 connections.

    :param sides: the first is what the others are compared to; it takes part once more.
    :param ready: what is to be waited for before a server is measured, by its side's name.
    """
    first, server = next(iter(sides.items()))
    contenders = tuple(
        Contender(name, each, path, fresh=True, ready=on_its_core((ready or {}).get(name)))
        for name, each in {**sides, f"{first} again": server}.items()
    )
    unit = Unit("CPU us/req", lambda m: m.cpu_us_per_request, difference=True, less=True)
    title = f"{title}, on a core: CPU of a request"
    return Row(key, title, contenders, _on_the_other_core(wrk(32)), unit, rounds=_ROUNDS)


def on_its_core(ready: Callable[[], object] | None = None) -> Callable[[Task], None]:
    """Wait until a server is warm, and all of it is there; give it a core of its own.

    :param ready: returns when all of it is there.
    """

    def make(task: Task) -> None:
        connection = Connection(task.address, task.path)
        with contextlib.closing(connection):
            for _ in range(_WARM_UP_REQUESTS):
                connection.ask()
        if ready is not None:
            ready()
        core = {min(os.sched_getaffinity(0))}
        for process in family(task.pid):
            for thread in process.threads():  # those that they start have the same
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(thread.id, core)

    return make


def _on_the_other_core(client: Client) -> Client:
    def run(task: Task) -> Load:
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {max(cores)})
        try:
            return client(task)
        finally:
            os.sched_setaffinity(0, cores)

    return run
