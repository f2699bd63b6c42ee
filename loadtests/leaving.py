"""Clients that leave in every state that a connection can be in.

    python -m loadtests.leaving PORT [--tls]

holds connections in all of these states, until it is killed.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import ssl
import struct
import subprocess
import sys
import time
from dataclasses import dataclass

from tests.support.slow_clients import opening

from .bench import HOST, Address, started, tls_context
from .command import command_line

__all__ = ["HELD", "Clients", "killed"]

# What the process that is killed holds, in all states together.
HELD = 100
CLIENT_TIMEOUT_S = 10.0
# So small that the kernel's buffers take in no answer whole.
RECEIVE_BUFFER_BYTES = 16 * 1024


@dataclass(frozen=True)
class State:
    """How far a client gets before it leaves."""

    name: str
    sent: bytes = b""
    answered: bool = False  # it waits for the first bytes of the answer
    below_tls: bool = False  # TLS is not agreed on: it speaks to the socket itself


_FILE = b"GET /server-wrapper HTTP/1.1\r\nHost: a\r\n\r\n"
_POST = b"POST /upload HTTP/1.1\r\nHost: a\r\n"
STATES = (
    State("connected"),
    State("half a head", b"GET /file HTTP/1.1\r\nHos"),
    State("kept alive", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", answered=True),
    # So large that FastWorker receives it into a temporary file.
    State("half an upload", _POST + b"Content-Length: 1000000\r\n\r\n" + bytes(50_000)),
    State("half a chunk", _POST + b"Transfer-Encoding: chunked\r\n\r\nffff\r\n" + bytes(20_000)),
    State("in a download", _FILE, answered=True),
    State("in a stream", b"GET /stream HTTP/1.1\r\nHost: a\r\n\r\n", answered=True),
    State("in HTTP/2 streams", opening("readers of HTTP/2 streams", "/server-wrapper")),
    State("HTTP/2 nonsense", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 100),
)


def tls_states() -> tuple[State, ...]:
    """The same above TLS, and those in which TLS is not agreed on."""
    outgoing = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        tls_context().wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    hello = outgoing.read()
    return (
        State("connected, no TLS yet", below_tls=True),
        State("half a hello", hello[: len(hello) // 2], below_tls=True),
        State("half a handshake", hello, answered=True, below_tls=True),
        State("no TLS at all", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", below_tls=True),
        *STATES,
    )


class Clients:
    """Clients of one server that leave in the middle.

    :param tls: the server speaks TLS.
    """

    def __init__(self, address: Address, *, tls: bool) -> None:
        self.states = tls_states() if tls else STATES
        self._address = address
        self._tls = tls_context() if tls else None

    def bring_to(self, state: State) -> socket.socket:
        """Connect, and go as far as this.

        :raises TimeoutError: if the server does not answer.
        """
        sock = socket.socket()
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
            sock.settimeout(CLIENT_TIMEOUT_S)
            sock.connect(self._address)
            if self._tls is not None and not state.below_tls:
                sock = self._tls.wrap_socket(sock)
            # A server may end what it cannot understand before all of it is sent.
            with contextlib.suppress(ConnectionError, ssl.SSLEOFError):
                sock.sendall(state.sent)
            if state.answered and not sock.recv(1):
                raise ConnectionError(f"no answer to a client that is {state.name!r}")
        except BaseException:
            sock.close()
            raise
        return sock

    def abandon(self, count: int, seconds: float) -> int:
        """Leave one after the other, in each state in turn; returns how many have."""
        deadline = time.monotonic() + seconds
        for number in range(count):
            if time.monotonic() > deadline:
                return number
            turn, place = divmod(number, len(self.states))
            sock = self.bring_to(self.states[place])
            if turn % 2:  # with a reset
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
        return count

    def blocks(self) -> int:
        """What the server's app says at /blocks."""
        request = b"GET /blocks HTTP/1.0\r\nHost: a\r\n\r\n"
        with self.bring_to(State("asking", request)) as sock, sock.makefile("rb") as answer:
            return int(answer.read().rpartition(b"\r\n\r\n")[2])

    def hold(self, count: int) -> list[socket.socket]:
        """Connections in all states at once, which wait for no answer: threads may all be busy."""
        return [
            self.bring_to(State(state.name, state.sent, below_tls=state.below_tls))
            for state in itertools.islice(itertools.cycle(self.states), count)
        ]


def killed(address: Address, tls: bool) -> int:
    """Kill a process that holds connections; returns how many."""
    command = [sys.executable, "-m", "loadtests.leaving", str(address[1]), *["--tls"] * tls]
    with started(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError("the process that holds connections has failed; see above")
    return HELD


def main() -> None:
    parser = command_line("loadtests.leaving", __doc__)
    parser.add_argument("port", type=int, help=f"on {HOST}")
    parser.add_argument("--tls", action="store_true", help="the server speaks TLS")
    given = parser.parse_args()
    held = Clients((HOST, given.port), tls=given.tls).hold(HELD)
    print(f"{len(held)} connections", flush=True)
    time.sleep(60)  # until killed


if __name__ == "__main__":
    main()
