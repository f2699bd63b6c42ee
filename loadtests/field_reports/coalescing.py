"""Field report 4: Nagle's algorithm, TCP_NODELAY and coalescing by hand, compared."""

from __future__ import annotations

import time
from collections.abc import Callable
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
)
from loadtests.measuring.load import percentile

from .messages import (
    DEPTH,
    MESSAGE_BYTES,
    MODES,
    ROWS,
    Address,
    run_async,
    run_simple,
    run_threaded,
)
from .result import Bars, Figures, Profile, ReportResult, Summary

__all__ = ["OLD", "TITLE", "run"]

TITLE = "Nagle, TCP_NODELAY and coalescing by hand"
_COLUMNS = ["", "run time s", "op/s", "min us", "max ms", "avg us", "p99 us", "p99.99 ms"]
OLD = Figures(
    "Then: Python 3.7, 1,000,000 messages to a local server",
    _COLUMNS,
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
)
MESSAGES: dict[Profile, int] = {"quick": 40_000, "full": 1_000_000}
ROUNDS: dict[Profile, int] = {"quick": 5, "full": 1}
_RUNNERS: dict[str, Callable[[Address, str, int], list[int]]] = {
    "simple": run_simple,
    "threaded": run_threaded,
    "async": run_async,
}


@dataclass(frozen=True)
class Sent:
    """One run: wall time, CPU of both sides, and latencies in nanoseconds."""

    messages: int
    seconds: float
    client_cpu_s: float
    server_cpu_s: float
    min_ns: int
    max_ns: int
    average_ns: float
    p99_ns: float
    p9999_ns: float

    @property
    def per_second(self) -> float:
        return self.messages / self.seconds


def run(profile: Profile) -> ReportResult:
    """All rows and modes in turn; MSG_MORE and TCP_CORK where one thread knows its batch's end."""
    address = ("127.0.0.1", free_port())
    command = ["python", "-m", "loadtests.field_reports.echo", address[0], str(address[1])]
    contenders = {}
    with running(command, address, name="echo server") as server:
        for row in ROWS:
            for mode in MODES if row == "simple" else MODES[:3]:
                contenders[f"{row} {mode}"] = partial(
                    _measure, server, _RUNNERS[row], mode, MESSAGES[profile]
                )
        runs = alternate(contenders, rounds=ROUNDS[profile])
    return ReportResult(
        [_today(runs, profile), _gains(runs)],
        [
            Bars("Throughput", "messages/s", {n: _of(s, "per_second") for n, s in runs.items()}),
            Bars("p99 latency", "us", {n: _of(s, "p99_ns") / 1e3 for n, s in runs.items()}),
        ],
        Summary(
            "no_delay 202,740 op/s simple, 57,983 threaded, 158,610 async; "
            "coalescing 285,049 op/s simple, 121,466 threaded, 224,172 async",
            f"no_delay {_speeds(runs, 'no_delay')}; nagle {_speeds(runs, 'nagle')}",
            f"coalescing {_speeds(runs, 'coalescing')}",
            "the interpreter: at least one call for each message, and in the threaded row the "
            "lock that its threads share.",
        ),
        "one thread alone sent no faster by coalescing then than with Nagle's "
        "algorithm; today it does, as gathering costs less than it did, and the pauses of 100 ms "
        "are gone from all rows. Two things flatter: over loopback the peer acknowledges at once, "
        "so Nagle's algorithm hardly waits; and at most "
        f"{DEPTH} messages are under way here, so a queue has no time to grow.",
        {"runs": runs},
    )


def _measure(
    server: RunningServer,
    runner: Callable[[Address, str, int], list[int]],
    mode: str,
    messages: int,
) -> Sent:
    server_cpu = cpu_seconds(server.pid)
    cpu, started = time.process_time(), time.perf_counter()
    latencies = runner(server.address, mode, messages)
    seconds, client_cpu = time.perf_counter() - started, time.process_time() - cpu
    return Sent(
        len(latencies),
        seconds,
        client_cpu,
        cpu_seconds(server.pid) - server_cpu,
        latencies[0],
        latencies[-1],
        sum(latencies) / len(latencies),
        percentile(latencies, 99),
        percentile(latencies, 99.99),
    )


def _of(runs: list[Sent], name: str) -> float:
    return float(median(getattr(run, name) for run in runs))


def _speeds(runs: dict[str, list[Sent]], mode: str) -> str:
    simple, threaded, several = (_of(runs[f"{row} {mode}"], "per_second") for row in ROWS)
    return f"{simple:,.0f} op/s simple, {threaded:,.0f} threaded, {several:,.0f} async"


def _today(runs: dict[str, list[Sent]], profile: Profile) -> Figures:
    rows = []
    for name, of in runs.items():
        cells: list[object] = [name, _of(of, "seconds"), round(_of(of, "per_second"))]
        cells += [_of(of, "min_ns") / 1e3, _of(of, "max_ns") / 1e6, _of(of, "average_ns") / 1e3]
        cells += [_of(of, "p99_ns") / 1e3, _of(of, "p9999_ns") / 1e6]
        for side in ("client_cpu_s", "server_cpu_s"):
            cells.append(_of(of, side) / MESSAGES[profile] * 1e6)
        rows.append(cells)
    title = f"Today: {MESSAGES[profile]:,} messages of {MESSAGE_BYTES} bytes, medians"
    return Figures(title, [*_COLUMNS, "client CPU us/op", "server CPU us/op"], rows)


def _gains(runs: dict[str, list[Sent]]) -> Figures:
    rows: list[list[object]] = []
    for row in ROWS:
        ours = runs[f"{row} coalescing"]
        cells: list[object] = [row]
        for peer in ("no_delay", "nagle"):
            theirs = runs[f"{row} {peer}"]
            cells += [
                Ratio.of([run.per_second for run in ours], [run.per_second for run in theirs]),
                Ratio.of([run.p99_ns for run in theirs], [run.p99_ns for run in ours]),
            ]
        rows.append(cells)
    return Figures(
        "Coalescing against the others, in the same round: more is better for it",
        ["", "op/s, no_delay", "p99, no_delay", "op/s, nagle", "p99, nagle"],
        rows,
    )
