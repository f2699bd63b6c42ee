"""Budgets: limits on the figures of a benchmark, such as 'p99=50ms,ratio>=1'."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..errors import ConfigurationError
from ..terminal import number_text
from .results import Result
from .tables import REQUESTS

_UNITS = {"": 1.0, "us": 1e-3, "ms": 1.0, "s": 1e3}  # in milliseconds
_BAR = re.compile(r"([a-z0-9-]+) *(<=|>=|=) *([0-9]+(?:\.[0-9]+)?) *(us|ms|s|)", re.ASCII)


@dataclass(frozen=True)
class _Figure:
    """:ivar least: more is better: the bar is the least that it may be."""

    of: Callable[[Result, str], float | None]
    least: bool
    unit: str = ""


def _ratio(result: Result, name: str) -> float | None:
    ratio = result.ratio(name, REQUESTS.rate)
    if ratio is None and result.median(name, REQUESTS.rate):
        return float("inf")  # the unwrapped app never succeeded
    return None if ratio is None else ratio.median


def _cpu_ratio(result: Result, name: str) -> float | None:
    ratio = result.ratio(name, REQUESTS.cost)
    return None if ratio is None else ratio.median


FIGURES = {
    "ratio": _Figure(_ratio, least=True),
    "cpu-ratio": _Figure(_cpu_ratio, least=False),
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

    def missed(self, result: Result, name: str) -> str | None:
        """A sentence, if a contender misses it."""
        figure = FIGURES[self.name]
        seen = figure.of(result, name)
        if seen is not None and (seen >= self.value if figure.least else seen <= self.value):
            return None
        said = "is not known" if seen is None else f"is {number_text(seen)}{figure.unit}"
        kind = "least" if figure.least else "most"
        bar = f"{self.value:,.10g}{figure.unit} at the {kind}"
        return f"over budget: {result.row.title}, {name}: {self.name} {said}, not {bar}"


def budget(text: str) -> list[Bar]:
    """Parse limits that are separated by commas. "=" means "no worse than".

    :raises ConfigurationError: if it is none.
    """
    return [_bar(part.strip()) for part in text.split(",") if part.strip()]


def _bar(text: str) -> Bar:
    found = _BAR.fullmatch(text)
    if found is None or found[1] not in FIGURES:
        raise ConfigurationError(
            f"--budget {text}: write FIGURE=BAR, such as p99=50ms; figures: {', '.join(FIGURES)}"
        )
    name, sign, value, unit = found.groups()
    figure = FIGURES[name]
    if sign != "=" and (sign == ">=") != figure.least:
        right = ">=" if figure.least else "<="
        raise ConfigurationError(f"--budget {text}: write {name}{right}{value}{unit}")
    if unit and figure.unit != " ms":
        raise ConfigurationError(f"--budget {text}: {name} is not a time")
    return Bar(name, float(value) * _UNITS[unit])


def over_budget(bars: Sequence[Bar], results: Iterable[Result]) -> Iterator[str]:
    """A sentence for each limit that the last contender of a row misses."""
    for result in results:
        for bar in bars:
            if (missed := bar.missed(result, list(result.runs)[-1])) is not None:
                yield missed
