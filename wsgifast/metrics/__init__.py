"""Metrics: their catalogue, what records and collects them, and the back ends."""

from .catalogue import CATALOGUE, Metric
from .points import Collector, Distribution, Point
from .recorder import Recorder
from .requests import RequestMetrics

__all__ = [
    "CATALOGUE", "Collector", "Distribution", "Metric", "Point", "Recorder", "RequestMetrics",
]  # fmt: skip
