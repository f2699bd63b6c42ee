"""Field report 3: how fast mail goes from an SMTP client to an SMTP server on the same machine.

smtplib to aiosmtpd, and wsgifast.mail's client to its server, by DATA (as then) and by BDAT (which
both offer and so choose), in turn. The client is this process, the server another.
"""

from __future__ import annotations

import base64
import contextlib
import os
import smtplib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import NamedTuple

from loadtests.measuring import Ratio, RunningServer, alternate, cpu_seconds, free_port, running
from wsgifast.mail import SMTP

from .result import Bars, Figures, Profile, ReportResult, Summary

__all__ = ["OLD", "TITLE", "run"]

TITLE = "smtplib and smtpd"
OLD = Figures(
    "Then: Python 2, client and server on one machine",
    ["", "MB/s", "gain"],
    [["before", 15.0, None], ["after", 220.0, "14x"]],
)
ROUNDS = 3
ATTACHMENT, PROSE, SMALL = "20 MB, an attachment", "20 MB, a dot before each line", "1 kB"
MESSAGES: dict[Profile, dict[str, int]] = {
    "quick": {ATTACHMENT: 1, PROSE: 1, SMALL: 500},
    "full": {ATTACHMENT: 5, PROSE: 2, SMALL: 10_000},
}
LARGE_BYTES = 20_000_000
SMALL_BYTES = 1_000


class DataOnly(SMTP):
    """Ours without BDAT."""

    chunking = False


class Contender(NamedTuple):
    server: str
    client: type[smtplib.SMTP]


BASE, DATA, BDAT = "smtplib, aiosmtpd", "wsgifast, DATA", "wsgifast, BDAT"
CONTENDERS = {
    BASE: Contender("stock", smtplib.SMTP),
    DATA: Contender("fast", DataOnly),
    BDAT: Contender("fast", SMTP),
}


@dataclass(frozen=True)
class Delivery:
    """One run on one connection: messages of a size, and what they cost."""

    messages: int
    message_bytes: int
    seconds: float
    client_cpu_s: float
    server_cpu_s: float

    @property
    def per_second(self) -> float:
        return self.messages / self.seconds

    @property
    def mb_per_second(self) -> float:
        """MB (10^6 bytes) of messages."""
        return self.per_second * self.message_bytes / 1e6


Runs = dict[str, dict[str, list[Delivery]]]


def run(profile: Profile) -> ReportResult:
    """All contenders in turn, over each load."""
    loads = {
        ATTACHMENT: _attachment(LARGE_BYTES),
        PROSE: _prose(LARGE_BYTES),
        SMALL: _attachment(SMALL_BYTES),
    }
    runs: Runs = {}
    with _sink("stock") as stock, _sink("fast") as fast:
        servers = {"stock": stock, "fast": fast}
        for load, message in loads.items():
            messages = MESSAGES[profile][load]
            contenders = {
                name: partial(_deliver, servers[server], client, message, messages)
                for name, (server, client) in CONTENDERS.items()
            }
            for server, client in CONTENDERS.values():
                _deliver(servers[server], client, message, 1)  # page tables, kernel buffers
            runs[load] = alternate(contenders, rounds=ROUNDS)
    return ReportResult(
        [_today(load, contenders) for load, contenders in runs.items()],
        [
            Bars(load, "messages/s", {n: _of(of, "per_second") for n, of in contenders.items()})
            for load, contenders in runs.items()
        ],
        Summary(
            "15 MB/s; 220 MB/s after",
            f"{_of(runs[ATTACHMENT][BASE], 'mb_per_second'):,.0f} MB/s",
            f"{_of(runs[ATTACHMENT][DATA], 'mb_per_second'):,.0f} MB/s by DATA, "
            f"{_of(runs[ATTACHMENT][BDAT], 'mb_per_second'):,.0f} by BDAT",
            "the kernel's copying into the socket and out of it; by DATA also the server's look "
            "for line ends and dots.",
        ),
        "smtpd is gone from Python, and its successor aiosmtpd reads line by "
        "line through a buffer of two; the client's regular expression over the whole message is "
        "still there. Where both sides are ours most of the time that is left is the kernel's "
        "copying, and with BDAT nothing else is done to a message at all.",
        {"runs": runs},
    )


def _today(load: str, contenders: dict[str, list[Delivery]]) -> Figures:
    base = [run.per_second for run in contenders[BASE]]
    rows: list[list[object]] = []
    for name, of in contenders.items():
        gain = Ratio.of([run.per_second for run in of], base) if name != BASE else None
        costs = [
            median(cpu / run.messages * 1e3 for run, cpu in zip(of, cpus, strict=True))
            for cpus in ([run.client_cpu_s for run in of], [run.server_cpu_s for run in of])
        ]
        rows.append([name, _of(of, "mb_per_second"), _of(of, "per_second"), *costs, gain])
    columns = ["", "MB/s", "messages/s", "client CPU ms", "server CPU ms", "gain"]
    return Figures(f"Today: {load}", columns, rows)


def _of(runs: list[Delivery], name: str) -> float:
    return float(median(getattr(run, name) for run in runs))


def _attachment(size: int) -> bytes:
    """A message as mail clients make them: a head, and base64 in lines of 76."""
    head = b"From: a@example.com\r\nTo: b@example.com\r\nSubject: A file.\r\n\r\n"
    body = base64.encodebytes(os.urandom(size * 3 // 4)).replace(b"\n", b"\r\n")
    return (head + body)[: size - 2] + b"\r\n"


def _prose(size: int) -> bytes:
    """Lines that each begin with a dot: every one must be quoted for DATA."""
    line = b".And so on. It goes on and on.\r\n"
    return (line * (size // len(line) + 1))[: size - 2] + b"\r\n"


def _deliver(
    server: RunningServer, client_class: type[smtplib.SMTP], message: bytes, messages: int
) -> Delivery:
    with client_class(*server.address, local_hostname="client") as client:
        client.ehlo()
        server_cpu = cpu_seconds(server.pid)
        cpu, started = time.process_time(), time.perf_counter()
        for _ in range(messages):
            client.sendmail("a@example.com", ["b@example.com"], message)
        seconds, client_cpu = time.perf_counter() - started, time.process_time() - cpu
        server_cpu = cpu_seconds(server.pid) - server_cpu
    return Delivery(messages, len(message), seconds, client_cpu, server_cpu)


@contextlib.contextmanager
def _sink(kind: str) -> Iterator[RunningServer]:
    address = ("127.0.0.1", free_port())
    module = "loadtests.field_reports.smtp_sink"
    with running(["python", "-m", module, kind, *map(str, address)], address, name=kind) as server:
        yield server
