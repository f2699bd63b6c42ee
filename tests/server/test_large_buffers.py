"""Large send buffers, of which there are few."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from wsgifast.server.large_buffers import LARGE_BYTES, LargeBuffers

pytestmark = pytest.mark.skipif(
    not hasattr(socket, "TCP_INFO"), reason="only Linux tells how far a client is"
)
USUAL_BYTES = 128 * 1024


@pytest.fixture
def pairs() -> Iterator[list[tuple[socket.socket, socket.socket]]]:
    """Three servers' ends and their clients."""
    pairs = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for _ in range(3):
            client = socket.create_connection(listener.getsockname(), timeout=10)
            pairs.append((listener.accept()[0], client))
            pairs[-1][0].setblocking(False)
    yield pairs
    for pair in pairs:
        for end in pair:
            end.close()


def _has_large(sock: socket.socket) -> bool:
    # Linux doubles what it is given, and says so (socket(7)).
    size = sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // 2
    most = int(Path("/proc/sys/net/core/wmem_max").read_text())
    return size == min(LARGE_BYTES, most)


def _fill(sock: socket.socket) -> None:
    with contextlib.suppress(BlockingIOError):
        while True:
            sock.send(bytes(65_536))


def test_no_more_than_so_many_have_one(
    pairs: list[tuple[socket.socket, socket.socket]],
) -> None:
    buffers = LargeBuffers(most=2)
    (first, _), (second, _), (third, _) = pairs
    for sock in (first, second):
        buffers.lend(sock, USUAL_BYTES)
        _fill(sock)
    buffers.lend(third, USUAL_BYTES)
    assert [_has_large(each) for each in (first, second, third)] == [True, True, False]
    buffers.take_back(third)  # it has none
    buffers.take_back(first)
    assert not _has_large(first)
    buffers.lend(third, USUAL_BYTES)
    assert [_has_large(each) for each in (first, second, third)] == [False, True, True]


@pytest.mark.parametrize("closed", [False, True])
def test_who_needs_it_no_more_gives_way(
    pairs: list[tuple[socket.socket, socket.socket]], closed: bool
) -> None:
    """It has sent all that it was given, or has gone; while it does, it keeps what it has."""
    buffers = LargeBuffers(most=1)
    (first, client), (second, _), _ = pairs
    buffers.lend(first, USUAL_BYTES)
    _fill(first)
    buffers.lend(second, USUAL_BYTES)
    assert not _has_large(second)
    if closed:
        first.close()
    else:
        first.shutdown(socket.SHUT_WR)
        while client.recv(1 << 20):
            pass
    deadline = time.monotonic() + 10
    while not _has_large(second):  # the last of it is acknowledged soon
        assert time.monotonic() < deadline
        buffers.lend(second, USUAL_BYTES)
