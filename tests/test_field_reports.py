"""The senders and receivers of the field reports. tests.loadtests.test_rows runs their rows."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from loadtests.field_reports.coalescing import MODES, SENDERS
from loadtests.field_reports.receive import Receive, bound, into, join_pieces, read_file, whole
from loadtests.servers import echo
from tests.sockets.support import tcp_pair
from tests.support.servers import PATIENCE_S
from wsgifast.sockets import ReceiveCount

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("forked_servers")]

MESSAGES = 2000


@pytest.fixture
def echo_server() -> Iterator[tuple[str, int]]:
    """Accept one connection."""

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
def test_every_sender_gets_a_response_to_each_message(
    echo_server: tuple[str, int], sender: str, mode: str
) -> None:
    latencies = SENDERS[sender](echo_server, mode, MESSAGES)
    assert len(latencies) == MESSAGES
    assert 0 < latencies[0] <= latencies[-1]


@pytest.mark.parametrize("sender", SENDERS)
def test_sender_ends_where_no_more_responses_come(sender: str) -> None:
    """Run the server with all of its threads."""
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
