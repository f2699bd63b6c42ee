"""The result of a row: figures and ratios, and what makes them doubtful.

A row (tables.py) compares several contenders under one load, in rounds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import comb, sqrt
from statistics import median, quantiles
from typing import Any

from ..terminal import number_text
from .tables import Load, Row, Seen

# A side that spends this share of a run on its own CPU is busy all the time.
BUSY = 0.85


# The interval of a median covers the true one in this share of all runs, at the least.
_COVERED = 0.9


# Quotients of the same two figures may differ from each other in their last digit.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Ratio:
    """How many times a contender's figure is the base's: the median over rounds, and its spread.

    Each round gives one ratio of two neighbours in time; their median is robust against one bad
    round.

    :ivar low: how far the rounds disagree: the lowest of them, and `high` the highest. With a
        noise, the ends of an interval of the median, made wider by the noise.
    :ivar noise: what the base's figure differs from itself, as a factor of 1 or more; None: that
        was not measured.
    """

    median: float
    low: float
    high: float
    noise: float | None = None

    @classmethod
    def of(
        cls, contender: Sequence[float], base: Sequence[float], noise: float | None = None
    ) -> Ratio:
        """The ratios contender / base, round by round.

        :raises ValueError: if there are no rounds, or not equally many of both.
        :raises ZeroDivisionError: if a base figure is 0.
        """
        ratios = [one / other for one, other in zip(contender, base, strict=True)]
        if noise is None:
            return cls(median(ratios), min(ratios), max(ratios))
        low, high = interval(ratios)
        return cls(median(ratios), low / noise, high * noise, noise)

    @property
    def is_clear(self) -> bool:
        """Whether there is a verdict: the noise does not explain the difference from 1."""
        if self.noise is None:
            return True
        return self.high < 1 - _ROUNDING or self.low > 1 + _ROUNDING

    def __str__(self) -> str:
        median, low, high = map(number_text, (self.median, self.low, self.high))
        return f"{median}x ({low}..{high})" if self.is_clear else f"unclear ({low}..{high})"


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The interval of a median, by the order of the values alone.

    The lowest and the highest values are left out, equally many of both, as long as the true median
    is covered (the sign test); of up to seven values none is left out.
    """
    ordered, left_out = sorted(values), 0
    missed = 2 * 0.5 ** len(ordered)
    for dropped in range(1, (len(ordered) + 1) // 2):
        missed += 2 * comb(len(ordered), dropped) * 0.5 ** len(ordered)
        if 1 - missed < _COVERED:
            break
        left_out = dropped
    return ordered[left_out], ordered[-1 - left_out]


# Of values in a bell curve the quartiles are 1.349 standard deviations apart, and the median of n
# has an error of 1.253 standard deviations / sqrt(n).
_ERROR_OF_QUARTILES = 1.253 / 1.349


@dataclass(frozen=True)
class Difference:
    """How much more a contender's figure is than the base's: the median over rounds.

    Each round gives one difference of two neighbours in time, as it does for a :class:`Ratio`.

    :ivar low: the lower quartile of the rounds; `high` the upper one.
    :ivar error: the standard error of the median, by the quartiles.
    """

    median: float
    low: float
    high: float
    error: float

    @classmethod
    def of(cls, contender: Sequence[float], base: Sequence[float]) -> Difference:
        """The differences contender - base, round by round.

        :raises ValueError: if there are no rounds, or not equally many of both.
        """
        pairs = zip(contender, base, strict=True)
        if len(found := [one - other for one, other in pairs]) == 1:
            found *= 2  # quartiles are of two or more
        low, middle, high = quantiles(found, n=4, method="inclusive")
        return cls(middle, low, high, _ERROR_OF_QUARTILES * (high - low) / sqrt(len(found)))

    def __str__(self) -> str:
        low, high, error = map(number_text, (self.low, self.high, self.error))
        sign = "+" if self.median >= 0 else ""
        return f"{sign}{number_text(self.median)} ±{error} ({low}..{high})"


@dataclass(frozen=True)
class Result:
    """A row's runs, by contender; figures are medians over the rounds.

    :ivar seen: what each answered before it was loaded.
    :ivar again: in each round the one that all are compared with ran once more, at its end: two
        figures of the same server, which show how much the machine disturbs them.
    :ivar changes: the first contender did not send the same body twice, or not from two processes.
    """

    row: Row
    runs: Mapping[str, Sequence[Load]]
    seen: Mapping[str, Seen] = field(default_factory=dict)
    changes: bool = False
    again: Sequence[Load] = ()

    def median(self, name: str, figure: Callable[[Load], float]) -> float | None:
        """None if no run of the contender succeeded."""
        good = [figure(m) for m in self.runs[name] if m.requests]
        return median(good) if good else None

    def latency_ms(self, name: str, percent: int) -> float | None:
        timed = [m.latency_ms[percent] for m in self.runs[name] if m.latency_ms]
        return median(timed) if timed else None

    def failures(self, name: str) -> int:
        return sum(m.failures for m in self.runs[name])

    def errors(self, name: str) -> dict[str, int]:
        """What the client saw -> how often."""
        return dict(sum((Counter(m.errors) for m in self.runs[name]), Counter()))

    def facts(self, name: str) -> dict[str, float]:
        names = dict.fromkeys(fact for m in self.runs[name] for fact in m.facts)
        found = {f: [m.facts[f] for m in self.runs[name] if f in m.facts] for f in names}
        return {fact: median(values) for fact, values in found.items()}

    def ratio(self, name: str, figure: Callable[[Load], float] | None) -> Ratio | None:
        """The contender's figure to the first one's, or our contender's to this one's.

        None for the one that all are compared with, and where either never succeeded.
        """
        if name == self._base or figure is None:
            return None
        sides = (self._base, name) if self.row.ours else (name, self._base)
        both = [pair for pair in self._pairs(*sides, figure) if pair[1]]
        if not both:
            return None
        contender, base = zip(*both, strict=True)
        return Ratio.of(contender, base, self.noise(figure))

    def noise(self, figure: Callable[[Load], float]) -> float | None:
        """What a figure differs from itself, as a factor of 1 or more; None: not measured."""
        runs = zip(self.again, self.runs[self._base], strict=False)
        pairs = [(figure(again), figure(first)) for again, first in runs]
        ratios = [again / first for again, first in pairs if again and first]
        if not ratios:
            return None
        low, high = interval(ratios)
        return max(high, 1 / low)

    @property
    def _base(self) -> str:
        """The contender with which all are compared."""
        return self.row.ours or self.row.contenders[0].name

    def difference(self, name: str) -> Difference | None:
        """How much more the contender's figure is than the first one's.

        None for the first one, and where either never succeeded.
        """
        first = self.row.contenders[0].name
        both = self._pairs(name, first, self.row.unit.rate) if name != first else None
        return Difference.of(*zip(*both, strict=True)) if both else None

    def _pairs(
        self, one: str, other: str, figure: Callable[[Load], float]
    ) -> list[tuple[float, float]]:
        """Both figures of each round in which both succeeded."""
        return [
            (figure(own), figure(its))
            for own, its in zip(self.runs[one], self.runs[other], strict=True)
            if own.requests and its.requests
        ]

    def busy(self, name: str) -> str:
        """Which side was busy all the time, and so the limit: "client", "server", both, neither."""
        sides: dict[str, Callable[[Load], float]] = {
            "client": lambda m: m.client_cpu_s / m.seconds,
            "server": lambda m: m.server_cpu_s / m.seconds,
        }
        return ", ".join(s for s, share in sides.items() if (self.median(name, share) or 0) > BUSY)

    @property
    def bodies(self) -> dict[str, Seen]:
        """What those that answer at all have answered first."""
        good = {name for name, runs in self.runs.items() if any(m.requests for m in runs)}
        return {name: seen for name, seen in self.seen.items() if seen.ok and name in good}

    @property
    def loses_coding(self) -> bool:
        """Whether one sends a body as it is that the first one has coded: more bytes."""
        first, *others = [*self.bodies.values(), None]
        return bool(first and first.coding and any(one and not one.coding for one in others))

    @property
    def differs(self) -> bool:
        """Whether the contenders' bodies are not the same, byte by byte, after decoding.

        Those that only fail have none; those of an app that never sends the same twice may differ,
        but for a coding that is lost. Where one cannot be decoded here, its coded bytes count.
        """
        digests = {seen.digest for seen in self.bodies.values()}
        return self.loses_coding or (not self.changes and len(digests) > 1)

    @property
    def is_good(self) -> bool:
        """Whether the last never failed, nor any where the first did not, and all sent the same."""
        first, *others = self.runs
        last = [first, *others][-1]
        judged = [last, *(name for name in others if not self.failures(first))]
        answered = any(m.requests for m in self.runs[last])
        return answered and not self.differs and not any(map(self.failures, judged))

    def _body(self, seen: Seen) -> dict[str, Any]:
        """What was sent for a body, what it decodes to, and how long a link takes for it."""
        link = self.row.link_mbit
        return {
            "bytes": seen.body_bytes,
            "decoded bytes": seen.decoded_bytes,
            "coding": seen.coding,
            "shown": self.row.sizes or any(one.coding for one in self.seen.values()),
            "link": {f"{link:g} Mbit/s": seen.body_bytes * 8 / link / 1e3} if link else {},
        }

    def figures(self) -> dict[str, Any]:
        """All of it, as it is in JSON, but for dataclasses."""
        unit = self.row.unit
        contenders = {
            name: {
                unit.name: self.median(name, unit.rate),
                unit.cost_name or "CPU": unit.cost and self.median(name, unit.cost),
                "ratio": self.ratio(name, unit.rate),
                **({"difference": self.difference(name)} if unit.difference else {}),
                "cost ratio": self.ratio(name, unit.cost),
                **({"body": self._body(seen)} if (seen := self.seen.get(name)) else {}),
                "ms": {str(p): self.latency_ms(name, p) for p in (50, 95, 99)},
                "pairs": len(self.runs[name]),
                "failures": self.failures(name),
                "errors": self.errors(name),
                "busy": self.busy(name),
                "facts": self.facts(name),
                "runs": self.runs[name],
            }
            for name in self.runs
        }
        title, ours = self.row.title, self.row.ours
        return {"title": title, "ours": ours, "contenders": contenders, "again": self.again}
