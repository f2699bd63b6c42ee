"""Whether there is room for what processes tell: the files of metrics must not fill a disk."""

from __future__ import annotations

import errno
import os

__all__ = ["check_room"]

# What the files leave free on their file system: beyond its end they would end the process.
_LEFT_FREE_BYTES = 16 * 1024 * 1024


def check_room(directory: str) -> None:
    """:raises OSError: where nothing is written any more, so that what is there is old."""
    at = os.statvfs(directory)
    if at.f_bavail * at.f_frsize < _LEFT_FREE_BYTES:
        raise OSError(
            errno.ENOSPC, f"less than {_LEFT_FREE_BYTES} bytes are free for metrics", directory
        )
