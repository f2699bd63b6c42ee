"""The output queue over real TCP sockets, plain and with TLS."""

from __future__ import annotations

import errno
import math
import os
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.server.output_harness import (
    CONTENT,
    SIZE,
    TLS,
    MakeNear,
    Near,
    Pieces,
    arrives_in_order,
    needs_near_buffers,
    pieces_of,
    rules,
    started,
)  # fmt: skip
from tests.support.calls import raising
from tests.support.effort import effort
from tests.support.process import open_descriptors
from wsgifast.errors import ClientGone
from wsgifast.server import backlog, output, sending
from wsgifast.server.output import OutputQueue


@pytest.mark.parametrize("secure", [False, True])
@given(
    pieces=pieces_of(len(CONTENT), 900_000) | pieces_of(len(CONTENT), 200_000),
    kernel=st.booleans(),
    memory_bytes=st.sampled_from([0, 150_000, 1 << 30]),
    coalesce_s=st.sampled_from([output._COALESCE_S, math.inf]),
)
@settings(max_examples=effort(60))
def test_written_pieces_arrive_in_order(
    tls: TLS,
    content: int,
    pieces: Pieces,
    secure: bool,
    kernel: bool,
    memory_bytes: int,
    coalesce_s: float,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output, "_COALESCE_S", coalesce_s)
        shared = rules(ahead_bytes=1 << 30, sendfile=kernel, memory_bytes=memory_bytes)
        arrives_in_order(Near(shared, tls if secure else None), pieces, CONTENT, content)


@needs_near_buffers
@pytest.mark.parametrize(("secure", "quick"), [(False, True), (False, False), (True, True)])
def test_send_buffer_grows_for_quick_client_only(
    make_near: MakeNear,
    tls: TLS,
    file: int,
    secure: bool,
    quick: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sending, "QUICK_S", 3600.0 if quick else 0.0)
    near = make_near(tls=tls if secure else None)
    near.queue.write_file(b"head", file, 0, SIZE)
    assert near.send_buffer_is_limited
    for grows in (False, quick):  # a slow client's first receive is quick, too
        near.receive_all_there_is()
        near.queue.on_writable()
        if grows or not secure:
            assert near.send_buffer_is_limited is not grows


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("is_file", [True, False])
def test_socket_taking_nothing_is_waited_for_idly(
    make_near: MakeNear, tls: TLS, file: int, secure: bool, is_file: bool
) -> None:
    near, data = make_near(tls=tls if secure else None), os.pread(file, SIZE, 0)
    if is_file:
        near.queue.write_file(b"", file, 0, SIZE)
    else:
        near.queue.write(data)
    near.until_tried_again()
    assert near.receive_in_turn(SIZE) == data


