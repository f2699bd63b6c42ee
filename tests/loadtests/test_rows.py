"""The load tests' rows: each has a key, and a sample of them gives its figures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadtests import asgi, asgi_middleware, frameworks, slow_attack, worker
from loadtests.__main__ import tables
from loadtests.bench import (
    BYTES,
    Profile,
    Table,
    Task,
    percentile,
    problems,
    raw,
    run,
    running_server,
    served,
)
from loadtests.calls import TABLES as CALLS
from loadtests.command import chosen, main

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("forked_servers")]

SHORT = Profile(0.1, 1, 5.0)


def test_percentiles_by_nearest_rank() -> None:
    values = [float(number) for number in range(1, 101)]
    assert [percentile(values, p) for p in (50, 95, 99, 100)] == [50, 95, 99, 100]
    assert percentile([7.0], 50) == 7.0


def test_the_client_counts_what_it_saw() -> None:
    def seen(requests: int, path: str, size: int | None = None) -> tuple[int, int, object]:
        task = Task(path, 10.0, server.address, body_bytes=size)
        load = raw(requests=requests)(task)
        assert load.client_cpu_s > 0
        return load.requests, load.body_bytes, load.errors

    with running_server(served("loadtests.app:app", None, "wsgiref")) as server:
        assert seen(5, "/small", 512) == (5, 5 * 512, {})
        assert seen(2, "/rows/4096", 4096) == (2, 2 * 4096, {})
        assert seen(1, "/small/9", 10) == (0, 0, {"status 200 with 9 bytes instead of 10": 1})
        assert seen(1, "/none") == (0, 0, {"status 404": 1})


def test_a_key_that_no_row_has(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main("loadtests.worker", worker.__doc__, worker.TABLES, ["no-such-key"])
    assert ended.value.code == 2
    assert "no row has no-such-key in its key" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "found"),
    [("b.", ["b.c"]), ("a.b", ["a.b", "a.bc"]), ("c", ["a.bc", "b.c"]), ("d", [])],
)
def test_a_key_is_of_rows_that_begin_with_it_or_else_have_it(given: str, found: list[str]) -> None:
    rows = [replace(frameworks.ROWS[0], key=key) for key in ("a.b", "a.bc", "b.c")]
    assert [
        row.key for table in chosen([Table("t", "t", rows)], [given]) for row in table.rows
    ] == found


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


def test_a_row_whose_framework_is_missing_says_how_to_get_it() -> None:
    rows = asgi_middleware.rows("no_such_framework", "Nobody's middleware")
    results = run(Table("missing", "m", rows), SHORT)
    assert len(results) == 3
    for result in results:
        for name in result.runs:
            assert result.verdict(name) in ("", "fails")
            (told,) = result.errors(name)
            assert "no_such_framework is not installed: " in told
            assert "pip install --group frameworks" in told


def test_a_large_file_of_the_worker() -> None:
    """With a client that is always there, not wrk; it tells its own CPU time too."""
    rows = [
        replace(row, contenders=row.contenders[:2])
        for row in worker.ROWS
        if row.key == "worker.files.64KiB"
    ]
    (result,) = run(Table("worker", "w", rows, worker.prepare), SHORT)
    assert result.median("FastWorker", BYTES.rate)
    assert result.facts("FastWorker")["client's CPU s/GB"] > 0
    assert not result.differs


def test_an_upload_is_measured_with_its_messages() -> None:
    (row,) = (row for row in asgi.ROWS if row.key == "asgi.upload.stream")
    row = replace(row, contenders=row.contenders[-1:])
    (result,) = run(Table("asgi", "a", [row]), SHORT)
    assert result.median("a bare loop", BYTES.rate), problems([result])
    assert result.facts("a bare loop")["messages"] > 0


def test_others_are_measured_beside_an_attack() -> None:
    (row,) = (row for row in slow_attack.ROWS if row.key == "attack.silent-bodies")
    row = replace(row, contenders=row.contenders[:1], seconds=0.1)
    (result,) = run(Table("attack", "a", [row], slow_attack.prepare), SHORT)
    facts = result.facts("FastWorker")
    assert facts["slow ones"] == 100
    assert result.failures("FastWorker") == 0
