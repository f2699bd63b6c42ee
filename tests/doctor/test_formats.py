"""Reports in every format, with any text in endpoints, responses and errors."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsgifast.commands.doctor.formats import as_github, as_html, as_json, as_text
from wsgifast.commands.doctor.model import (
    Endpoint,
    Finding,
    Observation,
    Recording,
    Report,
    Unreached,
)
from wsgifast.commands.page import escaped
from wsgifast.commands.terminal import width_of

HOSTILE = [
    "\x1b]0;x\x07", "\x9b2J", "\x7f", "\u202e", "\udcff", "\r\n", "\0", "::error::", "]]>",
    "<script>", "'\"><img src=x onerror=y>", "&amp;", "%0A",
]  # fmt: skip
texts = st.lists(st.text(max_size=5) | st.sampled_from(HOSTILE), max_size=6).map("".join)


def report_of(text: str) -> Report:
    endpoint = Endpoint(f"/{text}", text, text, evidence=text)
    response = Recording(200, [(text, text)], text, error=text)
    finding = Finding("WF015", "wrong", endpoint, text, "", "see its traceback")
    return Report(
        text,
        "WSGI",
        text,
        observations=[Observation(endpoint, response, Recording(200))],
        findings=[finding],
        unreached=[Unreached(text, text)],
    )


class Elements(HTMLParser):
    """Return the elements and attributes of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[object] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, sorted(name for name, _ in attrs)))


@given(texts)
def test_text_of_others_is_raw_in_no_format(text: str) -> None:
    report = report_of(text)
    for form in (as_text, as_github, as_html, as_json):
        assert form(report).replace("\n", "").isprintable(), form
    assert Elements(as_html(report)).found == Elements(as_html(report_of("x"))).found
    assert len(as_github(report).splitlines()) == 1
    assert json.loads(as_json(report))["findings"][0]["what"] == text


@pytest.mark.parametrize("width", [None, 60, 80, 300])
@given(st.text(min_size=100, max_size=300))
def test_long_text_is_cut_in_table_whole_on_page(width: int | None, text: str) -> None:
    report = report_of(text)
    shown = as_text(report, width=width)
    assert max(map(width_of, shown.splitlines())) <= min(width or 400, 400)
    assert escaped(text) in as_html(report)
