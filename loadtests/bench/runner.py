"""The runner of every comparison: rows of contenders, and the client that loads each.

A row asks the same of several contenders. They run in turn (A B A B ...), so that a slow minute of
the machine falls on all alike; a figure is the median of its runs, a ratio the median of the ratios
of neighbours in time, with its spread. The server's CPU time stands beside every rate, and each
result says which side was busy all the time. Before they are loaded all contenders of a row are
asked once: a body that is not the same everywhere is told.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

from .alternating import MIN_ROUNDS, Ratio, alternate
from .load import Client, Load, Measured, Task, measured
from .looking import Seen, look
from .processes import HOST, RunningServer, free_port, running, temporary_folder

__all__ = [
    "BYTES", "PROFILES", "REQUESTS", "Contender", "Profile", "Result", "Row", "Server", "Table",
    "Unit", "run",
]  # fmt: skip

# A side that spends this share of a run on its own CPU is busy all the time.
BUSY = 0.85


@dataclass(frozen=True)
class Server:
    """A kind of server; equal ones are started once in a run.

    :ivar argv: its command, in which "{port}" stands for a port on 127.0.0.1 and "{folder}" for
        the folder of the run's files. A first item of "python" is this interpreter.
    :ivar env: added to its environment; its values have the same placeholders.
    """

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    tls: bool = False

    def placed(self, places: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
        """The command and the environment with the placeholders filled in."""

        def filled(text: str) -> str:
            for mark, value in places.items():
                text = text.replace(mark, value)
            return text

        return [filled(item) for item in self.argv], {n: filled(v) for n, v in self.env}


@dataclass(frozen=True)
class Contender:
    """One side of a row.

    :ivar server: None: there is none, the client does all by itself.
    :ivar client: in place of the row's.
    :ivar fresh: each run gets a new server, for figures that depend on what came before.
    """

    name: str
    server: Server | None = None
    path: str = "/"
    client: Client | None = None
    fresh: bool = False


@dataclass(frozen=True)
class Unit:
    """What is counted, and what it costs.

    :ivar rate: the figure that is compared.
    :ivar cost: the server's CPU for one of them; None: it is not told.
    :ivar difference: what matters is how much more it is than the first one's, not how many times.
    """

    name: str
    rate: Callable[[Measured], float]
    cost_name: str = ""
    cost: Callable[[Measured], float] | None = None
    difference: bool = False


REQUESTS = Unit(
    "requests/s", lambda m: m.load.requests_per_s, "CPU us/req", lambda m: m.cpu_us_per_request
)
BYTES = Unit("MB/s", lambda m: m.load.megabytes_per_s, "CPU s/GB", lambda m: m.cpu_s_per_gb)


@dataclass(frozen=True)
class Row:
    """One comparison.

    :ivar key: its name in the JSON file and on the command line, such as "worker.rates.small".
    :ivar contenders: the first is what the others are compared with.
    :ivar ours: a contender's name: then it is compared with each of the others instead.
    :ivar seconds: of one run, where the profile's would say nothing.
    :ivar rounds: where the profile's would take too long.
    :ivar http: the contenders are HTTP servers, and asked once before they are loaded.
    :ivar body_bytes: the payload, where a contender cannot be asked for it.
    """

    key: str
    title: str
    contenders: tuple[Contender, ...]
    client: Client
    unit: Unit = REQUESTS
    ours: str | None = None
    seconds: float | None = None
    rounds: int | None = None
    http: bool = True
    headers: tuple[str, ...] = ()
    body_bytes: int | None = None


@dataclass(frozen=True)
class Table:
    """Rows that belong together: one run, one JSON file, one page.

    :ivar prepare: makes the run's files in a folder.
    :ivar then: an older table to stand beside it: its title, columns and rows.
    :ivar notes: paragraphs below it.
    """

    name: str
    title: str
    rows: Sequence[Row]
    prepare: Callable[[Path], None] = lambda folder: None
    then: tuple[str, Sequence[str], Sequence[Sequence[object]]] | None = None
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Profile:
    """How long.

    :ivar seconds: of one run.
    :ivar rounds: runs of each contender.
    :ivar row_seconds: no further round of a row is begun after this time.
    :ivar full: as many messages and bytes as in the figures to be published.
    """

    seconds: float
    rounds: int = MIN_ROUNDS
    row_seconds: float = 60.0
    full: bool = False


PROFILES = {"quick": Profile(0.3), "release": Profile(1.0, 7, 600.0, full=True)}


@dataclass(frozen=True)
class Result:
    """A row's runs, by contender; figures are medians over the rounds."""

    row: Row
    runs: Mapping[str, Sequence[Measured]]
    seen: Mapping[str, Seen] = field(default_factory=dict)

    def median(self, name: str, figure: Callable[[Measured], float]) -> float | None:
        """None if no run of the contender succeeded."""
        good = [figure(m) for m in self.runs[name] if m.load.requests]
        return median(good) if good else None

    def latency_ms(self, name: str, percent: int) -> float | None:
        timed = [m.load.latency_ms[percent] for m in self.runs[name] if m.load.latency_ms]
        return median(timed) if timed else None

    def failures(self, name: str) -> int:
        return sum(m.load.failures for m in self.runs[name])

    def errors(self, name: str) -> dict[str, int]:
        """What the client saw -> how often."""
        return dict(sum((Counter(m.load.errors) for m in self.runs[name]), Counter()))

    def facts(self, name: str) -> dict[str, float]:
        names = dict.fromkeys(fact for m in self.runs[name] for fact in m.load.facts)
        found = {f: [m.load.facts[f] for m in self.runs[name] if f in m.load.facts] for f in names}
        return {fact: median(values) for fact, values in found.items()}

    def ratio(self, name: str, figure: Callable[[Measured], float] | None) -> Ratio | None:
        """The contender's figure to the first one's, or our contender's to this one's.

        None for the one that all are compared with, and where either never succeeded.
        """
        base = self.row.ours or self.row.contenders[0].name
        if name == base or figure is None:
            return None
        upper, lower = (base, name) if self.row.ours else (name, base)
        both = [
            (figure(over), figure(under))
            for over, under in zip(self.runs[upper], self.runs[lower], strict=True)
            if over.load.requests and under.load.requests and figure(under)
        ]
        return Ratio.of(*zip(*both, strict=True)) if both else None

    def difference(self, name: str) -> float | None:
        """How much more the contender's figure is than the first one's."""
        figures = (self.median(n, self.row.unit.rate) for n in (name, self.row.contenders[0].name))
        own, first = figures
        return None if own is None or first is None else own - first

    def verdict(self, name: str) -> str:
        """The ratio, or what there is instead of one."""
        ratio = self.ratio(name, self.row.unit.rate)
        if ratio is not None:
            return str(ratio)
        if any(m.load.requests for m in self.runs[name]):
            first = self.row.contenders[0].name
            return "rescued" if name != first and not self.median(first, self.row.unit.rate) else ""
        return "fails"

    def busy(self, name: str) -> str:
        """Which side was busy all the time, and so the limit: "client", "server", both, neither."""
        sides: dict[str, Callable[[Measured], float]] = {
            "client": lambda m: m.load.client_cpu_s / m.load.seconds,
            "server": lambda m: m.server_cpu_s / m.load.seconds,
        }
        return ", ".join(s for s, share in sides.items() if (self.median(name, share) or 0) > BUSY)

    @property
    def differs(self) -> bool:
        """Whether the contenders' bodies are not all the same; those that only fail have none."""
        return len({seen.digest for seen in self.bodies.values()}) > 1

    @property
    def bodies(self) -> dict[str, Seen]:
        """What those that answer at all have answered first."""
        good = {name for name, runs in self.runs.items() if any(m.load.requests for m in runs)}
        return {name: seen for name, seen in self.seen.items() if seen.ok and name in good}

    def figures(self) -> dict[str, object]:
        """All of it, for JSON."""
        unit = self.row.unit
        contenders = {
            name: {
                unit.name: self.median(name, unit.rate),
                unit.cost_name or "CPU": unit.cost and self.median(name, unit.cost),
                "ratio": self.ratio(name, unit.rate),
                **({"difference": self.difference(name)} if unit.difference else {}),
                "cost ratio": self.ratio(name, unit.cost),
                "ms": {p: self.latency_ms(name, p) for p in (50, 95, 99)},
                "pairs": len(self.runs[name]),
                "failures": self.failures(name),
                "errors": self.errors(name),
                "busy": self.busy(name),
                "facts": self.facts(name),
                "runs": self.runs[name],
            }
            for name in self.runs
        }
        return {"title": self.row.title, "ours": self.row.ours, "contenders": contenders}


