"""Results as text, JSON and a page, and the files in which they are stored."""

from __future__ import annotations

import itertools
import json
import platform
import re
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.harness import machine as details
from loadtests.harness.report import as_html, results_text, rows_figures
from loadtests.harness.runner import measure
from loadtests.harness.tables import REQUESTS, Client, Contender, Profile, Row, Table, Task
from tests.benchmark.runs import client, compared, results
from tests.support.calls import raising
from wsgifast import WSGIFastError
from wsgifast.commands.bench import report
from wsgifast.commands.bench.loads import FirstResponse, Load
from wsgifast.commands.bench.report import as_json, now
from wsgifast.commands.page import Bar, ratio_chart
from wsgifast.commands.terminal import table


def test_table_aligns_figures() -> None:
    assert table(["a", "b"], [["x", 1234], ["yy", None]]).splitlines() == [
        "a       b",
        "--  -----",
        "x   1,234",
        "yy      -",
    ]


def test_chart_is_well_formed() -> None:
    bars = [Bar("<a & b>", (30.0, 20.0, 40.0), "30x", True), Bar("fails", None, "rescued", False)]
    for some in (bars, []):
        assert ET.fromstring(ratio_chart(some)).tag.endswith("svg")


ratios = st.floats(min_value=1e-4, max_value=1e4)


@given(st.lists(st.tuples(ratios, ratios, ratios, st.booleans()), min_size=1, max_size=6))
def test_longer_bar_has_the_higher_ratio(drawn: list[tuple[float, float, float, bool]]) -> None:
    """In each of a chart's two parts, which say whether more is better or worse."""
    bars = [
        Bar(f"bar {i}", (median, min(a, b), max(a, b)), "", True, less)
        for i, (median, a, b, less) in enumerate(drawn)
    ]
    chart = ratio_chart(bars)
    kinds = [less for less in (False, True) if any(bar.less is less for bar in bars)]
    parts = re.split(r'<text class="title"[^>]*>A longer bar is ', chart)[1:]
    assert [part.startswith("worse") for part in parts] == kinds
    for less, part in zip(kinds, parts, strict=True):
        medians = [bar.ratio[0] for bar in bars if bar.ratio and bar.less is less]
        widths = [float(width) for width in re.findall(r'<rect [^>]*width="([\d.]+)%"', part)]
        assert len(widths) == len(medians)
        assert len(set(re.findall(r'<rect [^>]*? x="([\d.]+)%"', part))) == 1
        pairs = sorted(zip(medians, widths, strict=True))
        assert all(a[1] <= b[1] for a, b in itertools.pairwise(pairs))
        places = [float(x) for x in re.findall(r' x[12]?="([\d.]+)%"', part)]
        assert all(0 <= place <= 100 for place in places)
        assert ">1x</text>" in part


@pytest.mark.parametrize(("less", "kinds"), [(False, ["good", "worse"]), (True, ["worse", "good"])])
def test_chart_shows_which_is_better(less: bool, kinds: list[str]) -> None:
    """For seconds, less is better."""
    result = compared({"a": (10,), "more": (20,), "fewer": (5,)})
    row = replace(result.row, unit=replace(REQUESTS, less=less))
    table = Table("test", "A test", [row])
    text = as_html("A page", [(table, [replace(result, row=row)])])
    assert re.findall(r'<rect class="(\w+)"', text) == kinds


def test_column_is_shown_only_with_something_in_it() -> None:
    for failures in (0, 1):
        result = compared({"a": (9, 9, 9), "b": (9, 9, 9)}, failures=failures)
        assert ("failed" in results_text([result]).splitlines()[0]) == bool(failures)


