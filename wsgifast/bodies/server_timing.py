"""Server-Timing: how long a request has waited, and how long its response has taken.

The developer tools of browsers show the header (https://www.w3.org/TR/server-timing/).
WSGIFast and ASGIFast use :class:`Times`. Only WSGIFast uses the stage.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from .access_log import queue_seconds
from .start_response import AppResponse, Respond

if TYPE_CHECKING:
    from ..compression.response import Decision

NAME = "Server-Timing"
# FastWorker adds a function. It returns how many seconds the current request has waited for the
# call of the app, or None if that time is not known.
wait_sources: list[Callable[[], float | None]] = []


class Times:
    """The times of one request.

    :param queue_s: the time before the app was called. None if it is not known.
    :ivar compress_s: the time for compressing a body in memory.
    """

    def __init__(self, queue_s: float | None) -> None:
        self._queue_s = queue_s
        self._began = time.perf_counter()
        self.compress_s: float | None = None

    def compressed(self, since: float) -> None:
        """Store the time of a compression that has just finished.

        :param since: the time at which the compression began, by time.perf_counter().
        """
        self.compress_s = time.perf_counter() - since

    def value(self) -> str:
        """Return the value of the header. Call this when the headers are about to be sent."""
        took_s = time.perf_counter() - self._began
        parts = [] if self._queue_s is None else [("queue", self._queue_s)]
        parts.append(("app", took_s - (self.compress_s or 0.0)))
        if self.compress_s is not None:
            parts.append(("compress", self.compress_s))
        parts.append(("first-byte", took_s + (self._queue_s or 0.0)))
        return ", ".join([f"{name};dur={seconds * 1e3:.1f}" for name, seconds in parts])


def server_timing_stage(respond: Respond) -> Respond:
    """Return a stage that adds the times of each request to the headers of its response."""

    def call(response: AppResponse) -> Iterable[bytes]:
        waits = [wait_s for wait in wait_sources if (wait_s := wait()) is not None]
        if not waits:
            start = queue_seconds(response.environ.get("HTTP_X_REQUEST_START"), time.time())
            waits = [] if start is None else [start]
        times = Times(max(waits, default=None))
        # The method is replaced on the instance. So a response without the option has no extra
        # call.
        response.compress_whole = partial(_timed, times, response.compress_whole)  # type: ignore[method-assign]
        response.edits = [*response.edits, partial(_add_header, times)]
        return respond(response)

    return call


def _timed(
    times: Times,
    compress: Callable[[Decision, Iterable[bytes], int], Iterable[bytes]],
    decision: Decision,
    blocks: Iterable[bytes],
    size: int,
) -> Iterable[bytes]:
    began = time.perf_counter()
    blocks = compress(decision, blocks, size)
    if decision.coding is not None:
        times.compressed(began)
    return blocks


def _add_header(times: Times, response: AppResponse) -> None:
    """Add a Server-Timing header. A Server-Timing header of the app is not removed."""
    response.headers.append((NAME, times.value()))
