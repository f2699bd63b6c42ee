"""The pages of the documentation that are generated from the code, and its list of names."""

from __future__ import annotations

import importlib
import inspect
import math
import re

import pytest
from asgifast import ASGIFast

from docs.pages import DOCS, PAGES
from loadtests.applications.catalogue import APPLICATIONS
from tests.asgi.servers import SERVERS as ASGI_SERVERS
from tests.conftest import WSGI_SERVERS
from wsgifast import Compression, StaticFiles, WSGIFast
from wsgifast.metrics import CATALOGUE as METRICS

ROOT = DOCS.parent


@pytest.mark.parametrize("name", PAGES)
def test_page_made_of_the_code_is_up_to_date(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name](), "make docs writes it anew"


def test_charts_are_those_that_pages_show() -> None:
    """No page has a table that is not published any more, and no page lacks a table."""
    there = {path.name for path in (DOCS / "assets" / "charts").iterdir()}
    assert there == {name.rpartition("/")[2] for name in PAGES if "/charts/" in name}
    pages = "".join(path.read_text() for path in DOCS.glob("benchmarks*/**/*.md"))
    pages += (DOCS / "benchmarks.md").read_text()
    assert there == {*re.findall(r'assets/charts/(.+?)"', pages)}


@pytest.mark.parametrize(
    "package",
    [
        *("wsgifast", "wsgifast.devservers", "wsgifast.django", "wsgifast.django.storage"),
        *("wsgifast.commands.doctor", "wsgifast.files", "wsgifast.mail", "wsgifast.mail.django"),
        *("wsgifast.mail.server", "wsgifast.metrics", "wsgifast.sockets", "wsgifast.workers"),
        *("asgifast", "asgifast.uvicorn", "asgifast.workers"),
    ],
)
def test_exported_name_is_in_the_reference(package: str) -> None:
    pages = "".join(path.read_text() for path in DOCS.rglob("*.md"))
    directive = rf"^\.\. (?:auto\w+|py:data):: {re.escape(package)}\.(\w+)$"
    named = set(re.findall(directive, pages, re.MULTILINE))
    exported = {name for name in importlib.import_module(package).__all__ if name[0] != "_"}
    assert named == exported


def test_opentelemetry_names_follow_the_pages_rule() -> None:
    for metric in METRICS.values():
        stem = re.sub("(_(seconds|bytes|total))*$", "", metric.name)
        if stem.startswith("wsgifast_"):
            assert metric.opentelemetry_name == stem.replace("_", ".", 1)
            of_unit = {"s": "seconds", "By": "bytes"}.get(metric.unit, "")
            assert of_unit in metric.name
        else:
            assert metric.opentelemetry_name in (DOCS / "reference" / "metrics.md").read_text()


def _options_in_tables(page: str) -> dict[str, object]:
    """Return the options of a page's tables with their defaults."""
    text = (DOCS / page).read_text()
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| `([^`]+)` \|", text, re.MULTILINE)
    return {name: eval(default, {"math": math}) for name, default in rows}


@pytest.mark.parametrize(
    ("page", "of"),
    [
        ("reference/asgi.md", ASGIFast),
        ("reference/static-files.md", StaticFiles),
        ("reference/wsgifast.md", WSGIFast),
        ("how-to/compress.md", Compression),
    ],
)
def test_option_tables_match_the_signature(page: str, of: type) -> None:
    parameters = inspect.signature(of).parameters
    shown = {
        name: default
        for name, default in _options_in_tables(page).items()
        if name in parameters  # a page may have other tables
    }
    assert shown == {
        name: parameter.default
        for name, parameter in parameters.items()
        if parameter.default is not parameter.empty
    }


@pytest.mark.parametrize("name", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_links_of_the_first_pages_exist(name: str) -> None:
    text = (ROOT / name).read_text()
    found = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    assert all((ROOT / link).exists() for link in found), found


def test_pictures_exist_for_light_and_for_dark_pages() -> None:
    for page in [ROOT / "README.md", *DOCS.rglob("*.md")]:
        text = page.read_text()
        assert "<svg" not in text, f"{page}: GitHub does not show it"
        assert ".svg\n:" not in text, f"{page}: GitHub shows no directive"
        pictures = re.findall(r"<picture>(.*?)</picture>", text, re.DOTALL)
        for picture in pictures:
            (dark,) = re.findall(r'scheme: dark\)" srcset="(.+?)"', picture)
            (light,) = re.findall(r' src="(.+?)"', picture)
            assert light == dark.replace("-dark.svg", "-light.svg")
            assert ' alt="' in picture
        files = re.findall(r'(?:src|srcset)="(.+?)"', text)
        assert all((page.parent / file).exists() for file in files), page


def test_compatibility_page_names_tested_versions() -> None:
    page = (DOCS / "project" / "compatibility.md").read_text()
    servers = page.partition("## Servers")[2].partition("## Frameworks")[0]
    ours = {
        f"ours-{p}-{loop}"
        for p, loop in (("ZttpProtocol", "asyncio"), ("AutoZttpProtocol", "uvloop"))
    }
    assert set(re.findall(r"`([\w-]*-?[\w-]+)`", servers)) - {"WSGIFast", "ASGIFast"} == {
        *WSGI_SERVERS, *ASGI_SERVERS, *ours
    }  # fmt: skip
    released = page.partition("## Released applications")[2].partition("## What may change")[0]
    listed = released.rpartition(":\n\n")[2].strip().removesuffix(".").split(", ")
    assert listed == sorted(application.name for application in APPLICATIONS)


def test_supported_pythons_are_the_same_everywhere() -> None:
    row = re.search(r"CPython ([\d., ]+) \|", (DOCS / "project" / "compatibility.md").read_text())
    assert row is not None
    pythons = row[1].split(", ")
    text = (ROOT / "pyproject.toml").read_text()
    assert re.findall(r"Python :: (3\.\d+)", text) == pythons
    span = f"{pythons[0]} to {pythons[-1]}"
    for name in ("README.md", "docs/install.md", "CONTRIBUTING.md"):
        assert span in (ROOT / name).read_text(), name
    if not (ROOT / ".github").is_dir():
        pytest.skip("the source archive has no workflows")
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert (
        re.findall(r'"(3\.\d+)"', workflow.partition("python: [")[2].partition("]")[0]) == pythons
    )


def test_links_into_the_repository_exist() -> None:
    texts = [path.read_text() for path in [*DOCS.rglob("*.md"), *ROOT.glob("*.md")]]
    pattern = r"https://github\.com/wsgifast/wsgifast/(?:blob|tree)/main/([^)#>\s]*)"
    found = {link for text in texts for link in re.findall(pattern, text)}
    assert found
    assert not [link for link in found if not (ROOT / link).exists()]


def test_terminal_picture_shows_findings_of_the_doctor() -> None:
    """The picture shows a real session, which is stored beside it. Its commands exist."""
    session = (DOCS / "assets" / "terminal.txt").read_text()
    tutorial = (DOCS / "tutorial.md").read_text()
    found = set(re.findall(r"\bWF\d{3}\b", session))
    assert found
    assert found <= set(re.findall(r"\bWF\d{3}\b", tutorial))
    for theme in ("light", "dark"):
        picture = (DOCS / "assets" / f"terminal-{theme}.svg").read_text()
        assert all(finding in picture for finding in found)


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150