def test_bytes_of_bodies_show_coding_and_link_time() -> None:
    plain = compared({"a": (9, 9, 9), "b": (9, 9, 9)})
    seen = {"a": FirstResponse(800_000, "x", True, decoded_bytes=800_000)}
    same = replace(plain, first_responses={**seen, "b": seen["a"]})
    compressed = replace(
        plain, first_responses={**seen, "b": FirstResponse(45_000, "x", True, "zstd", 800_000)}
    )
    unknown = replace(
        plain, first_responses={**seen, "b": FirstResponse(45_000, "x", True, "aes", None)}
    )
    assert "body bytes" not in results_text([plain])
    assert "body bytes" not in results_text([same])
    assert "800,000" in report.results_text([report.grid({"a.key": same.figures()})], [same])
    assert "45,000 (zstd of 800,000)" in results_text([compressed])
    assert "45,000 (aes of unknown)" in results_text([unknown])
    linked = replace(compressed, link_mbit=20.0)
    figures = json.loads(as_json("a title", rows_figures([linked], Profile(1.0), now())))["rows"]
    contenders = figures["a.key"]["contenders"]
    assert contenders["a"]["body"]["link"] == {"20 Mbit/s": 320.0}
    assert contenders["b"]["body"]["bytes"] == 45_000
    assert contenders["b"]["body"]["decoded bytes"] == 800_000
    lines = results_text([linked]).splitlines()
    assert "ms at 20 Mbit/s" in lines[0]
    assert "  320  " in lines[3]
    assert "   18  " in lines[4]
    assert "ms at 20 Mbit/s" in as_html("A page", [(Table("t", "T", [linked.row]), [linked])])


def test_table_is_split_to_fit_the_terminal() -> None:
    names = ("gthread", "WSGIFast on gthread", "WSGIFast on FastWorker")
    result = results(*(Contender(n, client=client(19, 1899, 199999, failures=9)) for n in names))
    wide, narrow = (results_text([result], width).partition("\n\n- ")[0] for width in (200, 80))
    assert max(map(len, narrow.splitlines())) <= 80 < max(map(len, wide.splitlines()))
    assert "\n\n" not in wide
    first, second = (part.splitlines() for part in narrow.split("\n\n"))
    assert first[0].split() == ["requests/s", "ratio", "p50", "ms", "p99", "ms", "failed"]
    assert second[0].split() == ["CPU", "us/req", "busy"]
    assert first[2] == second[2] == "a <title> [a.key]"
    assert [line.split()[-1] for line in first[3:]] == ["27", "27", "27"]
    for line, one, other in zip(wide.splitlines()[3:], first[3:], second[3:], strict=True):
        name = one.strip().split("  ")[0]
        all_of_it, some, others = (text.partition(name)[2].split() for text in (line, one, other))
        assert all_of_it == some + others
    assert "ratio" in results_text([result], 10)  # too narrow for any table, and not an error
    assert results_text([result]) == results_text([result], 200)  # into a file or a pipe


def test_columns_have_different_names() -> None:
    def run(task: Task) -> Load:
        return Load(10, 0, 1000, 1.0, server_cpu_s=0.5)

    result = results(Contender("a", client=run), Contender("b", client=run))
    columns = re.split(r"\s{2,}", results_text([result]).splitlines()[0].strip())
    assert columns == ["requests/s", "ratio", "CPU us/req", "CPU ratio"]


