"""Field report 2: importing mail by IMAP's APPEND, and what TCP_NODELAY has to do with it.

Standard imaplib and wsgifast.mail.IMAP4 in turn, against a real Dovecot: directly, and behind a
plain TCP forwarder.
"""

from __future__ import annotations

import contextlib
import imaplib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median

from loadtests.measuring import Ratio, alternate, free_port, running
from tests.support.mailservers import PASSWORD, dovecot
from wsgifast.mail import IMAP4

from .result import Bars, Figures, Profile, ReportResult

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
# Where each message takes 40 ms, fewer of them do.
MESSAGES: dict[Profile, dict[str, int]] = {
    "quick": {DIRECT: 500, FORWARDED: 40},
    "full": {DIRECT: 5000, FORWARDED: 200},
}
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
                name: partial(_append_all, client_class, port, MESSAGES[profile][way])
                for name, client_class in CLIENTS.items()
            }
            runs[way] = alternate(contenders, rounds=ROUNDS)
    return ReportResult(
        [_today(runs)],
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
        "What has changed: not imaplib, which still sends a literal and its line end in two small "
        "writes. Dovecot has: it asks its kernel for quick acknowledgements (TCP_QUICKACK), so "
        "that the second write need not wait, and the stall is gone there. Behind a plain TCP "
        "forwarder, or with a server that does not ask, it is what it was: 40 ms for each message.",
        {"runs": runs},
    )


def _today(runs: dict[str, dict[str, list[Import]]]) -> Figures:
    rows: list[list[object]] = []
    for way, clients in runs.items():
        base = [run.per_second for run in clients["imaplib"]]
        for name, of in clients.items():
            speed = _speed(of)
            gain = Ratio.of([run.per_second for run in of], base) if name != "imaplib" else None
            cpu = median(run.client_cpu_s / run.messages for run in of) * 1e6
            rows.append([f"{name}, {way}", 5000 / speed, speed, 1e3 / speed, cpu, gain])
    columns = ["", "s for 5,000", "messages/s", "ms each", "client CPU us", "gain"]
    return Figures(f"Today: messages of {len(MESSAGE):,} bytes, medians", columns, rows)


def _speed(runs: list[Import]) -> float:
    return median(run.per_second for run in runs)


def _append_all(client_class: type[imaplib.IMAP4], port: int, messages: int) -> Import:
    with client_class("127.0.0.1", port) as client:
        client.login("import", PASSWORD)
        cpu, started = time.process_time(), time.perf_counter()
        for _ in range(messages):
            status, reply = client.append("INBOX", "", "", MESSAGE)
            if status != "OK":
                raise RuntimeError(f"the server refused a message: {reply!r}")
        seconds, client_cpu = time.perf_counter() - started, time.process_time() - cpu
        client.select("INBOX")  # an empty mailbox for the next run
        client.store("1:*", "+FLAGS", r"(\Deleted)")
        client.expunge()
    return Import(messages, seconds, client_cpu)


@contextlib.contextmanager
def _forwarder(to_port: int) -> Iterator[int]:
    port = free_port()
    module = "loadtests.field_reports.forwarder"
    command = ["python", "-m", module, "127.0.0.1", str(port), "127.0.0.1", str(to_port)]
    with running(command, ("127.0.0.1", port), name="forwarder"):
        yield port
