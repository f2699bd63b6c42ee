"""Plain data that all parts of one server share. It knows none of the parts.

A part gets this object, and beside it only the callables and parts that it uses. No part but the
server itself (server.py) knows the whole :class:`~.server.Server`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from ..files.temporary import Budget
from ..metrics.collecting import ConnectionCounters
from .options import Options

# Most times stored between two reads: the last ones.
_MOST_TIMES = 10_000


class Counters(ConnectionCounters):
    """Totals since the server started, and times in seconds since they were last collected.

    :ivar waits: for how long requests have waited for a free thread.
    :ivar queued: for how long they waited before they came.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits, self.queued = deque[float](maxlen=_MOST_TIMES), deque[float](maxlen=_MOST_TIMES)


@dataclass(slots=True, eq=False)
class Shared:
    """The options, log, counters and budgets of a server, and how far it is from its end.

    Only the server changes `is_draining`, `is_ending`, `is_disconnecting` and `keepalive_s`.

    :param log: the error log.
    :ivar counters: for the metrics. Any thread adds to them.
    :ivar bodies_on_disk: counts the bytes of request bodies in temporary files.
    :ivar input_memory: counts the bytes of requests in memory that are incomplete, or wait for a
        thread.
    :ivar keepalive_s: how long an idle connection stays open. It is shorter once the server ends.
    :ivar is_draining: readiness fails, and connections are closed after their responses. New ones
        are still accepted.
    :ivar is_ending: clients should make their next requests elsewhere.
    :ivar is_disconnecting: the graceful timeout is nearly over: the server disconnects all clients.
    """

    options: Options
    log: Any
    counters: Counters = field(default_factory=Counters)
    bodies_on_disk: Budget = field(init=False)
    input_memory: Budget = field(init=False)
    keepalive_s: float = field(init=False)
    is_draining: bool = False
    is_ending: bool = False
    is_disconnecting: bool = False

    def __post_init__(self) -> None:
        self.bodies_on_disk = Budget(self.options.bodies_on_disk_bytes)
        self.input_memory = Budget(self.options.input_memory_bytes)
        self.keepalive_s = self.options.keepalive_s
