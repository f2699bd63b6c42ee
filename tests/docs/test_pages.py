"""The documentation's pages that are made of the code, and its list of names."""

from __future__ import annotations

import importlib
import re

import pytest

from docs.pages import DOCS, PAGES

ROOT = DOCS.parent


@pytest.mark.parametrize("name", PAGES)
def test_a_page_made_of_the_code_is_up_to_date(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name](), "make docs writes it anew"


@pytest.mark.parametrize(
    "package",
    [
        *("wsgifast", "wsgifast.devservers", "wsgifast.django", "wsgifast.django.storage"),
        *("wsgifast.commands.doctor", "wsgifast.files", "wsgifast.mail", "wsgifast.mail.django"),
        *("wsgifast.mail.server", "wsgifast.metrics", "wsgifast.sockets", "wsgifast.workers"),
        *("asgifast", "asgifast.uvicorn", "asgifast.workers"),
    ],
)
def test_every_exported_name_is_in_the_reference(package: str) -> None:
    pages = "".join(path.read_text() for path in DOCS.rglob("*.md"))
    directive = rf"^\.\. (?:auto\w+|py:data):: {re.escape(package)}\.(\w+)$"
    named = set(re.findall(directive, pages, re.MULTILINE))
    exported = {name for name in importlib.import_module(package).__all__ if name[0] != "_"}
    assert named == exported


@pytest.mark.parametrize("name", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_links_of_the_first_pages(name: str) -> None:
    text = (ROOT / name).read_text()
    found = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    found += re.findall(r'(?:src|srcset)="(.+?)"', text)
    assert all((ROOT / link).exists() for link in found), found


def test_links_into_the_repository() -> None:
    texts = [path.read_text() for path in [*DOCS.rglob("*.md"), *ROOT.glob("*.md")]]
    pattern = r"https://github\.com/wsgifast/wsgifast/(?:blob|tree)/main/([^)#>\s]*)"
    found = {link for text in texts for link in re.findall(pattern, text)}
    assert found
    assert not [link for link in found if not (ROOT / link).exists()]


def test_the_first_page_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150
