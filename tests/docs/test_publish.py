"""Published parts of reports: the page of figures, README's table of gains and the chart."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from docs.benchmarks import publish
from docs.benchmarks.chart import BARS, THEMES, chart_of_gains, chart_of_table
from docs.benchmarks.gains import figures_shown, filled, gains
from docs.benchmarks.page_texts import PAGES
from docs.benchmarks.published import Figures, Published, read, with_deployed
from loadtests.deployed import NOTE
from loadtests.harness.tables import Contender, Row, Table
from wsgifast.commands.bench.loads import Load

MACHINE: dict[str, str | int] = {
    "cores": 2, "processor": "P", "system": "Linux 6.1-x", "tcp": "cubic",
    "python": "CPython 3.13.0", "gunicorn": "27.0.1",
}  # fmt: skip
MARKS = "<!-- what python -m docs.benchmarks.publish writes -->\nold\n<!-- the end of it -->"
# Publish a report of one row, and return the output.
TakeIn: TypeAlias = Callable[..., str]


def figures(rate: float | None, ratio: float | None, **more: Any) -> dict[str, Any]:
    spread = ratio and {"median": ratio, "low": ratio - 9.5, "high": ratio + 5.5}
    cost = None if rate is None else 1e6 / rate
    return {"requests/s": rate, "CPU us/req": cost, "ratio": spread, "cost ratio": None,
            "ms": {"50": 1.0, "99": 2.0}, "pairs": 7, "failures": 0, "busy": "", "facts": {},
            "runs": [1], **more}  # fmt: skip


def row(key: str) -> Row:
    sides = ("gthread", "WSGIFast on gthread")
    return Row(key, key.title(), tuple(map(Contender, sides)), lambda task: Load(0, 0, 0, 0.0))


TABLES = [Table("bodies", "What an app returns", [row("bodies.file"), row("bodies.small")])]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, folder in (("REPORTS", "reports"), ("DATA", "docs/benchmarks"), ("DOCS", "docs")):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        monkeypatch.setattr(publish, name, tmp_path / folder)
    (tmp_path / "docs" / "assets").mkdir()
    monkeypatch.setattr(publish, "README", tmp_path / "README.md")
    publish.README.write_text(f"before\n\n{MARKS}\n\nafter\n")
    return tmp_path


@pytest.fixture
def take_in(root: Path, capsys: pytest.CaptureFixture[str]) -> TakeIn:
    def take(
        key: str = "bodies.file", *, ratio: float = 39.5, day: int = 22, hour: int = 10,
        full: bool = True, file: str = "bodies", base: dict[str, Any] | None = None,
        machine: dict[str, str | int] = MACHINE, title: str = "a row",
    ) -> str:  # fmt: skip
        contenders = {
            "gthread": base or figures(10.123456, None, failures=3),
            "WSGIFast on gthread": figures(400.0, ratio, ms={"50": None, "99": None}),
        }
        profile = {"seconds": 1.0, "rounds": 7, "row_seconds": 120.0, "full": full}
        row = {"measured": f"2026-11-{day}T{hour:02}:00:00Z", "machine": machine,
               "profile": profile, "title": title, "ours": None,
               "contenders": contenders}  # fmt: skip
        folder = root / "reports" / ("release" if full else "quick")
        folder.mkdir(exist_ok=True)
        (folder / f"{file}.json").write_text(json.dumps({"title": "A title", "rows": {key: row}}))
        (table,) = TABLES
        rows = [replace(each, title=title) for each in table.rows]
        publish.publish([replace(table, rows=rows)])
        return capsys.readouterr().out

    return take


def test_published_page_names_command_machine_and_date(root: Path, take_in: TakeIn) -> None:
    take_in()
    page = (root / "docs" / "benchmarks" / "bodies.md").read_text()
    assert "\nCommand: `python -m loadtests bodies --profile release`\n" in page
    assert "\nMeasured on 2026-11-22 in 7 rounds of 1 s. Machine: 2 cores, P, " in page
    assert "2 cores, P, Linux 6.1, TCP cubic, CPython 3.13.0." in page
    assert "| a row | gthread | 10.1 |  | 1 | 2 | 3 | 98,780 |" in page
    assert (
        "| [bodies.file] | WSGIFast on gthread | 400 | 39.5x (30..45) | - | - |  | 2,500 |" in page
    )
    first = (root / "docs" / "benchmarks.md").read_text()
    assert "\n\n| package | version |\n|---|---|\n| gunicorn | 27.0.1 |\n" in first
    assert "[What an app returns](benchmarks/bodies.md)" in first
    assert "fastworker" not in first  # none of its rows is published


def test_page_begins_with_its_comparison_and_machine(root: Path, take_in: TakeIn) -> None:
    take_in()
    page = (root / "docs" / "benchmarks" / "bodies.md").read_text()
    places = [
        page.index(text)
        for text in (
            PAGES["bodies"].compared,
            "shared one machine with 2 cores (P)",
            "gthread sends an open file 40 times as fast.",
            "| gthread | gunicorn's worker with threads |",
            "## What an app returns",
        )
    ]
    assert places == sorted(places)
    assert "list of 100-byte chunks" not in page  # its figure is not published
    assert "bjoern" not in page  # no row contains this name


def test_published_row_gets_the_title_of_its_table(root: Path, take_in: TakeIn) -> None:
    take_in("bodies.file", title="an old title")
    take_in("bodies.small", title="a new title")
    (table,) = read(publish.DATA).values()
    assert [row["title"] for row in table.rows.values()] == ["a new title"] * 2


def test_rows_of_a_day_and_machine_are_one_table(root: Path, take_in: TakeIn) -> None:
    take_in("bodies.small", hour=9)
    take_in("bodies.file", hour=10)
    page = (root / "docs" / "benchmarks" / "bodies.md").read_text()
    assert page.count("Measured on 2026-11-22") == 1
    assert page.index("[bodies.file]") < page.index("[bodies.small]")


def test_other_versions_are_listed_by_their_difference(root: Path, take_in: TakeIn) -> None:
    take_in("bodies.file", day=20)
    take_in("bodies.small", day=22, machine={**MACHINE, "gunicorn": "28.0", "system": "Linux 6.2"})
    versions = (root / "docs" / "benchmarks.md").read_text().partition("in the list below.\n\n")[2]
    assert versions.startswith(
        "| package | version |\n|---|---|\n| gunicorn | 27.0.1 |\n\n"
        "- What an app returns on 2026-11-22: gunicorn 28.0.\n"
    )


def texts(svg: str) -> list[str]:
    return [*xml.etree.ElementTree.fromstring(svg).itertext()]


def test_section_begins_with_its_chart(root: Path, take_in: TakeIn) -> None:
    take_in()
    page = (root / "docs" / "benchmarks" / "bodies.md").read_text()
    picture = page.partition("<picture>\n")[2].partition("\n</picture>")[0]
    assert "\n\n" not in picture  # Markdown's HTML ends at a blank line
    files = re.findall(r'(?:src|srcset)="(.+?)"', picture)
    assert files == [f"../assets/charts/bodies-{theme}.svg" for theme in ("dark", "light")]
    for file in files:
        svg = (root / "docs" / "benchmarks" / file).read_text()
        assert {"a row: WSGIFast on gthread", "39.5x (30..45)"} <= {*texts(svg)}
    assert page.index("</picture>") < page.index("| [bodies.file]")


def test_table_without_ratios_has_no_chart(root: Path, take_in: TakeIn) -> None:
    take_in()
    # From a table that no longer exists
    (root / "docs" / "assets" / "charts" / "old-light.svg").touch()
    data = root / "docs" / "benchmarks" / "bodies.json"
    table = json.loads(data.read_text())
    for contender in table["rows"]["bodies.file"]["contenders"].values():
        contender["ratio"] = None
    data.write_text(json.dumps(table))
    (root / "reports" / "release" / "bodies.json").unlink()
    publish.publish(TABLES)
    page = (root / "docs" / "benchmarks" / "bodies.md").read_text()
    assert "[bodies.file]" in page
    assert "<picture>" not in page
    assert {path.name for path in (root / "docs" / "assets" / "charts").iterdir()} == {
        "gains-light.svg", "gains-dark.svg"
    }  # fmt: skip


def test_chart_names_a_row_before_its_first_bar() -> None:
    contenders = {
        name: figures(1.0, ratio) for name, ratio in (("a", None), ("b", 20.0), ("c", 30.0))
    }
    rows = {"k": {"title": "a row", "ours": None, "contenders": contenders}}
    drawn = chart_of_table("a table", rows, "light")
    assert re.findall(r">([^<>]*/ a)<", drawn) == ["a row: b / a", "c / a"]


def test_details_have_columns_short_rows_their_rounds(root: Path, take_in: TakeIn) -> None:
    take_in(base=figures(None, None, pairs=2, facts={"slow ones": 9900.0, "KiB each": None}))
    page = (root / "docs" / "benchmarks" / "bodies.md").read_text()
    # The KiB are known for no contender
    assert "| p50 ms | p99 ms | CPU us/req | slow ones |" in page
    assert "| a row (2 rounds) | gthread | - | fails | 1 | 2 | - | 9,900 |" in page


@pytest.mark.parametrize("full", [True, False])
def test_title_says_what_is_less_in_a_short_run(root: Path, take_in: TakeIn, full: bool) -> None:
    take_in(full=full, title="1 GiB (in a short run 128 MiB)")
    page = (root / "docs" / "benchmarks" / "bodies.md").read_text()
    assert ("in a short run 128 MiB" in page) is not full


def test_published_row_has_no_single_runs(root: Path, take_in: TakeIn) -> None:
    take_in(base=figures(10.123456, None, facts={"KiB each": float("nan")}))
    stored = json.loads((root / "docs" / "benchmarks" / "bodies.json").read_text())
    gthread = stored["rows"]["bodies.file"]["contenders"]["gthread"]
    assert gthread["requests/s"] == 10.12
    assert gthread["facts"] == {"KiB each": None}
    assert "runs" not in gthread


def test_report_of_one_row_keeps_the_others(root: Path, take_in: TakeIn) -> None:
    """In the table of the row, for any name of the report, and in the table's order."""
    take_in("bodies.small", day=20)
    printed = take_in("bodies.file", day=22, file="all")
    assert "release/all.json: took 1 rows\nrelease/bodies.json: took 0 rows\n" in printed
    assert "did not replace" not in printed
    (table,) = read(publish.DATA).values()
    assert [(key, row["measured"][8:10]) for key, row in table.rows.items()] == [
        ("bodies.file", "22"), ("bodies.small", "20"),
    ]  # fmt: skip
    page = (root / "docs" / "benchmarks" / "bodies.md").read_text()
    first, second = page.index("Measured on 2026-11-22"), page.index("Measured on 2026-11-20")
    assert first < page.index("[bodies.file]") < second < page.index("[bodies.small]")


