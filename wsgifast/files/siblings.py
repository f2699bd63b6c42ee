"""Which compressed sibling belongs to a file: by their modification times."""

from __future__ import annotations

import os

# A time that was copied as a float, as by WhiteNoise and ServeStatic, is off by up to 120 ns, and
# one in microseconds by up to 1000. No file is written twice within that time.
_ROUNDED_NS = 1_000
# Other tools cut the time to one of these units (pigz, brotli, and zstd before 1.5: to seconds).
_CUT_TO_NS = (1_000_000, 1_000_000_000)


def has_same_time(one: os.stat_result, other: os.stat_result) -> bool:
    """Whether two files have the same modification time, or the one is the other's, rounded.

    Not any difference below a second will do: the original may have been written again.
    """
    earlier, later = sorted((one.st_mtime_ns, other.st_mtime_ns))
    difference = later - earlier
    return difference <= _ROUNDED_NS or any(
        difference < unit and earlier % unit == 0 for unit in _CUT_TO_NS
    )


def is_outdated(sibling: os.stat_result, original: os.stat_result) -> bool:
    """Whether a sibling was made from an earlier content of its original."""
    return sibling.st_mtime_ns < original.st_mtime_ns and not has_same_time(sibling, original)
