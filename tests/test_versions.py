"""Supported versions of uvicorn and gunicorn: each has one table, and all other places agree."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from asgifast.whole_responses import KNOWN_SENDS
from packaging.requirements import Requirement

from tests.support.servers import ROOT
from wsgifast.hosts import GUNICORN, HOSTS, UVICORN, WITH_ZTTP, Host, numbers
from wsgifast.workers.gunicorn_version import SUPPORTED


def _minor(version: str) -> str:
    """Return 0.54 for 0.54.0."""
    return ".".join(version.split(".")[:2])


_SENDS = [version for versions in KNOWN_SENDS.values() for version in versions]
_UVICORNS = {_minor(version) for version in (*UVICORN.tested, UVICORN.below, WITH_ZTTP, *_SENDS)}
_GUNICORN = _minor(GUNICORN.oldest)


def _texts() -> Iterator[Path]:
    """Return pages and code. Measurements and the changelog are about versions of their time."""
    yield from (ROOT / name for name in ("README.md", "SECURITY.md", "ARCHITECTURE.md", "Makefile"))
    for folder, pattern in (("docs", "*.md"), ("asgi", "*.py"), ("wsgifast", "*.py")):
        for path in sorted((ROOT / folder).rglob(pattern)):
            if (
                path.name not in ("benchmarks.md", "changelog.md")
                and "benchmarks" not in path.parts
            ):
                yield path


def _requirements(package: str) -> list[tuple[str, Requirement]]:
    """Return the versions of a package that each extra requires."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return [
        (extra, requirement)
        for extra, lines in settings["project"]["optional-dependencies"].items()
        for requirement in map(Requirement, lines)
        if requirement.name == package
    ]


@pytest.mark.parametrize("host", HOSTS.values(), ids=list(HOSTS))
def test_extras_have_the_bounds_of_the_table(host: Host) -> None:
    requirements = _requirements(host.name)
    assert requirements
    for extra, requirement in requirements:
        bounds = {each.operator: numbers(each.version) for each in requirement.specifier}
        oldest = WITH_ZTTP if extra == "zttp" and host is UVICORN else host.oldest
        assert bounds == {">=": numbers(oldest), "<": numbers(host.below)}, (extra, host.name)


@pytest.mark.parametrize("host", HOSTS.values(), ids=list(HOSTS))
def test_tested_versions_are_in_order_and_bounded(host: Host) -> None:
    versions = [numbers(version) for version in (*host.tested, host.below)]
    assert versions == sorted(set(versions))
    assert numbers(host.oldest) <= versions[0]


def test_pages_name_the_supported_range() -> None:
    uvicorns = f"{_minor(UVICORN.oldest)} to {_minor(UVICORN.newest)}"
    compatibility = (ROOT / "docs/project/compatibility.md").read_text()
    for host in HOSTS.values():
        row = f"| {host.name} | {', '.join(host.tested)} | {host.oldest} | {host.below} |"
        assert row in compatibility
    assert SUPPORTED in (ROOT / "docs/reference/fastworker.md").read_text()
    page = (ROOT / "docs/reference/asgi.md").read_text()
    assert f"They work with uvicorn {uvicorns}." in page
    assert f"`--http zttp --http2` of uvicorn {_minor(WITH_ZTTP)}." in page
    assert f"On uvicorn {' and '.join(_SENDS)} with httptools," in page


@pytest.mark.parametrize(
    ("package", "version", "known"),
    [
        ("uvicorn", r"0\.\d\d+", _UVICORNS),
        # Older versions, and their settings, are named as well.
        ("gunicorn", r"2[5-9]\.\d+ (?:to|or newer)", {f"{_GUNICORN} to", f"{_GUNICORN} or newer"}),
    ],
)
def test_no_text_names_another_version(package: str, version: str, known: set[str]) -> None:
    """A version in a line that names the package is one of its table."""
    found = {
        (str(path.relative_to(ROOT)), number)
        for path in _texts()
        for line in path.read_text().splitlines()
        if re.search(rf"\b{package}", line)
        for number in re.findall(rf"(?<![\d.]){version}", line)
    }
    assert found
    assert {(path, number) for path, number in found if number not in known} == set()


def test_makefile_takes_oldest_versions_from_tables() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for package in ("uvicorn", "gunicorn"):
        target = makefile.split(f"\ntest-oldest-{package}:")[1].split("\n\n")[0]
        assert f"from wsgifast.hosts import {package.upper()};" in target
        assert not re.search(r"==\d", target)
