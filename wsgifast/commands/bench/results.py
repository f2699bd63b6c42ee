"""The result of a comparison: medians, ratios, and their noise.

Several servers are compared under one load, in rounds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import comb
from statistics import median
from typing import Any

from ..terminal import number_text
from .loads import Load, Seen

# A process that spends this share of a run on its CPU is the bottleneck.
BUSY = 0.85
# The interval of a median covers the true one in at least this share of all runs.
_COVERED = 0.9
# Quotients of the same two figures may differ in their last digit.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Ratio:
    """A contender's figure divided by the base's: the median over rounds, and its spread.

    Each round gives one ratio of two consecutive runs. Their median is robust against a bad round.

    :ivar low: the lowest ratio, and `high` the highest. With a noise, the ends of an interval of
        the median, widened by the noise.
    :ivar noise: the base's figure divided by its own second figure, 1 or more. None if unknown.
    """

    median: float
    low: float
    high: float
    noise: float | None = None

    @classmethod
    def of(
        cls, contender: Sequence[float], base: Sequence[float], noise: float | None = None
    ) -> Ratio:
        """Return the ratio contender / base, from the ratios of the rounds.

        :raises ValueError: if there are no rounds, or a different number of both.
        :raises ZeroDivisionError: if a base figure is 0.
        """
        ratios = [one / other for one, other in zip(contender, base, strict=True)]
        if noise is None:
            return cls(median(ratios), min(ratios), max(ratios))
        low, high = interval(ratios)
        return cls(median(ratios), low / noise, high * noise, noise)

    @property
    def is_clear(self) -> bool:
        """Whether the noise does not explain the difference from 1."""
        if self.noise is None:
            return True
        return self.high < 1 - _ROUNDING or self.low > 1 + _ROUNDING

    def __str__(self) -> str:
        median, low, high = map(number_text, (self.median, self.low, self.high))
        return f"{median}x ({low}..{high})" if self.is_clear else f"unclear ({low}..{high})"


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the interval of a median, by the sign test.

    Equally many of the lowest and the highest values are left out, as long as the true median is
    covered. None of up to seven values is left out.
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
    """The runs of each contender. Figures are medians over the rounds.

    :ivar seen: each contender's response before the load.
    :ivar again: the base's second run in each round. It shows the noise of the machine.
    :ivar changes: the first contender sent two different bodies, or two processes did.
    :ivar link_mbit: also compute the time of the bodies on a link of this rate.
    """

    title: str
    runs: Mapping[str, Sequence[Load]]
    seen: Mapping[str, Seen] = field(default_factory=dict)
    changes: bool = False
    again: Sequence[Load] = ()
    link_mbit: float | None = None

    @property
    def base(self) -> str:
        """The contender that all are compared with."""
        return next(iter(self.runs))

    @staticmethod
    def rate(load: Load) -> float:
        """The compared figure."""
        return load.requests_per_s

    less_is_better = False

    def median(self, name: str, figure: Callable[[Load], float]) -> float | None:
        """Return a contender's figure. None if none of its runs succeeded."""
        good = [figure(m) for m in self.runs[name] if m.requests]
        return median(good) if good else None

    def latency_ms(self, name: str, percent: int) -> float | None:
        timed = [m.latency_ms[percent] for m in self.runs[name] if m.latency_ms]
        return median(timed) if timed else None

    def failures(self, name: str) -> int:
        return sum(m.failures for m in self.runs[name])

    def errors(self, name: str) -> dict[str, int]:
        """Return the client's error messages -> their counts."""
        return dict(sum((Counter(m.errors) for m in self.runs[name]), Counter()))

    def ratio(self, name: str, figure: Callable[[Load], float] | None) -> Ratio | None:
        """Return the contender's figure divided by the base's.

        None for the base, without a figure, and if one of the two never succeeded.
        """
        return self.divided(name, self.base, figure) if name != self.base and figure else None

    def divided(self, one: str, other: str, figure: Callable[[Load], float]) -> Ratio | None:
        both = [pair for pair in self.pairs(one, other, figure) if pair[1]]
        if not both:
            return None
        contender, base = zip(*both, strict=True)
        return Ratio.of(contender, base, self.noise(figure))

    def noise(self, figure: Callable[[Load], float]) -> float | None:
        """Return how far two figures of the base differ, as a factor of 1 or more.

        None if the base ran once in each round.
        """
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
        """Return both figures of each round in which both succeeded."""
        return [
            (figure(own), figure(its))
            for own, its in zip(self.runs[one], self.runs[other], strict=True)
            if own.requests and its.requests
        ]

    def busy(self, name: str) -> str:
        """Return the bottleneck: "client", "server", both or neither."""
        sides: dict[str, Callable[[Load], float]] = {
            "client": lambda m: m.client_cpu_s / m.seconds,
            "server": lambda m: m.server_cpu_s / m.seconds,
        }
        return ", ".join(s for s, share in sides.items() if (self.median(name, share) or 0) > BUSY)

    @property
    def bodies(self) -> dict[str, Seen]:
        """The first responses of the contenders that succeeded at all."""
        good = {name for name, runs in self.runs.items() if any(m.requests for m in runs)}
        return {name: seen for name, seen in self.seen.items() if seen.ok and name in good}

    @property
    def loses_coding(self) -> bool:
        """Whether the first contender compresses a body that another one sends uncompressed."""
        first, *others = [*self.bodies.values(), None]
        return bool(first and first.coding and any(one and not one.coding for one in others))

    @property
    def differs(self) -> bool:
        """Whether the decoded bodies differ.

        Contenders that only fail do not count. Bodies of an app that never sends the same twice may
        differ, but a lost content coding counts. A body that cannot be decoded is compared as sent.
        """
        digests = {seen.digest for seen in self.bodies.values()}
        return self.loses_coding or (not self.changes and len(digests) > 1)

    @property
    def is_good(self) -> bool:
        """Whether the wrapped app adds no failures and sends identical bodies."""
        first, *others = self.runs
        last = [first, *others][-1]
        judged = [last, *(name for name in others if not self.failures(first))]
        answered = any(m.requests for m in self.runs[last])
        return answered and not self.differs and not any(map(self.failures, judged))

    def figures(self) -> dict[str, Any]:
        """Return all figures, for JSON. Some are dataclasses."""
        rate, cost = ("requests/s", self.rate), ("CPU us/req", lambda m: m.cpu_us_per_request)
        contenders = {name: self.contender_figures(name, rate, cost) for name in self.runs}
        return {"title": self.title, "contenders": contenders, "again": self.again}

    def contender_figures(
        self,
        name: str,
        rate: tuple[str, Callable[[Load], float]],
        cost: tuple[str, Callable[[Load], float] | None],
    ) -> dict[str, Any]:
        """Return a contender's figures.

        :param rate: the title and the figure that is compared, and `cost` those of its cost.
        """
        return {
            rate[0]: self.median(name, rate[1]),
            cost[0]: cost[1] and self.median(name, cost[1]),
            "ratio": self.ratio(name, rate[1]),
            "cost ratio": self.ratio(name, cost[1]),
            **({"body": self._body(seen)} if (seen := self.seen.get(name)) else {}),
            "ms": {str(p): self.latency_ms(name, p) for p in (50, 95, 99)},
            "pairs": len(self.runs[name]),
            "failures": self.failures(name),
            "errors": self.errors(name),
            "busy": self.busy(name),
            "runs": self.runs[name],
        }

    def _body(self, seen: Seen) -> dict[str, Any]:
        link = self.link_mbit
        return {
            "bytes": seen.body_bytes,
            "decoded bytes": seen.decoded_bytes,
            "coding": seen.coding,
            "link": {f"{link:g} Mbit/s": seen.body_bytes * 8 / link / 1e3} if link else {},
        }
