"""What is left to send of a connection's output, or of one stream's of HTTP/2, and how it is sent.

This is the half of an output queue (output.py) that the threads of events use.

Theory of operation
-------------------
What the kernel has not taken waits in the backlog (backlog.py), and the queue is *draining*: the
thread that gets the socket's next event goes on. From then on two threads may use the queue, so
everything happens under its lock. TLS needs the lock too: two threads must not use one TLS object
at once.

    empty --write--> (all was sent)      empty
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
from typing import Protocol

from ..errors import ClientGone, without_frames
from ..sockets.sending import FileSegment
from .backlog import Backlog
from .coalescing import HeldBlocks
from .output_rules import OutputRules
from .poller import WOULD_BLOCK
from .sending import SenderLike, Turn


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


class SendQueue:
    """What is left to send; :class:`.OutputQueue` is what is written to.

    :param lock: by default one of its own.
    :ivar owner: waits for the client.
    :ivar sender: sends on the socket, or on the stream.
    :ivar backlog: what is left to send; None while every response was sent at once.
    :ivar draining: an event's thread, or a disk thread, will go on sending.
    :ivar may_run_ahead: what is more than `ahead_bytes` may go to a temporary file.
    :ivar keeps_all: nothing goes to a temporary file: it holds little, and is written under a lock.
    :ivar closing: the response is complete: the thread that sends its last byte finishes it.
    :ivar error: why nothing can be sent any more.
    """

    __slots__ = (
        "_dropped", "_held", "_room", "_rules", "backlog", "closing", "draining",
        "error", "keeps_all", "lock", "may_run_ahead", "owner", "sender",
    )  # fmt: skip

    def __init__(
        self,
        sender: SenderLike,
        owner: OutputOwner,
        rules: OutputRules,
        lock: threading.Lock | threading.RLock | None = None,
    ) -> None:
        self.sender = sender
        self.lock = lock or threading.Lock()
        self.error: BaseException | None = None
        self.backlog: Backlog | None = None
        self.draining = False
        self.keeps_all = False
        self.owner = owner
        self._rules = rules
        self._room: threading.Condition | None = None
        self._held: HeldBlocks | None = None
        self.reset()

    def reset(self) -> None:
        """Prepare for the next response; the queue is empty."""
        self._dropped = 0  # bytes that an error has dropped
        self.closing = False
        self.may_run_ahead = False
        if self._held is not None:
            self._held.take()
        self._held = None  # of a stream
        if self.backlog is not None:
            self.backlog.close()
            self.backlog = None

    @property
    def bytes_queued(self) -> int:
        """For any thread, also without the lock."""
        backlog = self.backlog  # which the end of a response removes
        return 0 if backlog is None else backlog.size

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

    # Everything below needs the lock, unless it says otherwise.

    def _check(self, *lost: bytes | memoryview) -> None:
        """Raise if there was an error.

        :param lost: what was to be written, and is dropped then.
        """
        if self.error is not None:
            self._dropped += sum(map(len, lost))
            raise ClientGone(str(self.error)) from self.error

    def _fail(self, error: BaseException) -> None:
        self.error = self.error or without_frames(error)
        self._queue_held()
        if self.backlog is not None:
            self._dropped += self.backlog.size
            self.backlog.clear()
        self.draining = False
        if self._room is not None:
            self._room.notify_all()

    def _begin_backlog(self) -> Backlog:
        if self.backlog is None:
            self.backlog = Backlog(self._rules.memory)
        return self.backlog

    def _queue_held(self) -> None:
        """Queue what is held back; after an error, drop it."""
        data = b"" if self._held is None else self._held.take()
        if self.error is not None:
            self._dropped += len(data)
        elif data:
            self._begin_backlog().append(data)

    def _send_at_once(self, data: bytes) -> int:
        """Send what the kernel takes of a block; nothing is queued."""
        try:
            return self.sender.send(data)
        except WOULD_BLOCK:
            return 0
        except OSError as error:
            self._fail(error)
            return 0

    def _send(self, after_event: bool = False) -> None:
        backlog = self.backlog
        if backlog is None:
            return
        try:
            turn = self.sender.take_turn(backlog, after_event=after_event)
            if turn is Turn.DONE and self._held is not None and self._held.blocks:
                self._queue_held()
                backlog.count_memory()
                turn = self.sender.take_turn(backlog)
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
            self.owner.wait_to_send(self.sender.wait_until(again=again), retry=again)
        except (OSError, ValueError) as error:
            self._fail(error)

    def _call_disk_thread(self, backlog: Backlog) -> None:
        segment = backlog.first
        assert isinstance(segment, FileSegment)
        self.draining = True
        backlog.use(segment.fd)  # it stays open even if the connection fails meanwhile
        try:
            device = os.fstat(segment.fd).st_dev
            self._rules.disk.submit(device, lambda: self._go_on_from_disk(backlog, segment))
        except OSError as error:
            backlog.release(segment.fd)
            self._fail(error)

    def _go_on_from_disk(self, backlog: Backlog, segment: FileSegment) -> None:
        """Make one step of sending a file; runs in a disk thread, without the lock."""
        done: int | bytes = 0
        failure: Exception | None = None
        try:
            done = self.sender.step_from_disk(backlog, segment)
        except Exception as error:  # noqa: BLE001 - raised below, unless it is the client's or disk's
            failure = error
        with self.lock:
            if failure is not None:
                self._fail(failure)
            elif self.error is None:
                if done:
                    self.sender.record_file(backlog, done)
                self._start_draining()
            backlog.release(segment.fd)
            if self.error is not None and self.closing:
                self.owner.resume_sending()  # to finish the response
        if failure is not None and not isinstance(failure, OSError):
            raise failure  # for the log: a bug, or no memory
