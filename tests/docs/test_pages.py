"""The documentation's pages that are made of the code, and its list of names."""

from __future__ import annotations

import importlib
import re

import pytest

from docs.pages import DOCS, PAGES


@pytest.mark.parametrize("name", PAGES)
def test_a_page_made_of_the_code_is_up_to_date(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name](), "make docs writes it anew"


@pytest.mark.parametrize(
    "package",
    [
        *("wsgifast", "wsgifast.devservers", "wsgifast.django", "wsgifast.django.storage"),
        *("wsgifast.doctor", "wsgifast.files", "wsgifast.mail", "wsgifast.mail.django"),
        *("wsgifast.mail.server", "wsgifast.sockets", "wsgifast.workers"),
        *("asgifast", "asgifast.uvicorn", "asgifast.workers"),
    ],
)
def test_every_exported_name_is_in_the_reference(package: str) -> None:
    pages = "".join(path.read_text() for path in (DOCS / "reference" / "api").glob("*.md"))
    directive = rf"^\.\. (?:auto\w+|py:data):: {re.escape(package)}\.(\w+)$"
    named = set(re.findall(directive, pages, re.MULTILINE))
    exported = {name for name in importlib.import_module(package).__all__ if name[0] != "_"}
    assert named == exported
