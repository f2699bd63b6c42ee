"""The output queue over real TCP sockets: its send buffer, and a kernel that takes nothing."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from wsgifast.sockets.options import NEAR_SEND_BUFFER_BYTES
from wsgifast.workers import output
from wsgifast.workers.output import OutputQueue

SIZE = 8 * 1024 * 1024


class Near:
    """An output queue, its client, and how it was armed each time: True for "starved"."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.client = socket.create_connection(listener.getsockname(), timeout=10)
            self.sock = listener.accept()[0]
        self.sock.setblocking(False)
        self.armed: list[bool] = []
        self.queue = OutputQueue(self.sock, self.armed.append, ahead=1 << 20, sendfile=True)

    @property
    def send_buffer(self) -> int:
        # Linux doubles what it is given, and says so (socket(7)).
        return self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // 2

    def receive_all_there_is(self) -> bytes:
        self.client.setblocking(False)
        data = b""
        try:
            while block := self.client.recv(1 << 20):
                data += block
        except BlockingIOError:
            pass
        self.client.setblocking(True)
        return data


@pytest.fixture
def near() -> Iterator[Near]:
    near = Near()
    yield near
    near.queue.fail(ConnectionAbortedError())
    near.client.close()
    near.sock.close()


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(SIZE))
    fd = os.open(path, os.O_RDONLY)
    yield fd
    os.close(fd)


needs_near_buffers = pytest.mark.skipif(
    not hasattr(socket, "TCP_INFO"), reason="only Linux tells how far away a peer is"
)


@needs_near_buffers
@pytest.mark.parametrize("quick", [True, False])
def test_the_send_buffer_grows_for_a_quick_client_only(
    near: Near, file: int, quick: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "_QUICK_S", 3600.0 if quick else 0.0)
    near.queue.write_file(b"head", file, 0, SIZE)
    assert near.send_buffer < NEAR_SEND_BUFFER_BYTES
    near.receive_all_there_is()
    near.queue.on_writable()
    assert (near.send_buffer == NEAR_SEND_BUFFER_BYTES) is quick


def until_starved(near: Near) -> None:
    """As where the kernel has no memory left for TCP: an event says writable, nothing is taken."""
    assert near.armed == [False]
    for _ in range(100):  # at first the buffers may still grow
        assert not near.queue.on_writable()
        if near.armed[-1]:
            return
    pytest.fail("the queue waits for writability again and again")


def test_a_socket_that_takes_nothing_is_not_waited_for_in_a_loop(near: Near, file: int) -> None:
    near.queue.write_file(b"", file, 0, SIZE)
    until_starved(near)
    received = near.receive_all_there_is()
    while near.queue.draining:
        near.queue.on_writable()
        received += near.receive_all_there_is()
    assert received == os.pread(file, SIZE, 0)


def test_bytes_wait_in_the_same_way(near: Near) -> None:
    near.queue.write(bytes(SIZE))
    until_starved(near)


def test_a_quick_client_gets_no_more_than_a_turn_at_a_time(
    near: Near, file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered: list[int] = []

    def takes_everything(out: int, source: int, offset: int, count: int) -> int:
        offered.append(count)  # as while the client reads as fast as it is sent to
        return count

    monkeypatch.setattr(os, "sendfile", takes_everything)
    monkeypatch.setattr(output, "_TURN_BYTES", SIZE // 4)
    near.queue.write_file(b"", file, 0, SIZE)
    assert near.queue.draining
    while near.queue.draining:
        near.queue.on_writable()
    assert offered == [SIZE // 4] * 4
    assert near.armed == [False] * 3