def test_later_or_fuller_run_replaces_a_row(root: Path, take_in: TakeIn) -> None:
    def published() -> float:
        ratio = Figures(read(publish.DATA)).ratio("bodies.file", "WSGIFast on gthread")
        assert ratio is not None
        return ratio.median

    take_in(ratio=20.0, day=10, full=False)
    take_in(ratio=30.0, day=12)
    assert published() == 30
    assert "did not replace bodies.file" in take_in(ratio=40.0, day=14, full=False)
    assert published() == 30
    assert "did not replace bodies.file" in take_in(ratio=50.0, day=11)
    assert published() == 30
    take_in(ratio=60.0, day=15)
    assert published() == 60
    (table,) = read(publish.DATA).values()
    assert list(table.runs) == ["2026-11-15T10:00:00Z"]


def test_rows_of_short_runs_or_machines_are_listed(root: Path, take_in: TakeIn) -> None:
    def printed(**other: str | int) -> list[str]:
        return [*publish.differing({**MACHINE, **other})]

    take_in("bodies.small", day=20)
    take_in("bodies.file", day=21, full=False)
    assert printed() == ["From a short run: bodies.file"]
    assert printed(python="CPython 3.14.0", cores=4, granian="2.8.7", system="Linux 6.1-y") == [
        "From a short run; cores 2, here 4; python CPython 3.13.0, here CPython 3.14.0: "
        "bodies.file",
        "From cores 2, here 4; python CPython 3.13.0, here CPython 3.14.0: bodies.small",
    ]
    take_in("bodies.file", day=22)
    assert printed() == []
    assert printed(wsgifast="0.2.0", gunicorn="28.0") == ["From gunicorn 27.0.1, here 28.0: bodies"]
    assert printed(system="Linux 6.2") == ["From system Linux 6.1, here Linux 6.2: bodies"]


