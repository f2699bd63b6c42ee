"""The field reports' page and what they run; their figures are nobody's promise here."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from html.parser import HTMLParser

import pytest

from loadtests.field_reports import Bars, Figures, ReportResult, Summary, receive
from loadtests.field_reports.echo import echo
from loadtests.field_reports.messages import MODES, run_async, run_simple, run_threaded
from loadtests.field_reports.page import Measured, page
from loadtests.field_reports.receive import Bound, Into, Receive, join_pieces, read_file, whole
from tests.sockets.support import tcp_pair
from wsgifast.sockets import ReceiveCount

MESSAGES = 2000
Runner = Callable[[tuple[str, int], str, int], list[int]]


@pytest.fixture
def echo_server() -> Iterator[tuple[str, int]]:
    """Accepts one connection."""

    def serve() -> None:
        sock, _ = listener.accept()
        echo(sock)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()
        thread.join()


@pytest.mark.parametrize("mode", MODES)
def test_one_thread_gets_an_answer_to_each_message(echo_server: tuple[str, int], mode: str) -> None:
    latencies = run_simple(echo_server, mode, MESSAGES)
    assert len(latencies) == MESSAGES
    assert 0 < latencies[0] <= latencies[-1]


@pytest.mark.parametrize("run", [run_threaded, run_async])
@pytest.mark.parametrize("mode", MODES[:3])
def test_several_senders_get_an_answer_to_each_message(
    echo_server: tuple[str, int], run: Runner, mode: str
) -> None:
    latencies = run(echo_server, mode, MESSAGES)
    assert len(latencies) == MESSAGES
    assert 0 < latencies[0] <= latencies[-1]


@pytest.mark.parametrize("way", [join_pieces, read_file, whole, Bound(5000), Into(5000)])
def test_every_way_receives_as_much(way: Receive) -> None:
    with tcp_pair() as pair:
        pair.near.sendall(bytes(5000))
        pair.near.close()
        way(pair.far, 5000, ReceiveCount())
        assert pair.far.recv(1) == b""


def test_the_receive_report_compares_every_way_with_its_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(receive, "BLOCK_BYTES", 50_000)
    monkeypatch.setattr(receive, "LARGE_BYTES", {"quick": 100_000})
    monkeypatch.setattr(receive, "ROUNDS", 1)
    monkeypatch.setattr(receive, "SLICES", 1)
    result = receive.run("quick")
    for figures in result.tables:
        assert {len(row) for row in figures.rows} == {len(figures.columns)}
        assert figures.rows[-1][0] == receive.BOUND
        assert all(row[1] for row in figures.rows)
    assert len(result.charts) == len(result.tables) == len(result.raw)


class Checked(HTMLParser):
    """Notes elements that stay open, and every reference to somewhere else."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.references: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.references += [str(value) for name, value in attrs if name in ("src", "href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_is_complete_in_itself_and_escapes_what_it_shows() -> None:
    old = Figures("then", ["way", "MB/s"], [["<slow>", 1.5]])
    now = Figures("today", ["way", "MB/s"], [["a & b", 1234567]])
    bars = Bars("speed", "MB/s", {"a & b": 10.0, "nothing": 0.0})
    line = Summary("16 s", "9 <s>", "1 s", "the link")
    result = ReportResult([now], [bars, Bars("empty", "MB/s", {})], line, '"much"')
    html = page([Measured("A <report>", old, result)], {"cores": 2})
    checked = Checked()
    checked.feed(html)
    checked.close()
    assert (checked.open, checked.references) == ([], [])
    shown = ["A <report>", "<slow>", "a & b", "1,234,567", 'changed: "much"', "cores 2"]
    for text in [*shown, "16 s", "9 <s>", "1 s", "the link"]:
        assert text in checked.text
