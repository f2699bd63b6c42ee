"""Define the parts of a comparison: tables, their rows, the contenders and the units."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from wsgifast.commands.bench import loads
from wsgifast.commands.bench.loads import Load
from wsgifast.commands.bench.processes import Server
from wsgifast.commands.bench.report import MIN_ROUNDS


@dataclass(frozen=True)
class Task(loads.Task):
    """The requests of one run.

    :ivar tls: whether the server uses TLS, with a self-signed certificate.
    :ivar full: whether the run is as long as for published figures.
    :ivar folder: the folder with the files of the run.
    :ivar row: the key of the row, for reports.
    :ivar contender: the name of the contender, for reports.
    """

    tls: bool = False
    full: bool = False
    folder: Path = Path()
    row: str = ""
    contender: str = ""


# A function that makes one run.
Client = Callable[[Task], Load]


@dataclass(frozen=True)
class Contender:
    """A server that a row compares with others.

    :ivar server: the server. None if the client needs no server.
    :ivar client: a client in place of the row's client. A server with its own client gets no
        request before the first run.
    :ivar fresh: whether each run gets a new server, because figures depend on earlier requests.
    :ivar ready: a function that is called before each run. The call is not measured.
    """

    name: str
    server: Server | None = None
    path: str = "/"
    client: Client | None = None
    fresh: bool = False
    ready: Callable[[Task], object] = lambda task: None


@dataclass(frozen=True)
class Unit:
    """The unit of a figure, and the unit of its cost.

    :ivar rate: a function that returns the figure to compare, such as requests per second.
    :ivar cost: a function that returns the server's CPU time, such as that of a request. None to
        report no cost.
    :ivar difference: whether to report the difference from the first contender.
    :ivar less: whether smaller figures are better.
    """

    name: str
    rate: Callable[[Load], float]
    cost_name: str = ""
    cost: Callable[[Load], float] | None = None
    difference: bool = False
    less: bool = False


def megabytes_per_s(load: Load) -> float:
    """Return the rate of the bodies in MB (10^6 bytes) per second."""
    return load.body_bytes / 1e6 / load.seconds if load.seconds else 0.0


def _cpu_s_per_gb(load: Load) -> float:
    """Return the server's CPU seconds per GB (10^9 bytes) of bodies."""
    return load.server_cpu_s * 1e9 / load.body_bytes if load.body_bytes else 0.0


REQUESTS = Unit(
    "requests/s", lambda m: m.requests_per_s, "CPU us/req", lambda m: m.cpu_us_per_request
)
BYTES = Unit("MB/s", megabytes_per_s, "CPU s/GB", _cpu_s_per_gb)


@dataclass(frozen=True)
class Row:
    """One comparison.

    :ivar key: the name in the JSON file and on the command line, such as "worker.rates.small".
    :ivar contenders: the contenders. The first one is the base of all ratios.
    :ivar ours: the name of a contender. Then the report has its ratio to each other contender, and
        no ratios to the first contender.
    :ivar seconds: the length of a run. None for the length in the profile.
    :ivar rounds: the number of runs of each contender. None for the number in the profile.
    :ivar body_bytes: the size of the response's body. None to use the size of the first responses.
    """

    key: str
    title: str
    contenders: tuple[Contender, ...]
    client: Client
    unit: Unit = REQUESTS
    ours: str | None = None
    seconds: float | None = None
    rounds: int | None = None
    headers: tuple[str, ...] = ()
    body_bytes: int | None = None


@dataclass(frozen=True)
class Table:
    """Rows that are measured and reported together, in one JSON file.

    :ivar prepare: a function that gets a folder, and writes the files that the servers need.
    :ivar old_table: the title, columns and rows of an older table, to show above this table.
    :ivar notes: paragraphs to show below the table.
    """

    name: str
    title: str
    rows: Sequence[Row]
    prepare: Callable[[Path], None] = lambda folder: None
    old_table: tuple[str, Sequence[str], Sequence[Sequence[object]]] | None = None
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Profile:
    """The length of the runs.

    :ivar seconds: the length of one run.
    :ivar rounds: the number of runs of each contender.
    :ivar row_seconds: the time after which no new round of a row starts.
    :ivar full: whether runs transfer as many messages and bytes as for published figures.
    :ivar noise: whether the base runs twice in each round, to measure the noise of the machine.
    :ivar note: a sentence to publish with the figures.
    """

    seconds: float
    rounds: int = MIN_ROUNDS
    row_seconds: float = 60.0
    full: bool = False
    noise: bool = False
    note: str = ""
