"""What another user may do, who has no right but everybody's."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

NEEDS_ROOT = pytest.mark.skipif(
    os.geteuid() != 0, reason="needs root, who may become somebody else"
)
_NOBODY = 65534


@contextlib.contextmanager
def another_user(reaching: Path) -> Iterator[None]:
    """Become one who may search this folder and those above it."""
    for place in (reaching, *reaching.parents):
        if place.stat().st_uid == 0 and place != Path("/tmp"):
            place.chmod(place.stat().st_mode | 0o011)
    os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
