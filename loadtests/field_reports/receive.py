"""Field report 5: one large buffer and the whole receive in one call (socketrecvall)."""

from __future__ import annotations

import contextlib
import mmap
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median

from loadtests.measuring import Ratio, RunningServer, alternate, free_port, running
from wsgifast.sockets import ReceiveCount, recv_exactly, recv_exactly_into

from .result import Bars, Figures, Profile, ReportResult

__all__ = ["OLD", "TITLE", "run"]

TITLE = "Receiving exactly so many bytes (socketrecvall)"
OLD = Figures(
    "Then: Python 2.2, an endless stream of blocks of about 2 MB over links of up to 100 Mbit/s",
    ["", "gain"],
    [["recv and join", 1], ["recvall, the loop in C", 15]],
)
# One Ethernet packet's payload, as it comes from a slow link.
PIECE_BYTES = 1460
BLOCK_BYTES = 2 << 20
LARGE_BYTES: dict[Profile, int] = {"quick": 256 << 20, "full": 1 << 30}
# Blocks of one run; fewer beside a busy thread, where each receive may cost 5 ms.
BLOCKS, BLOCKS_BUSY = 200, 10
# Received before the clock starts: the kernel grows the window of a new connection first.
WARM_UP_BLOCKS = 10
ROUNDS = 9

Receive = Callable[[socket.socket, int, ReceiveCount], object]


@dataclass(frozen=True)
class Received:
    """One run."""

    received: int
    seconds: float
    cpu_s: float
    calls: int

    @property
    def mb_per_second(self) -> float:
        return self.received / 1e6 / self.seconds


def join_pieces(sock: socket.socket, size: int, count: ReceiveCount) -> bytes:
    """What most code does."""
    pieces = []
    left = size
    while left:
        piece = sock.recv(min(left, PIECE_BYTES))
        count.calls += 1
        if not piece:
            raise ConnectionError("the stream ended")
        left -= len(piece)
        pieces.append(piece)
    return b"".join(pieces)


def read_file(sock: socket.socket, size: int, count: ReceiveCount) -> bytes:
    """The standard library's own way; reads ahead, so it is for connections of one purpose."""
    with sock.makefile("rb") as file:
        return file.read(size)


class Bound:
    """The bare loop over recv_into, into one buffer made beforehand: no allocation, no clearing."""

    def __init__(self, size: int) -> None:
        self._buffer = memoryview(bytearray(size))

    def __call__(self, sock: socket.socket, size: int, count: ReceiveCount) -> None:
        got = 0
        while got < size:
            received = sock.recv_into(self._buffer[got:size])
            count.calls += 1
            if not received:
                raise ConnectionError("the stream ended")
            got += received


class Into:
    """recv_exactly_into, into one buffer made and touched beforehand, to compare with the bound."""

    def __init__(self, size: int) -> None:
        self._buffer = memoryview(bytearray(b"x") * size)

    def __call__(self, sock: socket.socket, size: int, count: ReceiveCount) -> None:
        recv_exactly_into(sock, self._buffer[:size], count=count)


def whole(sock: socket.socket, size: int, count: ReceiveCount) -> bytes:
    return recv_exactly(sock, size, count=count)


def whole_by_deadline(sock: socket.socket, size: int, count: ReceiveCount) -> bytes:
    return recv_exactly(sock, size, timeout=60.0, count=count)


def fresh_bound(sock: socket.socket, size: int, count: ReceiveCount) -> mmap.mmap:
    """The same loop into memory that nobody has touched: what any new buffer costs the kernel."""
    buffer = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    got = 0
    with memoryview(buffer) as view:
        while got < size:
            received = sock.recv_into(view[got:])
            count.calls += 1
            got += received
    return buffer


@contextlib.contextmanager
def busy_thread() -> Iterator[None]:
    """A thread that computes, and gives up the interpreter lock only when it must."""
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


def run(profile: Profile) -> ReportResult:
    """Blocks of 2 MB from an endless stream, one large receive, and blocks beside a busy thread."""
    large = LARGE_BYTES[profile]
    address = ("127.0.0.1", free_port())
    command = ["python", "-m", "loadtests.field_reports.stream", address[0], str(address[1])]
    ways: dict[str, Receive] = {
        "recv and join, 1,460 bytes": join_pieces,
        "makefile().read()": read_file,
        "recv_exactly": whole,
        "recv_exactly, with a deadline": whole_by_deadline,
    }
    with running(command, address, name="stream server") as server:

        def measured(ways: dict[str, Receive], size: int, blocks: int) -> dict[str, list[Received]]:
            contenders = {
                name: partial(_measure, server, receive, size, blocks)
                for name, receive in ways.items()
            }
            return alternate(contenders, rounds=ROUNDS)

        reused: dict[str, Receive] = {
            "recv_exactly_into": Into(BLOCK_BYTES),
            "bound: recv_into": Bound(BLOCK_BYTES),
        }
        stream = measured({**ways, **reused}, BLOCK_BYTES, BLOCKS)
        # The used buffer is there to show what the kernel's clearing of new memory costs.
        used = {"recv_exactly_into, used memory": Into(large)}
        one = measured({**ways, **used, "bound: recv_into, new memory": fresh_bound}, large, 1)
        used.clear()
        with busy_thread():
            busy = measured({**ways, **reused}, BLOCK_BYTES, BLOCKS_BUSY)
    tables = [
        _table(f"Blocks of 2 MB from an endless stream, {BLOCKS} a run", stream),
        _table(f"One receive of {large >> 20} MiB", one),
        _table("Blocks of 2 MB beside a thread that keeps the interpreter busy", busy),
    ]
    bars = {
        f"{name}{where}": median(run.mb_per_second for run in of)
        for where, runs in (("", stream), (", busy", busy))
        for name, of in runs.items()
    }
    return ReportResult(
        tables,
        [Bars("Blocks of 2 MB", "MB/s", bars)],
        "What has changed: a link of 100 Mbit/s no longer waits for Python, whichever way it "
        "receives, and recv_into() in a loop is as fast as one call, as long as no other thread "
        "wants the interpreter. Beside a busy thread the old report's point stands: each call "
        "waits for the interpreter lock again, so one call for the whole is what helps.",
        {"blocks": stream, "one": one, "busy": busy},
    )


def _measure(server: RunningServer, receive: Receive, size: int, blocks: int) -> Received:
    count = ReceiveCount()
    with socket.create_connection(server.address) as sock:
        for _ in range(WARM_UP_BLOCKS if blocks > 1 else 0):
            receive(sock, size, ReceiveCount())
        cpu, started = time.process_time(), time.perf_counter()
        for _ in range(blocks):
            receive(sock, size, count)
        seconds, cpu_s = time.perf_counter() - started, time.process_time() - cpu
    return Received(size * blocks, seconds, cpu_s, count.calls // blocks)


def _table(title: str, runs: dict[str, list[Received]]) -> Figures:
    bound = list(runs.values())[-1]
    base = runs["recv and join, 1,460 bytes"]
    rows = []
    for name, of in runs.items():
        speeds = [run.mb_per_second for run in of]
        rows.append(
            [
                name,
                median(speeds),
                median(run.cpu_s * 1e9 / run.received for run in of),
                round(median(run.calls for run in of)) or None,
                Ratio.of(speeds, [run.mb_per_second for run in base]),
                Ratio.of(speeds, [run.mb_per_second for run in bound]),
            ]
        )
    return Figures(
        title, ["", "MB/s", "CPU s per GB", "calls each", "to recv and join", "to the bound"], rows
    )
