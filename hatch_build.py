"""Compiles the modules that every request goes through, with mypyc, into the wheel.

Without WSGIFAST_COMPILE=1 the wheel is a pure one, and this does nothing. The sources are in every
wheel, and are what runs where a compiled module is missing.

CONTRIBUTING.md has what mypyc asks of these modules.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_COMPILED = (
    "wsgifast/server/*.py",
    "wsgifast/server/http2/*.py",
    "wsgifast/workers/httptools_parser.py",
    "wsgifast/bodies/response_writer.py",
)
_NOT_COMPILED = frozenset(
    {
        # They inherit from classes of io and h2, for which mypyc makes too small objects, or none.
        "wsgifast/server/request_body.py",
        "wsgifast/server/streamed_body.py",
        "wsgifast/server/http2/frames.py",
        "wsgifast/server/http2/uploads.py",
        # Apps have it in their environ: they may copy it, and refer to it weakly.
        "wsgifast/server/app_socket.py",
        # Hooks and loggers have them: they may add attributes.
        "wsgifast/server/open_response.py",
        "wsgifast/server/http2/open_response.py",
        # One of its methods has two names.
        "wsgifast/server/poller.py",
    }
)
# The types of other packages are left out: what is compiled must not depend on what is installed.
_MYPY = "[mypy]\nno_site_packages = True\nignore_missing_imports = True\nfollow_imports = silent\n"
_SETUP = """\
import sys
from mypyc.build import mypycify
from setuptools import setup

modules = mypycify(
    ["--config-file=mypy.ini", *sys.argv[1:]],
    opt_level="3", debug_level="0", group_name="wsgifast",
)
setup(name="wsgifast", packages=[], ext_modules=modules, script_args=["build_ext", "--inplace"])
"""


class CompilingHook(BuildHookInterface[Any]):
    """Adds the compiled modules to a wheel, beside their sources."""

    def dependencies(self) -> list[str]:
        """Return what the build needs."""
        return ["mypy>=2.4.1", "setuptools>=77"] if self._is_asked_for() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and have the results included.

        :raises RuntimeError: if it fails, with what the compilers say.
        """
        if not self._is_asked_for() or version != "standard":
            return
        self._folder = folder = Path(tempfile.mkdtemp(prefix="wsgifast-"))
        shutil.copytree(Path(self.root, "wsgifast"), folder / "wsgifast", ignore=_only_sources)
        (folder / "mypy.ini").write_text(_MYPY)
        (folder / "setup.py").write_text(_SETUP)
        done = subprocess.run(
            [sys.executable, "setup.py", *_modules(folder)],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        if done.returncode:
            raise RuntimeError(
                f"mypyc failed:\n{done.stdout}\nWithout WSGIFAST_COMPILE the wheel is a pure one."
            )
        build = folder / "build"
        for path in folder.rglob("*.so"):
            if build not in path.parents:
                build_data["force_include"][str(path)] = str(path.relative_to(folder))
        build_data["infer_tag"] = True
        build_data["pure_python"] = False

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was only needed to build."""
        folder = getattr(self, "_folder", None)
        if folder is not None:
            shutil.rmtree(folder)

    def _is_asked_for(self) -> bool:
        return self.target_name == "wheel" and os.environ.get("WSGIFAST_COMPILE", "") == "1"


def _only_sources(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if Path(name).suffix not in ("", ".py")]


def _modules(folder: Path) -> list[str]:
    """Return the paths of the modules to compile, in the same order on every machine."""
    found = {
        path.relative_to(folder).as_posix()
        for pattern in _COMPILED
        for path in folder.glob(pattern)
        if path.name != "__init__.py"
    }
    missing = _NOT_COMPILED - found
    if missing:
        raise RuntimeError(f"hatch_build.py names modules that do not exist: {sorted(missing)}")
    return sorted(found - _NOT_COMPILED)
