"""The tables of a benchmark, the task of a client, and the result of its run.

A table has rows of contenders, and the client that loads each. Before any load each server is asked
once: what it answers, and whether that is what it says.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...checks import needs
from ...errors import ConfigurationError
from ..client import HTTPClient, NoAnswer, decoded, unverified_tls
from .processes import HOST, Address, Server

with needs("wsgifast bench", "psutil", "bench"):
    import psutil

# Raw bodies may take seconds; an answer that takes longer than this cannot be measured.
LOOK_S = 30.0
# A larger coded body is compared as it is.
_DECODED_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class Task:
    """What a client should do in one run.

    :ivar path: requested by GET.
    :ivar seconds: no request is started after this time.
    :ivar address: the server's; port 0 where the run has none.
    :ivar pid: the server's.
    :ivar headers: lines to add to each request, such as "Range: bytes=0-9".
    :ivar body_bytes: the payload that every answer must have; None: any.
    :ivar tls: the server speaks TLS, with a self-signed certificate.
    :ivar full: as much as in the figures to be published, where an amount bounds the run.
    :ivar folder: the run's files.
    :ivar row: the key of its row, and `contender` the name of the contender, for reports.
    """

    path: str = "/"
    seconds: float = 1.0
    address: Address = (HOST, 0)
    pid: int = 0
    headers: tuple[str, ...] = ()
    body_bytes: int | None = None
    tls: bool = False
    full: bool = False
    folder: Path = Path()
    row: str = ""
    contender: str = ""


@dataclass(frozen=True)
class Load:
    """The result of one bounded run.

    :ivar requests: answers that came whole and with a status below 400 (or messages, calls, ...).
    :ivar failures: all others, and requests without an answer.
    :ivar body_bytes: payload of the good answers, without heads and chunk framing.
    :ivar seconds: wall time of the run.
    :ivar latency_ms: percentile (50, 95, 99) -> milliseconds from sending a request to the last
        byte of its answer; empty if no request succeeded.
    :ivar errors: what the client saw -> how often.
    :ivar client_cpu_s: CPU seconds (user and system) of the client itself.
    :ivar server_cpu_s: those that the server spent meanwhile, where it is watched.
    :ivar facts: further figures, by name and unit.
    """

    requests: int
    failures: int
    body_bytes: int
    seconds: float
    latency_ms: Mapping[int, float] = field(default_factory=dict)
    errors: Mapping[str, int] = field(default_factory=dict)
    client_cpu_s: float = 0.0
    facts: Mapping[str, float] = field(default_factory=dict)
    server_cpu_s: float = 0.0

    @property
    def requests_per_s(self) -> float:
        return self.requests / self.seconds if self.seconds else 0.0

    @property
    def megabytes_per_s(self) -> float:
        """Payload in MB (10^6 bytes) per second."""
        return self.body_bytes / 1e6 / self.seconds if self.seconds else 0.0

    @property
    def cpu_us_per_request(self) -> float:
        """The server's CPU time."""
        return self.server_cpu_s * 1e6 / self.requests if self.requests else 0.0

    @property
    def cpu_s_per_gb(self) -> float:
        """The server's CPU seconds per GB (10^9 bytes) of payload."""
        return self.server_cpu_s * 1e9 / self.body_bytes if self.body_bytes else 0.0


# One bounded run.
Client = Callable[[Task], Load]


@dataclass(frozen=True)
class Seen:
    """The answer to one plain request.

    :ivar body_bytes: of the body as it was sent.
    :ivar digest: of the body, decoded where that is possible.
    :ivar ok: the whole answer came, with a status below 400.
    :ivar coding: the Content-Encoding, such as "gzip"; "" for none.
    :ivar decoded_bytes: of the body without it; None if it could not be decoded.
    """

    body_bytes: int
    digest: str
    ok: bool
    coding: str = ""
    decoded_bytes: int | None = None


def look(task: Task) -> Seen:
    """Ask once, on a connection of its own.

    :raises ConfigurationError: if the answer has no end, or none that one could wait for.
    """
    digest, size, kept = hashlib.sha256(), 0, bytearray()

    def take(block: bytes) -> None:
        nonlocal size
        digest.update(block)
        size += len(block)
        if len(kept) < _DECODED_BYTES:
            kept.extend(block)

    lines = [line.partition(":") for line in (*task.headers, "Connection: close")]
    headers = [(name, value.strip()) for name, _, value in lines]
    tls = unverified_tls() if task.tls else None
    ok, coding = False, ""
    try:
        client = HTTPClient(*task.address, tls=tls, headers=headers, limit_s=LOOK_S)
        answer = client.ask(task.path, take=take)
        ok = answer.status < 400 and not answer.missing
        coding = (answer.header("Content-Encoding") or "").lower().replace("identity", "")
    except NoAnswer as error:
        if isinstance(error.__cause__, TimeoutError):
            raise ConfigurationError(
                f"{task.path}: no end of the answer after {LOOK_S:.0f} s; name a path whose "
                "answers end"
            ) from None
    # Two gzips of the same have other bytes, for their time.
    if coding and len(kept) == size and (body := decoded(bytes(kept), coding)) is not None:
        return Seen(size, hashlib.sha256(body).hexdigest(), ok, coding, len(body))
    return Seen(size, digest.hexdigest(), ok, coding, None if coding else size)


def cpu_seconds(pid: int) -> float:
    """User and system CPU seconds that a process and all its descendants have spent so far.

    Workers that came and went count too: their time passes to the parent that reaped them. On
    Linux those that live count exactly, elsewhere in the kernel's steps of 10 ms or so: there a
    server should be busy for half a second or more before its CPU time says anything.

    :raises psutil.NoSuchProcess: if the process itself has ended.
    """
    while True:
        root, *children = family(pid)
        try:
            spent = sum(map(_own_and_reaped_s, (root, *children)))
        except psutil.NoSuchProcess:
            if not root.is_running():
                raise
            continue  # a worker ended in between: its time is the parent's now, count again
        if {*children} == {*family(pid)[1:]}:
            return float(spent)


def _own_and_reaped_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    try:
        # linux/posix-timers.h: the CPU clock of a process, by its pid; CPUCLOCK_SCHED, exact.
        own = time.clock_gettime((~process.pid << 3) | 2) if sys.platform == "linux" else None
    except OSError:  # it has just ended, or it is another user's
        own = None
    return float(sum(times[:2] if own is None else (own,)) + sum(times[2:4]))


def family(pid: int) -> list[psutil.Process]:
    """A process, and all its descendants."""
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


# Figures of fewer rounds are marked as such.
MIN_ROUNDS = 5


@dataclass(frozen=True)
class Contender:
    """One side of a row.

    :ivar server: None: the client does everything without one.
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
    :ivar sizes: show the bytes of the bodies, also where none is coded.
    :ivar link_mbit: show what they mean on a link of so many Mbit/s.
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
    sizes: bool = False
    link_mbit: float | None = None


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
