"""What the field reports run; their figures are nobody's promise here."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from loadtests.field_reports import mail, receive
from loadtests.field_reports.coalescing import MODES, SENDERS
from loadtests.field_reports.receive import Receive, bound, into, join_pieces, read_file, whole
from loadtests.servers import echo
from loadtests.wsgi import DEVELOPMENT
from tests.sockets.support import tcp_pair
from tests.support.programs import program
from tests.support.servers import PATIENCE_S
from wsgifast.commands.bench.report import problems
from wsgifast.commands.bench.runner import run
from wsgifast.commands.bench.tables import Profile, Table
from wsgifast.sockets import ReceiveCount

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("forked_servers")]

MESSAGES = 2000
SHORT = Profile(0.2, 1, 5.0)
TRIES = 5


@pytest.fixture
def echo_server() -> Iterator[tuple[str, int]]:
    """Accepts one connection."""

    def serve() -> None:
        sock, _ = listener.accept()
        with sock, contextlib.suppress(ConnectionError):
            echo(sock)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()
        thread.join()


@pytest.mark.parametrize(
    ("sender", "mode"),
    [("simple", mode) for mode in MODES]
    + [(sender, mode) for sender in ("threaded", "async") for mode in MODES[:3]],
)
def test_every_sender_gets_an_answer_to_each_message(
    echo_server: tuple[str, int], sender: str, mode: str
) -> None:
    latencies = SENDERS[sender](echo_server, mode, MESSAGES)
    assert len(latencies) == MESSAGES
    assert 0 < latencies[0] <= latencies[-1]


@pytest.mark.parametrize("sender", SENDERS)
def test_sender_ends_where_no_more_answers_come(sender: str) -> None:
    """With all of its threads."""
    before = threading.active_count()
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        sent = pool.submit(SENDERS[sender], listener.getsockname(), "no_delay", MESSAGES)
        sock, _ = listener.accept()
        with sock:
            sock.sendall(sock.recv(64))
        with pytest.raises(OSError):
            sent.result(PATIENCE_S)
    assert threading.active_count() == before


@pytest.mark.parametrize("way", [join_pieces, read_file, whole, bound(5000), into(5000)])
def test_every_way_receives_as_much(way: Receive) -> None:
    with tcp_pair() as pair:
        pair.near.sendall(bytes(5000))
        pair.near.close()
        way(pair.far, 5000, ReceiveCount())
        assert pair.far.recv(1) == b""


def _figures(table: Table, *keys: str) -> None:
    """Run these rows of a table as shortly as can be; every contender must have a figure."""
    rows = [row for row in table.rows if row.key in keys]
    assert len(rows) == len(keys)
    for _ in range(TRIES):  # on a machine that stalls, no request may come through
        missing = [
            problems([result])
            for result in run(replace(table, rows=rows), SHORT)
            for name in result.runs
            if (result.row.key, name) != ("field.wsgiref.string", "wsgiref")
            and not result.median(name, result.row.unit.rate)
        ]
        if not missing:
            return
    raise AssertionError(missing)


def test_receive_report_compares_every_way_with_its_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(receive.LARGE_BYTES, False, 4_000_000)
    _figures(receive.TABLE, "field.receive.sendall", "field.receive.link-used")


def test_wsgiref_report_has_a_figure_for_each_shape() -> None:
    _figures(DEVELOPMENT[1], "field.wsgiref.string", "field.wsgiref.file")


@pytest.mark.parametrize("way", ["direct", "forwarded"])
def test_appending_mail(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program("dovecot")  # skipped without it
    monkeypatch.setitem(mail.APPENDS, False, 2)
    _figures(mail.APPEND, f"field.imap.{way}")


def test_delivering_mail() -> None:
    _figures(mail.DELIVERY, "field.smtp.small")


def test_dev_servers_have_a_figure_each() -> None:
    _figures(DEVELOPMENT[0], "nodelay.small.wsgiref", "nodelay.small.werkzeug")
