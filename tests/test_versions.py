"""Supported versions of uvicorn and gunicorn: each has one table, and all other places agree."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from asgifast.whole_responses import UVICORN

from tests.support.servers import ROOT
from wsgifast.workers.gunicorn_version import NEWEST_MAJOR, OLDEST


def _minor(version: str) -> str:
    """0.54 for 0.54.0."""
    return ".".join(version.split(".")[:2])


_UVICORNS = {
    _minor(version)
    for version in (
        UVICORN.oldest, UVICORN.newest, UVICORN.with_zttp, *UVICORN.known_send,
    )
}  # fmt: skip
_GUNICORN = "{}.{}".format(*OLDEST)


def _texts() -> Iterator[Path]:
    """Pages and code; measurements and the changelog are about versions of their day."""
    yield from (ROOT / name for name in ("README.md", "SECURITY.md", "ARCHITECTURE.md", "Makefile"))
    for folder, pattern in (("docs", "*.md"), ("asgi", "*.py"), ("wsgifast", "*.py")):
        for path in sorted((ROOT / folder).rglob(pattern)):
            if (
                path.name not in ("benchmarks.md", "changelog.md")
                and "benchmarks" not in path.parts
            ):
                yield path


def _requirements(package: str) -> list[tuple[str, str]]:
    text = (ROOT / "pyproject.toml").read_text()
    return re.findall(rf'"{package}(?:\[\w+\])?>=([\d.]+)(.*?)"', text)


def test_pyproject_requires_the_oldest_versions() -> None:
    oldest, with_zttp = _minor(UVICORN.oldest), _minor(UVICORN.with_zttp)
    assert [version for version, _ in _requirements("uvicorn")] == [oldest, oldest, with_zttp]
    assert {version for version, _ in _requirements("gunicorn")} == {_GUNICORN}


def test_pages_name_the_supported_range() -> None:
    uvicorns = f"{_minor(UVICORN.oldest)} to {_minor(UVICORN.newest)}"
    gunicorns = f"gunicorn {_GUNICORN} to {NEWEST_MAJOR}.x"
    compatibility = (ROOT / "docs/project/compatibility.md").read_text()
    assert f"{gunicorns}, uvicorn {uvicorns}," in compatibility
    assert gunicorns in (ROOT / "docs/reference/fastworker.md").read_text()
    page = (ROOT / "docs/reference/asgi.md").read_text()
    assert f"under uvicorn, {uvicorns}," in page
    assert f"`--http zttp --http2` ({_minor(UVICORN.with_zttp)})" in page
    assert f"On uvicorn {' and '.join(UVICORN.known_send)} with httptools," in page


@pytest.mark.parametrize(
    ("package", "version", "known"),
    [
        ("uvicorn", r"0\.\d\d+", _UVICORNS),
        # Those before, and their settings, are named as well.
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


def test_makefile_takes_the_oldest_versions_from_the_tables() -> None:
    makefile = (ROOT / "Makefile").read_text()
    tables = {"uvicorn": "asgifast.whole_responses", "gunicorn": "gunicorn_version"}
    for package, table in tables.items():
        target = makefile.split(f"\ntest-oldest-{package}:")[1].split("\n\n")[0]
        assert f"import {'UVICORN' if package == 'uvicorn' else 'OLDEST'};" in target
        assert table in target
        assert not re.search(r"==\d", target)
