"""The parts of a release: its metadata, its workflows, and the content of the source archive."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

from tests.support.programs import check
from tests.support.servers import ROOT
from wsgifast import __version__

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = sorted((GITHUB / "ISSUE_TEMPLATE").glob("[!c]*.yml"))
OF_THE_REPOSITORY = pytest.mark.skipif(not WORKFLOWS, reason="the source archive has no .github")


def test_one_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == __version__
    assert f"## {__version__} - " in (ROOT / "CHANGELOG.md").read_text()


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.iterdir()
    return path


def test_source_archive_has_all_sources(archive: Path) -> None:
    """The archive has all files that its tests, documentation and load tests need, and no generated
    ones.
    """
    with tarfile.open(archive) as content:
        names = {name.partition("/")[2] for name in content.getnames()}
    for folder in ("wsgifast", "asgi/asgifast", "tests", "loadtests", "examples", "docs"):
        there = {
            path.relative_to(ROOT).as_posix()
            for path in (ROOT / folder).rglob("*.py")
            if "data" not in path.parts
        }
        assert there <= names
    assert {"Makefile", "pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE"} <= names
    made = ("reports", "build", "dist", ".venv", ".ci", ".github", "__pycache__")
    assert not [name for name in names if set(Path(name).parts) & {*made}]


def test_source_archive_passes_the_index_checks(archive: Path) -> None:
    check("twine", "check", "--strict", archive)


@OF_THE_REPOSITORY
@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("github-workflows", WORKFLOWS),
        ("github-issue-forms", FORMS),
        ("github-issue-config", [GITHUB / "ISSUE_TEMPLATE" / "config.yml"]),
        ("dependabot", [GITHUB / "dependabot.yml"]),
        ("citation-file-format", [ROOT / "CITATION.cff"]),
    ],
)
def test_metadata_fits_its_schema(schema: str, files: list[Path]) -> None:
    check("check-jsonschema", "--builtin-schema", f"vendor.{schema}", *files)


@OF_THE_REPOSITORY
@pytest.mark.parametrize(("lint", "lints"), [(None, True), ("yes", True), ("no", False)])
def test_ci_run_without_lint_still_tests(lint: str | None, lints: bool, tmp_path: Path) -> None:
    """Run the script in a folder of programs that only report how they were called."""
    script = tmp_path / ".ci" / "run"
    script.parent.mkdir()
    shutil.copy(ROOT / ".ci" / "run", script)
    for program in ("make", ".venv/bin/python"):
        path = tmp_path / program
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\necho {path.name} "$@"\n')
        path.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"} | ({"LINT": lint} if lint else {})
    done = subprocess.run([script], env=environment, capture_output=True, text=True, check=True)
    called = done.stdout.splitlines()
    assert ("make lint" in called, "make test" in called) == (lints, True)


@OF_THE_REPOSITORY
def test_workflows_by_actionlint() -> None:
    check("actionlint", *WORKFLOWS)
