"""Rate limits for frames that cost a client nothing and the server something."""

from __future__ import annotations

import time

from hyperframe.frame import (
    DataFrame,
    Frame,
    HeadersFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from ...errors import WSGIFastError

# Each limit is a leaky bucket: its capacity may arrive at once, and leaks away over its period.

# Streams that the client resets, or makes the server reset (CVE-2023-44487, "rapid reset", and
# CVE-2025-8671). This is gunicorn's limit. Clients that cancel requests stay far below it.
RESETS = 200
# Frames that bring no part of a request: PING, SETTINGS, PRIORITY, RST_STREAM, empty DATA, unknown
# ones and others. Also gunicorn's limit.
CONTROL_FRAMES = 1000
# So many values of a SETTINGS frame, in bytes, count as one more frame: they take as long.
_SETTINGS_BYTES = 16 * 6
# WINDOW_UPDATE frames beyond those that are expected: one for the stream and one for the connection
# for each frame, and each KiB, that was sent.
WINDOWS = 2000
PERIOD_S = 10.0
_EARNED_PER_BYTE = 2 / 1024


class Flood(WSGIFastError):
    """A client exceeds one of the limits (RFC 9113 section 10.5)."""


# The size of each bucket, and the client's action that fills it.
_BUCKETS = {
    "resets": (RESETS, "too many streams are reset"),
    "control": (CONTROL_FRAMES, "too many frames ask for nothing"),
    "windows": (WINDOWS, "windows are opened too often, by too little"),
}


class Floods:
    """The buckets of one connection."""

    __slots__ = ("_levels", "_since")

    def __init__(self, now: float) -> None:
        self._since = now
        self._levels = dict.fromkeys(_BUCKETS, 0.0)

    def admit(self, frame: Frame) -> None:
        """Count a received frame by its cost, before any other step.

        Streams that are reset are counted apart. They cost more than the frame that resets them.

        :raises Flood: as :meth:`count`.
        """
        if isinstance(frame, HeadersFrame):
            return
        if isinstance(frame, DataFrame):
            if frame.data or "END_STREAM" in frame.flags:
                return
        elif isinstance(frame, WindowUpdateFrame):
            self.count("windows", time.monotonic())
            return
        cost = 1
        if isinstance(frame, SettingsFrame):
            cost += frame.body_len // _SETTINGS_BYTES
        self.count("control", time.monotonic(), cost)

    def count(self, bucket: str, now: float, cost: int = 1) -> None:
        """:raises Flood: if the bucket is full."""
        levels = self._levels
        share = (now - self._since) / PERIOD_S
        self._since = now
        for each, (most, _) in _BUCKETS.items():
            if levels[each] > 0:  # a credit does not leak
                levels[each] = max(0.0, levels[each] - share * most)
        levels[bucket] += cost
        most, done = _BUCKETS[bucket]
        if levels[bucket] > most:
            raise Flood(done)

    def earn_windows(self, size: int, *, frames: int) -> None:
        """Allow WINDOW_UPDATE frames for data that has been sent.

        :param size: bytes.
        :param frames: DATA frames, except one that a window cut short.
        """
        self._levels["windows"] -= size * _EARNED_PER_BYTE + 2 * frames