def test_deployed_report_is_shown_before_the_others(root: Path, take_in: TakeIn) -> None:
    take_in(day=20, ratio=20.0)
    (root / "reports" / "release" / "deployed").mkdir()
    printed = take_in(day=21, ratio=30.0, file="deployed/bodies")
    assert "release/deployed/bodies.json: took 1 rows" in printed
    page = (root / "docs" / "benchmarks" / "bodies.md").read_text()
    deployed = "`python -m loadtests bodies --deployed --profile release`"
    shown = [NOTE, deployed, "[deployed.bodies.file]", "`python -m loadtests bodies --profile"]
    places = [page.index(text) for text in (*shown, "[bodies.file]")]
    assert places == sorted(places)
    published = Figures(read(publish.DATA))
    assert published.text("deployed.bodies.file", "WSGIFast on gthread") == "30"
    assert published.text("bodies.file", "WSGIFast on gthread") == "20"


def test_row_of_no_table_is_left_out(root: Path, take_in: TakeIn) -> None:
    assert "left out rows of no table: bodies.old" in take_in("bodies.old")
    assert not read(publish.DATA)


def test_readme_gets_its_table(root: Path, take_in: TakeIn) -> None:
    printed = take_in()
    readme = (root / "README.md").read_text()
    assert readme.startswith("before\n\n<!-- what")
    assert readme.endswith("-->\n\nafter\n")
    assert "| After a deployment, a returning browser" in readme
    assert "CSV export" not in readme  # its figure is not published
    assert "README or its chart needs: python -m loadtests" in printed
    assert " bodies.list-of-100 " in printed
    assert "The pages need: python -m loadtests bodies.small --profile release" in printed
    assert publish.readme() == readme


