"""What one load run gave, whichever client drove it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["Load", "percentile"]


@dataclass(frozen=True)
class Load:
    """The result of one bounded run.

    :ivar requests: answers that came whole and with a status below 400.
    :ivar failures: all others, and requests without an answer.
    :ivar body_bytes: payload of the good answers, without heads and chunk framing.
    :ivar seconds: wall time of the run.
    :ivar latency_ms: percentile (50, 95, 99) -> milliseconds from sending a request to the last
        byte of its answer; empty if no request succeeded.
    :ivar errors: what the client saw -> how often.
    """

    requests: int
    failures: int
    body_bytes: int
    seconds: float
    latency_ms: Mapping[int, float] = field(default_factory=dict)
    errors: Mapping[str, int] = field(default_factory=dict)

    @property
    def requests_per_s(self) -> float:
        return self.requests / self.seconds if self.seconds else 0.0

    @property
    def megabytes_per_s(self) -> float:
        """Payload in MB (10^6 bytes) per second."""
        return self.body_bytes / 1e6 / self.seconds if self.seconds else 0.0


def percentile(ascending: Sequence[float], percent: float) -> float:
    """The smallest value that `percent` of all do not exceed (nearest rank).

    :param ascending: the values, sorted; at least one.
    """
    rank = -(-len(ascending) * percent // 100)  # rounded up
    return ascending[max(0, int(rank) - 1)]
