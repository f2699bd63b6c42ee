"""Rate limits for frames that cost a client nothing and the server something.

Each is a leaky bucket: its capacity may arrive at once, and leaks away over its period.
"""

from __future__ import annotations

import time

from hyperframe.frame import DataFrame, Frame, HeadersFrame, SettingsFrame, WindowUpdateFrame

from ...errors import WSGIFastError

# Streams that the client resets, or makes the server reset (CVE-2023-44487, "rapid reset", and
# CVE-2025-8671). This is gunicorn's limit; clients that cancel requests stay far below it.
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


class Floods:
    """The buckets of one connection."""

    __slots__ = ("_control", "_resets", "_since", "_windows")

    def __init__(self, now: float) -> None:
        self._since = now
        self._resets = self._control = self._windows = 0.0

    def admit(self, frame: Frame) -> None:
        """Count a received frame by what it costs, before anything is done with it.

        Streams that are reset are counted apart, as they cost more than the frame that does it.
        """
        if isinstance(frame, HeadersFrame):
            return
        if isinstance(frame, DataFrame):
            if frame.data or "END_STREAM" in frame.flags:
                return
        elif isinstance(frame, WindowUpdateFrame):
            self.count_window(time.monotonic())
            return
        cost = 1
        if isinstance(frame, SettingsFrame):
            cost += frame.body_len // _SETTINGS_BYTES
        self.count_control_frame(time.monotonic(), cost)

    def count_reset(self, now: float) -> None:
        """:raises Flood: if the bucket is full; so do the other methods."""
        self._leak(now)
        self._resets += 1
        if self._resets > RESETS:
            raise Flood("too many streams are reset")

    def count_control_frame(self, now: float, cost: int = 1) -> None:
        self._leak(now)
        self._control += cost
        if self._control > CONTROL_FRAMES:
            raise Flood("too many frames ask for nothing")

    def count_window(self, now: float) -> None:
        self._leak(now)
        self._windows += 1
        if self._windows > WINDOWS:
            raise Flood("windows are opened too often, by too little")

    def earn_windows(self, size: int, *, frames: int) -> None:
        """Allow WINDOW_UPDATE frames for data that has been sent.

        :param size: bytes.
        :param frames: DATA frames, except one that a window cut short.
        """
        self._windows -= size * _EARNED_PER_BYTE + 2 * frames

    def _leak(self, now: float) -> None:
        share = (now - self._since) / PERIOD_S
        self._since = now
        self._resets = max(0.0, self._resets - share * RESETS)
        self._control = max(0.0, self._control - share * CONTROL_FRAMES)
        if self._windows > 0:  # a credit does not leak
            self._windows = max(0.0, self._windows - share * WINDOWS)
