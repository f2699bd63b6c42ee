"""The output queue of a connection, or of one stream of HTTP/2.

Theory of operation
-------------------
The *writer*, which is the app's thread or the one that answers an error, hands over bytes and runs
of files, in order. They are sent at once as far as the kernel takes them (sending.py). What is left
waits in the backlog (backlog.py), and the queue is *draining*: the thread that gets the socket's
next event goes on, and the writer does not wait for it. From then on two threads may use the queue,
so everything happens under its lock. TLS needs the lock too: two threads must not use one TLS
object at once.

    empty --write--> (all was sent)      empty
                     (in a batch)        draining --batch--> draining | empty
                     (socket full)       draining --writable--> draining | empty
                     (file not cached)   draining --disk thread--> draining | empty

*Coalescing.* A generator's block that closely follows another is held back for the next one, until
the monitor's next tick at most, which sends it while the app goes on (PEP 3333, "Buffering and
Streaming"). Blocks are held back without the lock, and framed together (coalescing.py): the thread
that takes the lock next adds them to the backlog.

    nothing held --a block, soon after another--> held --tick, or enough--> sent

*Batches.* A small response that is handed over whole may wait for those of other connections
(batch.py). Its queue is draining meanwhile: who sends the batch calls :meth:`on_writable`, and the
monitor :meth:`leave_batch`.

*Running ahead.* A writer that is more than `ahead_bytes` ahead of its client waits, or, if it *may
run ahead*, goes on into a temporary file, so that a slow client does not hold the app's thread (as
with nginx's proxy_buffering). A temporary file is also used when all queues together hold too much
memory. It is written without the lock.

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
from collections.abc import Callable, Sequence
from typing import Protocol

from ..errors import ClientGone
from ..sockets.sendfile import FileSegment
from .backlog import Backlog
from .batch import Batch
from .coalescing import HeldBlocks
from .output_rules import OutputRules
from .poller import WOULD_BLOCK
from .sending import SenderLike, Turn


class OutputOwner(Protocol):
    """What a queue needs of its connection or stream; called under the queue's lock."""

    def wait_to_send(self, deadline: float, *, retry: bool) -> None:
        """Have :meth:`OutputQueue.on_writable` called once the socket is writable.

        :param deadline: when to give up on the client; monotonic.
        :param retry: have it called some time later instead, writable or not.
        :raises OSError, ValueError: if the kernel cannot watch the socket; it ends the queue.
        """

    def resume_sending(self) -> None:
        """Have :meth:`OutputQueue.on_writable` called soon."""


