"""Crowds of slow clients, and what an ordinary client notices beside them.

    python -m tests.support.slow_clients KIND PORT [--clients N] [--seconds S] [--path /PATH]

A crowd is one process with one thread. It is bounded in clients and in seconds, talks to loopback
alone, and ends when the process that started it does. Each kind of client is a row of `KINDS`: what
it sends at once, what it goes on sending and how fast, and how fast it reads.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import resource
import select
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = [
    "KINDS",
    "Crowd",
    "Kind",
    "Others",
    "others",
    "raise_open_files",
    "receive_answer",
    "slow_clients",
]

ROOT = Path(__file__).resolve().parents[2]
HOST = "127.0.0.1"
# So small that the kernel's buffers do not hide that a client is slow; with less than this, the
# packets of a large file fill it badly and no client comes to its rate.
RECEIVE_BUFFER_BYTES = 32 * 1024
# One turn over all clients: as short as this process can keep up with, a system call for each.
TURN_S, TURN_S_PER_CLIENT = 0.02, 25e-6
# Whom the server has dropped comes back after this time.
RETURN_S = 1.0
# A crowd of which not all could send their requests after this time begins without the others.
GATHER_S = 15.0
# The longest that a crowd stays if nobody ends it.
MOST_SECONDS = 300.0
# A client that asks beside a crowd gives an answer up after this time, and counts it as failed.
GIVE_UP_S = 5.0


@dataclass(frozen=True)
class Kind:
    """What one client of a crowd does.

    :ivar clients: how many there are where nothing else is said.
    :ivar opening: sent as fast as the server takes it; `{path}` stands for `path`.
    :ivar then: sent after it, again and again.
    :ivar send_bytes_per_s: how fast.
    :ivar receive_bytes_per_s: how fast the answer is read; 0: not at all.
    :ivar leaves: it closes as soon as the opening is sent, and comes back in the next turn.
    """

    clients: int
    opening: bytes
    path: str = "/small"
    then: bytes = b""
    send_bytes_per_s: int = 0
    receive_bytes_per_s: int = 0
    leaves: bool = False


_GET = b"GET {path} HTTP/1.1\r\nHost: a\r\n"
_POST = b"POST {path} HTTP/1.1\r\nHost: a\r\n"
# 99 fields, each just below the 8,190 bytes that gunicorn allows: 790 kB.
_LARGE_FIELDS = b"".join(b"X-%02d: %s\r\n" % (n, b"a" * 7970) for n in range(99))
_KIB_CHUNK = b"400\r\n" + bytes(1024) + b"\r\n"
_TWO_BYTE_CHUNK = b"2\r\nxx\r\n"


def _chunks(chunk: bytes, count: int, bytes_per_s: int) -> Kind:
    """Clients that send so many chunks at once, and then go on at a rate."""
    opening = _POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * count
    return Kind(20, opening, "/upload", then=chunk, send_bytes_per_s=bytes_per_s)


KINDS = {
    "idle": Kind(10_000, _GET + b"\r\n", receive_bytes_per_s=1 << 20),
    "downloads": Kind(2000, _GET + b"\r\n", "/file", receive_bytes_per_s=64 * 1024),
    "uploads": Kind(
        200,
        _POST + b"Content-Length: 100000000\r\n\r\n",
        "/upload",
        then=bytes(4096),
        send_bytes_per_s=64 * 1024,
    ),
    "heads byte by byte": Kind(500, _GET + b"X-Slow: ", then=b"a", send_bytes_per_s=10),
    "790 kB heads": Kind(3, _GET + _LARGE_FIELDS + b"X: ", then=b"a", send_bytes_per_s=500),
    "one-byte chunks": Kind(
        20,
        _POST + b"Transfer-Encoding: chunked\r\n\r\n",
        "/upload",
        then=b"1\r\nx\r\n",
        send_bytes_per_s=17_000,
    ),
    "two-byte chunks": _chunks(_TWO_BYTE_CHUNK, 200_000, 130_000),
    "1 KiB chunks": _chunks(_KIB_CHUNK, 390, 130_000),
    # Only those of their body: 400 kB of content, and its end never comes.
    "a beginning of two-byte chunks": _chunks(_TWO_BYTE_CHUNK, 200_000, 0),
    "a beginning of 1 KiB chunks": _chunks(_KIB_CHUNK, 390, 0),
    "500 kB trailers": Kind(
        12,
        _POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + _LARGE_FIELDS[:500_000],
        "/upload",
        then=b"a",
        send_bytes_per_s=500,
    ),
    "readers of a list": Kind(100, _GET + b"\r\n", "/list", receive_bytes_per_s=1000),
    "readers of a file": Kind(100, _GET + b"\r\n", "/file", receive_bytes_per_s=1000),
    "readers of a generator": Kind(100, _GET + b"\r\n", "/stream", receive_bytes_per_s=1000),
    "silent bodies": Kind(100, _POST + b"Content-Length: 500000\r\n\r\n", "/upload"),
    "downloads from a slow disk": Kind(3, _GET + b"\r\n", "/slow", receive_bytes_per_s=1 << 30),
    "silent connections": Kind(1000, b""),
    "connection flood": Kind(50, _GET + b"\r\n", leaves=True),
}


@dataclass
class _Client:
    sock: socket.socket
    sent: int = 0


@dataclass
class Crowd:
    """Clients of one kind; call :meth:`turn` again and again.

    :ivar seen: what happened: "opened", "ended" (by the server), "reset", ..., each a count.
    """

    kind: Kind
    port: int
    clients: int
    seen: Counter[str] = field(default_factory=Counter)
    sent_bytes: int = 0
    received_bytes: int = 0

    def __post_init__(self) -> None:
        self._opening = self.kind.opening.replace(b"{path}", self.kind.path.encode())
        self._then = memoryview(self.kind.then * (1 + 65_536 // max(1, len(self.kind.then))))
        self._buffer = bytearray(1 << 18)
        self._present: list[_Client] = []
        self._away: list[float] = [0.0] * self.clients  # when each may come back
        self._owed = [0.0, 0.0]  # bytes to send and to receive, fractions of a turn before
        self._before = time.monotonic()

    @property
    def gathered(self) -> int:
        """How many clients are there and have sent their opening."""
        return sum(client.sent >= len(self._opening) for client in self._present)

    def turn(self) -> None:
        """Let each client do what it is to have done by now."""
        now = time.monotonic()
        passed, self._before = min(now - self._before, 1.0), now
        ready = [when for when in self._away if when <= now]
        self._away = [when for when in self._away if when > now]
        self._present += [self._arrive() for _ in ready]
        send = self._due(0, self.kind.send_bytes_per_s * passed)
        receive = self._due(1, self.kind.receive_bytes_per_s * passed)
        stay = []
        for client in self._present:
            try:
                self._act(client, send, receive)
                if not (self.kind.leaves and client.sent >= len(self._opening)):
                    stay.append(client)
                    continue
                back = now
            except OSError as error:
                if error.errno in (errno.EAGAIN, errno.EINPROGRESS, errno.ENOTCONN):
                    stay.append(client)
                    continue
                self.seen[errno.errorcode.get(error.errno or 0, "ended")] += 1
                back = now + RETURN_S
            if self.kind.leaves and len(self._away) % 2:  # with a reset
                client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.sock.close()
            self._away.append(back)
        self._present = stay

    def close(self) -> None:
        for client in self._present:
            client.sock.close()

    def _arrive(self) -> _Client:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            sock.connect((HOST, self.port))
        self.seen["opened"] += 1
        return _Client(sock)

    def _due(self, which: int, more: float) -> int:
        whole, self._owed[which] = divmod(self._owed[which] + more, 1.0)
        return int(whole)

    def _act(self, client: _Client, send: int, receive: int) -> None:
        """:raises OSError: if there is nothing to do now, or the connection has ended."""
        if client.sent < len(self._opening):
            client.sent += client.sock.send(self._opening[client.sent :])
            return
        if send:
            at = (client.sent - len(self._opening)) % max(1, len(self.kind.then))
            try:
                sent = client.sock.send(self._then[at : at + min(send, 65_536)])
            except BlockingIOError:
                sent = 0
            client.sent += sent
            self.sent_bytes += sent
        reads = self.kind.receive_bytes_per_s > 0
        if receive or not reads:  # who does not read looks whether it has been dropped
            size = min(receive, len(self._buffer)) or 1
            flags = 0 if reads else socket.MSG_PEEK
            received = client.sock.recv_into(self._buffer, size, flags)
            if not received:
                raise OSError("ended")
            self.received_bytes += received if reads else 0


class SlowClients:
    """A crowd in a process of its own, as :func:`slow_clients` gives it.

    :ivar gathered: how many clients had sent their requests at the beginning.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the crowd failed with status {process.wait()}; see its message")
        self.gathered = int(line)

    def end(self) -> dict[str, float]:
        """Send everybody home, or wait until they have gone; return what the crowd did.

        :returns: "received B/s each", "sent B/s each", "CPU share" (of one core), and a count for
            each thing that happened: "opened", "ended" (by the server), "ECONNRESET", ...
        """
        told, _ = self.process.communicate()
        found: dict[str, float] = json.loads(told)
        return found


