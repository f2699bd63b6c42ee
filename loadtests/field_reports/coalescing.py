"""Measure field report 4: Nagle's algorithm, TCP_NODELAY and coalescing writers.

One thread, several threads, or asyncio tasks send messages to an echo server. The number of
messages without a response is limited. The time of each write and of each response is recorded, to
compute the latencies of all messages.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from array import array
from collections.abc import Callable

from loadtests.bench import row, table
from loadtests.clients import percentile, percentiles
from loadtests.servers import small
from wsgifast.commands.bench.loads import Load
from wsgifast.commands.bench.processes import Address
from wsgifast.sockets import AsyncCoalescingWriter, CoalescingWriter, SharedCoalescingWriter

from ..harness.tables import Client, Task, Unit

MESSAGE_BYTES = 32
# The maximum number of messages without a response. So many messages keep both processes busy. A
# longer queue would increase the latency.
DEPTH = 256
_SENDERS = 4
MODES = ("coalescing", "no_delay", "nagle", "TCP_CORK", "MSG_MORE")
MESSAGES = {False: 40_000, True: 1_000_000}
OPERATIONS = Unit("op/s", lambda m: m.requests_per_s, "p99 us", lambda m: m.latency_ms[99] * 1e3)


def run_simple(address: Address, mode: str, messages: int) -> list[int]:
    """Send and receive alternately in one thread. Return sorted latencies in nanoseconds."""
    with _connected(address, mode) as sock:
        write, flush = _simple_writer(sock, mode)
        message = bytes(MESSAGE_BYTES)
        sent = array("q", bytes(8 * messages))
        arrivals = _Arrivals()
        buffer = bytearray(64 * 1024)
        now = time.monotonic_ns
        limit = DEPTH
        number = 0
        while number < messages:
            for index in range(number, min(limit, messages)):
                sent[index] = now()
                write(message)
            number = min(limit, messages)
            flush()
            arrivals.add(sock.recv_into(buffer), now())
            limit = arrivals.total // MESSAGE_BYTES + DEPTH
        while arrivals.total < messages * MESSAGE_BYTES:
            arrivals.add(sock.recv_into(buffer), now())
        return sorted(arrivals.latencies(sent))


def run_threaded(address: Address, mode: str, messages: int) -> list[int]:
    """Send in several threads on one connection, and receive in another thread."""
    share = messages // _SENDERS
    with _connected(address, mode) as sock:
        write, close = _shared_writer(sock, mode)
        senders = [_Sender(number, share, write) for number in range(_SENDERS)]
        threads = [threading.Thread(target=sender.run) for sender in senders]
        for thread in threads:
            thread.start()
        total, expected = 0, share * _SENDERS * MESSAGE_BYTES
        buffer = bytearray(64 * 1024)
        try:
            while total < expected:
                received = sock.recv_into(buffer)
                if not received:
                    raise ConnectionError("the echo server closed the connection")
                at = time.monotonic_ns()
                # The first byte of each message is the number of its sender.
                owners = buffer[-total % MESSAGE_BYTES : received : MESSAGE_BYTES]
                total += received
                for sender in senders:
                    sender.answered(owners.count(sender.number), at)
        finally:
            for sender in senders:
                sender.end()
            for thread in threads:
                thread.join()
        close()
        return sorted(ns for sender in senders for ns in sender.arrivals.latencies(sender.sent))


def run_async(address: Address, mode: str, messages: int) -> list[int]:
    """Send in several asyncio tasks on one connection."""
    return asyncio.run(_run_async(address, mode, messages))


class _Arrivals:
    """The number of received bytes at each time."""

    def __init__(self) -> None:
        self.total = 0
        self._steps: list[tuple[int, int]] = []

    def add(self, size: int, at: int) -> None:
        if not size:
            raise ConnectionError("the echo server closed the connection")
        self.total += size
        self._steps.append((self.total // MESSAGE_BYTES, at))

    def latencies(self, sent: array[int]) -> list[int]:
        """Return the latency of each message. Responses arrive in the order of the messages."""
        result: list[int] = []
        for count, at in self._steps:
            result += [at - sent_at for sent_at in sent[len(result) : count]]
        return result


class _Sender:
    """One of the threads that share a connection."""

    def __init__(self, number: int, messages: int, write: Callable[[bytes], object]) -> None:
        self.number = number
        self.sent = array("q", bytes(8 * messages))
        self.arrivals = _Arrivals()
        self._write = write
        self._may_send = threading.Event()
        self._is_ended = False

    def run(self) -> None:
        message = bytes([self.number]) * MESSAGE_BYTES
        now, write, sent, arrivals = time.monotonic_ns, self._write, self.sent, self.arrivals
        depth = DEPTH // _SENDERS
        for index in range(len(sent)):
            while index - arrivals.total // MESSAGE_BYTES >= depth:
                self._may_send.clear()
                if self._is_ended:
                    return
                if index - arrivals.total // MESSAGE_BYTES >= depth:
                    self._may_send.wait()
            sent[index] = now()
            try:
                write(message)
            except OSError:  # the receiving thread raises the error
                return

    def end(self) -> None:
        """Stop sending, without waiting for responses."""
        self._is_ended = True
        self._may_send.set()

    def answered(self, count: int, at: int) -> None:
        if count:
            self.arrivals.add(count * MESSAGE_BYTES, at)
            if not self._may_send.is_set():
                self._may_send.set()


def _connected(address: Address, mode: str) -> socket.socket:
    sock = socket.create_connection(address)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, int(mode != "nagle"))
    return sock


def _simple_writer(
    sock: socket.socket, mode: str
) -> tuple[Callable[[bytes], object], Callable[[], object]]:
    if mode == "coalescing":
        writer = CoalescingWriter(sock)
        return writer.write, writer.flush
    if mode == "TCP_CORK":

        def uncork() -> None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)

        uncork()
        return sock.sendall, uncork
    if mode == "MSG_MORE":
        # On Linux, setting TCP_NODELAY again sends the delayed bytes.
        return (
            lambda data: sock.sendall(data, socket.MSG_MORE),
            lambda: sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        )
    return sock.sendall, lambda: None


def _shared_writer(
    sock: socket.socket, mode: str
) -> tuple[Callable[[bytes], object], Callable[[], object]]:
    if mode == "coalescing":
        writer = SharedCoalescingWriter(sock)
        return writer.write, writer.close
    lock = threading.Lock()

    def write(data: bytes) -> None:
        with lock:
            sock.sendall(data)

    return write, lambda: None


async def _run_async(address: Address, mode: str, messages: int) -> list[int]:
    loop = asyncio.get_running_loop()
    sent = array("q")
    arrivals = _Arrivals()
    waiting: list[asyncio.Future[None]] = []
    ended = loop.create_future()
    expected = messages * MESSAGE_BYTES

    class ResponseReader(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            arrivals.add(len(data), time.monotonic_ns())
            for future in waiting:
                future.set_result(None)
            waiting.clear()
            if arrivals.total >= expected and not ended.done():
                ended.set_result(None)

        def connection_lost(self, exc: Exception | None) -> None:
            if not ended.done():
                ended.set_exception(exc or ConnectionError("the echo server closed"))

    # The transport has set TCP_NODELAY. For the mode "nagle", reset the option.
    transport, _ = await loop.create_connection(ResponseReader, *address)
    sock = transport.get_extra_info("socket")
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, int(mode != "nagle"))
    write: Callable[[bytes], object] = transport.write
    if mode == "coalescing":
        write = AsyncCoalescingWriter(transport).write
    message = bytes(MESSAGE_BYTES)

    async def send() -> None:
        now, append = time.monotonic_ns, sent.append
        while True:
            for _ in range(DEPTH // _SENDERS):
                if len(sent) >= messages:
                    return
                append(now())
                write(message)
            while len(sent) - arrivals.total // MESSAGE_BYTES > DEPTH - DEPTH // _SENDERS:
                future = loop.create_future()
                waiting.append(future)
                await future

    await asyncio.gather(ended, *(send() for _ in range(_SENDERS)))
    transport.close()
    return sorted(arrivals.latencies(sent))


# Each function gets the server's address, one of MODES, and the number of messages.
SENDERS: dict[str, Callable[[Address, str, int], list[int]]] = {
    "simple": run_simple,
    "threaded": run_threaded,
    "async": run_async,
}


def _send(sender: str, mode: str) -> Client:
    def run(task: Task) -> Load:
        cpu, started = time.process_time(), time.perf_counter()
        latencies = SENDERS[sender](task.address, mode, MESSAGES[task.full])
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        ms = [ns / 1e6 for ns in latencies]
        sent = len(ms)
        facts = {
            "min us": ms[0] * 1e3,
            "avg us": sum(ms) / sent * 1e3,
            "p99.99 ms": percentile(ms, 99.99),
            "max ms": ms[-1],
        }
        size = sent * MESSAGE_BYTES
        return Load(sent, 0, size, seconds, percentiles(ms), client_cpu_s=cpu, facts=facts)

    return run


TABLE = table(
    "field-report-coalescing",
    "Small messages: Nagle, TCP_NODELAY and coalescing",
    [
        row(
            f"field.coalescing.{sender}",
            f"{sender}: messages of {MESSAGE_BYTES} bytes",
            # MSG_MORE and TCP_CORK need a thread that knows the end of a batch.
            {
                mode: (small("echo"), _send(sender, mode))
                for mode in (MODES if sender == "simple" else MODES[:3])
            },
            unit=OPERATIONS,
            ours=MODES[0],
        )
        for sender in SENDERS
    ],
    old_table=(
        "Then: Python 3.7, 1,000,000 messages to a local server",
        ["", "run time s", "op/s", "min us", "max ms", "avg us", "p99 us", "p99.99 ms"],
        [
            ["simple coalescing", 3.51, 285049, 5.2, 106.3, 100.0, 543.4, 18.8],
            ["simple no_delay", 4.93, 202740, 4.1, 100.6, 1261.7, 38364.2, 62.0],
            ["simple nagle", 3.42, 292630, 4.8, 104.1, 574.7, 20793.4, 40.9],
            ["threaded coalescing", 8.23, 121466, 627.5, 107.3, 1674.9, 2265.7, 107.1],
            ["threaded no_delay", 17.25, 57983, 671.2, 96.9, 4131.3, 34711.4, 96.6],
            ["threaded nagle", 17.64, 56690, 672.1, 98.4, 4199.9, 35528.4, 98.0],
            ["async coalescing", 4.46, 224172, 214.3, 97.5, 509.2, 1048.8, 77.0],
            ["async no_delay", 6.30, 158610, 410.6, 97.7, 1012.7, 17917.4, 97.1],
            ["async nagle", 5.30, 188659, 355.2, 108.0, 769.7, 5980.3, 107.5],
        ],
    ),
    notes=[
        "What has changed: in the report, one thread was not faster by coalescing than with "
        "Nagle's algorithm. Today it is faster, because coalescing costs less. No row has pauses "
        "of 100 ms. Two conditions improve the figures. Over loopback the peer acknowledges at "
        f"once, so Nagle's algorithm hardly waits. At most {DEPTH} messages are sent at a time, "
        "so the queue stays short.",
        "The limit today is the interpreter. Each message needs at least one call. In the threaded "
        "row, the threads also share a lock.",
    ],
)
