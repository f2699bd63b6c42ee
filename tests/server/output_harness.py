"""An output queue over a real TCP socket, plain or with TLS, and its client."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gunicorn.config import Config
from hypothesis import strategies as st

from tests.support.process import open_descriptors, send_buffer_is_limited
from tests.support.servers import wait_for
from tests.support.tls import client_context, server_context
from wsgifast.server import output, sending
from wsgifast.server.disk import DiskThreads
from wsgifast.server.output import OutputQueue
from wsgifast.server.output_rules import OutputRules
from wsgifast.server.poller import WOULD_BLOCK
from wsgifast.server.shared import Shared
from wsgifast.workers.gunicorn_support import Settings
from wsgifast.workers.options import options as options_of
from wsgifast.workers.worker import FastWorker

# FastWorker's defaults.
OPTIONS = options_of(FastWorker, Settings(Config()))
CONTENT = os.urandom(1 << 20)
SIZE = 8 * 1024 * 1024
# A write: its kind, its size in bytes, its offset, and whether the client reads afterwards.
Pieces = list[tuple[str, int, int, bool]]
TLS = tuple[ssl.SSLContext, ssl.SSLContext]  # the names of the server's and the client's ends
MakeNear = Callable[..., "Near"]

needs_near_buffers = pytest.mark.skipif(
    not hasattr(socket, "TCP_INFO"), reason="only Linux reports how far away a peer is"
)


def rules(
    *,
    ahead_bytes: int = 1 << 20,
    timeout_s: float = 60.0,
    min_bytes_per_s: float = 0.0,
    sendfile: bool = True,
    memory_bytes: int = 1 << 30,
    warnings: list[str] | None = None,
    disk: DiskThreads | None = None,
    response_on_disk_bytes: int = 1 << 30,
    responses_on_disk_bytes: int = 1 << 40,
    share_work: Callable[[], object] = lambda: None,
    request_tick: Callable[[], object] = lambda: None,
    waits_for_disk: bool = True,
) -> OutputRules:
    """Return the rules of a worker.

    :param waits_for_disk: the calling thread writes temporary files, in place of a disk thread.
    """
    logged: list[str] = [] if warnings is None else warnings
    options = dataclasses.replace(
        OPTIONS,
        output_ahead_bytes=ahead_bytes,
        send_timeout_s=timeout_s,
        send_min_bytes_per_s=min_bytes_per_s,
        sendfile=sendfile,
        output_memory_bytes=memory_bytes,
        response_on_disk_bytes=response_on_disk_bytes,
        responses_on_disk_bytes=responses_on_disk_bytes,
    )
    log = SimpleNamespace(
        warning=lambda text, *args: logged.append(text % args),
        error=lambda text, exc_info: logged.append(repr(exc_info)),
    )
    made = OutputRules(Shared(options, log), share_work=share_work, request_tick=request_tick)
    made.disk = disk or made.disk
    if waits_for_disk:
        threads: Any = made.disk
        threads.submit_temporary = lambda job: job()
    return made


class Near:
    """An output queue and its client.

    :ivar armed: one item for each wait: True means "try again later".
    """

    def __init__(self, rules: OutputRules, tls: TLS | None = None) -> None:
        self.rules = rules
        self.client: socket.socket
        self.sock: socket.socket
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.client = socket.create_connection(listener.getsockname(), timeout=60)
            self.sock = listener.accept()[0]
        if tls is not None:
            self._shake_hands(*tls)
        self.sock.setblocking(False)
        self.armed: list[bool] = []
        self.deadlines: list[float] = []
        self.resumed = 0
        self.refusal: Exception | None = None
        self.changed = threading.Condition()
        self.queue = self.make_queue()
        self._streams_on: OutputQueue | None = None

    def make_queue(self) -> OutputQueue:
        owner: Any = self
        return OutputQueue(sending.SocketSender(self.sock, self.rules), owner, self.rules)

    def write_next(self, block: bytes) -> None:
        """Write a block of a stream. The first one begins the stream."""
        if self.queue is not self._streams_on:
            self._streams_on = queue = self.queue
            ahead = queue.may_run_ahead
            self._write_next = queue.begin_stream(b"", frame=None, may_run_ahead=ahead)
        self._write_next(block)

    def write_until_full(self) -> int:
        """Write zeros until the kernel accepts no more. Return their number."""
        size = 0
        while not self.queue.is_waiting:
            self.queue.write(bytes(1 << 20))
            size += 1 << 20
        return size

    def _shake_hands(self, server: ssl.SSLContext, client: ssl.SSLContext) -> None:
        def secure() -> None:
            self.client = client.wrap_socket(self.client, server_hostname="localhost")

        thread = threading.Thread(target=secure)
        thread.start()
        self.sock = server.wrap_socket(self.sock, server_side=True)
        thread.join()

    # The methods that the queue calls

    def wait_to_send(self, deadline: float, *, no_memory: bool) -> None:
        if self.refusal is not None:
            raise self.refusal
        with self.changed:
            self.armed.append(no_memory)
            self.deadlines.append(deadline)
            self.changed.notify_all()

    def resume_sending(self) -> None:
        with self.changed:
            self.resumed += 1
            self.changed.notify_all()

    @property
    def send_buffer_is_limited(self) -> bool:
        return send_buffer_is_limited(self.sock)

    @property
    def disk_threads(self) -> int:
        return sum(device.threads for device in self.rules.disk._devices.values())

    # The client

    def receive_all_there_is(self) -> bytes:
        self.client.setblocking(False)
        data = b""
        try:
            while block := self.client.recv(1 << 20):
                data += block
        except WOULD_BLOCK:
            pass
        self.client.setblocking(True)
        return data

    def receive(self, size: int) -> bytes:
        """Receive this number of bytes. A packet may still be on its way."""
        data = b""
        while len(data) < size:
            block = self.client.recv(min(1 << 20, size - len(data)))
            assert block, f"the connection ended {size - len(data)} bytes early"
            data += block
        return data

    def receive_rest(self, size: int) -> bytes:
        """Receive the remaining output, of so many bytes. The queue goes on meanwhile."""
        received = b""
        while self.queue.is_waiting:
            received += self.receive(size - self.queue.unsent_bytes() - len(received))
            self.queue.on_writable()
        return received + self.receive(size - len(received))

    def receive_in_turn(self, size: int) -> bytes:
        """Receive this number of bytes. Continue whenever the queue waits for an event."""
        received = b""
        deadline = time.perf_counter() + 60  # a test may move the other clock
        while len(received) < size or self.armed:
            assert time.perf_counter() < deadline, f"{len(received)} bytes of {size} have come"
            received += self.receive_all_there_is()
            if not self.go_on():
                time.sleep(0.001)
        return received

    def go_on(self) -> bool:
        """Return whether the queue waits for an event. The event then arrives."""
        if not self.armed:
            return False
        self.armed.clear()
        self.queue.on_writable()
        return True

    def receive_while_writing(self, size: int) -> bytes:
        """Receive this number of bytes from a writer in another thread."""
        received = bytearray()
        while len(received) < size:
            received += self.receive_all_there_is()
            if self.queue.is_waiting:
                self.queue.on_writable()
        return bytes(received)

    def until_tried_again(self) -> None:
        """Act like a kernel without memory for TCP: the socket is writable, and accepts nothing."""
        assert self.armed == [False]
        for _ in range(100):  # at first the buffers may still grow
            assert not self.queue.on_writable()
            if self.armed[-1]:
                return
        raise AssertionError("the queue waits for writability again and again")

    def close(self) -> None:
        self.queue.close()
        self.client.close()
        self.sock.close()


@pytest.fixture(scope="session")
def tls() -> TLS:
    return server_context(), client_context()


@pytest.fixture
def make_near() -> Iterator[MakeNear]:
    """Make queues with their clients, from rules or from the arguments of :func:`rules`."""
    with contextlib.ExitStack() as stack:

        def make(shared: OutputRules | None = None, tls: TLS | None = None, **more: Any) -> Near:
            near = Near(shared or rules(**more), tls)
            stack.callback(near.close)
            return near

        yield make


@pytest.fixture
def near(make_near: MakeNear) -> Near:
    return make_near()


@pytest.fixture
def in_quick_succession(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block follows the one before at once."""
    monkeypatch.setattr(output, "_COALESCE_S", math.inf)


