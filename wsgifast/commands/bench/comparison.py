"""Compares an unwrapped and a wrapped app: `wsgifast bench`, and its budgets for the figures."""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import re
import shlex
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ...errors import ConfigurationError
from ...http.headers import Headers
from ..arguments import check_path, check_writable, given_headers, write_file
from ..client import BROWSER_ACCEPT_ENCODING
from ..loading import absolute
from ..terminal import Progress, next_steps, number_text, output_width, show
from .loads import Client, Load, Task
from .locust_client import Locust
from .processes import HOST, Server, free_port, orderly_end, temporary_folder
from .report import as_html, as_json, grid, machine, now, results_text, section
from .results import Ratio, Result
from .runner import Servers, all_results, at, one_run, sized, take_turns
from .serving import FAST_WORKER, found_app, sides

_LEAST_ROW_S = 120.0


@dataclass(frozen=True)
class Comparison:
    """The contenders, and the load for them.

    :ivar servers: by the contenders' names. The unwrapped app is the first, the best is the last.
    :ivar headers: lines to add to each request.
    :ivar seconds: of one run.
    :ivar rounds: runs of each contender.
    :ivar link_mbit: also compute the time of the bodies on a link of this rate.
    """

    servers: dict[str, Server]
    client: Client
    headers: tuple[str, ...] = ()
    seconds: float = 1.0
    rounds: int = 5
    link_mbit: float | None = None

    def run(self, paths: Sequence[str], host: str, progress: Progress) -> Iterator[Result]:
        """Start the servers, and yield a result for each path.

        :param host: the address that the servers listen on.
        :raises ServerFailed: if a server does not start, or ends. The message has its log.
        """
        # Enough time for all rounds, and an end if the server hangs.
        limit_s = max(_LEAST_ROW_S, float(10 * self.rounds * self.seconds))
        with temporary_folder("bench") as folder, contextlib.ExitStack() as stack:
            servers = Servers(host, folder, stack)
            for number, path in enumerate(paths):

                def report(step: str, path: str = path, number: int = number) -> None:
                    progress(number, len(paths), f"{path}: {step}")

                report("starting")
                task = Task(path, self.seconds, headers=self.headers)
                tasks = {n: at(task, servers.get(s, n)) for n, s in self.servers.items()}
                seen, changes = servers.look(self.servers, tasks)
                if not changes:
                    tasks = sized(tasks, seen)
                runs: dict[str, Callable[[], Load]] = {
                    name: partial(one_run, self.client, tasks[name], servers.get(server))
                    for name, server in self.servers.items()
                }
                base = next(iter(runs))
                samples, again = take_turns(
                    runs, base, self.rounds, limit_s=limit_s, noise=True, report=report
                )
                yield Result(path, samples, seen, changes, again, self.link_mbit)


def compare(options: argparse.Namespace, master: tuple[str, int]) -> int:
    """Run `wsgifast bench`, and return its exit status.

    :param master: the address on which Locust waits for workers on other machines.
    :raises ConfigurationError: for options that exclude each other.
    :raises LocustFailed: if Locust does not start, or its workers do not connect.
    """
    bars = budget(options.budget or "")
    report = Path(options.report)
    if not report.name:
        raise ConfigurationError(f"--report {options.report!r}: name the files to write")
    for suffix in ("json", "html"):
        check_writable("--report", f"{report}.{suffix}")
    paths = list(dict.fromkeys(options.paths or ["/"]))
    for path in paths:
        check_path(path)
    if options.master and options.processes:
        raise ConfigurationError("--master waits for other workers than those of --processes")
    workers = (options.expect_workers or 1) if options.master else 0
    host = master[0] if options.master else HOST
    _check_host(host)
    with orderly_end(), Locust(options.processes or 0, workers, master) as locust:
        comparison, title, notes = _comparison(options, locust)
        if workers:
            show(
                f"Waiting for {workers} of: wsgifast bench --worker --master-host {master[0]} "
                f"--master-port {master[1]}",
                error=True,
            )
        locust.start()
        facts, when = machine(), now()
        show(f"{title}; {facts['python']}, {facts['cores']} cores", error=True)
        results, status = all_results(
            title, paths, lambda done, progress: comparison.run(paths[done:], host, progress)
        )
    if results:
        run = {"measured": when, "seconds": options.seconds, "rounds": options.rounds}
        rows = {r.title: r.figures() for r in results}
        table = grid(rows)
        lines = "".join(f"\n- {note}" for note in notes)
        show(f"\n{title}\n\n{results_text([table], results, output_width())}{lines}\n")
        whole = {path: {**run, "machine": facts, **row} for path, row in rows.items()}
        page = as_html(title, [section(title, [table], results, notes)])
        for suffix, text in (("json", as_json(title, whole)), ("html", page)):
            write_file(Path(f"{report}.{suffix}"), text)
            show(f"{report}.{suffix}")
    if status:
        return status
    if not bars and not options.worker_class:
        command = shlex.join(["wsgifast", "run", options.app])
        others = {"compressed": not options.compress, "not coalesced": options.coalesce}
        but = " and ".join(how for how, differs in others.items() if differs)
        what = f"serve it like the last contender{but and f', but {but}'}"
        show(f"\n{next_steps((command, what))}")
    missed = list(over_budget(bars, results))
    for line, _ in missed:
        show(f"wsgifast bench: {line}", error=True)
    return int(any(sure for _, sure in missed) or not all(result.is_good for result in results))