class OutputQueue:
    """What is written, and left to send.

    :param lock: by default one of its own.
    :param batch: where a whole response may wait; its owner is then called as for an event.
    :ivar owner: waits for the client.
    :ivar sender: sends on the socket, or on the stream.
    :ivar may_run_ahead: what is more than `ahead_bytes` may go to a temporary file.
    :ivar backlog: what is left to send; None while every response was sent at once.
    :ivar draining: an event's thread, or a disk thread, will go on sending.
    :ivar closing: the response is complete: the thread that sends its last byte finishes it.
    :ivar error: why nothing can be sent any more.
    """

    __slots__ = (
        "_batch", "_dropped", "_held", "_last", "_room", "_rules", "backlog", "closing", "draining",
        "error", "lock", "may_run_ahead", "owner", "sender",
    )  # fmt: skip

    def __init__(
        self,
        sender: SenderLike,
        owner: OutputOwner,
        rules: OutputRules,
        lock: threading.Lock | threading.RLock | None = None,
        batch: Batch | None = None,
    ) -> None:
        self.sender = sender
        self.lock = lock or threading.Lock()
        self.error: BaseException | None = None
        self.backlog: Backlog | None = None
        self.draining = False
        self.owner = owner
        self._batch = batch
        self._last = b""  # a whole response that waits in the batch
        self._rules = rules
        self._room: threading.Condition | None = None
        self.reset()

    def reset(self) -> None:
        """Prepare for the next response; the queue is empty."""
        self._dropped = 0  # bytes that an error has dropped
        self.closing = False
        self.may_run_ahead = False
        self._held: HeldBlocks | None = None  # of a stream
        self._last = b""
        if self.backlog is not None:
            self.backlog.close()
            self.backlog = None

    def close(self) -> None:
        """The connection is about to be closed, and its writer is done."""
        self._rules.coalescing.queues.discard(self)
        with self.lock:
            self._fail(ClientGone("closed"))
            if self.backlog is not None:
                self.backlog.close()

    @property
    def bytes_queued(self) -> int:
        """For any thread, also without the lock."""
        backlog = self.backlog  # which the end of a response removes
        return len(self._last) + (0 if backlog is None else backlog.size)

    def bytes_left(self) -> int:
        """Bytes that the kernel has not taken, including those that an error has dropped."""
        with self.lock:
            return self._dropped + (self._held.size if self._held else 0) + self.bytes_queued

    # Called by the writer; all of it raises ClientGone if the client has gone.

    def write(self, data: bytes) -> None:
        """Send bytes, and queue what the kernel does not take; may wait for the client."""
        rest: bytes | memoryview = data
        with self.lock:
            if self._held is not None and self._held.blocks:
                self._queue_held()
            backlog = self.backlog
            queued = 0 if backlog is None else backlog.size
            if backlog is not None and queued > self._rules.ahead_bytes:
                limit = self._rules.options.response_on_disk_bytes
                if not (self.may_run_ahead and backlog.may_spill(limit)):
                    self._wait_for_room(self._rules.ahead_bytes // 2)
            if self.error is not None:
                raise ClientGone(str(self.error))
            if not queued and not self.draining:
                sent = self._send_at_once(data)
                if self.error is not None:
                    raise ClientGone(str(self.error)) from self.error
                if sent == len(data):
                    return
                rest = memoryview(data)[sent:]
        self.write_all((rest,))

    def write_whole(self, data: bytes) -> None:
        """As :meth:`write`, for a whole response: it may wait in the batch."""
        batch = self._batch
        if batch is not None and not self.draining and self.error is None and batch.accepts():
            # Without the lock: nobody else uses a queue that is not draining.
            self._last = data
            self.draining = True
            batch.add(self)
        else:
            self.write(data)

    def begin_stream(
        self, data: bytes, *, frame: Callable[[bytes], bytes] | None, may_run_ahead: bool
    ) -> Callable[[bytes], None]:
        """Send the beginning of a stream.

        :param data: the head, and the first block, framed.
        :param frame: frames blocks that are sent together, as one chunk; None for no framing.
        :returns: what sends a further block; see :meth:`.HeldBlocks.write`.
        """
        self._held = held = HeldBlocks(self, self._rules.coalescing, frame)
        self.may_run_ahead = may_run_ahead
        self.write(data)
        return held.write

    def write_all(self, buffers: Sequence[bytes | memoryview]) -> None:
        """Send several buffers, in one system call if possible; never waits for the client."""
        buffers = [buffer for buffer in buffers if buffer]
        with self.lock:
            self._check()
            self._queue_held()
            backlog = self._begin_backlog()
            backlog.extend(buffers)
            self._send_or_raise()
            if not buffers or not backlog.size:
                return
            rest = backlog.take_excess(self._rules.ahead_bytes if self.may_run_ahead else None)
            if not rest:
                return
        # Without the lock: a slow disk must not hold up the thread that sends.
        spilled = backlog.spill(rest)
        with self.lock:
            self._check()
            if spilled is not None:
                backlog.append_file(spilled)
            else:
                self.may_run_ahead = False
                backlog.extend(rest)
            self._send_or_raise()

    def write_file(self, head: bytes, fd: int, offset: int, size: int) -> None:
        """Send a head, which may be empty, and a run of a file, through a duplicate of `fd`.

        :raises OSError: if no descriptor is left; nothing was sent.
        """
        with self.lock:
            self._check()
            # First of all: if no descriptor is left, the app's answer can still be a 500.
            segment = FileSegment(os.dup(fd), offset, size) if size > 0 else None
            self._queue_held()
            backlog = self._begin_backlog()
            if head:
                backlog.append(head)
            if segment is not None:
                backlog.append_file(segment)
            self._send_or_raise()

    def check_client(self) -> None:
        if self.sender.has_lost_client():
            self.fail(ClientGone("the client has hung up"))
        self._check()

    def drain(self) -> None:
        """Send everything, and wait until the client has taken it or is given up."""
        self.flush()
        with self.lock:
            self._wait_for_room(0)

    # Called by any thread

    def flush(self, *, wait: bool = True) -> bool:
        """Send the blocks that are held back.

        :param wait: whether to wait for the lock.
        :returns: False if another thread has it.
        """
        if self._held is None or not self._held.blocks:
            return True
        self._rules.coalescing.queues.discard(self)
        if not self.lock.acquire(blocking=wait):
            return False
        try:
            self._queue_held()
            if self.bytes_queued and not self.draining:
                self._send()
        finally:
            self.lock.release()
        return True

    def leave_batch(self) -> bool:
        """Send the response that waited in the batch, from which the caller has taken it.

        Never blocks; what is to be done after the response is left to a thread of the pool.

        :returns: False if another thread has the lock.
        """
        if not self.lock.acquire(blocking=False):
            return False
        try:
            self.draining = False
            if self.error is None:
                self._send()
            if self.closing and not self.draining:
                self.owner.resume_sending()  # to finish the response
        finally:
            self.lock.release()
        return True

    def on_writable(self) -> bool:
        """Go on sending; called by the owner of the socket's event.

        :returns: True if the response is complete and its last byte has been sent, or never will
            be: the caller finishes it. This is decided under the lock, so that the app's thread
            does not finish it as well.
        """
        with self.lock:
            self.draining = False
            if self.error is None:
                self._send(after_event=not self._last)
            if self._room is not None and self.bytes_queued <= self._rules.ahead_bytes // 2:
                self._room.notify_all()
            return self.closing and not self.draining

    def fail(self, error: BaseException) -> None:
        """Drop everything; the writer's next call raises."""
        with self.lock:
            self._fail(error)

    # Everything below needs the lock, unless it says otherwise.

    def _check(self) -> None:
        if self.error is not None:
            raise ClientGone(str(self.error)) from self.error

    def _fail(self, error: BaseException) -> None:
        self.error = self.error or error
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
        if self._last:
            data, self._last = self._last + data, b""
        if self.error is not None:
            self._dropped += len(data)
        elif data:
            self._begin_backlog().append(data)

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

    def _send_or_raise(self) -> None:
        if not self.draining:
            self._send()
            self._check()

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
        if self._last:
            sent = self._send_at_once(self._last)
            if self.error is not None:
                return
            rest, self._last = memoryview(self._last)[sent:], b""
            if not rest:
                return
            self._begin_backlog().append(rest)
        backlog = self.backlog
        if backlog is None:
            return
        try:
            turn = self.sender.take_turn(backlog, after_event=after_event)
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
