"""What waits for one client, and who sends it.

Theory of operation
-------------------
What is queued is sent at once as far as the kernel takes it (sending.py); with a rest, the queue is
*draining*: the thread that is told of room in the kernel goes on. From then on two threads may meet
here, so everything is done under the connection's lock; TLS needs it too, since one TLS object must
not be used by two threads at once.

    empty --add and send--> (sent at once) empty
                            (kernel full)  draining --writable--> draining | empty
                            (file not in memory)  draining --disk thread--> draining | empty

*Disk*: a run of a file is sent by the thread that has the event only as far as it is in memory.
What is not, or not known to be, is a disk thread's: it makes one step, outside of the lock, and
waits for room in its turn. While it does, nobody else sends.

An error is final: what is queued is dropped, file descriptors are closed, writers are told.

When the kernel has no memory left for TCP, a socket is writable and takes nothing. To wait for
writability again would spin, so the queue is *tried again* some time later.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Protocol

from ..errors import ClientGone
from ..sockets.sendfile import FileSegment
from .backlog import Backlog
from .output_rules import OutputRules
from .sending import Turn

__all__ = ["OutputOwner", "SendQueue", "Sends"]


class OutputOwner(Protocol):
    """What a queue asks of its connection; called under the queue's lock."""

    def wait_to_send(self, deadline: float, *, retry: bool) -> None:
        """Have :meth:`SendQueue.on_writable` called once the socket is writable.

        :param deadline: monotonic; when the client is to be given up.
        :param retry: have it called some time later instead, writable or not.
        :raises OSError, ValueError: if the kernel can watch no more; it ends the queue.
        """

    def resume_sending(self) -> None:
        """Have :meth:`SendQueue.on_writable` called soon."""


class Sends(Protocol):
    """What a queue sends by: a socket's :class:`Sender`, or a stream's of HTTP/2.

    Called under the queue's lock, but for a disk's step.
    """

    @property
    def send(self) -> Callable[[bytes], int]:
        """Sends what it can of a block right now, and returns how many bytes that were.

        It raises as :meth:`take_turn`, or what says that it would block.
        """

    def take_turn(self, backlog: Backlog, *, after_event: bool = False) -> Turn:
        """Send until no more is taken, the turn is over, or the disk is needed.

        :raises OSError: if the client has gone, or a file cannot be read.
        """

    def wait_until(self, *, again: bool) -> float:
        """When the client is to be given up, if it is waited for from now on."""

    def pace(self, now: float) -> tuple[float, int] | None:
        """For how long the client has been waited for, and what it has taken since; any thread.

        :param now: the monotonic clock.
        :returns: None if it is not waited for; a stream waits for its client's windows alone.
        """

    def step_from_disk(self, backlog: Backlog, segment: FileSegment) -> int | bytes:
        """Send or read the next bytes of the file in front, and wait for its disk."""

    def note_file(self, backlog: Backlog, done: int | bytes) -> None:
        """Take note of what `step_from_disk` has done."""


