"""Measure field report 5: receive a large block in one call, into one buffer (socketrecvall)."""

from __future__ import annotations

import contextlib
import mmap
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

from loadtests.bench import client_cpu_s_per_gb, row, table
from loadtests.servers import small
from wsgifast.commands.bench.loads import Load
from wsgifast.commands.bench.processes import Server, started
from wsgifast.sockets import ReceiveCount, recv_exactly, recv_exactly_into

from ..harness.tables import Client, Row, Task, Unit, megabytes_per_s

# The payload of an Ethernet packet, the usual size of a receive from a slow link.
PIECE_BYTES = 1460
BLOCK_BYTES = 2 << 20
LARGE_BYTES = {False: 64 << 20, True: 1 << 30}
# These blocks are not measured. They open the TCP window of a new connection.
WARM_UP_BLOCKS = 4

# A Receive is a function that receives a number of bytes. A Make is a function that makes the
# reused objects for this number, and returns a Receive.
Receive = Callable[[socket.socket, int, ReceiveCount], object]
Make = Callable[[int], Receive]
# A context manager that keeps another thread or process busy during the receives.
BackgroundLoad = Callable[[], contextlib.AbstractContextManager[object]]


def join_pieces(sock: socket.socket, size: int, count: ReceiveCount) -> bytes:
    """Receive in small pieces, and join them, like most code."""
    pieces = []
    missing = size
    while missing:
        piece = sock.recv(min(missing, PIECE_BYTES))
        count.calls += 1
        if not piece:
            raise ConnectionError("the stream ended")
        missing -= len(piece)
        pieces.append(piece)
    return b"".join(pieces)


def read_file(sock: socket.socket, size: int, count: ReceiveCount) -> bytes:
    """Receive with the standard library's makefile(), which reads ahead."""
    with sock.makefile("rb") as file:
        return file.read(size)


def whole(
    sock: socket.socket, size: int, count: ReceiveCount, timeout: float | None = None
) -> bytes:
    return recv_exactly(sock, size, timeout=timeout, count=count)


def new_bound(sock: socket.socket, size: int, count: ReceiveCount) -> mmap.mmap:
    """Receive in a loop into new memory, which the kernel has to provide."""
    buffer = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with memoryview(buffer) as view:
        _loop(sock, view, count)
    return buffer


def bound(size: int) -> Receive:
    """Return a function that receives in a loop into one used buffer."""
    view = memoryview(bytearray(b"x") * size)
    return lambda sock, size, count: _loop(sock, view[:size], count)


def into(size: int) -> Receive:
    """Return a function that calls recv_exactly_into() for one used buffer."""
    view = memoryview(bytearray(b"x") * size)
    return lambda sock, size, count: recv_exactly_into(sock, view[:size], count=count)


def _loop(sock: socket.socket, view: memoryview, count: ReceiveCount) -> None:
    received_bytes = 0
    while received_bytes < len(view):
        received = sock.recv_into(view[received_bytes:])
        count.calls += 1
        if not received:
            raise ConnectionError("the stream ended")
        received_bytes += received


@contextlib.contextmanager
def busy_thread() -> Iterator[None]:
    """Run a thread that computes, and releases the GIL only when it must."""
    stop = False

    def compute() -> None:
        number = 0
        while not stop:
            number += 1

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        yield
    finally:
        stop = True
        thread.join()


