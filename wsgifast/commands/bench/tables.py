"""What a benchmark compares, as a table: rows of contenders, and the client that loads each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .load import Client, Load, Task

# Figures of fewer rounds are marked as such.
MIN_ROUNDS = 5


@dataclass(frozen=True)
class Server:
    """A kind of server; equal ones are started once in a run.

    :ivar argv: its command, in which "{host}" and "{port}" stand for where it is to listen and
        "{folder}" for the folder of the run's files. A first item of "python" is this interpreter.
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

    :ivar server: None: there is none; the client does everything.
    :ivar client: in place of the row's: what has its own is not asked by HTTP beforehand.
    :ivar fresh: each run gets a new server, for figures that depend on what came before.
    :ivar ready: called before each run, whose figures it is no part of.
    """

    name: str
    server: Server | None = None
    path: str = "/"
    client: Client | None = None
    fresh: bool = False
    ready: Callable[[Task], object] = lambda task: None


@dataclass(frozen=True)
class Unit:
    """What is counted, and what it costs.

    :ivar rate: the figure that is compared.
    :ivar cost: the server's CPU time for one of them; None: not reported.
    :ivar difference: what matters is how much more it is than the first one's, not how many times.
    :ivar less: less of it is better.
    """

    name: str
    rate: Callable[[Load], float]
    cost_name: str = ""
    cost: Callable[[Load], float] | None = None
    difference: bool = False
    less: bool = False


REQUESTS = Unit(
    "requests/s", lambda m: m.requests_per_s, "CPU us/req", lambda m: m.cpu_us_per_request
)
BYTES = Unit("MB/s", lambda m: m.megabytes_per_s, "CPU s/GB", lambda m: m.cpu_s_per_gb)


@dataclass(frozen=True)
class Row:
    """One comparison.

    :ivar key: its name in the JSON file and on the command line, such as "worker.rates.small".
    :ivar contenders: the first is what the others are compared with.
    :ivar ours: a contender's name: then it is compared with each of the others instead.
    :ivar seconds: of one run, where the profile's would say nothing.
    :ivar rounds: where the profile's would take too long.
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
    :ivar noise: measure what the machine disturbs: one contender runs twice in each round.
    """

    seconds: float
    rounds: int = MIN_ROUNDS
    row_seconds: float = 60.0
    full: bool = False
    noise: bool = False
