"""A bounded HTTP client over raw sockets: cheap enough not to be what is measured.

Bodies are received into one large buffer and not looked at. Only their framing is followed: a
Content-Length is counted down; a chunked body ends where the received bytes end with the last
chunk, which is enough for payloads without that sequence in them and costs nothing for a body that
arrives in a million chunks; anything else ends with the connection.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from wsgifast.benchmark.load import Client, Load, Task
from wsgifast.benchmark.processes import Address

__all__ = ["percentile", "raw"]

# One receive: larger than what a socket buffer holds, so one call takes all that is there.
RECEIVE_BYTES = 1 << 20
# An answer without a byte for so long has failed.
GIVE_UP_S = 30.0
_HEAD_END = b"\r\n\r\n"
_LAST_CHUNK = b"\r\n0\r\n\r\n"


def raw(
    *, connections: int = 1, receive_bytes: int = RECEIVE_BYTES, requests: int = 1_000_000
) -> Client:
    """This client for the runner: GETs, each after the answer to the one before.

    Without a known payload, the chunk framing of a chunked answer is counted as payload.

    :param connections: each in a thread of its own. One is right for large bodies; with small ones
        this client takes some 20,000 answers/s at most, use wrk beyond.
    :param receive_bytes: asked for by one receive; real clients ask for 8 KiB to 256 KiB.
    :param requests: at the most, on all connections together.
    """

    def run(task: Task) -> Load:
        host, port = task.address
        head = [f"GET {task.path} HTTP/1.1", f"Host: {host}:{port}", *task.headers, "", ""]
        share, rest = divmod(requests, connections)
        begun, cpu = time.perf_counter(), time.process_time()
        users = [
            _User(
                task.address,
                "\r\n".join(head).encode("latin-1"),
                share + (number < rest),
                begun + task.seconds,
                task.body_bytes,
                receive_bytes,
            )
            for number in range(connections)
        ]
        if connections == 1:
            users[0].run()
        else:
            threads = [threading.Thread(target=user.run) for user in users]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        elapsed, cpu = time.perf_counter() - begun, time.process_time() - cpu
        times = sorted(ms for user in users for ms in user.times_ms)
        errors: Counter[str] = sum((user.errors for user in users), Counter())
        return Load(
            requests=len(times),
            failures=errors.total(),
            body_bytes=sum(user.body_bytes for user in users),
            seconds=elapsed,
            latency_ms={p: percentile(times, p) for p in (50, 95, 99)} if times else {},
            errors=dict(errors),
            client_cpu_s=cpu,
        )

    return run


class _BadAnswer(Exception):
    """The message is what the client saw."""


@dataclass
class _User:
    address: Address
    request: bytes
    requests: int
    deadline: float
    expected: int | None
    receive_bytes: int
    times_ms: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    body_bytes: int = 0

    def run(self) -> None:
        buffer = memoryview(bytearray(self.receive_bytes))
        sock: socket.socket | None = None
        try:
            for _ in range(self.requests):
                begun = time.perf_counter()
                if begun >= self.deadline:
                    break
                try:
                    if sock is None:
                        sock = socket.create_connection(self.address, GIVE_UP_S)
                        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    sock.sendall(self.request)
                    size, stays_open = _receive(sock, buffer, self.expected)
                except (_BadAnswer, OSError) as error:
                    self.errors[_named(error)] += 1
                    stays_open = False
                else:
                    self.times_ms.append((time.perf_counter() - begun) * 1e3)
                    self.body_bytes += size
                if not stays_open and sock is not None:
                    sock.close()
                    sock = None
        finally:
            if sock is not None:
                sock.close()


def _named(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no byte before the time-out"
    return str(error)


def _receive(sock: socket.socket, buffer: memoryview, expected: int | None) -> tuple[int, bool]:
    """Read one answer; return the size of its payload, and whether the connection stays open."""
    head, rest = _receive_head(sock)
    status_line, *lines = head.decode("latin-1").split("\r\n")
    status = status_line.split(" ", 2)[1] if " " in status_line else status_line
    fields = {k.strip().lower(): v.strip().lower() for k, _, v in (x.partition(":") for x in lines)}
    stays_open = "close" not in fields.get("connection", "")
    if status_line.startswith("HTTP/1.0"):
        stays_open = "keep-alive" in fields.get("connection", "")
    if "content-length" in fields:
        size = int(fields["content-length"])
        _receive_exactly(sock, buffer, size - len(rest), status, size)
    elif "chunked" in fields.get("transfer-encoding", ""):
        size = _receive_chunks(sock, buffer, rest, status)
        if expected is not None and size >= expected:
            size = expected
    elif status in ("204", "304"):
        size = 0
    else:
        size, stays_open = len(rest) + _receive_all(sock, buffer), False
    if status >= "400":
        raise _BadAnswer(f"status {status}")
    if expected is not None and size != expected:
        raise _BadAnswer(f"status {status} with {size} bytes instead of {expected}")
    return size, stays_open


def _receive_head(sock: socket.socket) -> tuple[bytes, bytes]:
    data = b""
    while _HEAD_END not in data:
        more = sock.recv(64 * 1024)
        if not more:
            raise _BadAnswer("connection closed without an answer" if not data else "half a head")
        data += more
    head, _, rest = data.partition(_HEAD_END)
    return head, rest


def _receive_exactly(
    sock: socket.socket, buffer: memoryview, left: int, status: str, size: int
) -> None:
    while left > 0:
        received = sock.recv_into(buffer, min(left, len(buffer)))
        if not received:
            raise _BadAnswer(f"status {status}, then closed after {size - left} of {size} bytes")
        left -= received


def _receive_chunks(sock: socket.socket, buffer: memoryview, rest: bytes, status: str) -> int:
    """Read to the last chunk; return the bytes received, framing included."""
    total = len(rest)
    tail = b"\r\n" + rest[-len(_LAST_CHUNK) :]  # an empty body has no CR LF before its last chunk
    while not tail.endswith(_LAST_CHUNK):
        received = sock.recv_into(buffer)
        if not received:
            raise _BadAnswer(f"status {status}, then closed in the middle of a chunked body")
        total += received
        tail = (tail + bytes(buffer[max(0, received - 8) : received]))[-8:]
    return total


def _receive_all(sock: socket.socket, buffer: memoryview) -> int:
    total = 0
    while received := sock.recv_into(buffer):
        total += received
    return total


def percentile(ascending: Sequence[float], percent: float) -> float:
    """The smallest value that `percent` of all do not exceed (nearest rank).

    :param ascending: the values, sorted; at least one.
    """
    rank = -(-len(ascending) * percent // 100)  # rounded up
    return ascending[max(0, int(rank) - 1)]
