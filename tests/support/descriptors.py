"""The descriptors of this process, for tests that look for those left open."""

from __future__ import annotations

import os

__all__ = ["open_descriptors"]


def open_descriptors() -> set[tuple[str, str]]:
    """Each open descriptor with what it leads to.

    Sets tell what has come since, where numbers do not: garbage of another test may close what it
    has at any time.
    """
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue  # that of the listing itself
        found.add((name, path.removesuffix(" (deleted)")))
    return found
