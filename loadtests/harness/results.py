"""Compute the results of a row: medians, ratios and differences of its contenders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import median, quantiles
from typing import Any

from wsgifast.commands.bench import results
from wsgifast.commands.bench.loads import Load
from wsgifast.commands.bench.results import Ratio
from wsgifast.commands.terminal import number_text

from .tables import Row

# In a normal distribution, the distance of the quartiles is 1.349 standard deviations. The standard
# error of the median of n values is 1.253 standard deviations / sqrt(n).
_ERROR_PER_RANGE = 1.253 / 1.349


@dataclass(frozen=True)
class Difference:
    """The median over the rounds of a contender's figure minus the base's figure.

    Like a ratio, the difference of a round is computed from two consecutive runs.

    :ivar low: the lower quartile of the differences.
    :ivar high: the upper quartile of the differences.
    :ivar error: the standard error of the median, computed from the quartiles.
    """

    median: float
    low: float
    high: float
    error: float

    @classmethod
    def of(cls, contender: Sequence[float], base: Sequence[float]) -> Difference:
        """Return the difference contender - base.

        :param contender: the contender's figure in each round.
        :param base: the figure of the base in each round.
        :raises ValueError: if there are no rounds, or the numbers of rounds differ.
        """
        pairs = zip(contender, base, strict=True)
        if len(found := [minuend - subtrahend for minuend, subtrahend in pairs]) == 1:
            found *= 2  # quartiles need two values
        low, middle, high = quantiles(found, n=4, method="inclusive")
        return cls(middle, low, high, _ERROR_PER_RANGE * (high - low) / sqrt(len(found)))

    def __str__(self) -> str:
        low, high, error = map(number_text, (self.low, self.high, self.error))
        sign = "+" if self.median >= 0 else ""
        return f"{sign}{number_text(self.median)} ±{error} ({low}..{high})"


@dataclass(frozen=True, kw_only=True)
class Result(results.Result):
    """The runs of the contenders of a row."""

    row: Row

    @property
    def base(self) -> str:
        return self.row.ours or super().base

    @property
    def unit(self) -> str:  # type: ignore[override]
        return self.row.unit.name

    @property
    def cost_unit(self) -> str:  # type: ignore[override]
        return self.row.unit.cost_name or "CPU"

    @property
    def less_is_better(self) -> bool:  # type: ignore[override]
        return self.row.unit.less

    def rate(self, load: Load) -> float:
        return self.row.unit.rate(load)

    def cost(self, load: Load) -> float:
        return self.row.unit.cost(load) if self.row.unit.cost else 0.0

    def ratio(self, name: str, figure: Callable[[Load], float]) -> Ratio | None:
        """Return the ratio of a contender to the base.

        With `ours`, return the ratio of ours to it.
        """
        if not self.row.ours or name == self.base:
            return super().ratio(name, figure)
        return self.divided(self.base, name, figure)

    def difference(self, name: str) -> Difference | None:
        """Return the figure of a contender minus that of the first contender.

        None for the first contender itself, and if no round has figures of both contenders.
        """
        first = next(iter(self.runs))
        pairs = self.pairs(name, first, self.rate) if name != first else None
        return Difference.of(*zip(*pairs, strict=True)) if pairs else None

    def facts(self, name: str) -> dict[str, float]:
        """Return the medians of a contender's additional figures."""
        names = dict.fromkeys(fact for m in self.runs[name] for fact in m.facts)
        found = {f: [m.facts[f] for m in self.runs[name] if f in m.facts] for f in names}
        return {fact: median(values) for fact, values in found.items()}

    def contender_figures(self, name: str) -> dict[str, Any]:
        unit, figures = self.row.unit, super().contender_figures(name)
        if unit.cost is None:
            figures |= {self.cost_unit: None, "cost ratio": None}
        if unit.difference:
            figures["difference"] = self.difference(name)
        return {**figures, "facts": self.facts(name)}

    def figures(self) -> dict[str, Any]:
        return {**super().figures(), "ours": self.row.ours}
