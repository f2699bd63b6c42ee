"""A site for the tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.static.calls import LARGE
from tests.static.deltas import NEW, NEW_NAME, OLD, OLD_NAME
from tests.support.files import settle


@pytest.fixture
def site(tmp_path: Path) -> Path:
    root = tmp_path / "site"
    (root / "docs").mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "index.html").write_text("<h1>home</h1>")
    (root / "docs" / "index.html").write_text("<h1>docs</h1>")
    (root / "app.js").write_text("let answer = 42;\n" * 40)
    (root / "large.bin").write_bytes(LARGE)
    (root / "nothing.txt").write_bytes(b"")
    (root / ".env").write_text("SECRET=1")
    return root


@pytest.fixture
def releases(site: Path) -> Path:
    """A directory with two releases of a script."""
    (site / OLD_NAME).write_bytes(OLD)
    (site / NEW_NAME).write_bytes(NEW)
    os.utime(site / OLD_NAME, (1e9, 1e9))
    settle(*site.iterdir())
    return site
