"""Compares an app as it is and wrapped: `wsgifast bench`, and its budgets for the figures."""

from __future__ import annotations

import argparse
import ipaddress
import re
import shlex
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...errors import ConfigurationError
from ...http.headers import Headers
from ..arguments import check_path, check_writable, given_headers
from ..client import BROWSER_ACCEPT_ENCODING
from ..loading import absolute
from ..terminal import next_steps, number_text, show
from .locust_client import Locust
from .processes import HOST, free_port, orderly_end
from .results import Ratio, Result
from .runner import measure
from .serving import FAST_WORKER, found_app, sides
from .tables import REQUESTS, Contender, Profile, Row, Table

_LEAST_ROW_S = 120.0


def compare(options: argparse.Namespace, master: tuple[str, int]) -> int:
    """Run `wsgifast bench`; return its exit status.

    :param master: the address on which it would wait for workers on other machines.
    :raises ConfigurationError: for options that do not go together.
    :raises LocustFailed: if Locust does not start, or its workers do not come.
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
    # Enough time for all rounds, but not for ever if the server is stuck.
    row_s = max(_LEAST_ROW_S, float(10 * options.rounds * options.seconds))
    profile = Profile(options.seconds, options.rounds, row_seconds=row_s, noise=True)
    with orderly_end(), Locust(options.processes or 0, workers, master) as locust:
        table = _table(report.name, options, paths, locust)
        if workers:
            show(
                f"Waiting for {workers} of: wsgifast bench --worker --master-host {master[0]} "
                f"--master-port {master[1]}",
                error=True,
            )
        locust.start()
        results, status = measure([table], profile, host=host, folder=report.parent)
    if status:
        return status
    if not bars and not options.worker_class:
        run = shlex.join(["wsgifast", "run", options.app])
        others = {"compressed": not options.compress, "not coalesced": options.coalesce}
        but = " and ".join(how for how, differs in others.items() if differs)
        what = f"serve it like the last contender{but and f', but {but}'}"
        show(f"\n{next_steps((run, what))}")
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


def _table(name: str, options: argparse.Namespace, paths: Sequence[str], locust: Locust) -> Table:
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
    served = sides(target, server, classes, wrapping, options.rest)
    given_fields = given_headers(options)
    if Headers(given_fields).get("accept-encoding") is None:
        given_fields.append(BROWSER_ACCEPT_ENCODING)
    headers = tuple(f"{name}: {value}" for name, value in given_fields)
    client = locust.client(options.users)
    rows = [
        Row(path, path, tuple(Contender(n, s, path) for n, s in served.items()), client,
            headers=headers, sizes=True, link_mbit=options.link)
        for path in paths
    ]  # fmt: skip
    notes = []
    if found.was_wrapped:
        notes.append(
            "The app is already wrapped with wsgifast; the first contender is the app inside."
        )
    if options.link:
        notes.append(
            f"ms at {options.link:g} Mbit/s are computed, not measured: the bytes of the body "
            "divided by the rate, without heads, round trips and losses."
        )
    return Table(name, f"{options.app}, {found.interface}", rows, notes=notes)


_BAR = re.compile(r"([a-z0-9-]+) *(<=|>=|=) *([0-9]+(?:\.[0-9]+)?) *(ms|)", re.ASCII)


@dataclass(frozen=True)
class _Figure:
    """:ivar least: more is better: the bar is the least that it may be."""

    of: Callable[[Result, str], float | Ratio | None]
    least: bool
    unit: str = ""


def _ratio(result: Result, name: str) -> float | Ratio | None:
    ratio = result.ratio(name, REQUESTS.rate)
    if ratio is None and result.median(name, REQUESTS.rate):
        return float("inf")  # the unwrapped app never succeeded
    return ratio


FIGURES = {
    "ratio": _Figure(_ratio, least=True),
    "cpu-ratio": _Figure(lambda r, name: r.ratio(name, REQUESTS.cost), least=False),
    "requests": _Figure(lambda r, name: r.median(name, REQUESTS.rate), True, "/s"),
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
        """A sentence, if a contender misses it; and whether that is sure, for all the noise."""
        figure = FIGURES[self.name]
        found = figure.of(result, name)
        seen = found.median if isinstance(found, Ratio) else found
        if seen is not None and (seen >= self.value if figure.least else seen <= self.value):
            return None
        said = "is not known" if seen is None else f"is {number_text(seen)}{figure.unit}"
        kind = "least" if figure.least else "most"
        bar = f"{self.value:,.10g}{figure.unit} at the {kind}"
        where = f"{result.row.title}, {name}"
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