@contextlib.contextmanager
def slow_clients(
    kind: str,
    port: int,
    *,
    clients: int | None = None,
    seconds: float = 60.0,
    path: str | None = None,
) -> Iterator[SlowClients]:
    """Run a crowd against 127.0.0.1:port; the block begins when all have sent their requests.

    :param kind: of KINDS.
    :param clients: how many, if not as many as the kind says; open files may bound it.
    :param seconds: it ends after this time even if nobody ends it.
    :param path: asked for in place of the kind's own.
    """
    command = [sys.executable, "-m", __name__, kind, str(port), f"--seconds={seconds}"]
    command += [f"--clients={clients}"] if clients else []
    command += [f"--path={path}"] if path else []
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield SlowClients(process)
        finally:
            process.kill()


@dataclass(frozen=True)
class Others:
    """What an ordinary client has seen: milliseconds of each answer, ascending, and failures."""

    times_ms: Sequence[float]
    failures: int

    def percentile(self, percent: float) -> float:
        """The nearest rank; an answer that never came counts as GIVE_UP_S."""
        if not self.times_ms:
            return GIVE_UP_S * 1e3
        rank = -(-len(self.times_ms) * percent // 100)
        return self.times_ms[max(0, int(rank) - 1)]


def others(
    port: int, *, path: str = "/small", seconds: float = 8.0, pause_s: float = 0.005
) -> Others:
    """Ask again and again, every tenth time on a new connection, as others do beside a crowd.

    :param pause_s: between an answer and the next request.
    """
    request = f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode()
    times: list[float] = []
    failures = 0
    sock: socket.socket | None = None
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if sock is not None and len(times) % 10 == 0:
            sock.close()
            sock = None
        begun = time.perf_counter()
        try:
            if sock is None:
                sock = socket.create_connection((HOST, port), GIVE_UP_S)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.sendall(request)
            receive_answer(sock)
        except OSError:
            failures += 1
            if sock is not None:
                sock.close()
                sock = None
        times.append((time.perf_counter() - begun) * 1e3)
        time.sleep(pause_s)
    if sock is not None:
        sock.close()
    return Others(sorted(times), failures)


def receive_answer(sock: socket.socket) -> None:
    """:raises OSError: if it is no 200 with as many bytes as it says."""
    answer = b""
    while b"\r\n\r\n" not in answer:
        if not (data := sock.recv(65_536)):
            raise ConnectionError("the server closed before its answer")
        answer += data
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    lengths = [int(line[15:]) for line in lines if line.startswith(b"content-length:")]
    if b" 200 " not in lines[0] or len(lengths) != 1:
        raise ConnectionError(f"an answer that was not expected: {lines[0]!r}")
    left = lengths[0] - len(body)
    while left > 0:
        if not (data := sock.recv(65_536)):
            raise ConnectionError("the server closed in the middle of its answer")
        left -= len(data)


def raise_open_files() -> int:
    """Allow this process, and those that it starts, as many open files as it may; returns how
    many those are."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("port", type=int, help="on 127.0.0.1")
    parser.add_argument("--clients", type=int, help="how many; the kind says it")
    parser.add_argument("--seconds", type=float, default=60.0, help=f"up to {MOST_SECONDS:.0f}")
    parser.add_argument("--path", help="asked for; the kind says it")
    given = parser.parse_args(arguments)
    kind = KINDS[given.kind]
    if given.path:
        kind = Kind(**{**vars(kind), "path": given.path})
    crowd = Crowd(kind, given.port, min(given.clients or kind.clients, raise_open_files() - 50))
    turn_s = max(TURN_S, TURN_S_PER_CLIENT * crowd.clients)
    begun = time.monotonic()
    while crowd.gathered < crowd.clients and not kind.leaves:
        crowd.turn()
        time.sleep(TURN_S)
        if time.monotonic() - begun > GATHER_S:
            break
    print(crowd.gathered, flush=True)
    crowd.sent_bytes = crowd.received_bytes = 0
    begun, cpu = time.monotonic(), time.process_time()
    end = begun + min(given.seconds, MOST_SECONDS)
    wait_s = 0.0
    # Whoever started this closes its input, or ends, and the crowd goes home.
    while time.monotonic() < end and not select.select([sys.stdin], [], [], wait_s)[0]:
        turn = time.monotonic()
        crowd.turn()
        wait_s = max(0.0, turn + turn_s - time.monotonic())
    passed = time.monotonic() - begun
    crowd.close()
    each = crowd.clients * passed
    told = {
        "received B/s each": crowd.received_bytes / each,
        "sent B/s each": crowd.sent_bytes / each,
    }
    print(json.dumps({**told, "CPU share": (time.process_time() - cpu) / passed, **crowd.seen}))


if __name__ == "__main__":
    main()
