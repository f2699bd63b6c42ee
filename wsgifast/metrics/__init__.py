"""Metrics: their catalogue, what records and collects them, and the back ends."""

from .catalogue import CATALOGUE, Metric
from .points import Collector, Distribution, Point
from .requests import Answered, Recorder, RequestMetrics

__all__ = [
    "CATALOGUE", "Answered", "Collector", "Distribution", "Metric", "Point", "Recorder",
    "RequestMetrics",
]  # fmt: skip
