"""Counters for the connections of a process with asgifast's protocols.

The counters are plain integers. The metrics are computed from them when they are collected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from wsgifast.metrics.collecting import ConnectionCounters, Point, point, process_collectors

_STATES = ("idle", "body", "running", "sending", "closing")


class Counters(ConnectionCounters):
    """The counters of one process.

    :ivar open: the protocols of the open connections, with their transports. Each protocol has
        uvicorn's `cycle`.
    :ivar is_ending: returns whether the server is about to end.
    :ivar drains: returns whether the server continues to serve for `drain_delay_s` after SIGTERM.
    :ivar is_draining: whether the server has received SIGTERM, and still serves.
    """

    def __init__(self) -> None:
        super().__init__()
        self.open: dict[Any, Any] = {}
        self.is_ending: Callable[[], bool] = lambda: False
        self.drains: Callable[[], bool] = lambda: True
        self.is_draining = False

    def collect(self) -> Iterator[Point]:
        """Yield the points for a :data:`~wsgifast.metrics.Collector`. Any thread may call this."""
        states = Counter[str]()
        slow = queued = 0
        for protocol, transport in list(self.open.items()):
            states[_state_of(protocol.cycle, transport)] += 1
            queued += transport.get_write_buffer_size()
            slow += transport.waits_for_client
        if self.accepted:  # with another server, nothing is counted
            for state in _STATES:
                yield point("wsgifast_connections", states[state], state)
            yield point("wsgifast_connections_accepted_total", self.accepted)
            yield point("wsgifast_connections_refused_total", self.connections_refused)
            yield point("wsgifast_slow_clients", slow)
            yield point("wsgifast_output_queued_bytes", queued)
            yield point("wsgifast_workers_draining", int(self.is_draining))
        yield from super().collect()


def _state_of(cycle: Any, transport: Any) -> str:
    if transport.is_closing():
        return "closing"
    if transport.waits_for_client:
        return "sending"
    if cycle is None or cycle.response_complete:
        return "idle"
    return "body" if cycle.more_body else "running"


counters = Counters()
process_collectors.append(counters.collect)
