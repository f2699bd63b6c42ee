"""Return the current state of a server, for metrics and `wsgifast top`.

All functions are thread-safe.
"""

from __future__ import annotations

import socket
import struct
import time
from collections import Counter
from collections.abc import Iterable, Iterator

from ..metrics.collecting import Point, point, points_of
from ..metrics.health import SlowClient
from ..metrics.requests import RequestLabels, labels_of_parsed
from ..server.endpoint import CLOSED, LINGERING, RECEIVING, SKIPPING, Endpoint
from ..server.server import Server
from ..sockets.options import Address

# See tcp(7) and linux/tcp.h. For a listening socket, tcpi_unacked is the length of its accept queue
# and tcpi_sacked is the limit of the queue.
_TCP_INFO_UNACKED_AT = 24
_TCP_LISTEN = 10
# The label of each state whose name is not its label.
_LABELS: dict[str, str] = {SKIPPING: RECEIVING, CLOSED: LINGERING}


def gauges(server: Server) -> Iterator[Point]:
    """Yield a server's gauges while it serves."""
    connections = list(server.connections)
    members = server.pool.members
    shared, memory = server.shared, server.output_rules.memory
    yield point("wsgifast_threads", len(members))
    yield point("wsgifast_threads_busy", sum(member.busy for member in members))
    yield point("wsgifast_requests_waiting", len(server.pool.ready))
    exhausted_s = server.pool.exhaustion.seconds(time.monotonic())
    yield point("wsgifast_saturated_seconds_total", exhausted_s)
    yield from points_of("wsgifast_connections", Counter(map(_state_of, connections)))
    yield point("wsgifast_connections_limit", shared.options.worker_connections)
    slow = [any(output.is_waiting for output, _ in each.outputs()) for each in connections]
    yield point("wsgifast_slow_clients", sum(slow))
    yield point("wsgifast_output_queued_bytes", memory.used_bytes)
    yield point("wsgifast_output_spooled_bytes", memory.disk.used_bytes)
    yield point("wsgifast_request_bodies_spooled_bytes", shared.bodies_on_disk.used_bytes)
    yield point("wsgifast_requests_in_memory_bytes", shared.input_memory.used_bytes)
    backlog = _backlog(server.listeners)
    if backlog is not None:
        yield point("wsgifast_accept_backlog", backlog[0])
        yield point("wsgifast_accept_backlog_limit", backlog[1])


def active_requests(server: Server) -> list[RequestLabels]:
    """Return the labels of each request whose app was called and whose response is not finished."""
    found = []
    for connection in list(server.connections):
        for _, exchange in connection.outputs():
            if exchange is not None and exchange.environ is not None:
                found.append(labels_of_parsed(exchange.req))
    return found


def slowest_clients(connections: Iterable[Endpoint], now: float, *, limit: int) -> list[SlowClient]:
    """Return the clients with queued output, slowest first.

    :param now: the monotonic time.
    :param limit: the maximum number of clients.
    """
    found = []
    for connection in connections:
        for output, exchange in connection.outputs():
            pace = output.sender.pace(now) if output.is_waiting else None
            if pace is None:  # the output may wait for the disk instead of the client
                continue
            waited_s, accepted_bytes = pace
            peer = connection.peer
            found.append(
                SlowClient(
                    str(Address(*peer[:2])) if isinstance(peer, tuple) else "unix",
                    "" if exchange is None else str(exchange.req.path),
                    output.bytes_queued,
                    round(waited_s, 3),
                    round(accepted_bytes / max(waited_s, 1e-3), 1),
                )
            )
    found.sort(key=lambda client: client.bytes_per_s)
    return found[:limit]


def _state_of(connection: Endpoint) -> str:
    return _LABELS.get(connection.state, connection.state)


def _backlog(listeners: Iterable[socket.socket]) -> tuple[int, int] | None:
    """Return the length and limit of the longest accept queue. None if the system reports none."""
    found = []
    for listener in listeners:
        if listener.family not in (socket.AF_INET, socket.AF_INET6):
            continue
        try:
            info = listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 32)
        except (OSError, AttributeError):  # the socket is closed, or the system is not Linux
            continue
        if len(info) == 32 and info[0] == _TCP_LISTEN:
            found.append(struct.unpack_from("=II", info, _TCP_INFO_UNACKED_AT))
    return max(found, default=None)
