"""The result of a comparison: medians over the rounds, ratios, and the noise of the machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import comb
from statistics import median
from typing import Any

from ..terminal import number_text
from .loads import FirstResponse, Load

# A process that spends this share of a run on its CPU is the bottleneck.
BUSY = 0.85
# The interval of a median contains the true median in this share of all runs, or in more.
_COVERED = 0.9
# Quotients of the same two numbers may differ in their last digit.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Ratio:
    """A contender's figure divided by the base's: the median over the rounds, and its spread.

    Each round gives one ratio of two consecutive runs. A median is robust against a bad round.

    :ivar low: the lowest ratio, and `high` the highest ratio. With a noise: the ends of the
        interval of the median, widened by the noise.
    :ivar noise: a factor of 1 or more by which two figures of the base differ. None if unknown.
    """

    median: float
    low: float
    high: float
    noise: float | None = None

    @classmethod
    def of(
        cls, contender: Sequence[float], base: Sequence[float], noise: float | None = None
    ) -> Ratio:
        """Return the ratio contender / base, from the figures of each round.

        :raises ValueError: if there are no rounds, or if the numbers of rounds differ.
        :raises ZeroDivisionError: if a figure of the base is 0.
        """
        ratios = [one / other for one, other in zip(contender, base, strict=True)]
        if noise is None:
            return cls(median(ratios), min(ratios), max(ratios))
        low, high = interval(ratios)
        return cls(median(ratios), low / noise, high * noise, noise)

    @property
    def is_clear(self) -> bool:
        """Whether the noise does not explain the difference from 1."""
        return self.noise is None or self.high < 1 - _ROUNDING or self.low > 1 + _ROUNDING

    def __str__(self) -> str:
        median, low, high = map(number_text, (self.median, self.low, self.high))
        return f"{median}x ({low}..{high})" if self.is_clear else f"unclear ({low}..{high})"


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the interval of a median, by the sign test.

    The interval leaves out equally many of the lowest and the highest values. It contains the true
    median with a probability of at least `_COVERED`. Up to seven values all belong to it.
    """
    ordered, left_out = sorted(values), 0
    missed = 2 * 0.5 ** len(ordered)
    for dropped in range(1, (len(ordered) + 1) // 2):
        missed += 2 * comb(len(ordered), dropped) * 0.5 ** len(ordered)
        if 1 - missed < _COVERED:
            break
        left_out = dropped
    return ordered[left_out], ordered[-1 - left_out]


@dataclass(frozen=True)
class Result:
    """The runs of each contender on one path. Figures are medians over the rounds.

    :ivar first_responses: each contender's response before the load.
    :ivar changes: the first contender sent two different bodies, or two of its processes did.
    :ivar again: the base's second run in each round, which shows the noise of the machine.
    :ivar link_mbit: also compute the time of the bodies on a link of this rate.
    """

    title: str
    runs: Mapping[str, Sequence[Load]]
    first_responses: Mapping[str, FirstResponse] = field(default_factory=dict)
    changes: bool = False
    again: Sequence[Load] = ()
    link_mbit: float | None = None

    # The names and the meaning of the compared figure and of its cost.
    unit = "requests/s"
    cost_unit = "CPU us/req"
    less_is_better = False

    @property
    def base(self) -> str:
        """The contender with which the other contenders are compared."""
        return next(iter(self.runs))

    def rate(self, load: Load) -> float:
        """Return the compared figure."""
        return load.requests_per_s

    def cost(self, load: Load) -> float:
        """Return the server's CPU time per request."""
        return load.cpu_us_per_request

    def median(self, name: str, figure: Callable[[Load], float]) -> float | None:
        """Return a contender's figure, or None if none of its runs succeeded."""
        good = [figure(load) for load in self.runs[name] if load.requests]
        return median(good) if good else None

    def latency_ms(self, name: str, percent: int) -> float | None:
        timed = [load.latency_ms[percent] for load in self.runs[name] if load.latency_ms]
        return median(timed) if timed else None

    def failures(self, name: str) -> int:
        return sum(load.failures for load in self.runs[name])

    def errors(self, name: str) -> dict[str, int]:
        """Return the client's error messages and their counts."""
        return dict(sum((Counter(load.errors) for load in self.runs[name]), Counter()))

    def ratio(self, name: str, figure: Callable[[Load], float]) -> Ratio | None:
        """Return the contender's figure divided by the base's.

        It is None for the base itself, and if the contender or the base never succeeded.
        """
        return self.divided(name, self.base, figure) if name != self.base else None

    def divided(self, one: str, other: str, figure: Callable[[Load], float]) -> Ratio | None:
        both = [pair for pair in self.pairs(one, other, figure) if pair[1]]
        if not both:
            return None
        contender, base = zip(*both, strict=True)
        return Ratio.of(contender, base, self._noise(figure))

    def _noise(self, figure: Callable[[Load], float]) -> float | None:
        """Return how far two figures of the base differ. None if it ran once in each round."""
        runs = zip(self.again, self.runs[self.base], strict=False)
        pairs = [(figure(again), figure(first)) for again, first in runs]
        ratios = [again / first for again, first in pairs if again and first]
        if not ratios:
            return None
        low, high = interval(ratios)
        return max(high, 1 / low)

    def pairs(
        self, one: str, other: str, figure: Callable[[Load], float]
    ) -> list[tuple[float, float]]:
        """Return the figures of two contenders in each round in which both succeeded."""
        runs = zip(self.runs[one], self.runs[other], strict=True)
        return [(figure(a), figure(b)) for a, b in runs if a.requests and b.requests]

    def busy(self, name: str) -> str:
        """Return the bottleneck: "client", "server", both or neither."""
        shares: dict[str, Callable[[Load], float]] = {
            "client": lambda load: load.client_cpu_s / load.seconds,
            "server": lambda load: load.server_cpu_s / load.seconds,
        }
        return ", ".join(p for p, share in shares.items() if (self.median(name, share) or 0) > BUSY)

    @property
    def bodies(self) -> dict[str, FirstResponse]:
        """The first responses of the contenders that had a success under load."""
        good = {name for name, runs in self.runs.items() if any(load.requests for load in runs)}
        return {
            name: seen for name, seen in self.first_responses.items() if seen.ok and name in good
        }

    @property
    def loses_coding(self) -> bool:
        """Whether the first contender compresses a body that another one sends uncompressed."""
        first, *others = [*self.bodies.values(), None]
        return bool(first and first.coding and any(one and not one.coding for one in others))

    @property
    def differs(self) -> bool:
        """Whether the decoded bodies differ.

        An app may send a different body each time. Then only a lost content coding counts.
        """
        digests = {seen.digest for seen in self.bodies.values()}
        return self.loses_coding or (not self.changes and len(digests) > 1)

    @property
    def is_good(self) -> bool:
        """Whether the wrapped app adds no failures and sends identical bodies."""
        first, *others = self.runs
        last = [first, *others][-1]
        judged = [last, *(name for name in others if not self.failures(first))]
        responded = any(load.requests for load in self.runs[last])
        return responded and not self.differs and not any(map(self.failures, judged))

    def figures(self) -> dict[str, Any]:
        """Return all figures for JSON. Some values are dataclasses."""
        contenders = {name: self.contender_figures(name) for name in self.runs}
        return {"title": self.title, "contenders": contenders, "again": self.again}

    def contender_figures(self, name: str) -> dict[str, Any]:
        figures: dict[str, Any] = {
            self.unit: self.median(name, self.rate),
            self.cost_unit: self.median(name, self.cost),
            "ratio": self.ratio(name, self.rate),
            "cost ratio": self.ratio(name, self.cost),
            "ms": {str(p): self.latency_ms(name, p) for p in (50, 95, 99)},
            "pairs": len(self.runs[name]),
            "failures": self.failures(name),
            "errors": self.errors(name),
            "busy": self.busy(name),
            "runs": self.runs[name],
        }
        if seen := self.first_responses.get(name):
            link = self.link_mbit
            figures["body"] = {
                "bytes": seen.body_bytes,
                "decoded bytes": seen.decoded_bytes,
                "coding": seen.coding,
                "link": {f"{link:g} Mbit/s": seen.body_bytes * 8 / link / 1e3} if link else {},
            }
        return figures
