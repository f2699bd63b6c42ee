"""make demo: its rows, of which one is measured, and the text and page of results."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from loadtests import demo
from loadtests.harness.locust import Locust
from loadtests.harness.results import Result
from loadtests.harness.runner import run
from loadtests.link import slow_proxy
from tests.loadtests.test_rows import SHORT
from tests.support.http import Connection
from wsgifast.commands.bench.loads import Load
from wsgifast.commands.bench.processes import running_server
from wsgifast.commands.bench.serving import served

BESIDE, *_ = [each.row.key for each in demo.COMPARISONS]


def result(key: str, before: float, after: float) -> Result:
    """Return a row of servers with these responses per second."""
    (row,) = (each.row for each in demo.COMPARISONS if each.row.key == key)
    rates = {demo.BEFORE: before, demo.AFTER: after}
    runs = {name: [Load(round(rate), 0, 1, 1.0, server_cpu_s=0.5)] for name, rate in rates.items()}
    return Result(row.title, runs, row=row)


RESULTS = [
    result(BESIDE, 0, 3000),
    *(result(f"demo.{key}", 10, 80) for key in ("file", "rows", "json", "asgi-file")),
    *(result(f"demo.{key}", 2000, 1990) for key in ("whole", "small", "asgi-small")),
]


def test_demo_shows_the_promise_first_in_14_rows() -> None:
    keys = [each.row.key.removeprefix("demo.") for each in demo.COMPARISONS]
    assert keys[:6] == ["slow-downloads", "file", "rows", "json", "flask", "asgi-file"]
    assert len(keys) <= 14
    gains = [each.gains for each in demo.COMPARISONS]
    assert gains == sorted(gains, reverse=True)  # the rows without a gain are the last


@pytest.mark.parametrize("width", [None, 80, 60])
def test_demo_text_groups_explains_and_concludes(width: int | None) -> None:
    text = demo.as_text(RESULTS, width)
    # A narrow terminal splits the columns into several tables.
    heading, faster, unchanged, *_ = re.split(r"^ *(?:Faster|Unchanged): *$", text, flags=re.M)
    assert "before" in heading
    assert "no response" in text
    assert "now responds" in text
    assert "small responses beside 8 slow downloads" in faster
    assert "a small ASGI response" in unchanged
    assert all(re.search(rf"^- (.*, )?{column}\b.*:", text, re.M) for column in demo.COLUMNS)
    assert text.endswith(
        "\n\nWith wsgifast your app responds despite slow downloads, sends files, exports and "
        "JSON 8 to 8 times as fast, and serves small responses as before."
    )
    table = text.partition("\n\n- ")[0]
    assert width is None or max(map(len, table.splitlines())) <= width


def test_demo_concludes_no_gain_that_was_not_measured() -> None:
    rows = [result(BESIDE, 3000, 3000), result("demo.file", 10, 9), result("demo.small", 9, 5)]
    assert demo.conclusion(rows) == "This run shows no gain: run it again on a quiet machine."


def test_demo_says_which_difference_is_noise() -> None:
    noisy = replace(result("demo.small", 2000, 1000), again=[Load(900, 0, 1, 1.0)])
    assert "within noise" in demo.as_text([noisy]).partition("Unchanged:")[2].splitlines()[1]
    assert demo.conclusion([noisy]) == "With wsgifast your app serves small responses as before."


def test_demo_page_links_to_each_locust_report() -> None:
    html = demo.as_html(RESULTS)
    assert html.count(f"<h1>{demo.TITLE}</h1>") == 1
    assert len({*re.findall(r'href="(locust/[\w.-]+\.html)"', html)}) == 2 * len(RESULTS)
    assert demo.conclusion(RESULTS) in html


@pytest.mark.long
@pytest.mark.usefixtures("forked_servers")
def test_demo_measures_beside_slow_downloads(tmp_path: Path) -> None:
    (row,) = (each.row for each in demo.COMPARISONS if each.row.key == BESIDE)
    with Locust() as locust:
        locust.start()
        client = demo.beside_slow_downloads(locust.client(8, reports=tmp_path))
        (found,) = run(replace(demo.table(True), rows=[replace(row, client=client)]), SHORT)
    responds = {name: any(load.requests for load in runs) for name, runs in found.runs.items()}
    assert responds == {demo.BEFORE: False, demo.AFTER: True}
    assert found.failures(demo.AFTER) == 0
    reports = sorted(tmp_path.iterdir())
    assert [path.name for path in reports] == [
        f"{BESIDE}-before.html", f"{BESIDE}-with-wsgifast.html",
    ]  # fmt: skip
    assert all('"name": "/small"' in path.read_text() for path in reports)


def test_slow_proxy_passes_whole_responses() -> None:
    with (
        running_server(served("loadtests.app:app")) as server,
        slow_proxy(server.address, mbit=100) as proxy,
        Connection(proxy) as client,
    ):
        sizes = [len(client.request(f"/whole/{size}").body) for size in (0, 1, 100_000)]
    assert sizes == [0, 1, 100_000]
