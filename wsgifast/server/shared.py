"""The data that all parts of a server share. This module does not depend on the parts.

Each part gets a :class:`Shared`, and the callables and other parts that it uses. Only the server
itself (server.py) knows the whole :class:`~.server.Server`.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from ..files.temporary import Budget
from ..metrics.collecting import ConnectionCounters
from .options import Options

# The maximum number of stored times. If the metrics do not collect them, older times are dropped.
_MAX_TIMES = 10_000
# The minimum time between two equal warnings.
_WARN_AGAIN_S = 60.0


class Counters(ConnectionCounters):
    """Totals since the server started, and times that have not been collected for the metrics.

    :ivar waits: the seconds for which requests have waited for a free thread.
    :ivar queued: the seconds for which requests have waited in a proxy before they arrived.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits, self.queued = deque[float](maxlen=_MAX_TIMES), deque[float](maxlen=_MAX_TIMES)


@dataclass(slots=True, eq=False)
class Shared:
    """The options, log, counters, budgets and end state of a server.

    Only the server changes `is_draining`, `is_ending`, `is_disconnecting` and `keepalive_s`.

    :param log: the error log.
    :ivar counters: counts for the metrics. Any thread may change them.
    :ivar bodies_on_disk: counts the bytes of request bodies in temporary files.
    :ivar input_memory: counts the bytes in memory of requests that are incomplete or wait for a
        thread.
    :ivar keepalive_s: how long an idle connection stays open. It is shorter while the server ends.
    :ivar is_draining: whether readiness fails and connections are closed after their responses.
    :ivar is_ending: whether the server ends, and accepts no more connections. It also drains then.
    :ivar is_disconnecting: whether the graceful timeout is nearly over, so that the server has
        disconnected all clients.
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
    _warned_at: dict[str, float] = field(default_factory=dict)  # the time of each warning

    def warn_seldom(self, text: str, *args: object) -> None:
        """Log a warning, but no message twice in a minute."""
        now, message = time.monotonic(), text % args
        if now - self._warned_at.get(message, -_WARN_AGAIN_S) >= _WARN_AGAIN_S:
            self._warned_at[message] = now
            self.log.warning("%s", message)

    def __post_init__(self) -> None:
        self.bodies_on_disk = Budget(self.options.bodies_on_disk_bytes)
        self.input_memory = Budget(self.options.input_memory_bytes)
        self.keepalive_s = self.options.keepalive_s
