"""Budgets: limits on the figures of a benchmark, such as 'p99=50ms,ratio>=1'."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ...errors import ConfigurationError
from ..terminal import number_text
from .results import Ratio, Result
from .tables import REQUESTS

_UNITS = {"": 1.0, "us": 1e-3, "ms": 1.0, "s": 1e3}  # in milliseconds
_BAR = re.compile(r"([a-z0-9-]+) *(<=|>=|=) *([0-9]+(?:\.[0-9]+)?) *(us|ms|s|)", re.ASCII)


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


def over_budget(bars: Sequence[Bar], results: Iterable[Result]) -> Iterator[tuple[str, bool]]:
    """For each limit that the last contender of a row misses a sentence, and whether it is sure."""
    for result in results:
        for bar in bars:
            if (missed := bar.missed(result, list(result.runs)[-1])) is not None:
                yield missed
