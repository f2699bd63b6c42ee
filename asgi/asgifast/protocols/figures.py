"""Metrics of uvicorn's connections: plain counters, read when they are asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Protocol

from wsgifast.metrics.points import Point, point, process_collectors

_STATES = ("idle", "body", "running", "sending", "closing")


class Transport(Protocol):
    """What the metrics use of a connection's transport."""

    @property
    def waits_for_client(self) -> bool: ...

    def is_closing(self) -> bool: ...

    def get_write_buffer_size(self) -> int: ...


class Figures:
    """Those of one process.

    :ivar open: the open connections' protocols, each of which has uvicorn's `cycle`.
    :ivar accepted: how many connections there have been.
    :ivar sendfile_bytes: sent by sendfile.
    """

    def __init__(self) -> None:
        self.open: dict[Any, Transport] = {}
        self.accepted = 0
        self.sendfile_bytes = 0

    def collect(self) -> Iterator[Point]:
        """A :data:`~wsgifast.metrics.points.Collector`; any thread may call it."""
        states = Counter[str]()
        slow = queued = 0
        for protocol, transport in list(self.open.items()):
            states[_state_of(protocol.cycle, transport)] += 1
            queued += transport.get_write_buffer_size()
            slow += transport.waits_for_client
        if self.accepted:  # else the connections are another server's
            for state in _STATES:
                yield point("wsgifast_connections", states[state], state)
            yield point("wsgifast_connections_accepted_total", self.accepted)
            yield point("wsgifast_slow_clients", slow)
            yield point("wsgifast_output_queued_bytes", queued)
        yield point("wsgifast_sendfile_bytes_total", self.sendfile_bytes)


def _state_of(cycle: Any, transport: Transport) -> str:
    if transport.is_closing():
        return "closing"
    if transport.waits_for_client:
        return "sending"
    if cycle is None or cycle.response_complete:
        return "idle"
    return "body" if cycle.more_body else "running"


figures = Figures()
process_collectors.append(figures.collect)
