"""The text of a scrape, in any of prometheus_client's formats.

Theory of operation. All that differs from one scrape to the next are numbers. So prometheus_client
writes the line of a sample once, by its own rules, and what stands before the number is kept: its
own code would sort and escape the labels of each line at each scrape.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ..imports import needs

with needs("wsgifast.metrics.exposition", "prometheus_client", "prometheus"):
    from prometheus_client.core import Metric
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.utils import floatToGoString

# Lines that are kept beyond twice those of a scrape: of processes that have gone.
_SPARE = 1000

_as_text: Callable[[float], str] = floatToGoString


class _Series:
    """The samples of a metric with the same labels.

    :ivar lines: the beginning of each line, by what its number is: of a histogram's bucket its
        bound, otherwise the name of the sample.
    """

    def __init__(self, metric: str, help: str) -> None:
        self.metric = metric
        self.help = help
        self.lines: dict[float | str, str] = {}


class _Metrics(NamedTuple):
    """What prometheus_client's encoders take."""

    metrics: Iterable[Metric]

    def collect(self) -> Iterable[Metric]:
        return self.metrics


class TextFormat:
    """A format of text, as :func:`text_format` gives it.

    :ivar content_type: its name.
    """

    def __init__(self, encode: Any, content_type: str) -> None:
        self._encode = encode
        self.content_type = content_type
        self._end = ""
        self._end = self._encoded()
        self._series: dict[tuple[str, str], _Series] = {}
        # By kind and key, as it is in the files.
        self._places: dict[tuple[str, str], tuple[_Series, float | str]] = {}

    def text(self, values: Mapping[str, Mapping[str, float]], gauges: Iterable[Metric]) -> bytes:
        """A scrape.

        :param values: of each kind, by the keys in prometheus_client's files.
        :param gauges: other metrics.
        """
        parts = [part for kind, own in values.items() for part in self._added_up(kind, own)]
        parts += [self._encoded(*gauges), self._end]
        if len(self._places) > 2 * sum(map(len, values.values())) + _SPARE:
            self._places.clear()
            self._series.clear()
        return "".join(parts).encode()

    def _added_up(self, kind: str, values: Mapping[str, float]) -> Iterator[str]:
        """Of each metric what describes it, and the lines of its samples."""
        found: dict[str, dict[_Series, dict[float | str, float]]] = {}
        for key, value in values.items():
            place = self._places.get((kind, key))
            if place is None:
                place = self._places[kind, key] = self._placed(kind, key)
            series, what = place
            numbers = found.setdefault(series.metric, {}).setdefault(series, {})
            numbers[what] = numbers.get(what, 0.0) + value
        for name, members in found.items():
            yield self._encoded(Metric(name, next(iter(members)).help, kind))
            for series, numbers in members.items():
                yield from _lines(series, numbers)

    def _placed(self, kind: str, key: str) -> tuple[_Series, float | str]:
        """Where the number of a key belongs."""
        metric, sample, labels, help = json.loads(key)
        what: float | str = sample
        shown = dict(labels)
        if kind == "histogram" and "le" in labels:
            what = float(labels.pop("le"))
            shown["le"] = _as_text(what)
        name = (metric, json.dumps(labels, sort_keys=True))
        series = self._series.setdefault(name, _Series(metric, help))
        series.lines[what] = self._begin(metric, kind, sample, shown)
        count = f"{metric}_count"
        if what is not sample and count not in series.lines:
            series.lines[count] = self._begin(metric, kind, count, labels)
        return series, what

    def _begin(self, metric: str, kind: str, sample: str, labels: dict[str, str]) -> str:
        one = Metric(metric, "", kind)
        one.add_sample(sample, labels, 0.0)
        lines = self._encoded(one).split("\n")
        return next(each for each in lines if each[:1] != "#").removesuffix("0.0")

    def _encoded(self, *metrics: Metric) -> str:
        text: str = self._encode(_Metrics(metrics)).decode()
        return text.removesuffix(self._end)


def text_format(accept: str) -> TextFormat:
    """The format that a client accepts.

    :param accept: its Accept header; "" if it has none.
    """
    choose: Any = choose_encoder  # has no types
    return TextFormat(*choose(accept))


def _lines(series: _Series, numbers: Mapping[float | str, float]) -> Iterator[str]:
    lines, total = series.lines, 0.0
    bounds = sorted(what for what in numbers if isinstance(what, float))
    for bound in bounds:
        total += numbers[bound]
        yield f"{lines[bound]}{_as_text(total)}\n"
    if bounds:
        yield f"{lines[f'{series.metric}_count']}{_as_text(total)}\n"
    for what, number in numbers.items():
        if not isinstance(what, float):
            yield f"{lines[what]}{_as_text(number)}\n"