@contextlib.contextmanager
def busy_process() -> Iterator[None]:
    """Run a process that computes. It needs a processor, but not the GIL of this process."""
    command = [sys.executable, "-S", "-c", "print(flush=True)\nwhile True: pass"]
    with started(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None  # stdout is a pipe
        process.stdout.readline()
        yield


def receiving(
    make: Make, load: BackgroundLoad = contextlib.nullcontext, *, large: bool = False
) -> Client:
    """Return a client that receives blocks for the task's time, or one large block."""

    def run(task: Task) -> Load:
        size = LARGE_BYTES[task.full] if large else BLOCK_BYTES
        receive, count = make(size), ReceiveCount()
        with load(), socket.create_connection(task.address) as sock:
            for _ in range(WARM_UP_BLOCKS):
                receive(sock, BLOCK_BYTES, count)
            count.calls = blocks = 0
            cpu, started = time.thread_time(), time.perf_counter()
            while not blocks or (not large and time.perf_counter() - started < task.seconds):
                receive(sock, size, count)
                blocks += 1
            seconds, cpu = time.perf_counter() - started, time.thread_time() - cpu
        facts = {"calls each": count.calls / blocks}
        return Load(blocks, 0, blocks * size, seconds, client_cpu_s=cpu, facts=facts)

    return run


RECEIVED = Unit("MB/s", megabytes_per_s, "client CPU s/GB", client_cpu_s_per_gb)
OURS, OURS_INTO, BOUND = "recv_exactly", "recv_exactly_into", "bound: recv_into"
MAKING_A_BUFFER: dict[str, Make] = {
    OURS: lambda size: whole,
    "recv and join, 1,460 bytes": lambda size: join_pieces,
    "makefile().read()": lambda size: read_file,
    "recv_exactly, with a deadline": lambda size: partial(whole, timeout=60.0),
}
# The memory allocator returns the same 2 MB again and again. So all these functions receive into
# used memory.
BLOCKS: dict[str, Make] = {**MAKING_A_BUFFER, OURS_INTO: into, BOUND: bound}
NEW: dict[str, Make] = {**MAKING_A_BUFFER, BOUND: lambda size: new_bound}
USED: dict[str, Make] = {OURS_INTO: into, BOUND: bound}


def _row(
    key: str,
    title: str,
    receivers: dict[str, Make],
    *sender: str,
    large: bool = False,
    busy: bool = False,
) -> Row:
    """Return a row.

    :param sender: the kind of the server, and the rate of its link in Mbit/s.
    :param busy: whether a thread computes meanwhile. For the upper bound, a process computes.
    """
    server = small(*sender)

    def contender(name: str, load: BackgroundLoad) -> tuple[Server, Client]:
        load = load if busy else contextlib.nullcontext
        return server, receiving(receivers[name], load, large=large)

    sides = {
        name: contender(name, busy_process if name == BOUND else busy_thread) for name in receivers
    }
    if busy:
        sides["recv_into in a loop"] = contender(BOUND, busy_thread)
    ours = OURS if OURS in receivers else OURS_INTO
    return row(f"field.receive.{key}", title, sides, unit=RECEIVED, ours=ours)


TABLE = table(
    "field-report-receive",
    "Receives of a known number of bytes",
    [
        _row("sendall", "blocks of 2 MB, sent by sendall", BLOCKS, "sendall"),
        _row("sendfile", "blocks of 2 MB, sent by sendfile", BLOCKS, "sendfile"),
        _row(
            "link", "blocks of 2 MB over 1 Gbit/s, a thread computes", BLOCKS, "sendall", "1000",
            busy=True,
        ),
        _row("new", "one large receive into new memory", NEW, "sendfile", large=True),
        _row("used", "one large receive into used memory", USED, "sendfile", large=True),
        _row(
            "link-new", "one into new memory over 10 Gbit/s, a thread computes",
            {name: NEW[name] for name in (OURS, BOUND)}, "sendall", "10000", large=True, busy=True,
        ),
        _row(
            "link-used", "one into used memory over 10 Gbit/s, a thread computes", USED, "sendall",
            "10000", large=True, busy=True,
        ),
    ],
    old_table=(
        "Then: Python 2.2, an endless stream of blocks of 2 MB over links of up to 100 Mbit/s",
        ["", "gain"],
        [["recv and join", 1], ["recvall, the loop in C", 15]],
    ),
    notes=[
        "In the rows with a busy thread, the upper bound is measured with a busy process.",
        "What has changed: every way to receive is fast enough for a link of 100 Mbit/s. If no "
        "other thread needs the interpreter, recv_into() in a loop is about as fast as one call. "
        "With a busy thread, the old report is still right, because each call may wait 5 ms for "
        "the interpreter lock. So recv() of small pieces may reach only a fiftieth of 1 Gbit/s. "
        "The loss is smaller if the other thread wakes slowly. One call for the whole size reaches "
        "the full rate. A large receive needs new memory. With a reused buffer it is at least "
        "twice as fast.",
        "The limit today is the link. Over loopback, the kernel copies the bytes, and provides new "
        "memory for a large receive.",
    ],
)  # fmt: skip
