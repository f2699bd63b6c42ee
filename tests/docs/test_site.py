"""The site and the pages of reports in a browser, on a wide screen and on a phone's."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadtests.harness.report import as_html
from loadtests.harness.tables import Table
from tests.benchmark.runs import compared
from tests.support.chromium import Chromium, chromium
from tests.support.servers import ROOT

pytestmark = pytest.mark.long

WIDTHS = {"desk": 1280, "phone": 390}
# Only these elements may be wider than the page: they scroll within it.
SCROLLS = ".table-wrapper, .picture, pre, .highlight, .highlight *, .scroll"
TOO_WIDE = """(() => [...document.querySelectorAll('*')].filter(each => {
  const scrolls = each.tagName === 'HTML' ||
    ['auto', 'scroll'].includes(getComputedStyle(each).overflowX);
  return scrolls && each.clientWidth && each.scrollWidth > each.clientWidth + 1 &&
    !each.matches(SCROLLS);
}).map(each => `${each.tagName}.${each.className} ${each.scrollWidth}`))()"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All pages, built by Sphinx."""
    if any(importlib.util.find_spec(name) is None for name in ("sphinx", "furo", "myst_parser")):
        pytest.skip("Sphinx is not installed: make docs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "-b", "html"]
    paths = ["-d", str(folder / "doctrees"), "docs", str(folder / "html")]
    done = subprocess.run([*command, *paths], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "html"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with chromium(tmp_path_factory.mktemp("profile"), "--allow-file-access-from-files") as browser:
        yield browser


def show(browser: Chromium, page: Path, width: int) -> None:
    browser.call(
        "Emulation.setDeviceMetricsOverride",
        width=width, height=900, deviceScaleFactor=1, mobile=width < 500,
    )  # fmt: skip
    browser.visit(page.as_uri())


def too_wide(browser: Chromium, page: Path, width: int) -> list[str]:
    """Return the elements that are wider than the window. They would make the whole page scroll."""
    show(browser, page, width)
    found: list[str] = browser.evaluate(TOO_WIDE.replace("SCROLLS", json.dumps(SCROLLS)))
    return found


@pytest.mark.parametrize("screen", WIDTHS)
def test_no_page_of_the_site_scrolls_sideways(site: Path, browser: Chromium, screen: str) -> None:
    pages = [page for page in sorted(site.rglob("*.html")) if page.name != "genindex.html"]
    assert len(pages) > 40
    found = {
        str(page.relative_to(site)): wide
        for page in pages
        if (wide := too_wide(browser, page, WIDTHS[screen]))
    }
    assert not found


@pytest.mark.parametrize("screen", WIDTHS)
def test_terminal_picture_can_be_read(site: Path, browser: Chromium, screen: str) -> None:
    """The letters are at least ten pixels high."""
    show(browser, site / "index.html", WIDTHS[screen])
    (picture,) = site.glob("_images/terminal-light.svg")
    drawn = picture.read_text()
    wide = re.search(r'viewBox="0 0 ([\d.]+)', drawn)
    size = re.search(r"font-size: ([\d.]+)px", drawn)
    assert wide is not None
    assert size is not None
    shown: Any = browser.evaluate("document.querySelector('img.terminal').clientWidth")
    assert float(size[1]) * shown / float(wide[1]) >= 10


def test_options_keep_their_hyphens(site: Path) -> None:
    """Sphinx would convert them to typographic dashes and quotes, which no command accepts."""
    found = {
        (str(page.relative_to(site)), dash)
        for page in site.rglob("*.html")
        for dash in re.findall(r"[\u2013\u2014\u201c\u201d\u2018\u2019]\w+", page.read_text())
    }
    assert not found


@pytest.mark.parametrize("screen", WIDTHS)
def test_report_page_shows_its_figures(browser: Chromium, screen: str, tmp_path: Path) -> None:
    result = compared({"gthread": (10,), "WSGIFast on FastWorker": (2000,), "fewer": (5,)})
    page = tmp_path / "report.html"
    page.write_text(as_html("A page", [(Table("test", "A test", [result.row]), [result])]))
    assert not too_wide(browser, page, WIDTHS[screen])
    edges: list[float] = browser.evaluate(
        "[...document.querySelectorAll('svg text, svg rect, td:nth-child(3)')]"
        ".map(each => each.getBoundingClientRect().right)"
    )
    assert len(edges) > 10
    assert max(edges) <= WIDTHS[screen]
