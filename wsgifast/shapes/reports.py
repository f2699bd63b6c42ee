"""Findings about shapes in production: which responses are examined, and what is logged."""

from __future__ import annotations

import logging
import random
import threading
import time
from typing import Final

from ..bodies.access_log import stream_kind
from ..checks import is_number, size_text
from ..errors import ConfigurationError
from .rule import BodySeen, Chunks, slow_shape

logger = logging.getLogger("wsgifast")

# How many chunks of a response are measured; the others are only counted.
EXAMINED_CHUNKS: Final = 200
# An endpoint has one finding in this time.
_EVERY_S = 3600.0
# Endpoints that are remembered; beyond them no finding is logged until one is forgotten.
_MOST_ENDPOINTS = 1000
_SHOWN_CHARACTERS = 80

_KINDS = {
    "list": "a list of {} chunks",
    "iterator": "an iterator of {} chunks",
    "messages": "{} body messages",
}


def check_rate(rate: object) -> None:
    """:raises ConfigurationError: if `rate` is not a share of the responses."""
    if not is_number(rate, least=0, most=1):
        raise ConfigurationError(
            f"report_slow_shapes={rate!r}: expected a share of the responses, from 0 (none) to 1, "
            "such as 0.01 for one in a hundred"
        )


class Reports:
    """Chooses the responses to examine, and logs findings, rarely.

    :param rate: the share of the responses, from 0 to 1.
    :param mended: the findings that the middleware corrects: they are logged as INFO, the others as
        WARNING.
    """

    def __init__(self, rate: float, *, mended: frozenset[str]) -> None:
        self._rate = rate
        self._mended = mended
        self._lock = threading.Lock()
        # When each endpoint had its last finding, oldest first.
        self._reported: dict[str, float] = {}

    def picks(self) -> bool:
        """Whether to examine the response that begins now."""
        return random.random() < self._rate

    def report(
        self, method: str, pattern: str | None, path: str, seen: BodySeen, count: int
    ) -> None:
        """Log what is slow about a body, unless its endpoint has had a finding lately.

        :param pattern: the framework's URL pattern; None if there is none.
        :param path: as the client sent it.
        :param seen: the body's first chunks. Whether they come from a file is not known here:
            blocks of one round size are taken for one.
        :param count: the number of all its chunks.
        """
        if seen.kind != "list" and _looks_like_a_file(seen.chunks):
            seen = seen._replace(file_bytes=seen.chunks.total)
        id_ = slow_shape(seen)
        if id_ is None or id_ == "WF023":  # event streams are right as they are
            return
        endpoint = pattern or "a URL without a pattern"
        if not self._is_due(endpoint):
            return
        logger.log(
            logging.INFO if id_ in self._mended else logging.WARNING,
            "%s: %s (%s %s) returns %s; wsgifast doctor --explain %s says more",
            id_,
            endpoint,
            _shown(method),
            _shown(path),
            _described(id_, seen, count),
            id_,
        )

    def _is_due(self, endpoint: str) -> bool:
        now = time.monotonic()
        reported = self._reported
        with self._lock:
            while reported and now - next(iter(reported.values())) >= _EVERY_S:
                del reported[next(iter(reported))]
            if endpoint in reported or len(reported) >= _MOST_ENDPOINTS:
                return False
            reported[endpoint] = now
        return True


def _looks_like_a_file(chunks: Chunks) -> bool:
    sizes = chunks.sizes
    return len(sizes) > 1 and stream_kind(len(sizes), sizes[0], chunks.total) == "stream-blocks"


def _described(id_: str, seen: BodySeen, count: int) -> str:
    what = _KINDS[seen.kind].format(f"{count:,}")
    text = f"{what}, median {size_text(seen.chunks.median)}"
    return f"{text}, as a file is read" if id_ in ("WF008", "WF031") else text


def _shown(text: str) -> str:
    """Return a client's text for a log line: without control characters, and not too long."""
    text = ascii(text)[1:-1]
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 3]}..."
