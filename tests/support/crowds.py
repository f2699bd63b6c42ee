"""Crowds of slow clients.

    python -m tests.support.crowds

A crowd is one process with one thread. Its clients and its seconds are limited, and it ends with
the process that started it. A kind of client defines its first bytes, the bytes that follow and
their rate, and the rate at which it reads.
"""

from __future__ import annotations

import contextlib
import errno
import json
import pickle
import resource
import select
import socket
import ssl
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.support.http import reset_on_close
from tests.support.servers import ROOT
from wsgifast.commands.bench.processes import Address, started
from wsgifast.commands.client import unverified_tls

# This size is so small that the kernel's buffers do not hide a slow client. With a smaller buffer,
# the packets of a large file fill it badly and no client reaches its rate.
RECEIVE_BUFFER_BYTES = 32 * 1024
# The time of one turn over all clients. Each client takes a system call, so this is as short as
# this process can keep up with.
TURN_S, TURN_S_PER_CLIENT = 0.02, 25e-6
# A client that the server has dropped comes back after this time.
RETURN_S = 1.0
# A crowd begins after this time, even if some clients could not send their requests.
GATHER_S = 15.0
# The longest life of a crowd.
MAX_SECONDS = 300.0
_TLS_WAITS = (ssl.SSLWantReadError, ssl.SSLWantWriteError)


@dataclass(frozen=True)
class Kind:
    """The behaviour of one client of a crowd.

    :ivar opening: bytes that are sent as fast as the server receives them.
    :ivar then: bytes that are sent after them, repeatedly.
    :ivar send_bytes_per_s: the rate of `then`.
    :ivar receive_bytes_per_s: the rate at which the response is read. 0: it is not read.
    :ivar leaves: the client closes as soon as the opening is sent and, if it reads, a byte has
        arrived. It returns in the next turn.
    :ivar tls: the client speaks TLS, without verification.
    :ivar clients: the default number of clients.
    :ivar path: the default for `{path}` in the opening.
    :ivar streams: over HTTP/2, the number of simultaneous requests of each client.
    """

    opening: bytes
    then: bytes = b""
    send_bytes_per_s: int = 0
    receive_bytes_per_s: int = 0
    leaves: bool = False
    tls: bool = False
    clients: int = 1
    path: str = "/small"
    streams: int = 1


@dataclass
class _Client:
    sock: socket.socket
    sent: int = 0
    has_read: bool = False


