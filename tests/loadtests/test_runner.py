"""The runner as its users call it: one short run of real servers and of Locust."""

from __future__ import annotations

import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from loadtests import report, runner
from loadtests.asgi_shapes import ROWS as ASGI_ROWS
from loadtests.comparison import Row
from loadtests.measuring import ServerFailed
from loadtests.overhead import asgi_overheads_us, overheads_us
from loadtests.serving import APP, Serving
from loadtests.terminal import problems, results_table

ROOT = Path(__file__).resolve().parents[2]


class _Page(HTMLParser):
    """Collects what a page would load, and checks that its tags close in order."""

    VOID = ("meta", "br", "link", "img")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_asgi_rows_stand_beside_the_others() -> None:
    results = runner.compare(
        Serving(APP), [Row("/small/512", expected=512), *ASGI_ROWS],
        seconds=0.2, rounds=1, row_seconds=5,
    )  # fmt: skip
    assert len(results) == 1 + len(ASGI_ROWS)
    for result in results:
        assert result.is_good, problems(results)
        assert result.raw.requests > 0
        assert result.wrapped.requests > 0


def test_a_comparison_from_servers_to_page() -> None:
    serving = Serving(APP)
    rows = [Row("/str/2000", "a <str>", expected=2000), Row("/list-of-1/2000", expected=2000)]
    told: list[float] = []
    results = runner.compare(
        serving,
        rows,
        seconds=0.2,
        rounds=1,
        row_seconds=5,
        progress=lambda what, done: told.append(done),
    )
    rescued, joined = results
    assert rescued.verdict == "rescued"
    assert "then the end after 0 of 2000 bytes" in next(iter(rescued.raw.errors))
    assert joined.ratio is not None
    assert all(result.is_good for result in results), problems(results)
    assert told[-1] == 1
    assert "rescued" in results_table(results)
    page = report.report_html("a & b", serving, results)
    parsed = _Page()
    parsed.feed(page)
    assert parsed.open == []
    assert parsed.loads == []
    assert "a &lt;str&gt;" in page


@pytest.mark.parametrize("server", ["gunicorn", "waitress"])
def test_an_app_that_cannot_be_imported(server: str) -> None:
    with pytest.raises(ServerFailed, match="no_such_module"):
        runner.compare(
            Serving("no_such_module:app", server),
            [Row("/")],
            seconds=0.1,
            rounds=1,
            row_seconds=1,
        )


@pytest.mark.parametrize(
    "arguments",
    [["m:a", "no-slash"], ["m:a", "/", "--threads", "0"], ["m:a", "/", "--rounds", "0"]],
)
def test_wrong_arguments_are_named(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "loadtests.compare", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 2
    assert "error:" in ran.stderr


def test_overheads_are_measured_and_plain() -> None:
    assert json.dumps(overheads_us(calls=10, rounds=1))
    assert json.dumps(asgi_overheads_us(calls=10, rounds=1))
