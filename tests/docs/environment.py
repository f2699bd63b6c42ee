"""An environment with the packages that a page has installed, and no others.

No index is used. The packages that pip would install are linked from this environment, with their
requirements. So a page without an install line fails, like for its reader.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from tests.support.servers import ROOT

# The package that the Install page tells readers to install.
STANDARD = "wsgifast[standard]"
_PACKAGES_OF_OURS = (ROOT / "wsgifast", ROOT / "asgi" / "asgifast")
_SCRIPT = """#!{python}
import sys
from {module} import {name}

if __name__ == "__main__":
    sys.exit({call}())
"""


class Environment:
    """A virtual environment in a folder.

    :ivar bin: the folder of its programs.
    """

    def __init__(self, folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        self.bin = folder / "bin"
        version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        self._packages = folder / "lib" / version / "site-packages"
        self._requested: set[tuple[str, str]] = set()

    def install(self, line: str) -> None:
        """Install the packages of a shell line with pip.

        :raises AssertionError: if this environment lacks a package.
        """
        words = shlex.split(line)
        assert words[:2] == ["pip", "install"], line
        for word in words[2:]:
            self._add(Requirement(word.partition(" @ ")[0]))

    def has(self, name: str) -> bool:
        return any(requested == name for requested, _ in self._requested)

    def _add(self, requirement: Requirement) -> None:
        name = requirement.name.lower().replace("_", "-")
        for extra in ("", *requirement.extras):
            if (name, extra) in self._requested:
                continue
            self._requested.add((name, extra))
            try:
                distribution = metadata.distribution(requirement.name)
            except metadata.PackageNotFoundError:
                raise AssertionError(f"{name} is in no extra of ours: see pyproject.toml") from None
            if not extra:
                self._link(distribution)
            known = distribution.metadata.get_all("Provides-Extra") or []
            assert not extra or extra in known, f"{name} has no extra {extra}: {known}"
            for needed in map(Requirement, distribution.requires or ()):
                if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                    self._add(needed)

    def _link(self, distribution: metadata.Distribution) -> None:
        """Link a package's files, and write its commands."""
        installed = Path(sysconfig.get_path("purelib"))
        tops = {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}
        found = [installed / top for top in tops if not top.endswith(".pth")]
        if distribution.metadata["Name"] == "wsgifast":
            found += _PACKAGES_OF_OURS
        for path in found:
            link = self._packages / path.name
            if path.exists() and not link.exists():
                link.symlink_to(path)
        for entry in distribution.entry_points.select(group="console_scripts"):
            script = self.bin / entry.name
            script.write_text(
                _SCRIPT.format(
                    python=self.bin / "python",
                    module=entry.module,
                    name=entry.attr.partition(".")[0],
                    call=entry.attr,
                )
            )
            os.chmod(script, 0o755)
