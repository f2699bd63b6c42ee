"""The runner: what it makes of runs; and real servers under Locust and other clients."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from loadtests import demo, frameworks, slow_attack, worker
from loadtests.__main__ import tables
from loadtests.bench import (
    BYTES,
    REQUESTS,
    Client,
    Contender,
    Load,
    Profile,
    Result,
    Row,
    ServerFailed,
    Serving,
    Table,
    Task,
    locust,
    raw,
    results_text,
    run,
)
from loadtests.bench.compare import is_good, sides
from loadtests.bench.looking import Seen
from loadtests.bench.report import page, problems
from loadtests.calls import TABLES as CALLS
from loadtests.command import chosen

ROOT = Path(__file__).resolve().parents[2]
SHORT = Profile(0.1, 1, 5.0)


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
    row = Row("a.key", "a <title>", contenders, client(), ours=ours, http=False)
    return run(Table("test", "A test", [row]), Profile(1.0, rounds))[0]


def test_ratios_are_taken_to_the_first_or_of_ours_to_each() -> None:
    sides = {"a": (10, 10, 10), "b": (20, 40, 10), "c": (5, 5, 10)}

    def contenders() -> list[Contender]:
        return [Contender(name, client=client(*rates)) for name, rates in sides.items()]

    result = results(*contenders())
    ratios = {name: result.ratio(name, REQUESTS.rate) for name in sides}
    assert [ratio and ratio.median for ratio in ratios.values()] == [None, 2.0, 0.5]
    result = results(*contenders(), ours="b")
    ratios = {name: result.ratio(name, REQUESTS.rate) for name in sides}
    assert [ratio and ratio.median for ratio in ratios.values()] == [2.0, None, 4.0]
    assert "client was the limit" in results_text([result])
    assert "fewer than 5 pairs, not for publication: a <title>" in results_text([result])
    assert "[a.key]" in results_text([result])
    json.dumps(result.figures(), default=vars)


def test_who_never_answers_has_no_figure() -> None:
    result = results(
        Contender("fails", client=client(0, 0, 0, failures=2)),
        Contender("b", client=client(1, 1, 1)),
    )
    assert result.median("fails", REQUESTS.rate) is None
    assert (result.verdict("fails"), result.verdict("b")) == ("fails", "rescued")
    assert result.failures("fails") == 6
    assert problems([result])[0] == "a <title>, fails: 6 x status 500"


def test_bodies_that_differ_are_told() -> None:
    result = results(Contender("a", client=client(1)), Contender("b", client=client(1)), rounds=1)
    same = {name: Seen("HTTP/1.1 200 OK", 3, "x", True) for name in "ab"}
    assert not replace(result, seen=same).differs
    other = {**same, "b": Seen("HTTP/1.1 200 OK", 4, "y", True)}
    assert replace(result, seen=other).differs
    assert not replace(result, seen={**other, "b": replace(other["b"], ok=False)}).differs


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


def test_the_page_is_complete_in_itself_and_escapes_what_it_shows() -> None:
    result = results(
        Contender("a & b", client=client(1, 2, 3, facts={"<KiB>": 1.5})),
        Contender("c", client=client(3, 4, 5)),
    )
    then = ("then", ["way", "MB/s"], [["<slow>", 1234567]])
    of = Table("test", 'A "<test>"', [result.row], then=then, notes=["much & more"])
    parsed = _Page()
    parsed.feed(page("The <page>", [(of, [result])], {"cores": 2}))
    parsed.close()
    assert (parsed.open, parsed.loads) == ([], [])
    shown = ("The <page>", 'A "<test>"', "<slow>", "1,234,567", "much & more", "<KiB>", "cores 2")
    for text in (*shown, "a <title>", "[a.key]", "a & b"):
        assert text in parsed.text


def test_a_comparison_from_servers_to_verdicts() -> None:
    """Under Locust, WSGI and ASGI in one run."""
    rows = [
        sides(path, path, serving, path, locust(), body_bytes=size)
        for path, serving, size in (
            ("/str/2000", Serving(demo.APP), 2000),
            ("/list-of-1/2000", Serving(demo.APP), 2000),
            ("/stream/100000", demo.ASGI, None),
        )
    ]
    rescued, joined, asgi = run(Table("test", "A test", rows), SHORT)
    assert rescued.verdict("wrapped") == "rescued"
    assert "then the end after 0 of 2000 bytes" in next(iter(rescued.errors("raw")))
    for result in (joined, asgi):
        assert result.ratio("wrapped", REQUESTS.rate) is not None
        assert result.figures()
    for result in (rescued, joined, asgi):
        assert is_good(result), problems([result])


@pytest.mark.parametrize("server", ["gunicorn", "waitress"])
def test_an_app_that_cannot_be_imported(server: str) -> None:
    row = sides("k", "t", Serving("no_such_module:app", server), "/", raw())
    with pytest.raises(ServerFailed, match="no_such_module"):
        run(Table("test", "A test", [row]), SHORT)


@pytest.mark.parametrize(
    "arguments",
    [
        ["bench", "m:a", "no-slash"],
        ["bench", "m:a", "/", "--threads", "0"],
        ["bench", "m:a", "/", "--rounds", "0"],
        ["worker", "no-such-key"],
    ],
)
def test_wrong_arguments_are_named(arguments: list[str]) -> None:
    command = [sys.executable, "-m", f"loadtests.{arguments[0]}", *arguments[1:]]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 2
    assert "error:" in ran.stderr


def test_every_row_of_every_table_has_a_key_of_its_own() -> None:
    keys = [row.key for table in tables() for row in table.rows]
    assert len(keys) == len(set(keys)) > 100
    for table in tables():
        for row in table.rows:
            names = [contender.name for contender in row.contenders]
            assert len(names) == len(set(names)) > 1, row
            assert row.ours is None or row.ours in names


@pytest.mark.parametrize(
    ("table", "key"),
    [(CALLS[0], "calls.wsgi.declared"), (CALLS[0], "calls.asgi.declared"),
     (CALLS[0], "calls.static.304"), (frameworks.TABLES[0], "ranges.1MiB"),
     (frameworks.TABLES[0], "flask.lines")],
)  # fmt: skip
def test_a_row_gives_a_figure_for_every_contender(table: Table, key: str) -> None:
    (kept,) = chosen([table], [key])
    first, *_, last = kept.rows[0].contenders
    (result,) = run(replace(kept, rows=[replace(kept.rows[0], contenders=(first, last))]), SHORT)
    for name in result.runs:
        assert result.median(name, result.row.unit.rate), problems([result])
    assert not result.differs


def test_a_large_file_of_the_worker() -> None:
    """With a client that is always there in place of wrk."""
    rows = [
        replace(row, client=raw(), contenders=row.contenders[:2])
        for row in worker.ROWS
        if row.key == "worker.files.64KiB"
    ]
    (result,) = run(Table("worker", "w", rows, worker.prepare), SHORT)
    assert result.median("FastWorker", BYTES.rate)
    assert not result.differs


def test_others_are_measured_beside_an_attack() -> None:
    (row,) = (row for row in slow_attack.ROWS if row.key == "attack.silent-bodies")
    row = replace(row, contenders=row.contenders[:1], seconds=0.1)
    (result,) = run(Table("attack", "a", [row], slow_attack.prepare), SHORT)
    facts = result.facts("FastWorker")
    assert facts["slow ones"] == 100
    assert result.failures("FastWorker") == 0
