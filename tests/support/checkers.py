"""Programs that check files of the project: `make release` installs those that pip brings."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

__all__ = ["check"]

_HOW = {
    "actionlint": "go install github.com/rhysd/actionlint/cmd/actionlint@latest",
    "kubernetes-validate": "pip install kubernetes-validate",
}


def check(name: str, *arguments: str | Path) -> None:
    """Run one of them; a test whose program is missing is skipped, with the way to get it."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}:{Path.home()}/go/bin"
    found = shutil.which(name, path=path)
    if found is None:
        pytest.skip(f"{name} is not installed: {_HOW.get(name, 'make release')}")
    done = subprocess.run(
        [found, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, f"{name} {arguments}\n{done.stdout}{done.stderr}"
