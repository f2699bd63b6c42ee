"""The output queue over real TCP sockets: its send buffer, and a kernel that takes nothing."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.effort import effort
from wsgifast.server import output, transport
from wsgifast.server.disk import DiskThreads
from wsgifast.server.output import ClientGone, OutputQueue, OutputRules
from wsgifast.server.output_memory import OutputMemory
from wsgifast.sockets.options import NEAR_SEND_BUFFER_BYTES

SIZE = 8 * 1024 * 1024


def rules(
    *,
    ahead_bytes: int = 1 << 20,
    timeout_s: float = 60.0,
    least_bytes_per_s: float = 0.0,
    sendfile: bool = True,
    memory_bytes: int = 1 << 30,
    warnings: list[str] | None = None,
    disk: DiskThreads | None = None,
) -> OutputRules:
    told: list[str] = [] if warnings is None else warnings
    return OutputRules(
        ahead_bytes=ahead_bytes,
        timeout_s=timeout_s,
        least_bytes_per_s=least_bytes_per_s,
        sendfile=sendfile,
        memory=OutputMemory(memory_bytes, lambda text, *args: told.append(text % args)),
        disk=disk or DiskThreads(lambda error: told.append(repr(error))),
    )


class Near:
    """An output queue and its client.

    :ivar armed: how it was waited for each time: True for "try again later".
    """

    def __init__(self, rules: OutputRules) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.client = socket.create_connection(listener.getsockname(), timeout=10)
            self.sock = listener.accept()[0]
        self.sock.setblocking(False)
        self.armed: list[bool] = []
        self.deadlines: list[float] = []
        self.resumed = 0
        self.refusal: Exception | None = None
        self.changed = threading.Condition()
        self.queue = OutputQueue(self.sock, self, rules)

    def wait_to_send(self, deadline: float, *, retry: bool) -> None:
        if self.refusal is not None:
            raise self.refusal
        with self.changed:
            self.armed.append(retry)
            self.deadlines.append(deadline)
            self.changed.notify_all()

    def resume_sending(self) -> None:
        with self.changed:
            self.resumed += 1
            self.changed.notify_all()

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

    def receive(self, size: int) -> bytes:
        """So many bytes, as they come: a packet may be on its way yet."""
        data = b""
        while len(data) < size:
            block = self.client.recv(min(1 << 20, size - len(data)))
            assert block, f"the connection ended {size - len(data)} bytes early"
            data += block
        return data

    def close(self) -> None:
        self.queue.close()
        self.client.close()
        self.sock.close()


@pytest.fixture
def near() -> Iterator[Near]:
    near = Near(rules())
    yield near
    near.close()


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
    monkeypatch.setattr(transport, "QUICK_S", 3600.0 if quick else 0.0)
    near.queue.write_file(b"head", file, 0, SIZE)
    assert near.send_buffer < NEAR_SEND_BUFFER_BYTES
    near.receive_all_there_is()
    near.queue.on_writable()
    assert (near.send_buffer == NEAR_SEND_BUFFER_BYTES) is quick


def until_tried_again(near: Near) -> None:
    """As where the kernel has no memory left for TCP: an event says writable, nothing is taken."""
    assert near.armed == [False]
    for _ in range(100):  # at first the buffers may still grow
        assert not near.queue.on_writable()
        if near.armed[-1]:
            return
    pytest.fail("the queue waits for writability again and again")


def test_a_socket_that_takes_nothing_is_not_waited_for_in_a_loop(near: Near, file: int) -> None:
    near.queue.write_file(b"", file, 0, SIZE)
    until_tried_again(near)
    received = b""
    while near.queue.draining:
        received += near.receive(near.queue.sent - len(received))
        near.queue.on_writable()
    assert received + near.receive(SIZE - len(received)) == os.pread(file, SIZE, 0)


def test_bytes_wait_in_the_same_way(near: Near) -> None:
    near.queue.write(bytes(SIZE))
    until_tried_again(near)


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
    assert sum(offered) == SIZE
    assert near.armed == [False] * 3


CONTENT = bytes(range(256)) * 4096
PIECES = st.lists(
    st.tuples(
        st.sampled_from(["write", "coalesce", "all", "file"]),
        st.one_of(st.integers(0, 2), st.integers(0, 200_000)),
        st.integers(0, len(CONTENT) - 200_000),
    ),
    max_size=12,
)


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    path = tmp_path_factory.mktemp("output") / "content"
    path.write_bytes(CONTENT)
    fd = os.open(path, os.O_RDONLY)
    yield fd
    os.close(fd)


@given(
    pieces=PIECES,
    reads=st.lists(st.booleans(), min_size=12, max_size=12),
    kernel=st.booleans(),
    memory_bytes=st.sampled_from([0, 150_000, 1 << 30]),
)
@settings(max_examples=effort(60))
def test_whatever_is_written_arrives_in_order(
    content: int,
    pieces: list[tuple[str, int, int]],
    reads: list[bool],
    kernel: bool,
    memory_bytes: int,
) -> None:
    near = Near(rules(ahead_bytes=1 << 30, sendfile=kernel, memory_bytes=memory_bytes))
    queue = near.queue
    expected = received = b""
    descriptors = len(os.listdir("/proc/self/fd"))
    try:
        for (kind, size, offset), read in zip(pieces, reads, strict=False):
            data = CONTENT[offset : offset + size]
            expected += data
            if kind == "file":
                queue.write_file(b"head", content, offset, size)
                expected = expected[: len(expected) - size] + b"head" + data
            elif kind == "all":
                queue.write_all([data[: size // 2], b"", data[size // 2 :]])
            else:
                queue.write(data, coalesce=kind == "coalesce")
            assert queue.sent + queue.bytes_left() == len(expected)
            if read:
                received += near.receive_all_there_is()
                if queue.draining:
                    queue.on_writable()
        queue.flush()
        while queue.draining:
            received += near.receive(queue.sent - len(received))
            queue.on_writable()
        received += near.receive(queue.sent - len(received))
        assert received == expected
        assert near.receive_all_there_is() == b""
        assert queue.bytes_queued == 0
        assert queue.sent == len(expected)
        queue.reset()
        assert len(os.listdir("/proc/self/fd")) == descriptors
    finally:
        near.close()


def test_queues_have_nothing_in_common(near: Near, content: int) -> None:
    other = Near(rules())
    try:
        for client in (near, other):
            client.queue.write_file(b"", content, 0, len(CONTENT))
            client.queue.write_file(b"", content, 0, len(CONTENT))
        for client in (near, other):
            received = b""
            while client.queue.draining:
                received += client.receive(client.queue.sent - len(received))
                client.queue.on_writable()
            assert received + client.receive(2 * len(CONTENT) - len(received)) == 2 * CONTENT
    finally:
        other.close()


def test_what_is_coalesced_waits_for_company_up_to_a_size(near: Near) -> None:
    assert near.queue.write(b"first ", coalesce=True)
    assert near.queue.write(b"second ", coalesce=True)
    assert near.receive_all_there_is() == b""
    near.queue.flush()
    assert near.receive(13) == b"first second "
    assert near.queue.write(b"held, ", coalesce=True)
    assert not near.queue.write(b"sent")
    assert near.receive(10) == b"held, sent"
    assert not near.queue.write(bytes(1 << 17), coalesce=True)
    assert near.receive(1)


@pytest.mark.parametrize(
    "write",
    [
        lambda queue, fd: queue.write(b"more"),
        lambda queue, fd: queue.write(b"more", coalesce=True),
        lambda queue, fd: queue.write_all([b"more"]),
        lambda queue, fd: queue.write_file(b"more", fd, 0, 10),
    ],
    ids=["write", "coalesce", "write_all", "write_file"],
)
def test_nothing_follows_what_an_error_has_dropped(
    near: Near, content: int, write: Callable[[OutputQueue, int], object]
) -> None:
    """The client would take it for the bytes that are missing."""
    descriptors = len(os.listdir("/proc/self/fd"))
    near.queue.write_file(b"head", content, 0, len(CONTENT))
    near.queue.write_file(b"", content, 0, 1000)
    near.queue.write(bytes(SIZE))
    left = near.queue.bytes_left()
    assert near.queue.sent + left == 4 + len(CONTENT) + 1000 + SIZE
    near.queue.fail(TimeoutError("the client took no byte in time"))
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert not near.queue.draining
    received = near.receive(near.queue.sent)
    with pytest.raises(ClientGone, match="took no byte"):
        write(near.queue, content)
    near.queue.flush()
    assert near.receive_all_there_is() == b""
    assert len(received) == near.queue.sent
    # For the log: what the response would have had, and why it ended, whatever comes then.
    near.queue.fail(ClientGone("closed"))
    assert near.queue.bytes_left() == left
    assert "took no byte" in str(near.queue.error)
    near.queue.reset()
    assert (near.queue.sent, near.queue.bytes_left()) == (0, 0)


def test_only_the_last_byte_of_a_whole_response_finishes_it(near: Near) -> None:
    near.queue.write(bytes(SIZE))
    assert not near.queue.on_writable()
    near.queue.closing = True
    received = 0
    finished = False
    while not finished:
        received += len(near.receive(near.queue.sent - received))
        finished = near.queue.on_writable()
    assert received + len(near.receive(SIZE - received)) == SIZE


def test_a_writer_far_ahead_of_its_client_waits_for_room(near: Near) -> None:
    near.queue = queue = OutputQueue(near.sock, near, rules(ahead_bytes=SIZE // 2))
    queue.write(bytes(4 * SIZE))  # of which the kernel takes a part only
    assert queue.bytes_queued > SIZE // 2
    written = threading.Event()

    def write() -> None:
        queue.write(b"end")
        written.set()

    writer = threading.Thread(target=write)
    writer.start()
    received = b""
    while queue.bytes_queued > SIZE // 4:
        assert not written.is_set()
        received += near.receive(queue.sent - len(received))
        queue.on_writable()
    assert written.wait(10)
    writer.join()
    while queue.draining:
        received += near.receive(queue.sent - len(received))
        queue.on_writable()
    received += near.receive(4 * SIZE + 3 - len(received))
    assert received == bytes(4 * SIZE) + b"end"


def test_a_kernel_that_cannot_watch_the_socket_ends_the_queue(near: Near, file: int) -> None:
    near.refusal = OSError(errno.ENOMEM, "Cannot allocate memory")
    queue = near.queue
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ClientGone, match="Cannot allocate memory"):
        queue.write(bytes(SIZE))
    assert not queue.draining
    with pytest.raises(ClientGone, match="Cannot allocate memory"):
        queue.write(b"more")
    near.receive(queue.sent)
    near.queue = queue = OutputQueue(near.sock, near, rules())
    with pytest.raises(ClientGone, match="Cannot allocate memory"):
        queue.write_file(b"", file, 0, SIZE)
    assert len(os.listdir("/proc/self/fd")) == descriptors


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSYS, errno.EIO])
def test_a_file_system_without_sendfile(
    near: Near, content: int, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(out: int, source: int, offset: int, count: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "sendfile", refuse)
    if number == errno.EIO:  # no answer to that
        with pytest.raises(ClientGone, match=os.strerror(number)):
            near.queue.write_file(b"", content, 0, 100_000)
        return
    near.queue.write_file(b"head", content, 7, 100_000)
    near.queue.write(b"end")
    received = b""
    while near.queue.draining:
        received += near.receive(near.queue.sent - len(received))
        near.queue.on_writable()
    received += near.receive(100_007 - len(received))
    assert received == b"head" + CONTENT[7:100_007] + b"end"


def test_a_socket_that_has_taken_something_is_waited_for(
    near: Near, content: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only one that takes nothing at all, although it said so, is left to the sweep."""

    def full(out: int, source: int, offset: int, count: int) -> int:
        raise BlockingIOError

    near.queue.write(bytes(SIZE))
    assert near.armed == [False]
    near.queue.write_all([b"more"])
    near.queue.write_file(b"", content, 0, 100)
    monkeypatch.setattr(os, "sendfile", full)
    received = 0
    while near.queue.bytes_queued > 100:
        received += len(near.receive(near.queue.sent - received))
        near.queue.on_writable()
        assert not near.armed[-1]
    assert received + len(near.receive(SIZE + 4 - received)) == SIZE + 4
    near.queue.on_writable()
    assert near.armed[-1]
    # The first refusal is none of that.
    other = Near(rules())
    try:
        other.queue.write_file(b"", content, 0, 100)
        assert other.armed == [False]
    finally:
        other.close()


def test_a_writer_that_waits_for_room_is_told_of_the_end(near: Near) -> None:
    near.queue = queue = OutputQueue(near.sock, near, rules(ahead_bytes=0))
    queue.write(bytes(SIZE))
    told = threading.Event()

    def write() -> None:
        with pytest.raises(ClientGone, match="took no byte"):
            queue.write(b"more")
        told.set()

    writer = threading.Thread(target=write)
    writer.start()
    while queue._room is None:
        assert not told.is_set()
    queue.fail(TimeoutError("the client took no byte in time"))
    assert told.wait(10)
    writer.join()


def test_nobody_waits_for_what_is_only_coalesced(near: Near) -> None:
    """With no room at all: there is no event that would make some."""
    near.queue = queue = OutputQueue(near.sock, near, rules(ahead_bytes=0))
    assert queue.write(b"one", coalesce=True)
    assert queue.write(b"two", coalesce=True)
    queue.flush()
    assert near.receive(6) == b"onetwo"
