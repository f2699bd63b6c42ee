"""Field report 5: one large buffer and the whole receive in one call (socketrecvall)."""

from __future__ import annotations

import contextlib
import mmap
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median

from loadtests.measuring import Ratio, RunningServer, alternate, free_port, running
from loadtests.measuring.children import start
from wsgifast.sockets import ReceiveCount, recv_exactly, recv_exactly_into

from .result import Bars, Figures, Profile, ReportResult, Summary

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
LARGE_BYTES: dict[Profile, int] = {"quick": 64 << 20, "full": 1 << 30}
# Contenders take turns on one connection, in slices so short that whatever else the machine does
# falls on all alike; a round's figure is the median of its slices.
SLICE_BLOCKS, BLOCKS_OVER_LINK = 20, 8
# Some ways take a second for a block beside a busy thread.
MEASURE_S = 0.5
# Before each slice, not measured: what the one before has left in the receive buffer, up to 6 MB.
# On a new connection they open its window.
WARM_UP_BLOCKS = 4
SLICES, ROUNDS = 9, 9
# No round of a table is begun after so many seconds.
TABLE_S: dict[Profile, float] = {"quick": 1.5, "full": 13.0}

Receive = Callable[[socket.socket, int, ReceiveCount], object]
# Who else is busy meanwhile.
Company = Callable[[], contextlib.AbstractContextManager[object]]
nobody = contextlib.nullcontext
Ways = dict[str, Receive]
WaysInCompany = dict[str, tuple[Receive, Company]]


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
    """The bare loop over recv_into, into one buffer made and touched beforehand."""

    def __init__(self, size: int) -> None:
        self._buffer = memoryview(bytearray(b"x") * size)

    def __call__(self, sock: socket.socket, size: int, count: ReceiveCount) -> None:
        _loop(sock, self._buffer[:size], count)


class Into:
    """recv_exactly_into, into such a buffer."""

    def __init__(self, size: int) -> None:
        self._buffer = memoryview(bytearray(b"x") * size)

    def __call__(self, sock: socket.socket, size: int, count: ReceiveCount) -> None:
        recv_exactly_into(sock, self._buffer[:size], count=count)


def whole(sock: socket.socket, size: int, count: ReceiveCount) -> bytes:
    return recv_exactly(sock, size, count=count)


def whole_by_deadline(sock: socket.socket, size: int, count: ReceiveCount) -> bytes:
    return recv_exactly(sock, size, timeout=60.0, count=count)


def new_bound(sock: socket.socket, size: int, count: ReceiveCount) -> mmap.mmap:
    """The same loop into memory that nobody has touched: what any new buffer costs the kernel."""
    buffer = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with memoryview(buffer) as view:
        _loop(sock, view, count)
    return buffer


def _loop(sock: socket.socket, view: memoryview, count: ReceiveCount) -> None:
    got = 0
    while got < len(view):
        received = sock.recv_into(view[got:])
        count.calls += 1
        if not received:
            raise ConnectionError("the stream ended")
        got += received


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


