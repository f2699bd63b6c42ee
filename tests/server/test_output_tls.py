"""The output queue under TLS, which wants what it has refused once more, and from its beginning."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.server.output_bench import (
    TLS,
    Near,
    Pieces,
    arrives_in_order,
    opened,
    pieces_of,
    receive_in_turn,
    rules,
    until_tried_again,
)
from tests.support.effort import effort
from tests.support.tls import client_context, server_context
from wsgifast.server import sending

CONTENT = os.urandom(8 * 1024 * 1024)


@pytest.fixture(scope="module")
def tls() -> TLS:
    return server_context(), client_context()


@pytest.fixture
def near(tls: TLS) -> Iterator[Near]:
    near = Near(rules(), tls)
    yield near
    near.close()


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with opened(tmp_path_factory.mktemp("output") / "content", CONTENT) as fd:
        yield fd


@given(
    pieces=pieces_of(len(CONTENT), 900_000),
    memory_bytes=st.sampled_from([0, 150_000, 1 << 30]),
)
@settings(max_examples=effort(60))
def test_whatever_is_written_arrives_in_order(
    tls: TLS, content: int, pieces: Pieces, memory_bytes: int
) -> None:
    near = Near(rules(ahead_bytes=1 << 30, memory_bytes=memory_bytes), tls)
    arrives_in_order(near, pieces, CONTENT, content)


def test_a_file_for_a_slow_client_waits_in_no_memory(tls: TLS, content: int) -> None:
    shared = rules()
    near = Near(shared, tls)
    try:
        near.queue.write_file(b"head", content, 0, len(CONTENT))
        assert near.queue.draining
        for _ in range(3):
            assert near.receive(1000)
            near.queue.on_writable()
            assert shared.memory.used_bytes == 0
    finally:
        near.close()


def test_a_file_that_leaves_memory_while_it_waits_for_the_client(
    near: Near, content: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk thread brings the rest of it, and what comes behind it: smaller pieces, too."""
    size = len(CONTENT) - 1
    near.queue.write_file(b"", content, 0, size)
    assert near.queue.draining
    monkeypatch.setattr(sending, "view_cached", lambda fd, offset, size: None)
    assert receive_in_turn(near, size) == CONTENT[:size]
    near.queue.write_file(b"", content, 0, 1000)
    assert receive_in_turn(near, 1000) == CONTENT[:1000]


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_file_that_shrinks_while_it_waits_for_the_client(
    near: Near, tmp_path: Path, in_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TLS has begun to send a piece, of which there is less now."""
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    fd = os.open(path, os.O_RDONLY)
    try:
        near.queue.write_file(b"", fd, 0, len(CONTENT))
        left = near.queue.bytes_left()
        os.truncate(path, len(CONTENT) - left + 1)
        if not in_memory:
            monkeypatch.setattr(sending, "view_cached", lambda fd, offset, size: None)
        received = 0
        while near.queue.error is None:
            received += len(near.receive_all_there_is())
            if near.armed:
                near.armed.clear()
                near.queue.on_writable()
        assert f"{left} of {len(CONTENT)} bytes are missing" in str(near.queue.error)
    finally:
        os.close(fd)


@pytest.mark.parametrize("is_file", [True, False])
def test_a_client_for_whom_the_kernel_has_no_memory_is_not_waited_for_in_a_loop(
    near: Near, content: int, is_file: bool
) -> None:
    if is_file:
        near.queue.write_file(b"", content, 0, len(CONTENT))
    else:
        near.queue.write(CONTENT)
    until_tried_again(near)
    assert receive_in_turn(near, len(CONTENT)) == CONTENT


def test_a_quick_client_gets_no_more_than_a_turn_at_a_time(
    tls: TLS, content: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it takes, and others go on meanwhile: but not for a client that takes little."""
    ways: list[int] = []
    near = Near(rules(share_work=lambda: ways.append(1)), tls)
    offered: list[int] = []
    takes = True

    def send(self: ssl.SSLSocket, data: memoryview, flags: int = 0) -> int:
        if not takes and offered:
            raise ssl.SSLWantWriteError
        offered.append(len(data))
        return len(data)

    monkeypatch.setattr(ssl.SSLSocket, "send", send)
    writes: list[Callable[[], None]] = [
        lambda: near.queue.write_file(b"", content, 0, len(CONTENT)),
        lambda: near.queue.write(CONTENT),
    ]
    try:
        for write in writes:
            write()
            turns = 1
            while near.queue.draining:
                near.queue.on_writable()
                turns += 1
            assert turns == len(CONTENT) // sending._TLS_TURN_BYTES
            assert max(offered) == sending._PIECE_BYTES
            assert len(ways) == turns
            ways.clear()
        takes = False
        near.queue.write_file(b"", content, 0, len(CONTENT))
        for _ in range(10):
            offered.clear()
            near.queue.on_writable()
        assert not ways
    finally:
        near.close()


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="only Linux reports how far")
def test_the_send_buffer_of_a_quick_client(
    near: Near, content: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "QUICK_S", 3600.0)
    near.queue.write_file(b"head", content, 0, len(CONTENT))
    assert near.send_buffer_is_limited
    for _ in range(2):
        near.receive_all_there_is()
        near.queue.on_writable()
    assert not near.send_buffer_is_limited
