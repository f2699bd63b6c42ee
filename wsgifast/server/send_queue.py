"""The reading end of an output queue: what waits for one client, and which thread sends it.

Theory of operation
-------------------
What is queued is sent at once as far as the kernel takes it (sending.py). If something is left, the
queue is *draining*: the thread that gets the socket's next event goes on. From then on two threads
may use the queue, so everything happens under its lock. TLS needs the lock too: two threads must
not use one TLS object at once.

    empty --add and send--> (all was sent)      empty
                            (socket full)       draining --writable--> draining | empty
                            (file not cached)   draining --disk thread--> draining | empty

*Disk.* An event's thread sends a file only as far as the page cache has it. For the rest, a disk
thread makes one step without the lock, and waits for the socket again. No other thread sends
meanwhile.

An error is final: what is queued is dropped, files are closed, and the writer's next call raises
:class:`ClientGone`.

When the kernel is out of memory for TCP, a socket is writable and takes nothing. Waiting until it
is writable would spin, so the queue *retries* after some time.
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

__all__ = ["OutputOwner", "SendQueue", "SenderLike"]


class OutputOwner(Protocol):
    """What a queue needs of its connection or stream; called under the queue's lock."""

    def wait_to_send(self, deadline: float, *, retry: bool) -> None:
        """Have :meth:`SendQueue.on_writable` called once the socket is writable.

        :param deadline: when to give up on the client; monotonic.
        :param retry: have it called some time later instead, writable or not.
        :raises OSError, ValueError: if the kernel cannot watch the socket; it ends the queue.
        """

    def resume_sending(self) -> None:
        """Have :meth:`SendQueue.on_writable` called soon."""


class SenderLike(Protocol):
    """Sends on a socket (:class:`~.sending.Sender`) or on an HTTP/2 stream (`StreamSender`).

    Called under the queue's lock, except for :meth:`step_from_disk`.
    """

    @property
    def send(self) -> Callable[[bytes], int]:
        """Sends as much of a block as possible without waiting, and returns how many bytes.

        Raises as :meth:`take_turn` does, or an error of `WOULD_BLOCK`.
        """

    def take_turn(self, backlog: Backlog, *, after_event: bool = False) -> Turn:
        """Send until nothing more is taken, the turn is over, or a disk is needed.

        :raises OSError: if the client has gone, or a file cannot be read.
        """

    def wait_until(self, *, again: bool) -> float:
        """Return when to give up on a client that is waited for from now on (monotonic).

        :param again: the wait goes on; the client has had no chance to end it.
        """

    def pace(self, now: float) -> tuple[float, int] | None:
        """Return for how long the client has been waited for, and the bytes taken since.

        For any thread. A stream waits for its client only while its window is used up.

        :param now: monotonic.
        :returns: None if the client is not waited for.
        """

    def step_from_disk(self, backlog: Backlog, segment: FileSegment) -> int | bytes:
        """Send or read the next bytes of the first file; may wait for its disk."""

    def record_file(self, backlog: Backlog, done: int | bytes) -> None:
        """Record the result of `step_from_disk`."""


class SendQueue:
    """What is left to send on one connection, or on one stream of HTTP/2.

    :param lock: by default one of its own.
    :ivar backlog: what is left to send; None while every response was sent at once.
    :ivar draining: an event's thread, or a disk thread, will go on sending.
    :ivar closing: the response is complete: the thread that sends its last byte finishes it.
    :ivar error: why nothing can be sent any more.
    """

    __slots__ = (
        "_dropped", "_owner", "_room", "_rules", "_sender", "backlog", "closing", "draining",
        "error", "lock",
    )  # fmt: skip

    def __init__(
        self,
        sender: SenderLike,
        owner: OutputOwner,
        rules: OutputRules,
        lock: threading.Lock | threading.RLock | None = None,
    ) -> None:
        self.lock = lock or threading.Lock()
        self.draining = False
        self.closing = False
        self.error: BaseException | None = None
        self.backlog: Backlog | None = None
        self._dropped = 0  # bytes that an error has dropped
        self._owner = owner
        self._rules = rules
        self._sender = sender
        self._room: threading.Condition | None = None

    @property
    def bytes_queued(self) -> int:
        return 0 if self.backlog is None else self.backlog.size

    def on_writable(self) -> bool:
        """Go on sending; called by the owner of the socket's event.

        :returns: True if the response is complete and its last byte has been sent, or never will
            be: the caller finishes it. This is decided under the lock, so that the app's thread
            does not finish it as well.
        """
        with self.lock:
            self.draining = False
            if self.error is None:
                self._send(after_event=True)
            if self._room is not None and self.bytes_queued <= self._rules.ahead_bytes // 2:
                self._room.notify_all()
            return self.closing and not self.draining

    def fail(self, error: BaseException) -> None:
        """Drop everything; the writer's next call raises."""
        with self.lock:
            self._fail(error)

    def pace(self, now: float) -> tuple[float, int] | None:
        """See :meth:`SenderLike.pace`."""
        return self._sender.pace(now)

    # Everything below needs the lock, unless it says otherwise.

    def _check(self) -> None:
        if self.error is not None:
            raise ClientGone(str(self.error)) from self.error

    def _begin_backlog(self) -> Backlog:
        if self.backlog is None:
            self.backlog = Backlog(self._rules.memory)
        return self.backlog

    def _wait_for_room(self, most: int) -> None:
        """Wait until at most `most` bytes are queued, or the queue has failed."""
        if self._room is None:
            self._room = threading.Condition(self.lock)
        began = time.monotonic()
        # The sweep ends this if the client takes nothing.
        while self.draining and self.bytes_queued > most:
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
        backlog.use(segment.fd)  # stays open even if the connection fails meanwhile
        try:
            device = os.fstat(segment.fd).st_dev
            self._rules.disk.submit(device, lambda: self._go_on_from_disk(backlog, segment))
        except OSError as error:
            backlog.release(segment.fd)
            self._fail(error)

    def _go_on_from_disk(self, backlog: Backlog, segment: FileSegment) -> None:
        """Make one step of sending a file; runs in a disk thread, without the lock.

        No other thread sends meanwhile: the queue is draining, and waits for no event.
        """
        done: int | bytes = 0
        failure: Exception | None = None
        try:
            done = self._sender.step_from_disk(backlog, segment)
        except Exception as error:  # noqa: BLE001 - raised below, unless it is the client's or disk's
            failure = error
        with self.lock:
            if failure is not None:
                self._fail(failure)
            elif self.error is None:
                if done:
                    self._sender.record_file(backlog, done)
                self._start_draining()
            backlog.release(segment.fd)
            if self.error is not None and self.closing:
                self._owner.resume_sending()  # to finish the response
        if failure is not None and not isinstance(failure, OSError):
            raise failure  # for the log: a bug, or no memory