@contextlib.contextmanager
def _opened(path: Path, content: bytes) -> Iterator[int]:
    path.write_bytes(content)
    fd = os.open(path, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    """Return the descriptor of SIZE random bytes."""
    with _opened(tmp_path / "file", os.urandom(SIZE)) as fd:
        yield fd


@pytest.fixture(scope="session")
def content(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Return the descriptor of a file with CONTENT."""
    with _opened(tmp_path_factory.mktemp("output") / "content", CONTENT) as fd:
        yield fd


def blocks(count: int, size: int = 1000) -> Iterator[bytes]:
    for number in range(count):
        yield b"%0*d" % (size, number)


@contextlib.contextmanager
def started(*targets: Callable[[], object]) -> Iterator[list[threading.Thread]]:
    """Run functions in separate threads, which have ended at the end of the block."""
    threads = [threading.Thread(target=target) for target in targets]
    for thread in threads:
        thread.start()
    yield threads
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


@contextlib.contextmanager
def switching_often() -> Iterator[None]:
    """Have threads switch as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def pieces_of(size: int, most: int) -> st.SearchStrategy[Pieces]:
    """Return the pieces of a content of this size, for each way to write."""
    return st.lists(
        st.tuples(
            st.sampled_from(["write", "next", "all", "file"]),
            st.one_of(st.integers(0, 2), st.integers(0, most)),
            st.integers(0, size - most),
            st.booleans(),
        ),
        max_size=12,
    )


def arrives_in_order(near: Near, pieces: Pieces, content: bytes, fd: int) -> None:
    """Write pieces of a content, which is also in a file.

    All of them arrive, and no descriptor stays open.

    The connection is closed then.
    """
    queue = near.queue
    expected = received = b""
    descriptors = open_descriptors()
    try:
        for kind, size, offset, reads in pieces:
            data = content[offset : offset + size]
            if kind == "file":
                queue.write_file(b"head", fd, offset, size)
                data = b"head" + data
            elif kind == "all":
                queue.write_buffers([data[: size // 2], b"", data[size // 2 :]])
            elif kind == "next" and data:
                near.write_next(data)
            else:
                queue.write(data)
            expected += data
            if reads:
                received += near.receive_all_there_is()
                if queue.is_waiting:
                    queue.on_writable()
        queue.flush()
        received += near.receive_in_turn(len(expected) - len(received))
        assert received == expected
        assert near.receive_all_there_is() == b""
        assert queue.bytes_queued == 0
        backlog = queue.backlog
        wait_for(lambda: backlog is None or backlog.spilling is None, "the disk is done")
        queue.reset()
        assert open_descriptors() <= descriptors
    finally:
        near.close()
