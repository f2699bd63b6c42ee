"""A recorder of metrics for tests, and its records."""

from __future__ import annotations

from collections import Counter
from typing import Any

from wsgifast.metrics import Answered, RequestMetrics
from wsgifast.metrics.requests import LengthError


class Notes:
    """A recorder that stores its records."""

    def __init__(self) -> None:
        self.requests: list[Answered] = []
        self.active = Counter[tuple[str, str]]()
        self.length_errors: list[LengthError] = []
        self.clients_left = 0

    def begin(self, method: str, scheme: str) -> None:
        self.active[method, scheme] += 1

    def record(self, request: Answered) -> None:
        self.requests.append(request)
        self.active[request.method, request.scheme] -= 1

    def count_length_error(self, kind: LengthError) -> None:
        self.length_errors.append(kind)

    def count_client_left(self) -> None:
        self.clients_left += 1


def values_of(metrics: RequestMetrics, name: str) -> dict[tuple[str, ...], Any]:
    """Return the values of one metric, by their labels."""
    return {each.labels: each.value for each in metrics.collect() if each.metric.name == name}
