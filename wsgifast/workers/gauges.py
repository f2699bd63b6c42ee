"""The current state of a server, for metrics and `wsgifast top`. Any thread may call."""

from __future__ import annotations

import socket
import struct
import time
from collections import Counter
from collections.abc import Iterable, Iterator

from ..metrics.collecting import Point, point, points_of
from ..metrics.health import SlowClient
from ..metrics.requests import RequestLabels, labels_of_parsed
from ..server.channel import CLOSED, LINGERING, RECEIVING
from ..server.endpoint import Endpoint
from ..server.server import Server
from ..sockets.options import Address

# tcp(7), linux/tcp.h: for a listening socket tcpi_unacked is the length of its accept queue, and
# tcpi_sacked the limit.
_TCP_INFO_UNACKED_AT = 24
_TCP_LISTEN = 10


def gauges(server: Server) -> Iterator[Point]:
    """Yield a server's gauges at this moment. It goes on meanwhile."""
    connections = list(server.connections)
    turns = server.pool.turns()
    shared, memory = server.shared, server.output_rules.memory
    yield point("wsgifast_threads", len(turns))
    yield point("wsgifast_threads_busy", sum(turn is not None for _, _, turn in turns))
    yield point("wsgifast_requests_waiting", len(server.pool.ready))
    exhausted_s = server.pool.exhaustion.seconds(time.monotonic())
    yield point("wsgifast_saturated_seconds_total", exhausted_s)
    yield from points_of("wsgifast_connections", Counter(map(_state_of, connections)))
    yield point("wsgifast_connections_limit", shared.options.worker_connections)
    waits = [any(output.draining for output, _ in each.outputs()) for each in connections]
    yield point("wsgifast_slow_clients", sum(waits))
    yield point("wsgifast_output_queued_bytes", memory.used_bytes)
    yield point("wsgifast_output_spooled_bytes", memory.disk.used_bytes)
    yield point("wsgifast_request_bodies_spooled_bytes", shared.bodies_on_disk.used_bytes)
    yield point("wsgifast_requests_in_memory_bytes", shared.input_memory.used_bytes)
    backlog = _backlog(server.listeners)
    if backlog is not None:
        yield point("wsgifast_accept_backlog", backlog[0])
        yield point("wsgifast_accept_backlog_limit", backlog[1])


def requests_under_way(server: Server) -> list[RequestLabels]:
    """Return the method and scheme of each request that the app has got and not answered."""
    found = []
    for connection in list(server.connections):
        for _, exchange in connection.outputs():
            if exchange is not None and exchange.environ is not None:
                found.append(labels_of_parsed(exchange.req))
    return found


def slowest_clients(connections: Iterable[Endpoint], now: float, *, most: int) -> list[SlowClient]:
    """Return the clients with queued output, the slowest first.

    :param now: monotonic.
    """
    found = []
    for connection in connections:
        for output, exchange in connection.outputs():
            pace = output.sender.pace(now) if output.draining else None
            if pace is None:  # it may wait for a disk
                continue
            waited_s, taken = pace
            peer = connection.peer
            found.append(
                SlowClient(
                    str(Address(*peer[:2])) if isinstance(peer, tuple) else "unix",
                    "" if exchange is None else str(exchange.req.path),
                    output.bytes_queued,
                    round(waited_s, 3),
                    round(taken / max(waited_s, 1e-3), 1),
                )
            )
    found.sort(key=lambda client: client.bytes_per_s)
    return found[:most]


def _state_of(connection: Endpoint) -> str:
    state = connection.state
    if state is RECEIVING:
        return "body" if connection.receives_body else "head"
    return LINGERING if state is CLOSED else state


def _backlog(listeners: Iterable[socket.socket]) -> tuple[int, int] | None:
    """The longest accept queue, and its limit. None where the system does not report it."""
    found = []
    for listener in listeners:
        if listener.family not in (socket.AF_INET, socket.AF_INET6):
            continue
        try:
            info = listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 32)
        except (OSError, AttributeError):  # closed, or not Linux
            continue
        if len(info) == 32 and info[0] == _TCP_LISTEN:
            found.append(struct.unpack_from("=II", info, _TCP_INFO_UNACKED_AT))
    return max(found, default=None)
