"""Results of runs: ratios, verdicts, budgets, and problems."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.harness.report import results_text, rows_figures
from loadtests.harness.results import Difference, Result
from loadtests.harness.runner import run
from loadtests.harness.tables import REQUESTS, Client, Contender, Profile, Row, Table, Task, Unit
from tests.benchmark.runs import client, compared, results
from wsgifast import ConfigurationError
from wsgifast.commands.bench.budget import budget, over_budget
from wsgifast.commands.bench.loads import FirstResponse, Load
from wsgifast.commands.bench.report import as_json, now, problems, verdict
from wsgifast.commands.bench.results import Ratio, interval


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


def test_ratios_are_to_the_first_or_of_ours() -> None:
    rates = {"a": (10, 10, 10), "b": (20, 40, 10), "c": (5, 5, 10)}
    for ours, expected in ((None, [None, 2.0, 0.5]), ("b", [2.0, None, 4.0])):
        result = compared(rates, ours=ours)
        ratios = [result.ratio(name, REQUESTS.rate) for name in rates]
        assert [ratio and ratio.median for ratio in ratios] == expected
    text = results_text([result])
    for shown in ("load generator was the bottleneck", "too few to rely on: a <title>", "[a.key]"):
        assert shown in text
    report = json.loads(as_json("a title", rows_figures([result], Profile(1.0), now())))
    (row,) = report["rows"].values()
    assert row["contenders"]["a"]["ratio"]["median"] == 2.0
    assert row["machine"]["cores"]
    assert row["machine"]["tcp"]
    assert row["profile"]["seconds"] == 1.0


def test_preparation_is_no_part_of_a_run() -> None:
    order: list[str] = []

    def counts(task: Task) -> Load:
        order.append("run")
        return Load(len(order), 0, 0, 1.0)

    unit = Unit("requests", lambda m: m.requests, difference=True)
    contenders = (Contender("a"), Contender("b", ready=lambda task: order.append("ready")))
    row = Row("a.key", "a title", contenders, counts, unit)
    (result,) = run(Table("test", "A test", [row]), Profile(1.0, 2))
    assert order == ["run", "ready", "run"] * 2
    assert result.difference("a") is None
    assert result.difference("b") == Difference(2.0, 2.0, 2.0, 0.0)
    assert "+2 ±0 (2..2)" in results_text([result])


@pytest.mark.parametrize(("ours", "order"), [(None, "abca"), ("b", "abcb")])
def test_base_of_a_row_runs_again_after_each_round(ours: str | None, order: str) -> None:
    seen: list[str] = []

    def counts(name: str) -> Client:
        def run(task: Task) -> Load:
            seen.append(name)
            return Load(len(seen), 0, 0, 1.0)

        return run

    contenders = tuple(Contender(name, client=counts(name)) for name in "abc")
    row = Row("a.key", "a title", contenders, client(), ours=ours)
    (result,) = run(Table("test", "A test", [row]), Profile(1.0, 2, noise=True))
    assert "".join(seen) == order * 2
    assert [load.requests for load in result.again] == [4, 8]
    assert set(result.runs) == set("abc")


def test_contenders_take_turns() -> None:
    order: list[str] = []

    def runs(name: str) -> Client:
        def run(task: Task) -> Load:
            order.append(name)
            return Load(1, 0, 0, 1.0)

        return run

    contenders = tuple(Contender(name, client=runs(name)) for name in "ab")
    (result,) = run(Table("test", "A test", [Row("k", "t", contenders, client())]), Profile(1.0, 3))
    assert order == ["a", "b"] * 3
    assert {name: len(loads) for name, loads in result.runs.items()} == {"a": 3, "b": 3}


def test_first_round_is_done_whatever_the_time() -> None:
    row = Row("a.key", "a title", (Contender("a"),), client(1, 2))
    (result,) = run(Table("test", "A test", [row]), Profile(1.0, 9, row_seconds=-1.0))
    assert len(result.runs["a"]) == 1


POSITIVE = st.floats(0.01, 100.0)


def loads(rates: Sequence[float]) -> list[Load]:
    """Return runs with these rates, in thousands of requests a second."""
    return [Load(max(1, round(rate * 1e6)), 0, 0, 1e3) for rate in rates]


def noisy(first: Sequence[float], second: Sequence[float], again: Sequence[float]) -> Result:
    contenders = (Contender("a"), Contender("b"))
    row = Row("a.key", "a title", contenders, client())
    return Result(row.title, {"a": loads(first), "b": loads(second)}, again=loads(again), row=row)


def test_ratio_on_a_busy_machine_is_no_verdict() -> None:
    quiet = noisy([10, 10.1, 10, 9.9, 10], [13.7, 13.6, 13.9, 13.7, 13.5], [10.1, 10, 10, 9.9, 10])
    assert str(quiet.ratio("b", REQUESTS.rate)).startswith("1.37x (")
    assert not problems([quiet])
    busy = noisy([10, 4, 11, 12, 9], [5.8, 6, 6.4, 7, 5.2], [6, 12, 5, 9, 10])
    assert str(busy.ratio("b", REQUESTS.rate)) == "unclear (0.193..4.5)"
    assert "unclear (0.193..4.5)" in results_text([busy])
    (said,) = problems([busy])
    assert said == (
        "two figures of the same server differ by up to 3 times, so 1 of 1 "
        "ratios are unclear: run it again on a quiet machine, or with more or longer rounds"
    )


@given(st.lists(st.tuples(POSITIVE, POSITIVE), min_size=1, max_size=12))
def test_server_is_never_clearly_better_than_itself(pairs: list[tuple[float, float]]) -> None:
    first, again = zip(*pairs, strict=True)
    ratio = noisy(first, again, again).ratio("b", REQUESTS.rate)
    assert ratio is not None
    assert not ratio.is_clear


@given(st.lists(POSITIVE, min_size=1, max_size=30))
def test_interval_has_the_median_and_is_symmetric(values: list[float]) -> None:
    low, high = interval(values)
    assert low <= median(values) <= high
    below, above = sum(v < low for v in values), sum(v > high for v in values)
    assert max(below, above) <= (len(values) - 1) // 2
    if len(values) < 8:
        assert (low, high) == (min(values), max(values))


def test_interval_of_more_rounds_is_narrower() -> None:
    assert interval(range(100)) == (41, 58)  # 1.645 standard deviations are 8.2 places


def test_budget_inside_the_noise_is_not_decided() -> None:
    busy = noisy([10, 10, 10, 10, 10], [9, 9, 9, 9, 9], [8, 12, 10, 10, 10])
    ((line, sure),) = over_budget(budget("ratio>=1"), [busy])
    assert line == ("not decided: a title, b: ratio is 0.72..1.12, and is to be 1 at the least")
    assert not sure
    ((line, sure),) = over_budget(budget("ratio>=2"), [busy])
    assert line.startswith("over budget: a title, b: ratio is 0.9, not 2")
    assert sure


@pytest.mark.parametrize(
    ("text", "missed"),
    [
        ("", []),
        ("ratio>=2, p99<=3ms, requests=20000, cpu-ratio<=1", ["cpu-ratio is not known, not 1 at"]),
        ("ratio=2.1", ["a <title>, b: ratio is 2, not 2.1 at the least"]),
        ("p99=2.9ms,p50=0.9", ["p99 is 3 ms, not 2.9 ms at the most", "p50 is 1 ms, not 0.9"]),
        ("requests>=2000000", ["requests is 20,000/s, not 2,000,000/s at the least"]),
    ],
)
def test_budget_names_what_is_missed(text: str, missed: list[str]) -> None:
    result = compared({"a": (10_000,), "b": (20_000,)})
    found = list(over_budget(budget(text), [result]))
    assert len(found) == len(missed)
    for (line, sure), part in zip(found, missed, strict=True):
        assert line.startswith("over budget: ")
        assert part in line
        assert sure


@pytest.mark.parametrize(
    "text",
    ["p99", "p98=1ms", "p99>=1ms", "ratio<=1", "ratio=1ms", "p99=-1", "p99=1s", "p99=\uff11ms"],
)
def test_budget_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--budget"):
        budget(text)


def test_contender_that_never_answers_has_no_figure() -> None:
    result = results(
        Contender("fails", client=client(0, 0, 0, failures=2)),
        Contender("b", client=client(1, 1, 1)),
    )
    assert result.median("fails", REQUESTS.rate) is None
    contenders = result.figures()["contenders"]
    assert [verdict(name, contenders) for name in ("fails", "b")] == ["fails", "responds"]
    assert result.failures("fails") == 6
    assert problems([result])[0] == "a <title>, fails: 6 x status 500"
    assert list(over_budget(budget("ratio>=5"), [result])) == []


def test_problem_of_many_rows_stays_one_short_line() -> None:
    rates = {"a": (10, 10, 10), "b": (20, 40, 10), "c": (11, 12, 13)}
    lines = problems([compared(rates) for _ in range(4)])
    assert max(map(len, lines)) < 110
    assert any(line.endswith("a <title>, c and 9 more") for line in lines)


def test_bodies_that_differ_are_a_problem() -> None:
    result = compared({"a": (1,), "b": (1,)})
    same = {name: FirstResponse(3, "x", True) for name in "ab"}
    assert replace(result, first_responses=same).is_good
    other = replace(result, first_responses={**same, "b": FirstResponse(4, "y", True)})
    assert other.differs
    assert not other.is_good
    assert "a <title>: the bodies differ (a 3 bytes, b 4 bytes)" in problems([other])
    changing = replace(other, changes=True)
    assert changing.is_good
    assert "the body changes with each request or start" in problems([changing])[0]
    assert not replace(result, first_responses={**same, "b": FirstResponse(4, "y", False)}).differs


def test_lost_coding_is_another_body() -> None:
    """The body of gzip changes by itself: it contains a time."""
    result = compared({"a": (1,), "b": (1,)})
    plain, packed = FirstResponse(9, "x", True), FirstResponse(3, "y", True, coding="gzip")
    for changes in (False, True):
        lost = replace(result, first_responses={"a": packed, "b": plain}, changes=changes)
        assert not lost.is_good
        assert problems([lost])[0] == (
            "a <title>: the bodies differ (a 3 bytes in gzip, b 9 bytes; why: wsgifast doctor "
            "--explain WF024)"
        )
    gained = replace(result, first_responses={"a": plain, "b": replace(packed, digest="x")})
    assert gained.is_good  # the decoded bytes are equal
    assert not any("bodies" in line for line in problems([gained]))
    assert "3 (gzip of unknown)" in results_text([gained])
    other = replace(result, first_responses={"a": plain, "b": packed})
    assert not other.is_good
    assert problems([other])[0] == "a <title>: the bodies differ (a 9 bytes, b 3 bytes in gzip)"
    assert replace(result, first_responses={"a": packed, "b": packed}).is_good


@pytest.mark.parametrize(
    ("failures", "is_good"),
    [
        ((0, 0, 0), True),
        ((2, 0, 0), True),  # the first fails
        ((2, 2, 0), True),  # middleware alone does not help with it
        ((0, 2, 0), False),
        ((0, 0, 2), False),
        ((2, 2, 2), False),
        ((0,), True),  # no server beside it
        ((2,), False),
    ],
)
def test_result_is_good_without_failures_or_changes(
    failures: tuple[int, ...], is_good: bool
) -> None:
    clients = [client(0 if each else 1, failures=each) for each in failures]
    contenders = (Contender(name, client=c) for name, c in zip("abc", clients, strict=False))
    assert results(*contenders, rounds=1).is_good is is_good