@dataclass
class Crowd:
    """Clients of one kind. Call :meth:`turn` repeatedly.

    :ivar seen: the number of events by name: "opened", "ended" (by the server), "reset", ...
    """

    kind: Kind
    address: Address
    clients: int
    seen: Counter[str] = field(default_factory=Counter)
    sent_bytes: int = 0
    received_bytes: int = 0

    def __post_init__(self) -> None:
        self._opening = self.kind.opening
        self._then = memoryview(self.kind.then * (1 + 65_536 // max(1, len(self.kind.then))))
        self._buffer = bytearray(1 << 18)
        self._present: list[_Client] = []
        self._away: list[float] = [0.0] * self.clients  # when each client may come back
        self._owed = [0.0, 0.0]  # bytes to send and to receive, fractions of a turn before
        self._before = time.monotonic()
        self._tls = unverified_tls() if self.kind.tls else None
        if self._tls is not None and self._opening.startswith(b"PRI "):
            self._tls.set_alpn_protocols(["h2"])

    @property
    def gathered(self) -> int:
        """Return how many clients are connected and have sent their opening."""
        return sum(client.sent >= len(self._opening) for client in self._present)

    @property
    def is_gathered(self) -> bool:
        """Return whether all clients are connected, if they stay at all."""
        return self.kind.leaves or self.gathered >= self.clients

    def turn(self) -> None:
        """Let each client send and receive the bytes that are due."""
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
                if not self._is_done(client):
                    stay.append(client)
                    continue
                back = now
            except OSError as error:
                if isinstance(error, _TLS_WAITS) or error.errno in (
                    errno.EAGAIN,
                    errno.EINPROGRESS,
                    errno.ENOTCONN,
                ):
                    stay.append(client)
                    continue
                self.seen[errno.errorcode.get(error.errno or 0, "ended")] += 1
                back = now + RETURN_S
            if self.kind.leaves and len(self._away) % 2:  # with a reset
                reset_on_close(client.sock)
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
        if self._tls is not None:
            sock.setblocking(True)
            sock.connect(self.address)
            # The first send makes the handshake.
            sock = self._tls.wrap_socket(sock, do_handshake_on_connect=False)
            sock.setblocking(False)
        else:
            with contextlib.suppress(BlockingIOError):
                sock.connect(self.address)
        self.seen["opened"] += 1
        return _Client(sock)

    def _is_done(self, client: _Client) -> bool:
        has_read = client.has_read or not self.kind.receive_bytes_per_s
        return self.kind.leaves and client.sent >= len(self._opening) and has_read

    def _due(self, which: int, more: float) -> int:
        whole, self._owed[which] = divmod(self._owed[which] + more, 1.0)
        return int(whole)

    def _act(self, client: _Client, send: int, receive: int) -> None:
        """:raises OSError: if there is nothing to do now, or the connection has ended."""
        if client.sent < len(self._opening):
            client.sent += client.sock.send(self._opening[client.sent :])
            return
        if self._is_done(client):
            return
        if send:
            at = (client.sent - len(self._opening)) % max(1, len(self.kind.then))
            try:
                sent = client.sock.send(self._then[at : at + min(send, 65_536)])
            except (BlockingIOError, *_TLS_WAITS):
                sent = 0
            client.sent += sent
            self.sent_bytes += sent
        reads = self.kind.receive_bytes_per_s > 0
        if receive or not reads:  # a client that does not read checks whether it was disconnected
            size = min(receive, len(self._buffer)) or 1
            flags = 0 if reads or self.kind.tls else socket.MSG_PEEK  # TLS has no such flag
            received = client.sock.recv_into(self._buffer, size, flags)
            if not received:
                raise OSError("ended")
            self.received_bytes += received if reads else 0
            client.has_read = True


class SlowClients:
    """A crowd in another process, from :func:`slow_clients`.

    :ivar gathered: how many clients had sent their requests at the beginning.
    """

    def __init__(self, process: subprocess.Popen[bytes], *order: object) -> None:
        self.process = process
        assert process.stdin is not None
        assert process.stdout is not None
        pickle.dump(order, process.stdin)
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the crowd failed with status {process.wait()}; see its message")
        self.gathered = int(line)

    def end(self) -> dict[str, float]:
        """End the crowd, or wait for its end. Return its figures.

        :returns: "received B/s each", "sent B/s each", "CPU share" (of one core), and the number of
            events by name: "opened", "ended" (by the server), "ECONNRESET", ...
        """
        report, _ = self.process.communicate()
        found: dict[str, float] = json.loads(report)
        return found


@contextlib.contextmanager
def slow_clients(
    kind: Kind, address: Address, clients: int, *, seconds: float = 60.0
) -> Iterator[SlowClients]:
    """Run a crowd against a server. The block begins when all have sent their requests.

    :param clients: how many. The limit of open files may reduce it.
    :param seconds: the crowd ends after this time at the latest.
    """
    command = [sys.executable, "-m", "tests.support.crowds"]
    pipe = subprocess.PIPE
    with started(command, stdin=pipe, stdout=pipe, cwd=ROOT) as process:
        yield SlowClients(process, vars(kind), address, clients, seconds)


def raise_open_files() -> int:
    """Raise the limit of open files of this process and its children. Return the new limit."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


def main() -> None:
    """Be the crowd that the input describes."""
    facts, address, clients, seconds = pickle.load(sys.stdin.buffer)
    kind = Kind(**facts)
    crowd = Crowd(kind, address, min(clients, raise_open_files() - 50))
    turn_s = max(TURN_S, TURN_S_PER_CLIENT * crowd.clients)
    begun = time.monotonic()
    while not crowd.is_gathered:
        crowd.turn()
        time.sleep(TURN_S)
        if time.monotonic() - begun > GATHER_S:
            break
    print(crowd.gathered, flush=True)
    crowd.sent_bytes = crowd.received_bytes = 0
    begun, cpu = time.monotonic(), time.process_time()
    end = begun + min(seconds, MAX_SECONDS)
    wait_s = 0.0
    # The crowd ends when the process that started it closes its input or exits.
    while time.monotonic() < end and not select.select([sys.stdin], [], [], wait_s)[0]:
        turn = time.monotonic()
        crowd.turn()
        wait_s = max(0.0, turn + turn_s - time.monotonic())
    passed = time.monotonic() - begun
    crowd.close()
    each = crowd.clients * passed
    rates = {
        "received B/s each": crowd.received_bytes / each,
        "sent B/s each": crowd.sent_bytes / each,
    }
    print(json.dumps({**rates, "CPU share": (time.process_time() - cpu) / passed, **crowd.seen}))


if __name__ == "__main__":
    main()