def _check_host(host: str) -> None:
    try:
        free_port(host)
    except OSError as error:
        raise ConfigurationError(f"--master-host {host}: {error.strerror}") from None
    if ipaddress.ip_address(socket.gethostbyname(host)).is_unspecified:
        raise ConfigurationError(f"--master-host {host}: name the address that workers can reach")


def _comparison(
    options: argparse.Namespace, locust: Locust
) -> tuple[Comparison, str, Sequence[str]]:
    """The comparison, its title, and notes on it."""
    target = absolute(options.app)
    server, found = found_app(target, options.rest)
    asgi = found.interface == "ASGI"
    if options.worker_class and asgi:
        raise ConfigurationError(
            f"--worker-class is gunicorn's, and {options.app} is an ASGI app: leave it out"
        )
    given = options.worker_class or ["gthread", "FastWorker"]
    classes = [FAST_WORKER if each == "FastWorker" else each for each in given]
    wrapping = {"coalesce": True} if options.coalesce and not asgi else {}
    if options.compress:
        wrapping["compress"] = True
    fields = given_headers(options)
    if Headers(fields).get("accept-encoding") is None:
        fields.append(BROWSER_ACCEPT_ENCODING)
    comparison = Comparison(
        sides(target, server, classes, wrapping, options.rest),
        locust.client(options.users),
        tuple(f"{name}: {value}" for name, value in fields),
        options.seconds, options.rounds, options.link,
    )  # fmt: skip
    notes = []
    if found.was_wrapped:
        notes.append(
            "The app is already wrapped with wsgifast. The first contender is the app inside."
        )
    if options.link:
        notes.append(
            f"ms at {options.link:g} Mbit/s are computed, not measured: the bytes of the body "
            "divided by the rate, without headers, round trips and losses."
        )
    return comparison, f"{options.app}, {found.interface}", notes


_BAR = re.compile(r"([a-z0-9-]+) *(<=|>=|=) *([0-9]+(?:\.[0-9]+)?) *(ms|)", re.ASCII)


@dataclass(frozen=True)
class _Figure:
    """:ivar least: the limit is a minimum, because more is better."""

    of: Callable[[Result, str], float | Ratio | None]
    least: bool
    unit: str = ""


def _ratio(result: Result, name: str) -> float | Ratio | None:
    ratio = result.ratio(name, result.rate)
    if ratio is None and result.median(name, result.rate):
        return float("inf")  # the unwrapped app never succeeded
    return ratio


def _cost_ratio(result: Result, name: str) -> Ratio | None:
    return result.ratio(name, lambda load: load.cpu_us_per_request)


FIGURES = {
    "ratio": _Figure(_ratio, least=True),
    "cpu-ratio": _Figure(_cost_ratio, least=False),
    "requests": _Figure(lambda r, name: r.median(name, r.rate), True, "/s"),
    **{
        f"p{p}": _Figure(lambda r, name, p=p: r.latency_ms(name, p), False, " ms")  # type: ignore[misc]
        for p in (50, 95, 99)
    },
}


@dataclass(frozen=True)
class Bar:
    """One figure, and its limit."""

    name: str
    value: float

    def missed(self, result: Result, name: str) -> tuple[str, bool] | None:
        """Return a sentence if a contender misses it, and whether the noise leaves no doubt."""
        figure = FIGURES[self.name]
        found = figure.of(result, name)
        seen = found.median if isinstance(found, Ratio) else found
        if seen is not None and (seen >= self.value if figure.least else seen <= self.value):
            return None
        said = "is not known" if seen is None else f"is {number_text(seen)}{figure.unit}"
        kind = "least" if figure.least else "most"
        bar = f"{self.value:,.10g}{figure.unit} at the {kind}"
        where = f"{result.title}, {name}"
        if isinstance(found, Ratio) and found.noise and found.low <= self.value <= found.high:
            low, high = number_text(found.low), number_text(found.high)
            return f"not decided: {where}: {self.name} is {low}..{high}, and is to be {bar}", False
        return f"over budget: {where}: {self.name} {said}, not {bar}", True


def budget(text: str) -> list[Bar]:
    """Parse limits that are separated by commas. "=" means "no worse than".

    :raises ConfigurationError: for a text that is not a list of limits.
    """
    return [_bar(part.strip()) for part in text.split(",") if part.strip()]


def _bar(text: str) -> Bar:
    found = _BAR.fullmatch(text)
    if found is None or found[1] not in FIGURES or found[4] not in FIGURES[found[1]].unit:
        raise ConfigurationError(
            f"--budget {text}: write FIGURE=BAR, such as p99=50ms; figures: {', '.join(FIGURES)}"
        )
    name, sign, value, unit = found.groups()
    figure = FIGURES[name]
    if sign != "=" and (sign == ">=") != figure.least:
        right = ">=" if figure.least else "<="
        raise ConfigurationError(f"--budget {text}: write {name}{right}{value}{unit}")
    return Bar(name, float(value))


def over_budget(bars: Sequence[Bar], results: Iterable[Result]) -> Iterator[tuple[str, bool]]:
    """For each limit that the last contender of a row misses a sentence, and whether it is sure."""
    for result in results:
        for bar in bars:
            if (missed := bar.missed(result, list(result.runs)[-1])) is not None:
                yield missed
