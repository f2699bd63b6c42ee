"""Record, collect and export metrics.

A back end exports them: prometheus_client or OpenTelemetry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import ConfigurationError
from .catalogue import CATALOGUE, Metric
from .collecting import Collector, Distribution, Point
from .requests import Answered, Recorder, RequestMetrics

if TYPE_CHECKING:
    from .opentelemetry import CurrentSpans

__all__ = [
    "CATALOGUE", "Answered", "Collector", "Distribution", "Metric", "Point", "Recorder",
    "RequestMetrics",
]  # fmt: skip

# The modules of the back ends are imported on first use.

_METHODS = ("begin", "record", "count_length_error", "count_client_left")


def recorder_for(metrics: object) -> Recorder | None:
    """Return the recorder for a value of the option `metrics`. None if metrics are disabled.

    :raises ConfigurationError: if the value is invalid.
    :raises MissingExtra: if the package of the back end is not installed.
    """
    if metrics is None:
        return None
    if metrics == "prometheus":
        from .prometheus import recorder

        return recorder()
    if metrics == "opentelemetry":
        from .opentelemetry import instruments

        return instruments()
    if all(callable(getattr(metrics, name, None)) for name in _METHODS):
        return metrics  # type: ignore[return-value]
    raise ConfigurationError(
        f"metrics={metrics!r}: expected 'prometheus', 'opentelemetry', or an object with "
        f"{', '.join(_METHODS)}"
    )


def spans_for(traces: bool) -> CurrentSpans | None:
    """Return an object that sets attributes on spans. None if `traces` is False.

    :raises MissingExtra: if OpenTelemetry's API is not installed.
    """
    if not traces:
        return None
    from .opentelemetry import CurrentSpans

    return CurrentSpans()
