"""Programs that check files of the project."""

from __future__ import annotations

import subprocess
from pathlib import Path

from .programs import program

__all__ = ["check"]


def check(name: str, *arguments: str | Path) -> None:
    """Run one of them, and have it find nothing.

    :raises ProgramMissing: a test is then skipped; see tests/conftest.py.
    """
    command = [program(name), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{name} {arguments}\n{done.stdout}{done.stderr}"
