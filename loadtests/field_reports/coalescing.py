"""Field report 4: Nagle's algorithm, TCP_NODELAY and coalescing by hand, compared."""

from __future__ import annotations

import time

from loadtests.bench import row, table
from loadtests.clients import percentile, percentiles
from loadtests.servers import small
from wsgifast.benchmark.load import Client, Load, Task
from wsgifast.benchmark.tables import Unit

from .messages import DEPTH, MESSAGE_BYTES, MODES, SENDERS

MESSAGES = {False: 40_000, True: 1_000_000}
OPERATIONS = Unit("op/s", lambda m: m.requests_per_s, "p99 us", lambda m: m.latency_ms[99] * 1e3)


def _send(sender: str, mode: str) -> Client:
    def run(task: Task) -> Load:
        cpu, started = time.process_time(), time.perf_counter()
        latencies = SENDERS[sender](task.address, mode, MESSAGES[task.full])
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        ms = [ns / 1e6 for ns in latencies]
        sent = len(ms)
        facts = {
            "min us": ms[0] * 1e3,
            "avg us": sum(ms) / sent * 1e3,
            "p99.99 ms": percentile(ms, 99.99),
            "max ms": ms[-1],
        }
        size = sent * MESSAGE_BYTES
        return Load(sent, 0, size, seconds, percentiles(ms), client_cpu_s=cpu, facts=facts)

    return run


TABLE = table(
    "field-report-coalescing",
    "Nagle, TCP_NODELAY and coalescing by hand",
    [
        row(
            f"field.coalescing.{sender}",
            f"{sender}: messages of {MESSAGE_BYTES} bytes",
            # MSG_MORE and TCP_CORK where one thread knows the end of its batch.
            {
                mode: (small("echo"), _send(sender, mode))
                for mode in (MODES if sender == "simple" else MODES[:3])
            },
            unit=OPERATIONS,
            ours=MODES[0],
        )
        for sender in SENDERS
    ],
    then=(
        "Then: Python 3.7, 1,000,000 messages to a local server",
        ["", "run time s", "op/s", "min us", "max ms", "avg us", "p99 us", "p99.99 ms"],
        [
            ["simple coalescing", 3.51, 285049, 5.2, 106.3, 100.0, 543.4, 18.8],
            ["simple no_delay", 4.93, 202740, 4.1, 100.6, 1261.7, 38364.2, 62.0],
            ["simple nagle", 3.42, 292630, 4.8, 104.1, 574.7, 20793.4, 40.9],
            ["threaded coalescing", 8.23, 121466, 627.5, 107.3, 1674.9, 2265.7, 107.1],
            ["threaded no_delay", 17.25, 57983, 671.2, 96.9, 4131.3, 34711.4, 96.6],
            ["threaded nagle", 17.64, 56690, 672.1, 98.4, 4199.9, 35528.4, 98.0],
            ["async coalescing", 4.46, 224172, 214.3, 97.5, 509.2, 1048.8, 77.0],
            ["async no_delay", 6.30, 158610, 410.6, 97.7, 1012.7, 17917.4, 97.1],
            ["async nagle", 5.30, 188659, 355.2, 108.0, 769.7, 5980.3, 107.5],
        ],
    ),
    notes=[
        "What has changed: one thread alone sent no faster by coalescing then than with Nagle's "
        "algorithm; today it does, as gathering costs less than it did, and the pauses of 100 ms "
        "are gone from all rows. Two things flatter: over loopback the peer acknowledges at once, "
        f"so Nagle's algorithm hardly waits; and at most {DEPTH} messages are under way here, so a "
        "queue has no time to grow.",
        "What limits it today: the interpreter. At least one call for each message, and in the "
        "threaded row the lock that its threads share.",
    ],
)
