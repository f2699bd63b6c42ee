"""A test without its server is skipped, and says how to get the server. In CI it fails."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import programs
from tests.support.servers import ROOT

TESTS_WITHOUT_A_SERVER = """
import pytest
from tests.support.programs import MODULES, PACKAGES, program

PACKAGES["no-such-server"] = "its-package"
MODULES["no-such-tool"] = "example.com/tool@v1"

@pytest.fixture(scope="module")
def server():
    program("no-such-server")

@pytest.mark.parametrize("number", range(3))
def test_by_fixture(server, number):
    pass

def test_by_itself():
    program("no-such-server")

def test_of_a_tool():
    program("no-such-tool")
"""
LINE = "no-such-server is not installed: make servers (apt-get install its-package)"
OF_GO = "no-such-tool is not installed: make servers, with Go (go install example.com/tool@v1)"


@pytest.mark.parametrize("ci", ["", "true"])
def test_tests_of_missing_server_skip_or_fail_in_ci(tmp_path: Path, ci: str) -> None:
    path = tmp_path / "test_without_a_server.py"
    path.write_text(TESTS_WITHOUT_A_SERVER)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-c", "pyproject.toml"]
    done = subprocess.run(
        [*command, "--rootdir", str(ROOT), str(path)],
        cwd=ROOT,
        env={**os.environ, "CI": ci},
        capture_output=True,
        text=True,
    )
    lines = [
        line for line in done.stdout.splitlines() if re.match(r"(SKIPPED|ERROR|FAILED) ", line)
    ]
    assert any(line.startswith("SKIPPED [1] ") and line.endswith(OF_GO) for line in lines), lines
    if ci:
        assert done.returncode == 1, done.stdout
        assert "1 failed, 1 skipped, 3 errors" in done.stdout
        assert LINE in done.stdout
    else:
        assert done.returncode == 0, done.stdout
        assert len(lines) == 2, lines
        assert any(line.startswith("SKIPPED [4] ") and line.endswith(LINE) for line in lines)


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without one program. Return the file with the commands that installed it."""
    written = tmp_path / "commands"
    written.touch()
    for name in ("apt-get", "sudo"):
        path = tmp_path / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >> {written}\n')
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setattr(programs, "PACKAGES", {"sh": "dash", "no-such-server": "its-package"})
    monkeypatch.setattr(programs, "_POLICY", tmp_path / "policy")
    # Python's headers are found, also on machines without them.
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(programs, "_PYTHON_H", tmp_path / "Python.h")
    return written


def test_root_installs_what_is_missing(commands: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert programs.install_missing() == 0
    update, install = commands.read_text().splitlines()
    assert update.startswith("apt-get update")
    assert install.split()[:2] == ["apt-get", "install"]
    assert install.split()[-1] == "its-package"
    assert "dash" not in install
    assert not (commands.parent / "policy").exists()


def test_headers_of_python_are_installed(commands: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (commands.parent / "Python.h").unlink()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert programs.install_missing() == 0
    assert commands.read_text().splitlines()[1].endswith(" its-package python3-dev")


def test_another_user_installs_by_sudo(commands: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert programs.install_missing() == 0
    assert commands.read_text() == f"sudo {sys.executable} {programs.__file__} packages\n"


def test_without_root_or_sudo_the_way_out_is_named(
    commands: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    (commands.parent / "sudo").unlink()
    monkeypatch.setenv("PATH", str(commands.parent))
    assert programs.install_missing() == 1
    assert "as root: apt-get install dash its-package" in capsys.readouterr().err


def test_failure_of_apt_get_is_reported(
    commands: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (commands.parent / "apt-get").write_text("#!/bin/sh\necho no network\nexit 100\n")
    assert programs.install_missing() == 100
    assert "no network" in capsys.readouterr().err


def test_go_makes_what_no_package_has(commands: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = commands.parent / "go"
    go.write_text(f'#!/bin/sh\necho "$* in $GOBIN" >> {commands}\n')
    go.chmod(0o755)
    monkeypatch.setattr(programs, "_GO_BIN", commands.parent / "bin")
    modules = {"sh": "example.com/sh@v1", "no-such-tool": "example.com/tool@v1"}
    monkeypatch.setattr(programs, "MODULES", modules)
    programs.make_modules()
    assert commands.read_text() == f"install example.com/tool@v1 in {commands.parent}/bin\n"


def test_failure_of_go_is_reported(
    commands: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    go = commands.parent / "go"
    go.write_text("#!/bin/sh\nexit 1\n")
    go.chmod(0o755)
    monkeypatch.setattr(programs, "MODULES", {"no-such-tool": "example.com/tool@v1"})
    programs.make_modules()
    assert "no-such-tool cannot be made here: its tests are skipped." in capsys.readouterr().out


def test_without_go_the_skipped_tests_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(programs, "MODULES", {"no-such-tool": "example.com/tool@v1"})
    monkeypatch.setattr(shutil, "which", lambda name, path: None)
    programs.make_modules()
    assert "Without Go there is no no-such-tool" in capsys.readouterr().out