def test_socket_that_has_taken_something_is_waited_for(
    near: Near, content: int, make_near: MakeNear, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a client that takes nothing, although its socket was writable, is left to the sweep."""

    near.queue.write(bytes(SIZE))
    assert near.armed == [False]
    near.queue.write_buffers([b"more"])
    near.queue.write_file(b"", content, 0, 100)
    monkeypatch.setattr(os, "sendfile", raising(BlockingIOError))
    received = 0
    while near.queue.bytes_queued > 100:
        received += len(near.receive(SIZE + 104 - near.queue.unsent_bytes() - received))
        near.queue.on_writable()
        assert not near.armed[-1]
    assert received + len(near.receive(SIZE + 4 - received)) == SIZE + 4
    near.queue.on_writable()
    assert near.armed[-1]
    # The first refusal does not count.
    other = make_near()
    other.queue.write_file(b"", content, 0, 100)
    assert other.armed == [False]


def test_quick_client_gets_turns(near: Near, file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    offered: list[int] = []

    def takes_everything(out: int, source: int, offset: int, count: int) -> int:
        offered.append(count)  # like a client that reads as fast as the server sends
        return count

    monkeypatch.setattr(os, "sendfile", takes_everything)
    monkeypatch.setattr(sending, "_TURN_BYTES", SIZE // 4)
    near.queue.write_file(b"", file, 0, SIZE)
    assert near.queue.is_waiting
    while near.queue.is_waiting:
        near.queue.on_writable()
    assert sum(offered) == SIZE
    assert near.armed == [False] * 3


def test_quick_tls_client_gets_one_turn_at_a_time(
    make_near: MakeNear, tls: TLS, file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways: list[int] = []
    near = make_near(tls=tls, share_work=lambda: ways.append(1))
    offered: list[int] = []
    takes = True

    def send(self: ssl.SSLSocket, data: memoryview, flags: int = 0) -> int:
        if not takes and offered:
            raise ssl.SSLWantWriteError
        offered.append(len(data))
        return len(data)

    monkeypatch.setattr(ssl.SSLSocket, "send", send)
    for is_file in (True, False):
        if is_file:
            near.queue.write_file(b"", file, 0, SIZE)
        else:
            near.queue.write(bytes(SIZE))
        turns = 1
        while near.queue.is_waiting:
            near.queue.on_writable()
            turns += 1
        assert turns == SIZE // sending._TLS_TURN_BYTES
        assert max(offered) == backlog.PIECE_BYTES
        assert len(ways) == turns
        ways.clear()
    takes = False
    near.queue.write_file(b"", file, 0, SIZE)
    for _ in range(10):
        offered.clear()
        near.queue.on_writable()
    assert not ways


def test_tls_file_for_slow_client_uses_no_memory(make_near: MakeNear, tls: TLS, file: int) -> None:
    near = make_near(tls=tls)
    near.queue.write_file(b"head", file, 0, SIZE)
    assert near.queue.is_waiting
    for _ in range(3):
        assert near.receive(1000)
        near.queue.on_writable()
        assert near.rules.memory.used_bytes == 0


def test_tls_file_leaving_memory_is_read_by_a_thread(
    make_near: MakeNear, tls: TLS, file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next bytes arrive, too.

    TLS needs refused bytes once more, also if the pieces are smaller.
    """
    near, data = make_near(tls=tls), os.pread(file, SIZE - 1, 0)
    near.queue.write_file(b"", file, 0, SIZE - 1)
    assert near.queue.is_waiting
    monkeypatch.setattr(sending, "view_cached", lambda fd, offset, size: None)
    assert near.receive_in_turn(SIZE - 1) == data
    near.queue.write_file(b"", file, 0, 1000)
    assert near.receive_in_turn(1000) == data[:1000]


@pytest.mark.parametrize("in_memory", [True, False])
def test_tls_file_shrinking_midway_ends_the_queue(
    make_near: MakeNear,
    tls: TLS,
    file: int,
    tmp_path: Path,
    in_memory: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """TLS has begun to send a piece, and the file has become shorter than that piece."""
    near = make_near(tls=tls)
    near.queue.write_file(b"", file, 0, SIZE)
    left = near.queue.unsent_bytes()
    os.truncate(tmp_path / "file", SIZE - left + 1)
    if not in_memory:
        monkeypatch.setattr(sending, "view_cached", lambda fd, offset, size: None)
    while near.queue.error is None:
        near.receive_all_there_is()
        near.go_on()
    assert f"{left} of {SIZE} bytes are missing" in str(near.queue.error)


def test_queues_share_nothing(make_near: MakeNear, content: int) -> None:
    clients = make_near(), make_near()
    for client in clients:
        client.queue.write_file(b"", content, 0, len(CONTENT))
        client.queue.write_file(b"", content, 0, len(CONTENT))
    for client in clients:
        assert client.receive_rest(2 * len(CONTENT)) == 2 * CONTENT


@pytest.mark.usefixtures("in_quick_succession")
@pytest.mark.parametrize(
    ("write", "more"),
    [
        (lambda near, fd: near.queue.write(b"more"), 4),
        (lambda near, fd: near.write_next(b""), 0),
        (lambda near, fd: near.queue.write_buffers([b"more", b"", b"two"]), 7),
        (lambda near, fd: near.queue.write_file(b"more", fd, 0, 10), 14),
    ],
    ids=["write", "write_next", "write_buffers", "write_file"],
)
def test_nothing_follows_what_an_error_has_dropped(
    near: Near, content: int, write: Callable[[Near, int], object], more: int
) -> None:
    descriptors = open_descriptors()
    near.queue.write_file(b"head", content, 0, len(CONTENT))
    near.queue.write_file(b"", content, 0, 1000)
    near.queue.write(bytes(SIZE))
    left = near.queue.unsent_bytes()
    sent = 4 + len(CONTENT) + 1000 + SIZE - left
    near.queue.fail(TimeoutError("the client accepted no bytes in time"))
    assert open_descriptors() <= descriptors
    assert not near.queue.is_waiting
    near.receive(sent)
    with pytest.raises(ClientGone, match="accepted no bytes"):
        write(near, content)
    near.queue.flush()
    assert near.receive_all_there_is() == b""
    # For the log: the size of the whole response, and why it ended.
    near.queue.fail(ClientGone("closed"))
    assert near.queue.unsent_bytes() == left + more
    assert "accepted no bytes" in str(near.queue.error)
    near.queue.reset()
    assert near.queue.unsent_bytes() == 0


def test_last_byte_of_whole_response_alone_finishes_it(near: Near) -> None:
    near.queue.write(bytes(SIZE))
    assert not near.queue.on_writable()
    near.queue.is_complete = True
    received = 0
    finished = False
    while not finished:
        received += len(near.receive(SIZE - near.queue.unsent_bytes() - received))
        finished = near.queue.on_writable()
    assert received + len(near.receive(SIZE - received)) == SIZE


def test_writer_far_ahead_of_its_client_waits_for_room(make_near: MakeNear) -> None:
    near = make_near(ahead_bytes=SIZE // 2)
    queue = near.queue
    queue.write(bytes(4 * SIZE))  # the kernel takes only a part of it
    assert queue.bytes_queued > SIZE // 2
    written = threading.Event()

    def write() -> None:
        queue.write(b"end")
        written.set()

    with started(write):
        received = b""
        while queue.bytes_queued > SIZE // 4:
            assert not written.is_set()
            received += near.receive(4 * SIZE - queue.unsent_bytes() - len(received))
            queue.on_writable()
        assert written.wait(60)
    received += near.receive_rest(4 * SIZE + 3 - len(received))
    assert received == bytes(4 * SIZE) + b"end"


def test_writer_waiting_for_room_learns_of_the_end(make_near: MakeNear) -> None:
    queue = make_near(ahead_bytes=0).queue
    queue.write(bytes(SIZE))
    reported = threading.Event()

    def write() -> None:
        with pytest.raises(ClientGone, match="accepted no bytes"):
            queue.write(b"more")
        reported.set()

    with started(write):
        while queue._progress is None:
            assert not reported.is_set()
        queue.fail(TimeoutError("the client accepted no bytes in time"))
        assert reported.wait(60)


def test_unwatchable_socket_ends_the_queue(near: Near, file: int) -> None:
    near.refusal = OSError(errno.ENOMEM, "Cannot allocate memory")
    descriptors = open_descriptors()
    for data in (bytes(SIZE), b"more"):
        with pytest.raises(ClientGone, match="Cannot allocate memory"):
            near.queue.write(data)
        assert not near.queue.is_waiting
    near.receive(SIZE + 4 - near.queue.unsent_bytes())
    near.queue = near.make_queue()
    with pytest.raises(ClientGone, match="Cannot allocate memory"):
        near.queue.write_file(b"", file, 0, SIZE)
    assert open_descriptors() <= descriptors


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSYS])
def test_file_where_sendfile_is_unsupported_is_read(
    near: Near, content: int, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_sendfile(monkeypatch, number)
    near.queue.write_file(b"head", content, 7, 100_000)
    near.queue.write(b"end")
    assert near.receive_rest(100_007) == b"head" + CONTENT[7:100_007] + b"end"


def test_file_that_sendfile_cannot_read_ends_the_queue(
    near: Near, content: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_sendfile(monkeypatch, errno.EIO)
    with pytest.raises(ClientGone, match=os.strerror(errno.EIO)):
        near.queue.write_file(b"", content, 0, 100_000)


def refuse_sendfile(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(os, "sendfile", raising(OSError, number, os.strerror(number)))


def test_response_ending_while_looked_at_is_no_error(near: Near) -> None:
    """Metrics read it without the lock."""
    seen: list[Any] = []

    class Ending(OutputQueue):
        backlog = property(lambda self: seen.pop() if seen else None, lambda self, backlog: None)

    owner: Any = near
    queue = Ending(near.queue.sender, owner, rules())
    seen.append(SimpleNamespace(size=5))
    assert queue.bytes_queued == 5
    assert queue.bytes_queued == 0
