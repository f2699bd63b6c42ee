"""When a worker is to be replaced, beside gunicorn's max_requests: by its memory, by its age."""

from __future__ import annotations

import random
import time

from ..metrics.health import resident_bytes

# Of its lifetime, each worker takes up to this part less: those that were started together are not
# to end together.
_JITTER = 0.1


class Recycling:
    """The limits of one worker, from now on.

    :param max_rss_bytes: of resident memory, shared pages included; `math.inf` for none.
    :param max_lifetime_s: seconds; `math.inf` for none.
    """

    def __init__(self, max_rss_bytes: float, max_lifetime_s: float) -> None:
        self._max_rss_bytes = max_rss_bytes
        self._has_rss_limit = max_rss_bytes < float("inf")
        self._end = time.monotonic() + max_lifetime_s * (1 - _JITTER * random.random())

    def is_too_large_to_begin(self) -> bool:
        """Whether the memory of a worker that has served nobody is beyond the limit already."""
        return self._has_rss_limit and resident_bytes() > self._max_rss_bytes

    def limit_reached(self) -> tuple[str, str] | None:
        """Why the worker is to be replaced now: the limit, and as the log says it."""
        if self._has_rss_limit and (rss := resident_bytes()) > self._max_rss_bytes:
            return (
                "max_rss_bytes",
                f"{rss:,} bytes of memory, max_rss_bytes={self._max_rss_bytes:,}",
            )
        if time.monotonic() > self._end:
            return "max_lifetime_s", "max_lifetime_s is over"
        return None