@contextlib.contextmanager
def busy_process() -> Iterator[None]:
    """The same in a process of its own: it takes a processor, but not this interpreter's lock."""
    command = [sys.executable, "-S", "-c", "print(flush=True)\nwhile True: pass"]
    with start(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None  # a pipe, see above
        process.stdout.readline()
        try:
            yield
        finally:
            process.kill()


JOIN = "recv and join, 1,460 bytes"
# The last of each table.
BOUND = "bound: recv_into"
SENDALL = "Today: blocks of 2 MB, sent by sendall"
SENDFILE = "Today: blocks of 2 MB, sent by sendfile"
OVER_LINK = "Today: blocks of 2 MB over 1 Gbit/s, a thread computes; for the bound another process"
MAKING_A_BUFFER: Ways = {
    JOIN: join_pieces,
    "makefile().read()": read_file,
    "recv_exactly": whole,
    "recv_exactly, with a deadline": whole_by_deadline,
}


def run(profile: Profile) -> ReportResult:
    """Blocks of 2 MB from an endless stream, and one large receive; both beside a busy thread."""
    large, seconds = LARGE_BYTES[profile], TABLE_S[profile]
    into, bound = Into(BLOCK_BYTES), Bound(BLOCK_BYTES)
    # The memory allocator hands out the same 2 MB again and again, so this is used memory for all.
    blocks: Ways = {**MAKING_A_BUFFER, "recv_exactly_into": into, BOUND: bound}
    blocks_busy: WaysInCompany = {
        **{name: (way, busy_thread) for name, way in blocks.items() if name != BOUND},
        "recv_into in a loop": (bound, busy_thread),
        BOUND: (bound, busy_process),
    }
    runs: dict[str, dict[str, list[Received]]] = {}
    for sender, title in (("sendall", SENDALL), ("sendfile", SENDFILE)):
        with _stream(sender) as server:
            runs[title] = _in_slices(server, blocks, seconds)
    with _stream("link", 1_000) as server:
        runs[OVER_LINK] = _in_turn(server, blocks_busy, BLOCK_BYTES, seconds, BLOCKS_OVER_LINK)
    into, bound = Into(large), Bound(large)
    new: Ways = {**MAKING_A_BUFFER, BOUND: new_bound}
    used: Ways = {"recv_exactly_into": into, BOUND: bound}
    in_company: dict[str, WaysInCompany] = {
        "new": {"recv_exactly": (whole, busy_thread), BOUND: (new_bound, busy_process)},
        "used": {
            "recv_exactly_into": (into, busy_thread),
            "recv_into in a loop": (bound, busy_thread),
            BOUND: (bound, busy_process),
        },
    }
    title = f"Today: one receive of {large >> 20} MiB"
    with _stream("sendfile") as server:
        for memory, ways in (("new", new), ("used", used)):
            runs[f"{title} into {memory} memory"] = _in_turn(
                server, {name: (way, nobody) for name, way in ways.items()}, large, seconds
            )
    with _stream("link", 10_000) as server:
        for memory, company in in_company.items():
            runs[
                f"{title} into {memory} memory over 10 Gbit/s, a thread computes; for the bound "
                "another process"
            ] = _in_turn(server, company, large, seconds)
    return ReportResult(
        [_table(title, of) for title, of in runs.items()],
        [
            Bars(title, "MB/s", {name: _median_speed(of) for name, of in by_name.items()})
            for title, by_name in runs.items()
        ],
        _summary(runs),
        "a link of 100 Mbit/s no longer waits for Python, whichever way it "
        "receives, and recv_into() in a loop is about as fast as one call, as long as no other "
        "thread wants the interpreter. Beside a busy thread the old report's point stands: a call "
        "may wait for the interpreter lock again (5 ms), so recv() of small pieces may get as "
        "little as a fiftieth of 1 Gbit/s (less is lost where the other thread is slow to wake), "
        "and one call for the whole gets all of it. What limits a large receive today is the new "
        "memory that it needs: into a buffer that is used again it is at least twice as fast.",
        runs,
    )


def _summary(runs: dict[str, dict[str, list[Received]]]) -> Summary:
    quiet, busy = runs[SENDFILE], runs[OVER_LINK]
    return Summary(
        "recvall 15x recv and join, over links of up to 100 Mbit/s",
        f"recv and join {_median_speed(quiet[JOIN]):,.0f} MB/s; "
        f"{_median_speed(busy[JOIN]):,.0f} of 125 MB/s over 1 Gbit/s beside a busy thread",
        f"recv_exactly {_median_speed(quiet['recv_exactly']):,.0f} MB/s; "
        f"{_median_speed(busy['recv_exactly']):,.0f} of 125 MB/s",
        "the link; over loopback the kernel's copying, and its making of new memory for a large "
        "receive.",
    )


def _stream(*sender: object) -> contextlib.AbstractContextManager[RunningServer]:
    address = ("127.0.0.1", free_port())
    command = ["python", "-m", "loadtests.field_reports.stream", *map(str, (*address, *sender))]
    return running(command, address, name="stream server")


def _in_slices(server: RunningServer, ways: Ways, seconds: float) -> dict[str, list[Received]]:
    """All contenders on one connection, in short slices in a random order."""
    shuffled = random.Random(1).sample

    def round_() -> dict[str, Received]:
        slices: dict[str, list[Received]] = {name: [] for name in ways}
        for _ in range(SLICES):
            for name in shuffled(list(ways), len(ways)):
                _measure(sock, ways[name], BLOCK_BYTES, WARM_UP_BLOCKS)
                slices[name].append(_measure(sock, ways[name], BLOCK_BYTES, SLICE_BLOCKS))
        return {name: sorted(of, key=_speed)[SLICES // 2] for name, of in slices.items()}

    with socket.create_connection(server.address) as sock:
        rounds = alternate({"all": round_}, rounds=ROUNDS, seconds=seconds)["all"]
    return {name: [one[name] for one in rounds] for name in ways}


def _in_turn(
    server: RunningServer, ways: WaysInCompany, size: int, seconds: float, blocks: int = 1
) -> dict[str, list[Received]]:
    """Some receives of each in turn, in company, each time on a new connection."""

    def measured(receive: Receive, company: Company) -> Received:
        with company(), socket.create_connection(server.address) as sock:
            _measure(sock, receive, BLOCK_BYTES, WARM_UP_BLOCKS)
            return _measure(sock, receive, size, blocks)

    contenders = {name: partial(measured, *way) for name, way in ways.items()}
    return alternate(contenders, rounds=ROUNDS, seconds=seconds)


def _measure(sock: socket.socket, receive: Receive, size: int, blocks: int) -> Received:
    """Receive a number of blocks, or as many as can be begun in MEASURE_S."""
    count = ReceiveCount()
    received = 0
    cpu, started = time.thread_time(), time.perf_counter()
    while received < blocks and time.perf_counter() - started < MEASURE_S:
        receive(sock, size, count)
        received += 1
    seconds, cpu_s = time.perf_counter() - started, time.thread_time() - cpu
    return Received(size * received, seconds, cpu_s, count.calls // received)


def _speed(run: Received) -> float:
    return run.mb_per_second


def _median_speed(runs: list[Received]) -> float:
    return median(map(_speed, runs))


def _table(title: str, runs: dict[str, list[Received]]) -> Figures:
    speeds = {name: list(map(_speed, of)) for name, of in runs.items()}
    rows = [
        [
            name,
            _median_speed(of),
            median(run.cpu_s * 1e9 / run.received for run in of),
            round(median(run.calls for run in of)) or None,
            Ratio.of(speeds[name], speeds[JOIN]) if JOIN in runs else None,
            Ratio.of(speeds[name], speeds[BOUND]),
        ]
        for name, of in runs.items()
    ]
    return Figures(
        title, ["", "MB/s", "CPU s per GB", "calls each", "to recv and join", "to the bound"], rows
    )
