"""Field report 2: importing mail by IMAP's APPEND, and what TCP_NODELAY has to do with it.

Standard imaplib and wsgifast.mail.IMAP4 in turn, against a real Dovecot: directly, and behind a
plain TCP forwarder.
"""

from __future__ import annotations

import contextlib
import imaplib
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median

from loadtests.measuring import Ratio, alternate, free_port, running
from tests.support.mailservers import PASSWORD, dovecot
from wsgifast.mail import IMAP4

from .result import Bars, Figures, Profile, ReportResult, Summary

__all__ = ["OLD", "TITLE", "run"]

TITLE = "imaplib and TCP_NODELAY"
OLD = Figures(
    "Then: Python 2, import of 5,000 messages by APPEND",
    ["", "s", "messages/s", "ms each"],
    [
        ["imaplib", 210.9, 23.8, 42.2],
        ["imaplib with TCP_NODELAY=1", 14.0, 357.0, 2.8],
        ["a Perl client", 7.9, 632.0, 1.6],
    ],
)
DIRECT, FORWARDED = "Dovecot", "Dovecot behind a TCP forwarder"
MESSAGES: dict[Profile, int] = {"quick": 300, "full": 5_000}
# Where each message takes 40 ms, 5,000 of them take four minutes: a run ends after this time, and
# the table says how many messages it was.
LIMIT_S: dict[Profile, float] = {"quick": 1, "full": 20}
ROUNDS = 3
CLIENTS: dict[str, type[imaplib.IMAP4]] = {"imaplib": imaplib.IMAP4, "wsgifast": IMAP4}
# An everyday message without attachment: 1 kB.
MESSAGE = b"From: a@example.com\r\nSubject: import\r\n\r\n" + (b"x" * 76 + b"\r\n") * 12


@dataclass(frozen=True)
class Import:
    """One run: messages appended one after the other."""

    messages: int
    seconds: float
    client_cpu_s: float

    @property
    def per_second(self) -> float:
        return self.messages / self.seconds


def run(profile: Profile) -> ReportResult:
    """Both clients in turn, over both ways."""
    runs: dict[str, dict[str, list[Import]]] = {}
    with dovecot() as server, _forwarder(server.port) as forwarded_port:
        for way, port in ((DIRECT, server.port), (FORWARDED, forwarded_port)):
            contenders = {
                name: partial(_append_all, client_class, port, MESSAGES[profile], LIMIT_S[profile])
                for name, client_class in CLIENTS.items()
            }
            runs[way] = alternate(contenders, rounds=ROUNDS)
    return ReportResult(
        [_today(runs, profile)],
        [
            Bars(
                "Import by APPEND",
                "messages/s",
                {
                    f"{client}, {'forwarded' if way == FORWARDED else 'direct'}": _speed(of)
                    for way, clients in runs.items()
                    for client, of in clients.items()
                },
            )
        ],
        Summary(
            "23.8 messages/s; 357 with TCP_NODELAY",
            f"{_speed(runs[FORWARDED]['imaplib']):,.0f} messages/s through a forwarder, "
            f"{_speed(runs[DIRECT]['imaplib']):,.0f} directly",
            f"{_speed(runs[FORWARDED]['wsgifast']):,.0f} messages/s through a forwarder, "
            f"{_speed(runs[DIRECT]['wsgifast']):,.0f} directly",
            "Dovecot: a message costs the client "
            f"{_cpu_us(runs[DIRECT]['wsgifast']):.0f} us of the "
            f"{1e6 / _speed(runs[DIRECT]['wsgifast']):,.0f} us that it takes.",
        ),
        "not imaplib, which still sends a literal and its line end in two small "
        "writes. Dovecot has: it asks its kernel for quick acknowledgements (TCP_QUICKACK), so "
        "that the second write need not wait, and the stall is gone there. Behind a plain TCP "
        "forwarder, or with a server that does not ask, it is what it was: 40 ms for each message.",
        {"runs": runs},
    )


def _today(runs: dict[str, dict[str, list[Import]]], profile: Profile) -> Figures:
    rows: list[list[object]] = []
    for way, clients in runs.items():
        base = [run.per_second for run in clients["imaplib"]]
        for name, of in clients.items():
            speed = _speed(of)
            gain = Ratio.of([run.per_second for run in of], base) if name != "imaplib" else None
            done = min(run.messages for run in of)
            seconds = median(run.seconds for run in of)
            rows.append([f"{name}, {way}", done, seconds, speed, 1e3 / speed, _cpu_us(of), gain])
    columns = ["", "messages done", "in s", "messages/s", "ms each", "client CPU us", "gain"]
    title = (
        f"Today: messages of {len(MESSAGE):,} bytes, each run into an empty mailbox; medians "
        f"of the runs. A run ends after {MESSAGES[profile]:,} messages or {LIMIT_S[profile]:g} s"
    )
    return Figures(title, columns, rows)


def _speed(runs: list[Import]) -> float:
    return median(run.per_second for run in runs)


def _cpu_us(runs: list[Import]) -> float:
    """The client's, for one message."""
    return median(run.client_cpu_s / run.messages for run in runs) * 1e6


def _append_all(
    client_class: type[imaplib.IMAP4], port: int, messages: int, limit_s: float
) -> Import:
    with client_class("127.0.0.1", port) as client:
        client.login(secrets.token_hex(8), PASSWORD)  # anybody has a mailbox here, empty at first
        cpu, started = time.process_time(), time.perf_counter()
        done = 0
        while done < messages and time.perf_counter() - started < limit_s:
            status, reply = client.append("INBOX", "", "", MESSAGE)
            if status != "OK":
                raise RuntimeError(f"the server refused a message: {reply!r}")
            done += 1
        seconds, client_cpu = time.perf_counter() - started, time.process_time() - cpu
        _, stored = client.select("INBOX", readonly=True)
        if stored != [b"%d" % done]:
            raise RuntimeError(f"{done} messages went in, {stored!r} are there")
    return Import(done, seconds, client_cpu)


@contextlib.contextmanager
def _forwarder(to_port: int) -> Iterator[int]:
    port = free_port()
    module = "loadtests.field_reports.forwarder"
    command = ["python", "-m", module, "127.0.0.1", str(port), "127.0.0.1", str(to_port)]
    with running(command, ("127.0.0.1", port), name="forwarder"):
        yield port