class SendQueue:
    """What is left to send on one connection, or on a stream of HTTP/2.

    :param lock: by default one of its own.
    :ivar backlog: what is left to send; None as long as nothing of a response ever was.
    :ivar draining: somebody will go on sending: whoever has the socket's event, or a disk thread.
    :ivar closing: the response is whole: whoever sends its last byte finishes it.
    :ivar error: why nothing can be sent any more.
    """

    __slots__ = (
        "_dropped",
        "_owner",
        "_room",
        "_rules",
        "_sender",
        "backlog",
        "closing",
        "draining",
        "error",
        "lock",
    )

    def __init__(
        self,
        sender: Sends,
        owner: OutputOwner,
        rules: OutputRules,
        lock: threading.Lock | threading.RLock | None = None,
    ) -> None:
        self.lock = lock or threading.Lock()
        self.draining = False
        self.closing = False
        self.error: BaseException | None = None
        self.backlog: Backlog | None = None  # most responses need none
        self._dropped = 0  # bytes that were queued when an error came
        self._owner = owner
        self._rules = rules
        self._sender = sender
        self._room: threading.Condition | None = None

    @property
    def bytes_queued(self) -> int:
        return 0 if self.backlog is None else self.backlog.size

    def on_writable(self) -> bool:
        """Go on; the event's owner calls it.

        :returns: True if the response is whole and its last byte has been sent, or never will be:
            the caller finishes it. Decided under the lock, or the app's thread could do so too.
        """
        with self.lock:
            self.draining = False
            if self.error is None:
                self._send(after_event=True)
            if self._room is not None and self.bytes_queued <= self._rules.ahead_bytes // 2:
                self._room.notify_all()
            return self.closing and not self.draining

    def fail(self, error: BaseException) -> None:
        """Drop everything and tell the writer."""
        with self.lock:
            self._fail(error)

    def pace(self, now: float) -> tuple[float, int] | None:
        """See :meth:`Sends.pace`."""
        return self._sender.pace(now)

    # Everything below is called with the lock held, unless it says otherwise.

    def _check(self) -> None:
        if self.error is not None:
            raise ClientGone(str(self.error)) from self.error

    def _begin_backlog(self) -> Backlog:
        if self.backlog is None:
            self.backlog = Backlog(self._rules.memory)
        return self.backlog

    def _wait_for_room(self) -> None:
        if self._room is None:
            self._room = threading.Condition(self.lock)
        began = time.monotonic()
        # Ends in any case: a client that takes nothing is dropped by the sweep.
        while self.draining and self.bytes_queued > self._rules.ahead_bytes // 2:
            self._room.wait()
        if self.backlog is not None:
            self.backlog.waited_s += time.monotonic() - began

    def _fail(self, error: BaseException) -> None:
        if self.error is None:
            self.error = error
        if self.backlog is not None:
            self._dropped += self.backlog.size
            self.backlog.clear()
        self.draining = False
        if self._room is not None:
            self._room.notify_all()

    def _send_or_raise(self) -> None:
        if not self.draining:
            self._send()
            self._check()

    def _send(self, after_event: bool = False) -> None:
        backlog = self.backlog
        if backlog is None:
            return
        try:
            turn = self._sender.take_turn(backlog, after_event=after_event)
        except OSError as error:
            self._fail(error)
        else:
            if turn is Turn.DISK:
                self._call_disk_thread(backlog)
            elif turn is not Turn.DONE:
                self._start_draining(again=turn is Turn.AGAIN)
        backlog.release_memory()

    def _start_draining(self, *, again: bool = False) -> None:
        self.draining = True
        try:
            self._owner.wait_to_send(self._sender.wait_until(again=again), retry=again)
        except (OSError, ValueError) as error:
            self._fail(error)

    def _call_disk_thread(self, backlog: Backlog) -> None:
        segment = backlog.first
        assert isinstance(segment, FileSegment)
        self.draining = True
        backlog.use(segment.fd)  # whatever becomes of the connection meanwhile
        try:
            device = os.fstat(segment.fd).st_dev
            self._rules.disk.submit(device, lambda: self._go_on_from_disk(backlog, segment))
        except OSError as error:
            backlog.release(segment.fd)
            self._fail(error)

    def _go_on_from_disk(self, backlog: Backlog, segment: FileSegment) -> None:
        """Make one step of a file that may wait for its disk; in a disk thread, without the lock.

        Nobody else sends while it runs: the queue is draining, and no event is waited for.
        """
        done: int | bytes = 0
        failure: OSError | None = None
        try:
            done = self._sender.step_from_disk(backlog, segment)
        except OSError as error:
            failure = error
        with self.lock:
            if failure is not None:
                self._fail(failure)
            elif self.error is None:
                if done:
                    self._sender.note_file(backlog, done)
                self._start_draining()
            backlog.release(segment.fd)
            if self.error is not None and self.closing:
                self._owner.resume_sending()  # who sees that it is over, and finishes
