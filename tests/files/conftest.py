"""Directories with one file, and with files that compress well or badly."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support import files

# Longer than a block, so that a range has a beginning, whole blocks and an end.
CONTENT = os.urandom(1_000_003)
TEXT = b"A line of text that repeats itself.\n" * 200


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one file."""
    folder = tmp_path_factory.mktemp("files")
    files.write_old(Path(folder, "file"), CONTENT)
    return folder


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "css").mkdir(parents=True)
    (root / "page.html").write_bytes(TEXT)
    (root / "css" / "site.css").write_bytes(TEXT * 2)
    (root / "tiny.txt").write_bytes(b"x")
    (root / "random.dat").write_bytes(os.urandom(5000))
    (root / "image.png").write_bytes(TEXT)
    (root / ".hidden.txt").write_bytes(TEXT)
    (root / "empty.txt").touch()
    (tmp_path / "outside.txt").write_bytes(TEXT)
    (root / "link.txt").symlink_to("../outside.txt")
    return root
