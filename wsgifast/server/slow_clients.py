"""Who of a server's clients is the slowest; read from what is there, while it goes on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..metrics.states import SlowClient
from .connection import Connection
from .exchange import Exchange
from .output import OutputQueue

__all__ = ["slowest_clients"]


def slowest_clients(
    connections: Iterable[Connection], now: float, *, most: int
) -> list[SlowClient]:
    """The clients whose output waits for them, those that take least a second first.

    :param connections: as they are; any thread may ask.
    :param now: the monotonic clock.
    """
    found = []
    for connection in connections:
        for output, exchange in _outputs(connection):
            pace = output.pace(now) if output.draining else None
            if pace is None:  # not its client, but a disk may be waited for
                continue
            waited_s, taken = pace
            found.append(
                SlowClient(
                    _shown(connection.peer),
                    "" if exchange is None else str(exchange.req.path),
                    output.bytes_queued,
                    round(waited_s, 3),
                    round(taken / max(waited_s, 1e-3), 1),
                )
            )
    found.sort(key=lambda client: client.bytes_per_s)
    return found[:most]


def _outputs(connection: Connection) -> Iterator[tuple[OutputQueue, Exchange | None]]:
    """A connection's own, and those of its streams."""
    yield connection.output, connection.exchange
    if connection.streams is not None:
        for stream in connection.streams.channels():
            yield stream.output, stream.exchange


def _shown(peer: object) -> str:
    """An address as people write it; that of a Unix socket's client is empty."""
    if not isinstance(peer, tuple):
        return "unix"
    host, port = peer[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
