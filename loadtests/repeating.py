"""A client that counts what it loses, and repeats what it may (RFC 9112 section 9.3.1)."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass, field

from .bench import HOST, Address

__all__ = ["Client", "Outcome"]

GIVE_UP_S = 30.0


class _Lost(Exception):
    """The message is what the client saw."""


@dataclass
class Outcome:
    """What became of the requests of one server's clients."""

    name: str = ""
    seconds: float = 0.0
    answered: int = 0
    downloads: int = 0
    repeated: int = 0  # and answered then
    deeds: dict[str, int] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)

    def lose(self, reason: str) -> None:
        self.lost[reason] = self.lost.get(reason, 0) + 1

    @property
    def times_lost(self) -> int:
        return sum(self.lost.values())


class Client:
    """One connection at a time, asked again and again for a body of known bytes."""

    def __init__(self, address: Address, path: str, body: bytes, outcome: Outcome) -> None:
        self._address = address
        self._request = f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode()
        self._body = body
        self._outcome = outcome
        self._sock: socket.socket | None = None
        self._buffer = bytearray(256 * 1024)

    def ask(self, bytes_per_s: float = 0.0) -> bool:
        """Ask once, or twice where that is allowed; whether the answer came whole."""
        repeated = False
        while True:
            was_used = self._sock is not None
            try:
                stays = self._exchange(bytes_per_s)
            except _Closed:
                self.close()
                if was_used and not repeated:
                    repeated = True
                    continue
                self._outcome.lose("closed without an answer")
                return False
            except (_Lost, OSError) as error:
                self.close()
                self._outcome.lose(_named(error))
                return False
            if not stays:
                self.close()
            self._outcome.repeated += repeated
            return True

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def _exchange(self, bytes_per_s: float) -> bool:
        """Returns whether the connection stays open."""
        if self._sock is None:
            self._sock = socket.create_connection(self._address, GIVE_UP_S)
        sock = self._sock
        try:
            sock.sendall(self._request)
            data = sock.recv(64 * 1024)
        except (BrokenPipeError, ConnectionResetError):
            raise _Closed from None
        if not data:
            raise _Closed
        while b"\r\n\r\n" not in data:
            more = sock.recv(64 * 1024)
            if not more:
                raise _Lost("half a head")
            data += more
        head, _, rest = data.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 "):
            raise _Lost(f"status {head[9:12].decode('latin-1')}")
        lower = head.lower()
        if b"content-length: %d" % len(self._body) not in lower:
            raise _Lost("another Content-Length")
        self._check(rest, 0)
        self._receive(sock, len(rest), bytes_per_s)
        return b"connection: close" not in lower

    def _receive(self, sock: socket.socket, done: int, bytes_per_s: float) -> None:
        begun = time.monotonic()
        whole = len(self._body)
        while done < whole:
            received = sock.recv_into(self._buffer, min(len(self._buffer), whole - done))
            if not received:
                raise _Lost(f"cut off after {done // 2**20} MiB" if done > 2**20 else "cut off")
            self._check(memoryview(self._buffer)[:received], done)
            done += received
            if bytes_per_s:
                time.sleep(max(0.0, begun + done / bytes_per_s - time.monotonic()))

    def _check(self, received: bytes | memoryview, offset: int) -> None:
        if received != memoryview(self._body)[offset : offset + len(received)]:
            raise _Lost("other bytes")


class _Closed(Exception):
    """Before any byte of the answer."""


def _named(error: Exception) -> str:
    return "no byte in time" if isinstance(error, TimeoutError) else str(error)
