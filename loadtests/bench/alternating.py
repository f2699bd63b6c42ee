"""Contenders in turn, so that a slow minute of the machine falls on all of them alike."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

__all__ = ["MIN_ROUNDS", "Ratio", "alternate"]

# A figure of fewer pairs is told to be one, and not for publication.
MIN_ROUNDS = 5

T = TypeVar("T")


def alternate(
    contenders: Mapping[str, Callable[[], T]],
    *,
    rounds: int = MIN_ROUNDS,
    seconds: float = math.inf,
    progress: Callable[[str], None] | None = None,
) -> dict[str, list[T]]:
    """Run every contender once a round, in their order: A B A B A B ...

    :param contenders: name -> one bounded measurement.
    :param rounds: measurements of each; MIN_ROUNDS or more for a figure to be published.
    :param seconds: no round but the first is begun after this time.
    :param progress: told before each measurement what runs now, such as "2/5 wrapped".
    :returns: name -> its results, one for each round.
    """
    results: dict[str, list[T]] = {name: [] for name in contenders}
    begun = time.monotonic()
    for number in range(1, rounds + 1):
        if number > 1 and time.monotonic() - begun > seconds:
            break
        for name, run in contenders.items():
            if progress is not None:
                progress(f"{number}/{rounds} {name}")
            results[name].append(run())
    return results


@dataclass(frozen=True)
class Ratio:
    """How many times a contender's figure is the base's: the median over rounds, and its spread.

    Each round gives one ratio of two neighbours in time; their median is robust against one bad
    round, and `low` and `high` show how far the rounds disagree.
    """

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, contender: Sequence[float], base: Sequence[float]) -> Ratio:
        """The ratios contender / base, round by round.

        :raises ValueError: if there are no rounds, or not equally many of both.
        :raises ZeroDivisionError: if a base figure is 0.
        """
        if not base or len(contender) != len(base):
            raise ValueError(
                f"{len(contender)} rounds against {len(base)}: need equal, one or more"
            )
        ratios = [one / other for one, other in zip(contender, base, strict=True)]
        return cls(median(ratios), min(ratios), max(ratios))

    def __str__(self) -> str:
        return f"{_short(self.median)}x ({_short(self.low)}..{_short(self.high)})"


def _short(number: float) -> str:
    """Three digits are all that such a measurement can carry."""
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"
