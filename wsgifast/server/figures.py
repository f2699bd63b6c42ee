"""How a server is at the moment: read from what is there, for whoever tells of it."""

from __future__ import annotations

import socket
import struct
import time
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from .channel import Channel
from .connection import Connection
from .server import Server
from .states import HANDSHAKE, IDLE, LINGERING, RECEIVING, RUNNING, SENDING, SKIPPING, STREAMS

__all__ = ["Figures", "figures_of", "requests_under_way"]

# tcp(7), linux/tcp.h: of a listening socket tcpi_unacked is how many connections wait to be
# accepted, tcpi_sacked how many may.
_TCP_INFO_UNACKED_AT = 24
_TCP_LISTEN = 10

_CALLED = {
    HANDSHAKE: "handshake",
    IDLE: "idle",
    RUNNING: "running",
    SENDING: "sending",
    SKIPPING: "body",
    STREAMS: "http2",
    LINGERING: "closing",
}


class Figures(NamedTuple):
    """A server at one moment.

    :ivar busy: threads in a turn, of `threads`.
    :ivar waiting: requests that no thread is free for.
    :ivar exhausted_s: seconds in which no thread was free, altogether.
    :ivar connections: by their state.
    :ivar slow_clients: connections whose output, or that of a stream of theirs, waits for them.
    :ivar queued_bytes: of output in memory.
    :ivar spooled_bytes: of output in temporary files.
    :ivar bodies_spooled_bytes: of request bodies in temporary files.
    :ivar backlog: connections that wait to be accepted, and how many may, of the listener where
        most wait; None where the system does not tell.
    """

    threads: int
    busy: int
    waiting: int
    exhausted_s: float
    connections: Counter[str]
    slow_clients: int
    queued_bytes: int
    spooled_bytes: int
    bodies_spooled_bytes: int
    backlog: tuple[int, int] | None


def figures_of(server: Server) -> Figures:
    """Look at a server, from any thread; it goes on meanwhile."""
    states = Counter[str]()
    slow = 0
    for connection in list(server.connections):
        states[_state_of(connection)] += 1
        slow += connection.output.draining or (
            connection.streams is not None
            and any(stream.output.draining for stream in connection.streams.channels())
        )
    pool = server.pool
    turns = pool.turns()
    memory = server.output_rules.memory
    return Figures(
        threads=len(turns),
        busy=sum(turn is not None for _, _, turn in turns),
        waiting=len(pool.ready),
        exhausted_s=pool.exhaustion.seconds(time.monotonic()),
        connections=states,
        slow_clients=slow,
        queued_bytes=memory.used_bytes,
        spooled_bytes=memory.disk.used_bytes,
        bodies_spooled_bytes=server.bodies_on_disk.used_bytes,
        backlog=_backlog(server.listeners),
    )


def requests_under_way(server: Server) -> list[tuple[str, str]]:
    """The methods and schemes of the requests that have come to the app, and are not answered yet.

    From any thread; the server goes on meanwhile.
    """
    found = []
    for connection in list(server.connections):
        channels: list[Channel] = [connection]
        if connection.streams is not None:
            channels += connection.streams.channels()
        for channel in channels:
            exchange = channel.exchange
            if exchange is not None and exchange.environ is not None:
                found.append((exchange.req.method, exchange.req.scheme))
    return found


def _state_of(connection: Connection) -> str:
    state = connection.state
    if state == RECEIVING:
        return "body" if connection.receives_body else "head"
    return _CALLED.get(state, "closing")


def _backlog(listeners: Iterable[socket.socket]) -> tuple[int, int] | None:
    found = []
    for listener in listeners:
        if listener.family not in (socket.AF_INET, socket.AF_INET6):
            continue
        try:
            info = listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 32)
        except (OSError, AttributeError):  # closed; or not Linux
            continue
        if len(info) == 32 and info[0] == _TCP_LISTEN:
            found.append(struct.unpack_from("=II", info, _TCP_INFO_UNACKED_AT))
    return max(found, default=None)
