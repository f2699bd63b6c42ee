"""Field report 3: how fast mail goes from an SMTP client to an SMTP server on the same machine.

    python -m loadtests.field_reports.mail_throughput            half a minute
    python -m loadtests.field_reports.mail_throughput --full     10,000 small messages a run

smtplib to aiosmtpd, and wsgifast.mail's client to its server, by DATA (as then) and by BDAT (which
both offer and so choose), in turn. The client is this process, the server another.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import os
import smtplib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from loadtests.measuring import (
    Ratio,
    RunningServer,
    alternate,
    cpu_seconds,
    free_port,
    running,
    save,
    table,
)
from wsgifast.mail import SMTP

__all__ = ["measure"]

THEN = "then (Python 2): 15 MB/s before, 220 MB/s after (14x)"
LARGE_BYTES = 20_000_000
SMALL_BYTES = 1_000


class DataOnly(SMTP):
    """Ours without BDAT."""

    chunking = False


@dataclass(frozen=True)
class Contender:
    server: str
    client: type[smtplib.SMTP]


CONTENDERS = {
    "smtplib, aiosmtpd": Contender("stock", smtplib.SMTP),
    "wsgifast, DATA": Contender("fast", DataOnly),
    "wsgifast, BDAT": Contender("fast", SMTP),
}
BASE = "smtplib, aiosmtpd"


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
        return self.messages * self.message_bytes / self.seconds / 1e6


def attachment(size: int) -> bytes:
    """A message as mail clients make them: a head, and base64 in lines of 76."""
    head = b"From: a@example.com\r\nTo: b@example.com\r\nSubject: A file.\r\n\r\n"
    body = base64.encodebytes(os.urandom(size * 3 // 4)).replace(b"\n", b"\r\n")
    return (head + body)[: size - 2] + b"\r\n"


def prose(size: int) -> bytes:
    """Lines that each begin with a dot: every one must be quoted for DATA."""
    line = b".And so on. It goes on and on.\r\n"
    return (line * (size // len(line) + 1))[: size - 2] + b"\r\n"


def deliver(
    server: RunningServer, client_class: type[smtplib.SMTP], message: bytes, messages: int
) -> Delivery:
    with client_class(*server.address, local_hostname="client") as client:
        client.ehlo()
        server_cpu = cpu_seconds(server.pid)
        cpu, started = time.process_time(), time.perf_counter()
        for _ in range(messages):
            client.sendmail("a@example.com", ["b@example.com"], message)
        seconds = time.perf_counter() - started
        client_cpu = time.process_time() - cpu
        return Delivery(
            messages, len(message), seconds, client_cpu, cpu_seconds(server.pid) - server_cpu
        )


@contextlib.contextmanager
def sink(kind: str) -> Iterator[RunningServer]:
    address = ("127.0.0.1", free_port())
    module = "loadtests.field_reports.smtp_sink"
    with running(["python", "-m", module, kind, *map(str, address)], address, name=kind) as server:
        yield server


def measure(*, full: bool = False, rounds: int = 5) -> dict[str, dict[str, list[Delivery]]]:
    """Run all contenders in turn over each load; return load -> contender -> its runs."""
    loads = {
        "20 MB, an attachment": (attachment(LARGE_BYTES), 5 if full else 3),
        "20 MB, a dot before each line": (prose(LARGE_BYTES), 5 if full else 2),
        "1 kB": (attachment(SMALL_BYTES), 10_000 if full else 2_000),
    }
    runs = {}
    with sink("stock") as stock, sink("fast") as fast:
        servers = {"stock": stock, "fast": fast}
        for load, (message, messages) in loads.items():
            contenders = {
                name: partial(
                    deliver, servers[contender.server], contender.client, message, messages
                )
                for name, contender in CONTENDERS.items()
            }
            for run in contenders.values():
                run()  # once for nothing: imports, page tables, the kernel's buffers
            runs[load] = alternate(contenders, rounds=rounds)
    return runs


def show(runs: dict[str, dict[str, list[Delivery]]]) -> None:
    rows = []
    gains: dict[str, dict[str, Ratio]] = {}
    for load, contenders in runs.items():
        base = [run.per_second for run in contenders[BASE]]
        gains[load] = {}
        for name, of in contenders.items():
            gain = Ratio.of([run.per_second for run in of], base) if name != BASE else None
            if gain is not None:
                gains[load][name] = gain
            rows.append(
                [
                    load,
                    name,
                    median(run.mb_per_second for run in of),
                    median(run.per_second for run in of),
                    median(run.client_cpu_s * 1e3 / run.messages for run in of),
                    median(run.server_cpu_s * 1e3 / run.messages for run in of),
                    gain,
                ]
            )
    columns = ["message", "both sides", "MB/s", "messages/s", "client CPU ms", "server CPU ms"]
    print(table([*columns, "gain"], rows))
    print(THEN)
    print(f"results: {save('field-report-3-mail-throughput', {'gain': gains, 'runs': runs})}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="mail from client to server, standard and ours")
    parser.add_argument("--full", action="store_true", help="10,000 small messages a run")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    show(measure(full=options.full, rounds=options.rounds))


if __name__ == "__main__":
    main()
