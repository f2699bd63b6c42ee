"""What production sees: the catalogue of metrics, what is counted, and who is told of it."""

from .catalogue import CATALOGUE, Metric
from .points import Distribution, Point, Source
from .recorder import Recorder
from .tally import Tally

__all__ = ["CATALOGUE", "Distribution", "Metric", "Point", "Recorder", "Source", "Tally"]
