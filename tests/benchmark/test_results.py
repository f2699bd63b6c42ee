"""What is made of runs: ratios, verdicts, budgets, the text, the JSON and the page."""

from __future__ import annotations

import json
import platform
import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsgifast import ConfigurationError, WSGIFastError
from wsgifast.commands.bench import report
from wsgifast.commands.bench.comparison import budget, over_budget
from wsgifast.commands.bench.report import (
    as_html,
    as_json,
    now,
    problems,
    results_text,
    rows_figures,
    verdict,
)  # fmt: skip
from wsgifast.commands.bench.results import Difference, Ratio, Result, interval
from wsgifast.commands.bench.runner import alternate, measure, run
from wsgifast.commands.bench.tables import (
    REQUESTS,
    Client,
    Contender,
    Load,
    Profile,
    Row,
    Seen,
    Table,
    Task,
    Unit,
)
from wsgifast.commands.page import ratio_chart
from wsgifast.commands.terminal import table


def client(*rates: float, failures: int = 0, facts: dict[str, float] | None = None) -> Client:
    """Gives these figures, one at each call: requests in one second, of 1,000 bytes each."""
    left = list(rates)

    def run(task: Task) -> Load:
        requests = int(left.pop(0))
        times = {50: 1.0, 95: 2.0, 99: 3.0} if requests else {}
        errors = {"status 500": failures} if failures else {}
        return Load(requests, failures, requests * 1000, 1.0, times, errors, 0.9, facts or {})

    return run


def results(*contenders: Contender, rounds: int = 3, ours: str | None = None) -> Result:
    row = Row("a.key", "a <title>", contenders, client(), ours=ours)
    return run(Table("test", "A test", [row]), Profile(1.0, rounds))[0]


def test_ratio_is_taken_round_by_round() -> None:
    ratio = Ratio.of([2.0, 40.0, 9.0], [1.0, 10.0, 3.0])
    assert ratio == Ratio(median=3.0, low=2.0, high=4.0)
    assert str(ratio) == "3x (2..4)"


@pytest.mark.parametrize(("contender", "base"), [([], []), ([1.0], [1.0, 2.0])])
def test_ratio_needs_pairs(contender: list[float], base: list[float]) -> None:
    with pytest.raises(ValueError):
        Ratio.of(contender, base)


def test_difference_is_taken_round_by_round() -> None:
    difference = Difference.of([12.0, 21.0, 33.0, 44.0, 50.0], [10.0, 20.0, 30.0, 40.0, 50.0])
    assert (difference.low, difference.median, difference.high) == (1.0, 2.0, 3.0)
    assert difference.error == pytest.approx(2 * 0.929 / 5**0.5, rel=1e-3)
    assert str(difference) == "+2 ±0.831 (1..3)"
    assert str(Difference.of([1.0], [2.0])) == "-1 ±0 (-1..-1)"
    with pytest.raises(ValueError):
        Difference.of([], [])


def test_preparation_is_no_part_of_a_run() -> None:
    order: list[str] = []

    def counts(task: Task) -> Load:
        order.append("run")
        return Load(len(order), 0, 0, 1.0)

    unit = Unit("requests", lambda m: m.requests, difference=True)
    contenders = (Contender("a"), Contender("b", ready=lambda task: order.append("ready")))
    row = Row("a.key", "a title", contenders, counts, unit)
    result = run(Table("test", "A test", [row]), Profile(1.0, 2))[0]
    assert order == ["run", "ready", "run"] * 2
    assert result.difference("a") is None
    assert result.difference("b") == Difference(2.0, 2.0, 2.0, 0.0)
    assert "+2 ±0 (2..2)" in results_text([result])


POSITIVE = st.floats(0.01, 100.0)


def loads(rates: Sequence[float]) -> list[Load]:
    """Runs of these rates, in thousands of requests a second."""
    return [Load(max(1, round(rate * 1e6)), 0, 0, 1e3) for rate in rates]


def noisy(first: Sequence[float], second: Sequence[float], again: Sequence[float]) -> Result:
    contenders = (Contender("a"), Contender("b"))
    row = Row("a.key", "a title", contenders, client())
    return Result(row, {"a": loads(first), "b": loads(second)}, again=loads(again))


