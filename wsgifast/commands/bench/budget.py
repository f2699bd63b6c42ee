"""Limits for the figures of a comparison, such as "p99=50ms,ratio>=1"."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import NamedTuple

from ...errors import ConfigurationError
from ..terminal import number_text
from .results import Ratio, Result

_LIMIT = re.compile(r"([a-z0-9-]+) *(<=|>=|=) *([0-9]+(?:\.[0-9]+)?) *(ms|)", re.ASCII)
# The figures with their units and the sign of their limits. With ">=" more is better.
_FIGURES = {
    "ratio": ("", ">="),
    "cpu-ratio": ("", "<="),
    "requests": ("/s", ">="),
    "p50": (" ms", "<="),
    "p95": (" ms", "<="),
    "p99": (" ms", "<="),
}


class Limit(NamedTuple):
    """One figure, and the worst value that it may have."""

    name: str
    value: float

    def missed(self, result: Result, contender: str) -> tuple[str, bool] | None:
        """Return a sentence if a contender misses it, and whether that is certain despite noise."""
        unit, sign = _FIGURES[self.name]
        found = _figure(self.name, result, contender)
        value = found.median if isinstance(found, Ratio) else found
        if value is not None and (value >= self.value if sign == ">=" else value <= self.value):
            return None
        wanted = f"{self.value:,.10g}{unit} at the {'least' if sign == '>=' else 'most'}"
        where = f"{result.title}, {contender}: {self.name}"
        if isinstance(found, Ratio) and found.noise and found.low <= self.value <= found.high:
            low, high = number_text(found.low), number_text(found.high)
            return f"not decided: {where} is {low}..{high}, and is to be {wanted}", False
        said = "is not known" if value is None else f"is {number_text(value)}{unit}"
        return f"over budget: {where} {said}, not {wanted}", True


def _figure(name: str, result: Result, contender: str) -> float | Ratio | None:
    if name == "requests":
        return result.median(contender, result.rate)
    if name == "cpu-ratio":
        return result.ratio(contender, result.cost)
    if name == "ratio":
        ratio = result.ratio(contender, result.rate)
        # If the unwrapped app never succeeded, any success of the wrapped app is better.
        return inf if ratio is None and result.median(contender, result.rate) else ratio
    return result.latency_ms(contender, int(name.removeprefix("p")))


def budget(text: str) -> list[Limit]:
    """Parse limits that are separated by commas. "=" means "no worse than".

    :raises ConfigurationError: if a part of the text is not a limit.
    """
    return [_limit(part.strip()) for part in text.split(",") if part.strip()]


def _limit(text: str) -> Limit:
    found = _LIMIT.fullmatch(text)
    if found is None or found[1] not in _FIGURES or found[4] not in _FIGURES[found[1]][0]:
        raise ConfigurationError(
            f"--budget {text}: write FIGURE=LIMIT, such as p99=50ms; figures: {', '.join(_FIGURES)}"
        )
    name, sign, value, unit = found.groups()
    if sign not in ("=", _FIGURES[name][1]):
        raise ConfigurationError(f"--budget {text}: write {name}{_FIGURES[name][1]}{value}{unit}")
    return Limit(name, float(value))


def over_budget(limits: Sequence[Limit], results: Iterable[Result]) -> Iterator[tuple[str, bool]]:
    """Yield a sentence for each limit that the last contender misses, and whether it is certain."""
    for result in results:
        for limit in limits:
            if (missed := limit.missed(result, list(result.runs)[-1])) is not None:
                yield missed
