"""Functions that make rows of the load tests from contenders, scenarios and clients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from wsgifast.commands.bench.loads import Load, family
from wsgifast.commands.bench.processes import Server
from wsgifast.commands.bench.serving import FAST_WORKER

from .clients import raw, wrk
from .harness.servers import gunicorn
from .harness.tables import BYTES, REQUESTS, Client, Contender, Row, Table, Task, Unit
from .payloads import files

FAST = FAST_WORKER
APP = "loadtests.app:app"
# A contender. It is a server, with a path or a client if these differ from the row's. Or it is a
# client that needs no server.
Side: TypeAlias = "Server | Client | tuple[Server, str | Client] | tuple[Server, str, Client]"
# A scenario consists of its key, title, path and unit, and of a client if it differs from the
# unit's client.
Case: TypeAlias = "tuple[str, str, str, Unit] | tuple[str, str, str, Unit, Client]"
# The tables that need --link, with the rate of the link in Mbit/s.
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
    """Return a row that compares contenders.

    :param sides: the contenders by name.
    :param client: the client that sends the requests. By default, raw() for bytes, and wrk(8) for
        requests.
    :param fresh: whether each run gets a new server.
    :param more: further fields of :class:`~loadtests.harness.tables.Row`.
    """
    contenders = tuple(_contender(name, side, path, fresh) for name, side in sides.items())
    client = client or contenders[0].client or _CLIENTS[unit.name]
    return Row(key, title, contenders, client, unit, **more)


def _contender(name: str, side: Side, path: str, fresh: bool) -> Contender:
    if not isinstance(side, Server | tuple):
        return Contender(name, client=side)
    server, *overrides = side if isinstance(side, tuple) else (side,)
    path = next((each for each in overrides if isinstance(each, str)), path)
    client: Any = next((each for each in overrides if not isinstance(each, str)), None)
    return Contender(name, server, path, client, fresh)


def pair(*options: str, app: str = APP, first: str = "gthread", **more: Any) -> dict[str, Side]:
    """Return FastWorker and gthread as contenders.

    :param options: options of gunicorn.
    :param more: further arguments of :func:`~loadtests.harness.servers.gunicorn`.
    """
    kinds = {"FastWorker": FAST, "gthread": "gthread"}
    names = sorted(kinds, key=lambda name: name != first)
    return {n: gunicorn(app, *options, worker_class=kinds[n], **more) for n in names}


def rows(key: str, title: str, sides: Mapping[str, Side], cases: Iterable[Case]) -> list[Row]:
    """Return a row for each scenario, with the same contenders."""
    return [
        row(f"{key}.{case}", f"{title}{case_title}", sides, path, unit, *client)
        for case, case_title, path, unit, *client in cases
    ]


def unavailable(names: Iterable[str], remedy: str) -> dict[str, Side]:
    """Return contenders that replace unavailable ones. They fail with the message `remedy`."""

    def fail(task: Task) -> Load:
        return Load(0, 1, 0, 0.0, errors={remedy: 1})

    return dict.fromkeys(names, fail)


def table(name: str, title: str, members: Sequence[Row], **more: Any) -> Table:
    """Return a table of rows. By default, it makes the files that most servers need."""
    return Table(name, title, members, **{"prepare": files, **more})


def with_client_cpu(client: Client) -> Client:
    """Return a client that also reports its own CPU time."""

    def run(task: Task) -> Load:
        load = client(task)
        if not load.body_bytes:
            return load
        return replace(load, facts={**load.facts, "client's CPU s/GB": client_cpu_s_per_gb(load)})

    return run


def client_cpu_s_per_gb(load: Load) -> float:
    return load.client_cpu_s * 1e9 / load.body_bytes


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process and all its descendants."""
    return sum(process.memory_info().rss for process in family(pid))