def test_ratio_on_a_busy_machine_is_no_verdict() -> None:
    quiet = noisy([10, 10.1, 10, 9.9, 10], [13.7, 13.6, 13.9, 13.7, 13.5], [10.1, 10, 10, 9.9, 10])
    assert str(quiet.ratio("b", REQUESTS.rate)).startswith("1.37x (")
    assert not problems([quiet])
    busy = noisy([10, 4, 11, 12, 9], [5.8, 6, 6.4, 7, 5.2], [6, 12, 5, 9, 10])
    assert str(busy.ratio("b", REQUESTS.rate)) == "unclear (0.193..4.5)"
    assert "unclear (0.193..4.5)" in results_text([busy])
    (said,) = problems([busy])
    assert said == (
        "the machine is busy: up to 3 times lay between two figures of the same server, so 1 of 1 "
        "ratios are unclear: run it again on a quiet machine, or with more or longer rounds"
    )


@given(st.lists(st.tuples(POSITIVE, POSITIVE), min_size=1, max_size=12))
def test_server_is_never_clearly_better_than_itself(pairs: list[tuple[float, float]]) -> None:
    first, again = zip(*pairs, strict=True)
    ratio = noisy(first, again, again).ratio("b", REQUESTS.rate)
    assert ratio is not None
    assert not ratio.is_clear


@given(st.lists(POSITIVE, min_size=1, max_size=30))
def test_interval_has_the_median_and_leaves_out_equally_many(values: list[float]) -> None:
    low, high = interval(values)
    assert low <= median(values) <= high
    below, above = sum(v < low for v in values), sum(v > high for v in values)
    assert max(below, above) <= (len(values) - 1) // 2
    if len(values) < 8:
        assert (low, high) == (min(values), max(values))


def test_interval_of_more_rounds_is_narrower() -> None:
    assert interval(range(100)) == (41, 58)  # 1.645 standard deviations are 8.2 places


def test_base_of_a_row_runs_again_at_the_end_of_each_round() -> None:
    for ours, order in ((None, "abcabc"[:3] + "a"), ("b", "abcb")):
        seen: list[str] = []

        def counts(name: str, seen: list[str] = seen) -> Client:
            def run(task: Task) -> Load:
                seen.append(name)
                return Load(len(seen), 0, 0, 1.0)

            return run

        row = Row(
            "a.key", "a title", tuple(Contender(n, client=counts(n)) for n in "abc"),
            client(), ours=ours,
        )  # fmt: skip
        (result,) = run(Table("test", "A test", [row]), Profile(1.0, 2, noise=True))
        assert "".join(seen) == order * 2
        assert [load.requests for load in result.again] == [4, 8]
        assert set(result.runs) == set("abc")


def test_budget_inside_the_noise_is_not_decided() -> None:
    busy = noisy([10, 10, 10, 10, 10], [9, 9, 9, 9, 9], [8, 12, 10, 10, 10])
    ((line, sure),) = over_budget(budget("ratio>=1"), [busy])
    assert line == ("not decided: a title, b: ratio is 0.72..1.12, and is to be 1 at the least")
    assert not sure
    ((line, sure),) = over_budget(budget("ratio>=2"), [busy])
    assert line.startswith("over budget: a title, b: ratio is 0.9, not 2")
    assert sure


