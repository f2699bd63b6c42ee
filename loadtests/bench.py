"""Rows of the load tests: contender x scenario x client, for harness.runner."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from wsgifast.commands.bench.loads import Load, family
from wsgifast.commands.bench.processes import Server
from wsgifast.commands.bench.serving import FAST_WORKER, gunicorn

from .clients import raw, wrk
from .harness.tables import BYTES, REQUESTS, Client, Contender, Row, Table, Task, Unit
from .payloads import files

FAST = FAST_WORKER
APP = "loadtests.app:app"
# A contender: a server, and its request or client, if that is not the row's; or
# a client that does all by itself.
Side: TypeAlias = "Server | Client | tuple[Server, str | Client] | tuple[Server, str, Client]"
# A scenario: its key, title, path and unit, and its client, if that is not the unit's.
Case: TypeAlias = "tuple[str, str, str, Unit] | tuple[str, str, str, Unit, Client]"
# The tables that are measured over a link alone, with --link, and its rate in Mbit/s.
LINKS = {"compress-link": 20, "upload-link": 200}
_CLIENTS = {BYTES.name: raw(), REQUESTS.name: wrk(8)}


def row(
    key: str,
    title: str,
    sides: Mapping[str, Side],
    path: str = "/",
    unit: Unit = REQUESTS,
    client: Client | None = None,
    *,
    fresh: bool = False,
    **more: Any,
) -> Row:
    """A row of these contenders.

    :param client: by default raw() for bytes and wrk(8) for requests.
    :param fresh: each run gets a new server.
    :param more: as for :class:`~loadtests.harness.tables.Row`.
    """
    contenders = tuple(_contender(name, side, path, fresh) for name, side in sides.items())
    client = client or contenders[0].client or _CLIENTS[unit.name]
    return Row(key, title, contenders, client, unit, **more)


def _contender(name: str, side: Side, path: str, fresh: bool) -> Contender:
    if not isinstance(side, Server | tuple):
        return Contender(name, client=side)
    server, *own = side if isinstance(side, tuple) else (side,)
    path = next((each for each in own if isinstance(each, str)), path)
    client: Any = next((each for each in own if not isinstance(each, str)), None)
    return Contender(name, server, path, client, fresh)


def pair(*options: str, app: str = APP, first: str = "gthread", **more: Any) -> dict[str, Side]:
    """FastWorker and gthread.

    :param options: gunicorn's.
    :param more: as for :func:`~wsgifast.commands.bench.serving.gunicorn`.
    """
    kinds = {"FastWorker": FAST, "gthread": "gthread"}
    names = sorted(kinds, key=lambda name: name != first)
    return {n: gunicorn(app, *options, worker_class=kinds[n], **more) for n in names}


def rows(key: str, title: str, sides: Mapping[str, Side], cases: Iterable[Case]) -> list[Row]:
    """The same contenders in each of these scenarios."""
    return [
        row(f"{key}.{case}", f"{title}{what}", sides, path, unit, *client)
        for case, what, path, unit, *client in cases
    ]


def unavailable(names: Iterable[str], way_out: str) -> dict[str, Side]:
    """Contenders of these names that fail, each with this message."""

    def fail(task: Task) -> Load:
        return Load(0, 1, 0, 0.0, errors={way_out: 1})

    return dict.fromkeys(names, fail)


def table(name: str, title: str, members: Sequence[Row], **more: Any) -> Table:
    """Rows that belong together, with the files that most servers need."""
    return Table(name, title, members, **{"prepare": files, **more})


def with_its_cpu(client: Client) -> Client:
    """The client, which reports its own CPU time too."""

    def run(task: Task) -> Load:
        load = client(task)
        if not load.body_bytes:
            return load
        return replace(load, facts={**load.facts, "client's CPU s/GB": client_cpu_s_per_gb(load)})

    return run


def client_cpu_s_per_gb(load: Load) -> float:
    return load.client_cpu_s * 1e9 / load.body_bytes


def resident_bytes(pid: int) -> int:
    """The memory that a process and all its descendants have."""
    return sum(process.memory_info().rss for process in family(pid))