Progress = Callable[[str, float], None]


def run(
    table: Table,
    profile: Profile,
    *,
    port: int | None = None,
    progress: Progress = lambda what, done: None,
) -> list[Result]:
    """Start the contenders' servers, and load each row's in turn.

    :param port: the first server's; by default free ones.
    :raises ServerFailed: if a server does not start, or ends by itself; with its log.
    """
    results = []
    with temporary_folder(table.name) as folder, contextlib.ExitStack() as stack:
        table.prepare(Path(folder))
        servers = _Servers(Path(folder), port, stack)
        for number, row in enumerate(table.rows):
            done = number / len(table.rows)
            progress(f"{row.title}: starting", done)
            tasks = {c.name: servers.task(c, row, profile) for c in row.contenders}
            seen: dict[str, Seen] = {}
            if row.http:
                tasks, seen = _look(row, tasks, servers)
            runs = {
                c.name: partial(_measure, c, row, tasks[c.name], servers) for c in row.contenders
            }

            def tell(step: str, title: str = row.title, done: float = done) -> None:
                progress(f"{title}: {step}", done)

            rounds = row.rounds or profile.rounds
            samples = alternate(runs, rounds=rounds, seconds=profile.row_seconds, progress=tell)
            results.append(Result(row, samples, seen))
    return results