def test_contenders_take_turns() -> None:
    order: list[str] = []
    found = alternate({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=3)
    assert order == ["a", "b"] * 3
    assert {name: len(values) for name, values in found.items()} == {"a": 3, "b": 3}


def test_first_round_is_done_whatever_the_time() -> None:
    assert len(alternate({"a": lambda: 1}, rounds=9, seconds=-1.0)["a"]) == 1


def test_table_aligns_figures() -> None:
    assert table(["a", "b"], [["x", 1234], ["yy", None]]).splitlines() == [
        "a       b",
        "--  -----",
        "x   1,234",
        "yy      -",
    ]


def test_chart_is_well_formed() -> None:
    rows = [("<a & b>", (30.0, 20.0, 40.0), "30x", True), ("fails", None, "rescued", False)]
    for some in (rows, []):
        assert ET.fromstring(ratio_chart(some)).tag.endswith("svg")


@pytest.mark.parametrize(("less", "kinds"), [(False, ["good", "worse"]), (True, ["worse", "good"])])
def test_chart_shows_which_is_better(less: bool, kinds: list[str]) -> None:
    """Which of seconds is less."""
    sides = {"a": 10, "more": 20, "fewer": 5}
    contenders = tuple(Contender(name, client=client(rate)) for name, rate in sides.items())
    row = Row("key", "title", contenders, client(), replace(REQUESTS, less=less))
    table = Table("test", "A test", [row])
    text = as_html("A page", [(table, run(table, Profile(1.0, 1)))])
    assert re.findall(r'<rect class="(\w+)"', text) == kinds


def test_ratios_are_taken_to_the_first_or_of_ours_to_each() -> None:
    rates = {"a": (10, 10, 10), "b": (20, 40, 10), "c": (5, 5, 10)}

    def contenders() -> list[Contender]:
        return [Contender(name, client=client(*each)) for name, each in rates.items()]

    result = results(*contenders())
    ratios = {name: result.ratio(name, REQUESTS.rate) for name in rates}
    assert [ratio and ratio.median for ratio in ratios.values()] == [None, 2.0, 0.5]
    result = results(*contenders(), ours="b")
    ratios = {name: result.ratio(name, REQUESTS.rate) for name in rates}
    assert [ratio and ratio.median for ratio in ratios.values()] == [2.0, None, 4.0]
    assert "client was the limit" in results_text([result])
    assert "fewer than 5 rounds are too few to rely on: a <title>" in results_text([result])
    assert "[a.key]" in results_text([result])
    (row,) = json.loads(as_json("a title", rows_figures([result], Profile(1.0), now())))[
        "rows"
    ].values()
    assert row["contenders"]["a"]["ratio"]["median"] == 2.0
    assert row["machine"]["cores"]
    assert row["machine"]["tcp"]
    assert row["profile"]["seconds"] == 1.0


def test_contender_that_never_answers_has_no_figure() -> None:
    result = results(
        Contender("fails", client=client(0, 0, 0, failures=2)),
        Contender("b", client=client(1, 1, 1)),
    )
    assert result.median("fails", REQUESTS.rate) is None
    contenders = result.figures()["contenders"]
    assert [verdict(name, contenders) for name in ("fails", "b")] == ["fails", "rescued"]
    assert result.failures("fails") == 6
    assert problems([result])[0] == "a <title>, fails: 6 x status 500"
    assert list(over_budget(budget("ratio>=5"), [result])) == []


def test_column_is_shown_only_with_something_in_it() -> None:
    good = results(Contender("a", client=client(9, 9, 9)), Contender("b", client=client(9, 9, 9)))
    bad = results(
        Contender("a", client=client(9, 9, 9)), Contender("b", client=client(9, 9, 9, failures=1))
    )
    assert "failed" not in results_text([good]).splitlines()[0]
    assert "failed" in results_text([bad]).splitlines()[0]


def test_bytes_of_bodies_are_shown_coded_and_decoded_and_as_time_on_a_link() -> None:
    plain = results(Contender("a", client=client(9, 9, 9)), Contender("b", client=client(9, 9, 9)))
    seen = {"a": Seen(800_000, "x", True, decoded_bytes=800_000)}
    same = replace(plain, seen={**seen, "b": seen["a"]})
    coded = replace(plain, seen={**seen, "b": Seen(45_000, "x", True, True, "zstd", 800_000)})
    unknown = replace(plain, seen={**seen, "b": Seen(45_000, "x", True, True, "aes", None)})
    assert "body bytes" not in results_text([plain])
    assert "body bytes" not in results_text([same])
    assert "800,000" in results_text([replace(same, row=replace(same.row, sizes=True))])
    assert "45,000 (zstd of 800,000)" in results_text([coded])
    assert "45,000 (aes of unknown)" in results_text([unknown])
    linked = replace(coded, row=replace(coded.row, link_mbit=20.0))
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
    assert "ratio" in results_text([result], 10)  # too narrow for any table, and no error
    assert results_text([result]) == results_text([result], 200)  # into a file or pipe


def test_ratio_that_the_medians_contradict_is_a_problem() -> None:
    rates = {"a": (458, 100, 500), "b": (422, 110, 540), "c": (916, 200, 1000)}
    clients = {name: client(*each) for name, each in rates.items()}
    result = results(*(Contender(name, client=each) for name, each in clients.items()))
    ratio = result.ratio("b", REQUESTS.rate)
    assert ratio is not None
    assert str(ratio) == "1.08x (0.921..1.1)"
    (said,) = (line for line in problems([result]) if "the opposite of the medians" in line)
    assert said.endswith("better: a <title>, b")
    clients = {name: client(*each) for name, each in rates.items()}
    result = results(*(Contender(name, client=each) for name, each in clients.items()), ours="b")
    assert [name for name in rates if result.contradicts(name)] == ["a"]
    clients = {name: client(*each) for name, each in rates.items()}
    result = results(*(Contender(name, client=clients[name]) for name in "ac"))
    assert "the opposite" not in results_text([result])


def test_columns_have_different_names() -> None:
    def run(task: Task) -> Load:
        return Load(10, 0, 1000, 1.0, server_cpu_s=0.5)

    result = results(Contender("a", client=run), Contender("b", client=run))
    columns = re.split(r"\s{2,}", results_text([result]).splitlines()[0].strip())
    assert columns == ["requests/s", "ratio", "CPU us/req", "CPU ratio"]


def test_problem_of_many_rows_stays_one_short_line() -> None:
    rates = {"a": (10, 10, 10), "b": (20, 40, 10), "c": (11, 12, 13)}
    several = [
        results(*(Contender(name, client=client(*each)) for name, each in rates.items()))
        for _ in range(4)
    ]
    lines = problems(several)
    assert max(map(len, lines)) < 110
    assert any("rounds disagree in 4 of 8 ratios" in line for line in lines)
    assert any(line.endswith("a <title>, c and 9 more") for line in lines)


@pytest.mark.parametrize(("control", "size", "shown"), [
    ("bbr", 100_000, True), ("bbr", 1000, False), ("cubic", 100_000, False), (None, 100_000, False),
])  # fmt: skip
def test_pacing_is_a_problem_of_large_bodies(
    control: str | None, size: int, shown: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = tmp_path / "tcp_congestion_control"
    if control is not None:
        setting.write_text(f"{control}\n")
    monkeypatch.setattr(report, "_CONGESTION_CONTROL", setting)
    found = results(Contender("a", client=lambda task: Load(2, 0, 2 * size, 1.0)))
    assert ("BBR paces large bodies here" in results_text([found])) is shown
    assert report.machine().get("tcp") == control


@pytest.mark.parametrize(("enabled", "suffix"), [(True, ", JIT"), (False, "")])
def test_machine_facts_name_a_jit_that_is_on(
    monkeypatch: pytest.MonkeyPatch, enabled: bool, suffix: str
) -> None:
    jit = SimpleNamespace(is_enabled=lambda: enabled)
    monkeypatch.setattr(sys, "_jit", jit, raising=False)
    assert report.machine()["python"] == f"CPython {platform.python_version()}{suffix}"


def test_bodies_that_differ_are_a_problem() -> None:
    result = results(Contender("a", client=client(1)), Contender("b", client=client(1)), rounds=1)
    same = {name: Seen(3, "x", True) for name in "ab"}
    assert replace(result, seen=same).is_good
    other = replace(result, seen={**same, "b": Seen(4, "y", True)})
    assert other.differs
    assert not other.is_good
    assert "a <title>: the bodies differ (a 3 bytes, b 4 bytes)" in problems([other])
    changing = replace(other, changes=True)
    assert changing.is_good
    assert "the body changes with each request" in problems([changing])[0]
    assert not replace(result, seen={**same, "b": Seen(4, "y", False)}).differs


def test_lost_coding_is_another_body() -> None:
    """Also where the body changes by itself: gzip's has a time in it."""
    result = results(Contender("a", client=client(1)), Contender("b", client=client(1)), rounds=1)
    plain, packed = Seen(9, "x", True), Seen(3, "y", True, coding="gzip")
    for changes in (False, True):
        lost = replace(result, seen={"a": packed, "b": plain}, changes=changes)
        assert not lost.is_good
        assert problems([lost])[0] == (
            "a <title>: the bodies differ (a sends gzip, b sends no coding; why: wsgifast doctor "
            "--explain WF024)"
        )
    gained = replace(result, seen={"a": plain, "b": replace(packed, digest="x")})
    assert gained.is_good  # the same bytes, once they are decoded
    assert problems([gained])[0] == ("a <title>: other codings (a sends no coding, b sends gzip)")
    other = replace(result, seen={"a": plain, "b": packed})
    assert not other.is_good
    assert problems([other])[0] == "a <title>: the bodies differ (a 9 bytes, b 3 bytes)"
    assert replace(result, seen={"a": packed, "b": packed}).is_good


@pytest.mark.parametrize(
    ("failures", "is_good"),
    [
        ((0, 0, 0), True),
        ((2, 0, 0), True),  # rescued
        ((2, 2, 0), True),  # beside slow clients, which middleware alone does not help against
        ((0, 2, 0), False),
        ((0, 0, 2), False),
        ((2, 2, 2), False),
        ((0,), True),  # nobody beside it
        ((2,), False),
    ],
)
def test_result_is_good_without_failures_and_with_equal_bodies(
    failures: tuple[int, ...], is_good: bool
) -> None:
    clients = [client(0 if each else 1, failures=each) for each in failures]
    contenders = (Contender(name, client=c) for name, c in zip("abc", clients, strict=False))
    assert results(*contenders, rounds=1).is_good is is_good


@pytest.mark.parametrize(
    ("text", "missed"),
    [
        ("", []),
        ("ratio>=2, p99<=3ms, requests=20000, cpu-ratio<=1", ["cpu-ratio is not known, not 1 at"]),
        ("ratio=2.1", ["a <title>, b: ratio is 2, not 2.1 at the least"]),
        ("p99=0.0029s,p50=900us", ["p99 is 3 ms, not 2.9 ms at the most", "p50 is 1 ms, not 0.9"]),
        ("requests>=2000000", ["requests is 20,000/s, not 2,000,000/s at the least"]),
    ],
)
def test_budget_names_what_is_missed(text: str, missed: list[str]) -> None:
    slow, fast = client(10_000), client(20_000)
    result = results(Contender("a", client=slow), Contender("b", client=fast), rounds=1)
    found = list(over_budget(budget(text), [result]))
    assert len(found) == len(missed)
    for (line, sure), part in zip(found, missed, strict=True):
        assert line.startswith("over budget: ")
        assert part in line
        assert sure


@pytest.mark.parametrize(
    "text",
    ["p99", "p98=1ms", "p99>=1ms", "ratio<=1", "ratio=1ms", "p99=-1", "p99=1e3", "p99=\uff11s"],
)
def test_budget_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--budget"):
        budget(text)


class _Page(HTMLParser):
    """Collects what a page would load, and checks that its tags close in order."""

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
    of = Table("test", 'A "<test>"', [result.row], then=then, notes=["much & more"])
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


def test_figures_are_shown_where_they_cannot_be_written(
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
    def fails(task: Task) -> Load:
        raise RuntimeError("no such tool")

    good, bad = (client(1.0, 2.0), client(1.0, 2.0)), (client(1.0, 2.0), fails)
    rows = [
        Row(key, key, tuple(Contender(n, client=c) for n, c in zip("ab", sides, strict=True)),
            sides[0])
        for key, sides in (("good", good), ("bad", bad), ("later", good))
    ]  # fmt: skip
    kept, status = measure([Table("one", "One", rows)], Profile(1.0, 1), folder=tmp_path)
    assert ([result.row.key for result in kept], status) == (["good", "later"], 3)
    assert "error: One, bad: no such tool" in capsys.readouterr().err
    assert [*json.loads((tmp_path / "one.json").read_text())["rows"]] == ["good", "later"]


@pytest.fixture
def stopped() -> Client:
    def stops(task: Task) -> Load:
        raise KeyboardInterrupt

    return stops


def test_run_replaces_its_own_rows_alone(tmp_path: Path, stopped: Client) -> None:
    """In a report that is to keep the others, also where the run is stopped."""

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
