"""Tables of rows: the contenders of a comparison, their clients, and the figures."""

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

    :ivar tls: the server speaks TLS, with a self-signed certificate.
    :ivar full: the run is as long as for published figures.
    :ivar folder: the run's files.
    :ivar row: the key of its row, and `contender` the name of the contender, for reports.
    """

    tls: bool = False
    full: bool = False
    folder: Path = Path()
    row: str = ""
    contender: str = ""


# Makes one run.
Client = Callable[[Task], Load]


@dataclass(frozen=True)
class Contender:
    """One of the servers of a row.

    :ivar server: None: the client does everything without one.
    :ivar client: replaces the row's. The server is then not requested before the load.
    :ivar fresh: each run gets a new server, for figures that depend on earlier requests.
    :ivar ready: called before each run, and not measured.
    """

    name: str
    server: Server | None = None
    path: str = "/"
    client: Client | None = None
    fresh: bool = False
    ready: Callable[[Task], object] = lambda task: None


@dataclass(frozen=True)
class Unit:
    """What is counted, and its cost.

    :ivar rate: the figure that is compared.
    :ivar cost: the server's CPU time for one of them. None: not reported.
    :ivar difference: the difference from the first contender matters, not the ratio.
    :ivar less: less of it is better.
    """

    name: str
    rate: Callable[[Load], float]
    cost_name: str = ""
    cost: Callable[[Load], float] | None = None
    difference: bool = False
    less: bool = False


def megabytes_per_s(load: Load) -> float:
    """Payload in MB (10^6 bytes) per second."""
    return load.body_bytes / 1e6 / load.seconds if load.seconds else 0.0


def _cpu_s_per_gb(load: Load) -> float:
    """The server's CPU seconds per GB (10^9 bytes) of payload."""
    return load.server_cpu_s * 1e9 / load.body_bytes if load.body_bytes else 0.0


REQUESTS = Unit(
    "requests/s", lambda m: m.requests_per_s, "CPU us/req", lambda m: m.cpu_us_per_request
)
BYTES = Unit("MB/s", megabytes_per_s, "CPU s/GB", _cpu_s_per_gb)


@dataclass(frozen=True)
class Row:
    """One comparison.

    :ivar key: its name in the JSON file and on the command line, such as "worker.rates.small".
    :ivar contenders: the others are compared with the first.
    :ivar ours: the name of a contender that is compared with each of the others instead.
    :ivar seconds: of one run, in place of the profile's.
    :ivar rounds: in place of the profile's.
    :ivar body_bytes: the payload, if a contender cannot be requested it.
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
    """Rows that belong together: one run, one JSON file, one page.

    :ivar prepare: makes the run's files in a folder.
    :ivar then: an older table to compare with: its title, columns and rows.
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
    """The length of the runs.

    :ivar seconds: of one run.
    :ivar rounds: runs of each contender.
    :ivar row_seconds: no further round of a row starts after this time.
    :ivar full: as many messages and bytes as for published figures.
    :ivar noise: one contender runs twice in each round, to measure the noise of the machine.
    :ivar note: a sentence that is published with the figures.
    """

    seconds: float
    rounds: int = MIN_ROUNDS
    row_seconds: float = 60.0
    full: bool = False
    noise: bool = False
    note: str = ""
