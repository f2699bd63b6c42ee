"""Senders of the coalescing report: one thread, several threads, asyncio; each with any writer.

Every sender keeps a bounded number of messages without an answer, notes when it handed over each
message and when the answer was back, and gives the latencies of all.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from array import array
from collections.abc import Callable

from wsgifast.sockets import AsyncCoalescingWriter, CoalescingWriter, SharedCoalescingWriter

Address = tuple[str, int]
MESSAGE_BYTES = 32
# Messages without an answer, in all: enough to keep both processes busy, few enough that the
# latency is that of the way and not of a queue.
DEPTH = 256
_SENDERS = 4
MODES = ("coalescing", "no_delay", "nagle", "TCP_CORK", "MSG_MORE")


def run_simple(address: Address, mode: str, messages: int) -> list[int]:
    """One thread that sends and receives in turn; latencies in nanoseconds, ascending."""
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
    """Several threads that share a connection, and one that receives."""
    share = messages // _SENDERS
    with _connected(address, mode) as sock:
        write, close = _shared_writer(sock, mode)
        senders = [_Sender(number, share, write) for number in range(_SENDERS)]
        threads = [threading.Thread(target=sender.run) for sender in senders]
        for thread in threads:
            thread.start()
        total, expected = 0, share * _SENDERS * MESSAGE_BYTES
        buffer = bytearray(64 * 1024)
        while total < expected:
            received = sock.recv_into(buffer)
            if not received:
                raise ConnectionError("the echo server closed the connection")
            at = time.monotonic_ns()
            # The first byte of each message is its sender's number.
            owners = buffer[-total % MESSAGE_BYTES : received : MESSAGE_BYTES]
            total += received
            for sender in senders:
                sender.answered(owners.count(sender.number), at)
        for thread in threads:
            thread.join()
        close()
        return sorted(ns for sender in senders for ns in sender.arrivals.latencies(sender.sent))


def run_async(address: Address, mode: str, messages: int) -> list[int]:
    """Several asyncio tasks that share a connection."""
    return asyncio.run(_run_async(address, mode, messages))


class _Arrivals:
    """How many bytes of answers had come at which time."""

    def __init__(self) -> None:
        self.total = 0
        self._steps: list[tuple[int, int]] = []

    def add(self, size: int, at: int) -> None:
        if not size:
            raise ConnectionError("the echo server closed the connection")
        self.total += size
        self._steps.append((self.total // MESSAGE_BYTES, at))

    def latencies(self, sent: array[int]) -> list[int]:
        """Message by message; answers come in the order of sending."""
        result: list[int] = []
        for count, at in self._steps:
            result += [at - when for when in sent[len(result) : count]]
        return result


class _Sender:
    """One of the threads that share a connection."""

    def __init__(self, number: int, messages: int, write: Callable[[bytes], object]) -> None:
        self.number = number
        self.sent = array("q", bytes(8 * messages))
        self.arrivals = _Arrivals()
        self._write = write
        self._room = threading.Event()

    def run(self) -> None:
        message = bytes([self.number]) * MESSAGE_BYTES
        now, write, sent, arrivals = time.monotonic_ns, self._write, self.sent, self.arrivals
        depth = DEPTH // _SENDERS
        for index in range(len(sent)):
            while index - arrivals.total // MESSAGE_BYTES >= depth:
                self._room.clear()
                if index - arrivals.total // MESSAGE_BYTES >= depth:
                    self._room.wait()
            sent[index] = now()
            write(message)

    def answered(self, count: int, at: int) -> None:
        if count:
            self.arrivals.add(count * MESSAGE_BYTES, at)
            if not self._room.is_set():
                self._room.set()


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
        # Ended by an option that is set already: in Linux that pushes out what is held back.
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

    class Answers(asyncio.Protocol):
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

    # The transport sets TCP_NODELAY by itself: the option is set again behind it.
    transport, _ = await loop.create_connection(Answers, *address)
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


# Each takes the server's address, one of MODES and how many messages.
SENDERS: dict[str, Callable[[Address, str, int], list[int]]] = {
    "simple": run_simple,
    "threaded": run_threaded,
    "async": run_async,
}