class _Servers:
    """Each kind of server, started when first needed."""

    def __init__(self, folder: Path, port: int | None, stack: contextlib.ExitStack) -> None:
        self._folder = folder
        self._port = port
        self._stack = stack
        self._running: dict[Server, RunningServer] = {}

    def task(self, contender: Contender, row: Row, profile: Profile) -> Task:
        task = Task(
            contender.path,
            row.seconds or profile.seconds,
            headers=row.headers,
            body_bytes=row.body_bytes,
            tls=contender.server is not None and contender.server.tls,
            full=profile.full,
            folder=self._folder,
        )
        if contender.server is None or contender.fresh:
            return task
        return _at(task, self.shared(contender.server))

    def shared(self, server: Server) -> RunningServer:
        if server not in self._running:
            self._running[server] = self._stack.enter_context(self.started(server))
        return self._running[server]

    @contextlib.contextmanager
    def started(self, server: Server) -> Iterator[RunningServer]:
        port = free_port() if self._port is None else self._port + len(self._running)
        argv, env = server.placed({"{port}": str(port), "{folder}": str(self._folder)})
        with running(argv, (HOST, port), env=env) as one:
            yield one


def _at(task: Task, server: RunningServer) -> Task:
    return Task(**{**vars(task), "address": server.address, "pid": server.pid})


def _look(
    row: Row, tasks: dict[str, Task], servers: _Servers
) -> tuple[dict[str, Task], dict[str, Seen]]:
    """Ask every contender once; the tasks get the payload's size from those that answer."""
    seen: dict[str, Seen] = {}
    for contender in row.contenders:
        if contender.server is not None and not contender.fresh:
            seen[contender.name] = look(tasks[contender.name])
            # gunicorn listens before it imports the app, and ends if it cannot.
            answered = seen[contender.name].answer.startswith("HTTP/")
            servers.shared(contender.server).check(within=0.0 if answered else 3.0)
    sizes = [one.body_bytes for one in seen.values() if one.ok]
    if row.body_bytes is None and sizes:
        tasks = {n: Task(**{**vars(t), "body_bytes": sizes[-1]}) for n, t in tasks.items()}
    return tasks, seen


def _measure(contender: Contender, row: Row, task: Task, servers: _Servers) -> Measured:
    client = contender.client or row.client
    if contender.server is None:
        return Measured(client(task), 0.0)
    if contender.fresh:
        with servers.started(contender.server) as server:
            return _one_run(client, _at(task, server), server)
    return _one_run(client, task, servers.shared(contender.server))


def _one_run(client: Client, task: Task, server: RunningServer) -> Measured:
    run: Callable[[], Load] = partial(client, task)
    result = measured(task.pid, run)
    server.check()
    return result
