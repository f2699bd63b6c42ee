"""What a comparison finds: each path of an app, raw and wrapped, and the figures of both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from .measuring import Load, Ratio

if TYPE_CHECKING:
    from .serving import Serving

__all__ = ["Comparison", "Row", "Sample", "Seen", "Side"]

# A client that spends this share of a run on its own CPU is what the run measured.
CLIENT_LIMIT = 0.85


@dataclass(frozen=True)
class Row:
    """What is asked for.

    :ivar path: as in a request line, with its query string.
    :ivar text: what the tables call it.
    :ivar users: how many ask at the same time.
    :ivar expected: bytes that the body must have, where that is known.
    :ivar options: WSGIFast's (or ASGIFast's), for this row.
    :ivar serving: how this row is served, where it is not as the others.
    """

    path: str
    text: str = ""
    users: int = 1
    expected: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    serving: Serving | None = None

    @property
    def label(self) -> str:
        return self.text or self.path


@dataclass(frozen=True)
class Seen:
    """What one plain request gave, before any load: the status line, or what went wrong."""

    answer: str
    body_bytes: int
    digest: str
    ok: bool


@dataclass(frozen=True)
class Sample:
    """One run on one side, with the CPU seconds of both ends."""

    load: Load
    server_cpu_s: float
    client_cpu_s: float


@dataclass(frozen=True)
class Side:
    """A row's runs, raw or wrapped; each figure is the median over the rounds."""

    seen: Seen
    samples: Sequence[Sample]

    def _median(self, figure: Callable[[Sample], float]) -> float | None:
        good = [figure(sample) for sample in self.samples if sample.load.requests]
        return median(good) if good else None

    @property
    def requests_per_s(self) -> float | None:
        return self._median(lambda sample: sample.load.requests_per_s)

    @property
    def megabytes_per_s(self) -> float | None:
        return self._median(lambda sample: sample.load.megabytes_per_s)

    def latency_ms(self, percent: int) -> float | None:
        return self._median(lambda sample: sample.load.latency_ms[percent])

    @property
    def server_cpu_ms(self) -> float | None:
        """Of one request; over all rounds, as the kernel counts in steps of 10 ms."""
        requests = self.requests
        spent = sum(s.server_cpu_s for s in self.samples if s.load.requests)
        return spent * 1e3 / requests if requests else None

    @property
    def server_cpu_s_per_gb(self) -> float | None:
        size = sum(sample.load.body_bytes for sample in self.samples)
        spent = sum(s.server_cpu_s for s in self.samples if s.load.requests)
        return spent * 1e9 / size if size else None

    @property
    def requests(self) -> int:
        return sum(sample.load.requests for sample in self.samples)

    @property
    def failures(self) -> int:
        return sum(sample.load.failures for sample in self.samples)

    @property
    def errors(self) -> dict[str, int]:
        """What the client saw -> how often."""
        return dict(sum((Counter(sample.load.errors) for sample in self.samples), Counter()))

    @property
    def client_is_limit(self) -> bool:
        """Whether Locust itself was busy all the time, so that the server could do more."""
        shares = [s.client_cpu_s / s.load.seconds for s in self.samples if s.load.requests]
        return bool(shares) and median(shares) > CLIENT_LIMIT


@dataclass(frozen=True)
class Comparison:
    """A row's two sides."""

    row: Row
    raw: Side
    wrapped: Side

    @property
    def ratio(self) -> Ratio | None:
        """Requests per second, wrapped / raw, round by round; None if a side never succeeded."""
        both = [
            (wrapped.load.requests_per_s, raw.load.requests_per_s)
            for wrapped, raw in zip(self.wrapped.samples, self.raw.samples, strict=True)
            if wrapped.load.requests and raw.load.requests
        ]
        if not both:
            return None
        fast, slow = zip(*both, strict=True)
        return Ratio.of(fast, slow)

    @property
    def verdict(self) -> str:
        """The ratio, or what there is instead of one."""
        if self.ratio is not None:
            return str(self.ratio)
        if self.wrapped.requests:
            return "rescued"
        return "both fail" if self.raw.failures else "fails"

    @property
    def is_good(self) -> bool:
        """Whether every wrapped request succeeded, with the body that the raw app sends."""
        return self.wrapped.requests > 0 and not self.wrapped.failures and not self.differs

    @property
    def differs(self) -> bool:
        """Whether the wrapped app's body is another than the raw one's."""
        if not self.raw.requests or not self.wrapped.requests:
            return False  # a side that only fails has no body to compare
        return self.raw.seen.digest != self.wrapped.seen.digest
