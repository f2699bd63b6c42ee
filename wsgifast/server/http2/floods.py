"""Rate limits for frames that are cheap for a client but expensive for the server."""

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

# Each limit is a leaky bucket. Its capacity may arrive at once, and leaks within the period.

# Streams that the client resets, or makes the server reset (CVE-2023-44487, "rapid reset", and
# CVE-2025-8671). gunicorn has the same limit. Clients that cancel requests stay far below it.
RESETS = 200
# Frames that are not a part of a request: PING, SETTINGS, PRIORITY, RST_STREAM, empty DATA, unknown
# frames and others. gunicorn has the same limit.
CONTROL_FRAMES = 1000
# This many bytes of a SETTINGS frame count as one more frame, because they take as long.
_SETTINGS_BYTES = 16 * 6
# WINDOW_UPDATE frames that exceed the expected number. The server expects two of them, for the
# stream and for the connection, for each frame and for each KiB that it has sent.
WINDOWS = 2000
PERIOD_S = 10.0
_EARNED_PER_BYTE = 2 / 1024


class Flood(WSGIFastError):
    """A client has exceeded one of the limits (RFC 9113 section 10.5)."""


# The capacity of each bucket, and the error text.
_BUCKETS = {
    "resets": (RESETS, "too many streams are reset"),
    "control": (CONTROL_FRAMES, "too many frames that are not a part of a request"),
    "windows": (WINDOWS, "too many WINDOW_UPDATE frames that open windows by few bytes"),
}


class Floods:
    """The buckets of one connection."""

    __slots__ = ("_levels", "_since")

    def __init__(self, now: float) -> None:
        self._since = now
        self._levels = dict.fromkeys(_BUCKETS, 0.0)

    def admit(self, frame: Frame) -> None:
        """Count a received frame. This happens before the frame is handled.

        Streams that are reset are also counted by the connection, because they cost more than one
        frame.

        :raises Flood: see :meth:`count`.
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
        """Add a cost to a bucket.

        :raises Flood: if the bucket is full.
        """
        levels = self._levels
        share = (now - self._since) / PERIOD_S
        self._since = now
        for each, (capacity, _) in _BUCKETS.items():
            if levels[each] > 0:  # a negative level is a credit, which does not leak
                levels[each] = max(0.0, levels[each] - share * capacity)
        levels[bucket] += cost
        capacity, done = _BUCKETS[bucket]
        if levels[bucket] > capacity:
            raise Flood(done)

    def earn_windows(self, size: int, *, frames: int) -> None:
        """Allow the WINDOW_UPDATE frames that the client may send for received data.

        :param size: the size of the data in bytes.
        :param frames: the number of DATA frames, except a frame that a window has cut.
        """
        self._levels["windows"] -= size * _EARNED_PER_BYTE + 2 * frames
