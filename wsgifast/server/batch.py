"""Whole responses that wait for each other for a moment, and are then sent together.

Theory of operation
-------------------
A client that waits for a response is woken by it. Where the client, or the proxy in front of this
server, runs on another processor of this host, waking it costs more than sending: an interrupt,
and in a virtual machine a call of the hypervisor. If several responses are sent one directly after
the other, the first wakes the client, and the others find it awake.

So a thread that has many more events to handle keeps a small response back. It is sent

- when there are as many as make a batch, or when no work is left;
- at the latest before the first turn that begins after `_HOLD_S`;
- by the monitor, if a turn takes so long that it looks at it.

If a batch was late, because some app is not quick, nothing is kept back for some time.

Any thread may add a response, or take one out to send it. The deque gives each out once.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sized
from typing import Protocol

# The work that must be left for a response to wait. With less, the client had better begin with
# what is ready while the server goes on.
_LEAST_WORK = 12
_MOST_RESPONSES = 16
# How long a response waits for turns to begin, and when it was late.
_HOLD_S = 0.0005
_LATE_S = 0.001
# How long nothing waits after that.
_PAUSE_S = 0.1


class Queue(Protocol):
    """An output queue, whose module imports this one."""

    def leave_batch(self) -> bool:
        """See :meth:`.SendQueue.leave_batch`."""


class Batch:
    """The responses that wait to be sent together.

    :param work: what the threads have to do.
    :param send: called with each queue, in a thread of the pool: sends its response, and goes on
        with its connection if the app has returned.
    :ivar send_at: before a turn that begins after this time (monotonic), call :meth:`send`.
    """

    __slots__ = ("_begun", "_paused_until", "_queues", "_send", "_work", "send_at")

    def __init__(self, work: Sized, send: Callable[[Queue], object]) -> None:
        self.send_at = math.inf
        self._begun = 0.0
        self._paused_until = 0.0
        self._queues: deque[Queue] = deque()
        self._work = work
        self._send = send

    def __bool__(self) -> bool:
        return bool(self._queues)

    def accepts(self) -> bool:
        """Whether a response is to wait: its queue is then added."""
        if self._queues:
            return True
        if len(self._work) < _LEAST_WORK:
            return False
        self._begun = now = time.monotonic()
        return now >= self._paused_until

    def add(self, queue: Queue) -> None:
        """Have the response of a queue sent soon."""
        self._queues.append(queue)
        if self.send_at == math.inf:
            self.send_at = self._begun + _HOLD_S
        # Only now: a thread that finds no more work then finds this.
        if not self._work or len(self._queues) >= _MOST_RESPONSES:
            self.send()

    def send(self) -> None:
        """Send the responses; called by a thread of the pool."""
        self._end()
        queues, send = self._queues, self._send
        while queues:
            try:
                queue = queues.popleft()
            except IndexError:
                break  # another thread was quicker
            send(queue)

    def tick(self) -> bool:
        """Send the responses during a long turn; returns whether there were any. Never blocks."""
        queues = self._queues
        if not queues:
            return False
        self._end()
        for _ in range(len(queues)):
            try:
                queue = queues.popleft()
            except IndexError:
                break
            if not queue.leave_batch():
                queues.append(queue)
        return True

    def _end(self) -> None:
        now = time.monotonic()
        self.send_at = math.inf
        if now - self._begun > _LATE_S:
            self._paused_until = now + _PAUSE_S
