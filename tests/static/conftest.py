"""A site to serve."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.static.calls import LARGE


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
