"""The measuring helpers: statistics, the raw client, servers that fail."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from loadtests.bench import (
    HOST,
    Ratio,
    ServerFailed,
    Serving,
    alternate,
    cpu_seconds,
    drive,
    free_port,
    percentile,
    running,
    table,
)
from loadtests.bench.charts import bar_chart
from loadtests.bench.load import Task
from loadtests.bench.locust_process import Run
from loadtests.bench.looking import _dechunked, look


def command(app: str, port: int, server: str = "gunicorn") -> list[str]:
    return Serving(app, server).side(None).placed({"{port}": str(port)})[0]


def test_ratio_is_taken_round_by_round() -> None:
    ratio = Ratio.of([2.0, 40.0, 9.0], [1.0, 10.0, 3.0])
    assert ratio == Ratio(median=3.0, low=2.0, high=4.0)
    assert str(ratio) == "3x (2..4)"


@pytest.mark.parametrize(("contender", "base"), [([], []), ([1.0], [1.0, 2.0])])
def test_ratio_needs_pairs(contender: list[float], base: list[float]) -> None:
    with pytest.raises(ValueError):
        Ratio.of(contender, base)


def test_contenders_take_turns() -> None:
    order: list[str] = []
    results = alternate({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=3)
    assert order == ["a", "b"] * 3
    assert {name: len(values) for name, values in results.items()} == {"a": 3, "b": 3}


def test_the_first_round_is_done_whatever_the_time() -> None:
    assert len(alternate({"a": lambda: 1}, rounds=9, seconds=-1.0)["a"]) == 1


def test_percentiles_by_nearest_rank() -> None:
    values = [float(number) for number in range(1, 101)]
    assert [percentile(values, p) for p in (50, 95, 99, 100)] == [50, 95, 99, 100]
    assert percentile([7.0], 50) == 7.0


def test_table_aligns_figures() -> None:
    assert table(["a", "b"], [["x", 1234], ["yy", None]]).splitlines() == [
        "a       b",
        "--  -----",
        "x   1,234",
        "yy      -",
    ]


def test_the_chart_is_well_formed() -> None:
    rows = [("<a & b>", Ratio(30.0, 20.0, 40.0), "30x"), ("fails", None, "rescued")]
    for some in (rows, []):
        assert ET.fromstring(bar_chart(some)).tag.endswith("svg")


def test_chunks_are_joined_whatever_their_number() -> None:
    many = 100_000
    assert _dechunked(b"1\r\nx\r\n" * many + b"a;b=c\r\n0123456789\r\n0\r\n\r\n") == (
        b"x" * many + b"0123456789"
    )
    assert _dechunked(b"5\r\nhel") == b"hel"


def test_only_this_machine_is_loaded() -> None:
    with pytest.raises(ValueError, match="locustfile"):
        Run("http://192.0.2.1/")


def test_the_client_counts_what_it_saw() -> None:
    address = (HOST, free_port())
    with running(command("loadtests.app:app", address[1]), address) as server:
        good = drive(address, "/small", requests=5, seconds=10, body_bytes=512)
        assert (good.requests, good.failures, good.body_bytes) == (5, 0, 5 * 512)
        assert good.client_cpu_s > 0
        stream = drive(address, "/rows/4096", requests=2, seconds=10, body_bytes=4096)
        assert (stream.requests, stream.body_bytes) == (2, 2 * 4096)
        short = drive(address, "/small/9", requests=1, seconds=10, body_bytes=10)
        assert short.errors == {"status 200 with 9 bytes instead of 10": 1}
        assert drive(address, "/none", requests=1, seconds=10).errors == {"status 404": 1}
        assert drive(address, "/bytes/100", requests=1, seconds=10).failures == 1
        seen = look(Task("/small/9", address=address))
        assert (seen.answer, seen.body_bytes, seen.ok) == ("HTTP/1.0 200 OK", 9, True)
        assert not look(Task("/none", address=address)).ok
        assert cpu_seconds(server.pid) > 0


def test_a_server_that_does_not_start_shows_its_log() -> None:
    address = (HOST, free_port())
    with (  # noqa: PT012
        pytest.raises(ServerFailed, match="no_such_module"),
        running(command("no_such_module:app", address[1]), address) as server,
    ):
        while True:  # gunicorn listens before it imports the app, and ends soon after
            server.check()


def test_a_taken_port_is_named() -> None:
    address = (HOST, free_port())
    argv = command("loadtests.app:app", address[1], "wsgiref")
    with (
        running(argv, address),
        pytest.raises(ServerFailed, match=f"port {address[1]} .* is taken"),
        running(argv, address),
    ):
        pass
