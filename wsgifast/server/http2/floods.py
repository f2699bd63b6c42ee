"""How often a client may do what costs it nothing: resets, control frames, windows by the byte.

Each is a bucket that leaks: what it holds at most may come at once, and again over its period.
"""

from __future__ import annotations

from ...errors import WSGIFastError

__all__ = ["Flood", "Floods"]

# Streams that a client may reset, or have us reset, by its own faults (CVE-2023-44487, "rapid
# reset", and CVE-2025-8671): gunicorn's limit. One who cancels requests does not come near it.
RESETS = 200
# Frames that ask for nothing: PING, SETTINGS, PRIORITY, DATA without data, unknown ones. Also
# gunicorn's.
CONTROL_FRAMES = 1000
# Windows that a client may open beyond what it has received: for each frame, and each KiB, one of
# the stream and one of the connection are earned.
WINDOWS = 2000
PERIOD_S = 10.0
_EARNED_PER_BYTE = 2 / 1024


class Flood(WSGIFastError):
    """A client does too often what costs it nothing (RFC 9113 section 10.5)."""


class Floods:
    """What one connection's client has done lately."""

    __slots__ = ("_control", "_resets", "_since", "_windows")

    def __init__(self, now: float) -> None:
        self._since = now
        self._resets = self._control = self._windows = 0.0

    def note_reset(self, now: float) -> None:
        """:raises Flood: if it is one too many; so do the others."""
        self._leak(now)
        self._resets += 1
        if self._resets > RESETS:
            raise Flood("too many streams are reset")

    def note_control_frame(self, now: float) -> None:
        self._leak(now)
        self._control += 1
        if self._control > CONTROL_FRAMES:
            raise Flood("too many frames ask for nothing")

    def note_window(self, now: float) -> None:
        self._leak(now)
        self._windows += 1
        if self._windows > WINDOWS:
            raise Flood("windows are opened too often, by too little")

    def earn_windows(self, size: int, *, frames: int) -> None:
        """Data has been sent.

        :param size: bytes of it.
        :param frames: of them, without one that would have been longer if its window had been.
        """
        self._windows -= size * _EARNED_PER_BYTE + 2 * frames

    def _leak(self, now: float) -> None:
        share = (now - self._since) / PERIOD_S
        self._since = now
        self._resets = max(0.0, self._resets - share * RESETS)
        self._control = max(0.0, self._control - share * CONTROL_FRAMES)
        if self._windows > 0:  # what has been earned stays
            self._windows = max(0.0, self._windows - share * WINDOWS)