@pytest.mark.parametrize("control", ["bbr", None])
def test_machine_details_name_the_congestion_control(
    control: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = tmp_path / "tcp_congestion_control"
    if control is not None:
        setting.write_text(f"{control}\n")
    monkeypatch.setattr(details, "_CONGESTION_CONTROL", setting)
    assert details.machine().get("tcp") == control


@pytest.mark.parametrize(("enabled", "suffix"), [(True, ", JIT"), (False, "")])
def test_machine_details_name_a_jit_that_is_on(
    monkeypatch: pytest.MonkeyPatch, enabled: bool, suffix: str
) -> None:
    jit = SimpleNamespace(is_enabled=lambda: enabled)
    monkeypatch.setattr(sys, "_jit", jit, raising=False)
    assert details.machine()["python"] == f"CPython {platform.python_version()}{suffix}"


class _Page(HTMLParser):
    """Collect the resources of a page, and check that its tags close in order."""

    VOID = ("meta", "br", "link", "img")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_page_is_complete_in_itself_and_escaped() -> None:
    result = results(
        Contender("a & b", client=client(1, 2, 3, facts={"<KiB>": 1.5})),
        Contender("c", client=client(3, 4, 5)),
    )
    then = ("then", ["way", "MB/s"], [["<slow>", 1234567]])
    of = Table("test", 'A "<test>"', [result.row], old_table=then, notes=["much & more"])
    parsed = _Page()
    parsed.feed(as_html("The <page>", [(of, [result])]))
    parsed.close()
    assert (parsed.open, parsed.loads) == ([], [])
    shown = ("The <page>", 'A "<test>"', "<slow>", "1,234,567", "much & more", "<KiB>", "cores ")
    for text in (*shown, "a <title>", "[a.key]", "a & b"):
        assert text in parsed.text


def test_table_has_a_file_of_its_own(tmp_path: Path) -> None:
    """Also where it is the only one of a page, so that the next one leaves it alone."""
    contenders = (Contender("a", client=client(1.0)), Contender("b", client=client(2.0)))
    row = Row("a.key", "a row", contenders, client())
    _, status = measure(
        [Table("one", "One", [row])], Profile(1.0, 1), folder=tmp_path, page_name="all"
    )
    assert status == 0
    assert {path.name for path in tmp_path.iterdir()} == {"one.json", "all.html"}


def test_figures_are_shown_if_they_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "one.json").mkdir()
    row = Row("a.key", "a row", (Contender("a", client=client(7.0)),), client())
    with pytest.raises(WSGIFastError, match=r"one\.json"):
        measure([Table("one", "One", [row])], Profile(1.0, 1), folder=tmp_path)
    assert "a row [a.key]" in capsys.readouterr().out


def test_failed_row_leaves_the_others_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = (
        (client(1.0, 2.0), client(1.0, 2.0)),
        (client(1.0, 2.0), raising(RuntimeError, "no such tool")),
    )
    rows = [
        Row(key, key, tuple(Contender(n, client=c) for n, c in zip("ab", sides, strict=True)),
            sides[0])
        for key, sides in (("good", good), ("bad", bad), ("later", good))
    ]  # fmt: skip
    stored, status = measure([Table("one", "One", rows)], Profile(1.0, 1), folder=tmp_path)
    assert ([result.row.key for result in stored], status) == (["good", "later"], 3)
    assert "error: One, bad: no such tool" in capsys.readouterr().err
    assert [*json.loads((tmp_path / "one.json").read_text())["rows"]] == ["good", "later"]


@pytest.fixture
def stopped() -> Client:
    return raising(KeyboardInterrupt)


def test_run_replaces_its_own_rows_alone(tmp_path: Path, stopped: Client) -> None:
    """A report that keeps the other rows also keeps them if the run is stopped."""

    def run(*keys: str, last: Client | None = None, keep: bool = True) -> dict[str, float]:
        clients = [client(rate) for _ in keys]
        if last is not None:
            clients[-1] = last
        rows = [
            Row(key, key, (Contender("a", client=asks),), asks)
            for key, asks in zip(keys, clients, strict=True)
        ]
        table = Table("one", "One", rows)
        measure([table], Profile(rate, 1), folder=tmp_path, keep_rows=keep)
        found = json.loads((tmp_path / "one.json").read_text())["rows"]
        assert all(
            row["profile"]["seconds"] == row["contenders"]["a"]["requests/s"] and row["measured"]
            for row in found.values()
        )
        return {key: row["profile"]["seconds"] for key, row in found.items()}

    rate = 1.0
    assert run("x", "y") == {"x": 1.0, "y": 1.0}
    rate = 2.0
    assert run("y", "z") == {"x": 1.0, "y": 2.0, "z": 2.0}
    rate = 3.0
    assert run("x", "y", last=stopped) == {"x": 3.0, "y": 2.0, "z": 2.0}
    assert run("z", keep=False) == {"z": 3.0}
    (tmp_path / "one.json").write_text("{")
    assert run("z") == {"z": 3.0}
