"""Fixtures for the tests of framework wrappers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bodies.wrapped import CONTENT, closed
from tests.support.files import write_old


@pytest.fixture(autouse=True)
def nothing_closed() -> None:
    closed.clear()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_old(tmp_path / "file.txt", CONTENT)
    return tmp_path / "file.txt"
