"""Field report 2: importing mail by IMAP's APPEND, and what TCP_NODELAY has to do with it.

    python -m loadtests.field_reports.mail_append            a minute
    python -m loadtests.field_reports.mail_append --full     5,000 messages a run

Standard imaplib and wsgifast.mail.IMAP4 in turn, against a real Dovecot: directly, and behind a
plain TCP forwarder. The report of then saw 40 ms for each message; today Dovecot asks the kernel
for quick acknowledgements (TCP_QUICKACK) and so hides the stall, but nothing between does.
"""

from __future__ import annotations

import argparse
import contextlib
import imaplib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from loadtests.measuring import Ratio, alternate, free_port, running, save, table
from tests.support.mailservers import PASSWORD, dovecot
from wsgifast.mail import IMAP4

__all__ = ["measure"]

THEN = (
    "then (Python 2): imaplib 24 messages/s, with TCP_NODELAY=1 357/s (5,000 in 210.9 s and 14 s)"
)
CLIENTS: dict[str, type[imaplib.IMAP4]] = {"imaplib": imaplib.IMAP4, "wsgifast": IMAP4}
# An everyday message without attachment.
MESSAGE = b"From: a@example.com\r\nSubject: import\r\n\r\n" + (b"x" * 76 + b"\r\n") * 12


@dataclass(frozen=True)
class Import:
    """One run: so many messages appended one after the other, and how long it took."""

    messages: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.messages / self.seconds


def append_all(client_class: type[imaplib.IMAP4], port: int, messages: int) -> Import:
    with client_class("127.0.0.1", port) as client:
        client.login("import", PASSWORD)
        started = time.perf_counter()
        for _ in range(messages):
            status, reply = client.append("INBOX", "", "", MESSAGE)
            if status != "OK":
                raise RuntimeError(f"the server refused a message: {reply!r}")
        seconds = time.perf_counter() - started
        client.select("INBOX")  # an empty mailbox for the next run
        client.store("1:*", "+FLAGS", r"(\Deleted)")
        client.expunge()
    return Import(messages, seconds)


@contextlib.contextmanager
def forwarder(to_port: int) -> Iterator[int]:
    port = free_port()
    module = "loadtests.field_reports.forwarder"
    command = ["python", "-m", module, "127.0.0.1", str(port), "127.0.0.1", str(to_port)]
    with running(command, ("127.0.0.1", port), name="forwarder"):
        yield port


def measure(*, full: bool = False, rounds: int = 5) -> dict[str, dict[str, list[Import]]]:
    """Run both clients in turn over both ways; return way -> client -> its runs."""
    runs = {}
    with dovecot() as server, forwarder(server.port) as forwarded_port:
        # 40 ms for each message: fewer of them behind the forwarder.
        ways = {
            "Dovecot": (server.port, 5000 if full else 500),
            "Dovecot behind a TCP forwarder": (forwarded_port, 200 if full else 50),
        }
        for way, (port, messages) in ways.items():
            contenders = {
                name: partial(append_all, client_class, port, messages)
                for name, client_class in CLIENTS.items()
            }
            runs[way] = alternate(contenders, rounds=rounds)
    return runs


def show(runs: dict[str, dict[str, list[Import]]]) -> None:
    rows = []
    gains = {}
    for way, clients in runs.items():
        speeds = {name: [run.per_second for run in of] for name, of in clients.items()}
        gains[way] = Ratio.of(speeds["wsgifast"], speeds["imaplib"])
        for name, of in speeds.items():
            speed = median(of)
            gain = gains[way] if name == "wsgifast" else None
            rows.append([way, name, speed, 1e3 / speed, 5000 / speed, gain])
    print(table(["server", "client", "messages/s", "ms each", "s for 5,000", "gain"], rows))
    print(THEN)
    print(f"results: {save('field-report-2-mail-append', {'gain': gains, 'runs': runs})}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="APPEND by imaplib and by wsgifast.mail")
    parser.add_argument("--full", action="store_true", help="5,000 messages a run")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    show(measure(full=options.full, rounds=options.rounds))


if __name__ == "__main__":
    main()