def test_readme_without_a_place_for_table_is_an_error(root: Path, take_in: TakeIn) -> None:
    publish.README.write_text("before and after")
    with pytest.raises(ValueError, match=r"README.md has 0 places for the table"):
        take_in()


def test_gain_is_shown_only_if_its_figures_hold() -> None:
    def shown(base: dict[str, Any]) -> str:
        key = "slow.worker.downloads-10000"
        ours = figures(5.0, None, facts={"slow ones": 9900.0}, ms={"50": 0.512, "99": 5.0})
        rows = {key: {"contenders": {"FastWorker": ours, "gthread": base}}}
        return gains(Figures({"slow": Published("t", {}, rows)}), benchmarks="page.md")

    text = (
        "While 9,900 clients download slowly, other clients get a response in **0.51 ms**. On "
        "gthread the other clients get no response."
    )
    assert text in shown(figures(None, None))
    assert "download slowly" not in shown(figures(3.0, None))


def test_chart_of_gains_shows_published_rows(root: Path, take_in: TakeIn) -> None:
    take_in()
    first = (root / "docs" / "benchmarks.md").read_text()
    for theme in THEMES:
        file = f"assets/charts/gains-{theme}.svg"
        assert f'"{file}"' in first
        shown = "".join(texts((root / "docs" / file).read_text()))
        assert "an open file" in shown
        assert "40x" in shown
        assert "a small response in good shape" not in shown  # its figure is not published


def _published() -> list[Table]:
    from loadtests.__main__ import SEPARATE, tables

    return [*tables(), *SEPARATE]


@cache
def _contenders() -> dict[str, set[str]]:
    tables = with_deployed(_published()).values()
    return {row.key: {c.name for c in row.contenders} for t in tables for row in t.rows}


def test_result_of_a_page_is_published() -> None:
    figures = Figures(read(Path(__file__).parents[2] / "docs" / "benchmarks"))
    results = [text for page in PAGES.values() for text in page.results]
    assert len(results) > 15
    assert not [text for text in results if not filled(text, figures)]


def test_shown_figure_is_measured_by_a_load_test() -> None:
    assert all(bar.contender in _contenders()[bar.key] for bar in BARS)
    assert all(contender in _contenders()[key] for key, contender, _ in figures_shown())


def test_shown_ratio_is_in_its_row() -> None:
    """The contender with whom all others are compared has no figure."""
    tables = with_deployed(_published()).values()
    base = {r.key: r.ours or r.contenders[0].name for table in tables for r in table.rows}
    shown = [(bar.key, bar.contender) for bar in BARS] + [
        (key, contender) for key, contender, what in figures_shown() if not what
    ]
    assert [pair for pair in shown if base[pair[0]] == pair[1]] == []


def test_published_row_is_measured_by_a_load_test() -> None:
    """Otherwise remove it from docs/benchmarks/*.json."""
    found = {key for table in read(publish.DATA).values() for key in table.rows}
    assert found <= {*_contenders()}


def test_chart_without_figures_is_a_picture() -> None:
    xml.etree.ElementTree.fromstring(chart_of_gains({}, "dark"))
