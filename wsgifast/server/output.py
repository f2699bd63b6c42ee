"""The output queue of an HTTP/1 connection or of one HTTP/2 stream.

Theory of operation
-------------------
The *writer* is the app's thread, or the thread that responds with an error. It writes bytes and
parts of files, in order. The queue sends them at once as far as the socket accepts them
(sending.py). If the socket accepts no more, the backlog (backlog.py) stores the unsent output, and
the queue *waits* for the client. The poller then reports when the socket accepts bytes again. The
thread that gets this event continues to send, while the writer runs. So all changes of the queue
need its lock, which also protects the TLS object.

    empty --write--> (all was sent)                    empty
                     (the socket is full)              waiting --writable--> waiting | empty
                     (file not in the page cache)      waiting --disk thread--> waiting | empty

*Coalescing.* If a block of a generator closely follows another block, it is delayed until the next
block. The monitor is a thread of the server that runs every few milliseconds while blocks are
delayed. Its next run, the *tick*, sends the delayed blocks even if the app is still running (PEP
3333, "Buffering and Streaming"). The thread that acquires the lock next joins the delayed blocks,
frames them together, and queues them.

    none delayed --a block, soon after another--> delayed --tick, or enough--> sent
                 --a block for a slow client--> delayed --queue is empty, or enough--> queued

*Running ahead.* If more than `ahead_bytes` are queued for a client, the writer waits. If the writer
*may run ahead*, a disk thread writes further output to a temporary file, without the lock. So a
slow client does not occupy the app's thread (like nginx's proxy_buffering). The file is also used
if all queues together use too much memory. In that case the writer waits for the disk thread.

*Disk.* A thread that handles a socket's event never reads from the disk. Of a file, it sends only
the bytes in the page cache. A disk thread sends one part of the other bytes, without the lock. No
other thread sends meanwhile. Then the queue waits for the socket again.

An error is final: queued output is dropped, and the writer's next call raises :class:`ClientGone`.

If the kernel has no memory for TCP, a socket is reported as writable but accepts no bytes. A wait
for the writable event would end at once. So the queue waits until the next sweep instead.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Sequence

from ..errors import ClientGone, without_frames
from ..sockets.sending import FileSegment
from .backlog import Backlog, DelayedBlocks, Spilling
from .output_rules import OutputRules
from .poller import WOULD_BLOCK
from .sending import Owner, Sender, Turn

# A block is delayed if it is written within this time after another block.
_COALESCE_S = 0.0005
# The maximum size of one response in memory while a disk thread writes its temporary file.
_MAX_UNWRITTEN_BYTES = 8 * 1024 * 1024


class OutputQueue:
    """Sends written output, and stores unsent output.

    :param lock: the queue's lock. By default, the queue makes its own lock.
    :ivar owner: the connection or stream, which waits for events.
    :ivar sender: sends on the socket or on the stream.
    :ivar backlog: the unsent output. None if no output had to be stored.
    :ivar is_waiting: whether an event's thread or a disk thread will continue to send.
    :ivar delayed: the delayed blocks of a stream. None until a stream begins.
    :ivar may_run_ahead: whether output above `ahead_bytes` may be written to a temporary file.
    :ivar never_spills: whether unsent output is never written to a temporary file.
    :ivar is_complete: whether the response is complete. The thread that sends its last byte then
        finishes the response.
    :ivar error: the reason why no more output can be sent, or None.
    """

    __slots__ = (
        "_dropped", "_progress", "_rules", "backlog", "delayed", "error", "is_complete",
        "is_waiting", "lock", "may_run_ahead", "never_spills", "owner", "sender",
    )  # fmt: skip

    def __init__(
        self,
        sender: Sender,
        owner: Owner,
        rules: OutputRules,
        lock: threading.Lock | threading.RLock | None = None,
    ) -> None:
        self.sender = sender
        self.lock = lock or threading.Lock()
        self.error: BaseException | None = None
        self.backlog: Backlog | None = None
        self.is_waiting = self.never_spills = False
        self.owner = owner
        self._rules = rules
        self._progress: threading.Condition | None = None
        self.reset()

    def reset(self) -> None:
        """Prepare the empty queue for the next response."""
        self._dropped = 0  # the number of bytes that were dropped because of an error
        self.is_complete = False
        self.may_run_ahead = False
        self.delayed: DelayedBlocks | None = None
        if self.backlog is not None:
            self.backlog.close()
            self.backlog = None

    @property
    def bytes_queued(self) -> int:
        """The number of bytes in the backlog. Any thread may read it without the lock."""
        backlog = self.backlog  # a copy, because another thread may set it to None
        return 0 if backlog is None else backlog.size

    # The writer calls these methods. They raise ClientGone if the client has disconnected.

    def write(self, data: bytes) -> None:
        """Send bytes, and queue the unsent bytes. This may wait for the client."""
        unsent: bytes | memoryview = data
        with self.lock:
            if self.delayed is not None and self.delayed.blocks:
                self._queue_delayed()
            backlog = self.backlog
            limit = self._rules.ahead_bytes
            if backlog is not None and backlog.size > limit and not self._may_spill(backlog):
                self._wait_for_room(backlog, limit // 2)
            if self.error is not None:
                self._check(len(data))
            if not (self.is_waiting or (backlog is not None and backlog.size)):
                sender = self.sender
                size = len(data)
                if size > sender.free_bytes:
                    sender.prepare_socket()
                try:
                    sent = sender.send(data)
                except WOULD_BLOCK:
                    sent = 0
                except OSError as error:
                    self._fail(error)
                    self._check(size)
                sender.free_bytes -= sent
                if sent == size:
                    return
                unsent = memoryview(data)[sent:]
        self.write_buffers((unsent,))

    def begin_stream(
        self,
        data: bytes,
        *,
        frame: Callable[[bytes], bytes] | None,
        may_run_ahead: bool,
        compresses: bool = False,
    ) -> Callable[[bytes], None]:
        """Send the beginning of a stream.

        :param data: the headers and the framed first block.
        :param frame: frames joined blocks as one chunk. None if the response has no chunks.
        :param compresses: whether `frame` also compresses. The joined blocks are then smaller.
        :returns: :meth:`write_block`, for the further blocks.
        """
        # Only event streams may not run ahead. A shorter queue makes their events arrive in time.
        ahead_bytes = self._rules.ahead_bytes // (1 if may_run_ahead else 4)
        self.delayed = DelayedBlocks(frame, ahead_bytes, compresses)
        self.may_run_ahead = may_run_ahead
        self.write(data)
        return self.write_block

    def write_block(self, block: bytes) -> None:
        """Send a block of a stream, or delay it to join it with the next block.

        If the queue waits for a slow client, no tick is scheduled for the block. Delayed blocks
        are queued when the queue has no other output, or when their size exceeds a limit. They
        count as memory only when they are queued.
        """
        delayed = self.delayed
        assert delayed is not None
        now = time.monotonic()
        follows = now - delayed.last_block_at < _COALESCE_S
        delayed.last_block_at = now
        # Add the block before the checks. A tick first removes the queue from `to_flush`, and then
        # pops the blocks. If it pops the blocks before this one is added, the check below adds the
        # queue again.
        delayed.blocks.append(block)
        delayed.size = size = delayed.size + len(block)
        if self.is_waiting:
            # The sending thread sets `is_waiting` to False, and then removes the delayed blocks
            # once more. So it will find this block.
            if size < delayed.max_waiting_bytes and self.error is None:
                return
        elif follows and size < delayed.max_delayed_bytes and self.error is None:
            rules = self._rules
            if self not in rules.to_flush:
                rules.flush_soon(self, self.flush_at_tick)
            return
        with self.lock:
            data = delayed.pop_all()
        if data:
            self.write(data)

    def end_stream(self, end: Callable[[], bytes]) -> None:
        """Send the end of a stream.

        :param end: returns the last bytes. It is called after all blocks were framed.
        """
        with self.lock:
            self._queue_delayed()
            data = end()
        self.write(data)

    def write_buffers(self, buffers: Sequence[bytes | memoryview]) -> None:
        """Send several buffers. This may wait for a disk thread, but not for the client."""
        buffers = [buffer for buffer in buffers if buffer]
        with self.lock:
            self._check(sum(map(len, buffers)))
            self._queue_delayed()
            backlog = self._begin_backlog()
            for buffer in buffers:
                backlog.append(buffer)
            self._send_or_raise()
            if not backlog.size:
                return
            if self.never_spills:
                backlog.count_memory()
                return
            spilling = self._begin_spilling(backlog)
        if spilling is not None:
            self._spill_soon(backlog, spilling)
        if backlog.spilling is not None:
            self._wait_for_disk(backlog)

    def write_file(self, headers: bytes, fd: int, offset: int, size: int) -> None:
        """Send headers and a part of a file.

        :param headers: may be empty.
        :param fd: the file. The queue duplicates this descriptor.
        :raises OSError: if no descriptor is available. In this case nothing was sent.
        """
        with self.lock:
            self._check(len(headers) + size)
            # The descriptor is duplicated first. If this fails, a response with 500 is possible.
            segment = FileSegment(os.dup(fd), offset, size) if size > 0 else None
            self._queue_delayed()
            backlog = self._begin_backlog()
            if headers:
                backlog.append(headers)
            if segment is not None:
                backlog.append_file(segment)
            self._send_or_raise()

    def is_sent(self) -> bool:
        """Return whether all output was sent to the socket, or dropped after an error."""
        self.flush()
        with self.lock:  # the monitor may be moving delayed blocks into the backlog
            return not self.is_waiting

    def wait_until_sent(self) -> None:
        """Send all output, and wait until the client has received it or is disconnected."""
        self.flush()
        with self.lock:
            if self.backlog is not None:
                self._wait_for_room(self.backlog, 0)

    def flush(self) -> None:
        """Send or queue the delayed blocks, like :meth:`write_buffers`."""
        if self.delayed is not None and self.delayed.blocks:
            self._rules.to_flush.pop(self, None)
            with contextlib.suppress(ClientGone):  # the writer's next call raises it again
                self.write_buffers(())

    # Any thread may call these methods.

    def flush_at_tick(self) -> None:
        """Flush without waiting. The caller has the lock."""
        if self.is_waiting:
            return  # the sending thread queues the blocks when it has no other output
        self._queue_delayed()
        if self.bytes_queued:
            self._send()
        if self.backlog is not None:
            self.backlog.count_memory()

    def on_writable(self) -> bool:
        """Continue to send. The owner calls it after an event of the socket.

        :returns: whether the caller must finish the response, because it is complete and was sent.
            This is decided with the lock, so that the app's thread does not finish the response
            too.
        """
        with self.lock:
            self.is_waiting = False
            if self.error is None:
                self._send(after_event=True)
            if self._progress is not None and self.bytes_queued <= self._rules.ahead_bytes // 2:
                self._progress.notify_all()
            return self.is_complete and not self.is_waiting

    def fail(self, error: BaseException) -> None:
        """Drop all output. The writer's next call raises ClientGone."""
        with self.lock:
            self._fail(error)

    def close(self) -> None:
        """Drop all output before the connection is closed. The writer has finished."""
        self._rules.to_flush.pop(self, None)
        with self.lock:
            self._fail(ClientGone("closed"))
            if self.backlog is not None:
                self.backlog.close()

    def unsent_bytes(self) -> int:
        """Return the number of unsent bytes, including those that were dropped after an error."""
        with self.lock:
            return self._dropped + (self.delayed.size if self.delayed else 0) + self.bytes_queued

    def replace(self, data: bytes, error: BaseException) -> None:
        """Drop the writer's output and send other bytes, as far as the socket accepts them.

        The caller has the lock.

        :param error: the reason, which the writer's next call raises.
        """
        if data and self.error is None:
            with contextlib.suppress(OSError):
                self.sender.send(data)
        self._fail(error)

    # These methods are called without the lock, because other threads must not wait for a slow
    # disk.

    def _spill_soon(self, backlog: Backlog, spilling: Spilling) -> None:
        try:
            self._rules.disk.submit_temporary(lambda: self._spill(backlog, spilling))
        except OSError:
            self._end_spilling(backlog, spilling, None)

    def _spill(self, backlog: Backlog, spilling: Spilling) -> None:
        """Write buffers to a temporary file. A disk thread runs this."""
        segment = backlog.spill(spilling.buffers)
        more = self._end_spilling(backlog, spilling, segment)
        if more is not None:
            self._spill_soon(backlog, more)

    def _end_spilling(
        self, backlog: Backlog, spilling: Spilling, segment: FileSegment | None
    ) -> Spilling | None:
        with self.lock:
            backlog.end_spill(spilling, segment)
            if self._progress is not None:
                self._progress.notify_all()
            if self.backlog is not backlog or self.error is not None:
                return None  # the response is over
            if segment is None:
                self.may_run_ahead = False
                return None
            return self._begin_spilling(backlog)

    def _wait_for_disk(self, backlog: Backlog) -> None:
        """Wait for a disk thread while this response or all responses use too much memory."""
        memory = self._rules.memory
        with self.lock:
            while (
                backlog.spilling is not None
                and self.error is None
                and (memory.is_full or backlog.in_memory > _MAX_UNWRITTEN_BYTES)
            ):
                self._wait(backlog)

    def _send_from_disk(self, backlog: Backlog, segment: FileSegment) -> None:
        """Send the next bytes of a file, without the lock. A disk thread runs this."""
        done: int | bytes = 0
        failure: Exception | None = None
        try:
            done = self.sender.step_from_disk(backlog, segment)
        except Exception as error:  # noqa: BLE001 - raised below if it is not an OSError
            failure = error
        with self.lock:
            if failure is not None:
                self._fail(failure)
            elif self.error is None:
                if done:
                    self.sender.record_file(backlog, done)
                self._start_waiting()
            backlog.release(segment.fd)
            if self.error is not None and self.is_complete:
                self.owner.resume_sending()  # so that the owner finishes the response
        if failure is not None and not isinstance(failure, OSError):
            raise failure  # a bug or a lack of memory: the disk thread logs it

    # These methods need the lock.

    def _check(self, unwritten_bytes: int = 0) -> None:
        """Raise ClientGone if there was an error, and count the unwritten bytes as dropped."""
        if self.error is not None:
            self._dropped += unwritten_bytes
            raise ClientGone(str(self.error)) from self.error

    def _fail(self, error: BaseException) -> None:
        self.error = self.error or without_frames(error)
        self._queue_delayed()
        if self.backlog is not None:
            self._dropped += self.backlog.size
            self.backlog.clear()
        self.is_waiting = False
        if self._progress is not None:
            self._progress.notify_all()

    def _begin_backlog(self) -> Backlog:
        if self.backlog is None:
            self.backlog = Backlog(self._rules.memory)
        return self.backlog

    def _queue_delayed(self) -> None:
        """Queue the delayed blocks, or drop them after an error."""
        data = b"" if self.delayed is None else self.delayed.pop_all()
        if self.error is not None:
            self._dropped += len(data)
        elif data:
            self._begin_backlog().append(data)

    def _send(self, after_event: bool = False) -> None:
        backlog = self.backlog
        if backlog is None:
            return
        try:
            turn = self.sender.take_turn(backlog, after_event=after_event)
            if turn is Turn.DONE and self.delayed is not None and self.delayed.blocks:
                self._queue_delayed()
                backlog.count_memory()
                turn = self.sender.take_turn(backlog)
        except OSError as error:
            self._fail(error)
        else:
            if turn is Turn.DISK:
                self._call_disk_thread(backlog)
            elif turn is not Turn.DONE:
                self._start_waiting(no_memory=turn is Turn.NO_MEMORY)
        backlog.release_memory()

    def _start_waiting(self, *, no_memory: bool = False) -> None:
        self.is_waiting = True
        try:
            deadline = self.sender.wait_until(no_memory=no_memory)
            self.owner.wait_to_send(deadline, no_memory=no_memory)
        except (OSError, ValueError) as error:
            self._fail(error)

    def _call_disk_thread(self, backlog: Backlog) -> None:
        segment = backlog.first
        assert isinstance(segment, FileSegment)
        self.is_waiting = True
        backlog.use(segment.fd)  # keeps it open if the connection fails in the meantime
        try:
            device = os.fstat(segment.fd).st_dev
            self._rules.disk.submit(device, lambda: self._send_from_disk(backlog, segment))
        except OSError as error:
            backlog.release(segment.fd)
            self._fail(error)

    def _begin_spilling(self, backlog: Backlog) -> Spilling | None:
        ahead_bytes = self._rules.ahead_bytes if self._may_spill(backlog) else math.inf
        return backlog.begin_spill(ahead_bytes)

    def _may_spill(self, backlog: Backlog) -> bool:
        """Return whether output above `ahead_bytes` may be written to a temporary file."""
        limit = self._rules.options.response_on_disk_bytes
        return self.may_run_ahead and backlog.spilled_bytes < limit

    def _wait(self, backlog: Backlog) -> None:
        """Wait until another thread has sent or written some output."""
        if self._progress is None:
            self._progress = threading.Condition(self.lock)
        began = time.monotonic()
        self._progress.wait()
        backlog.waited_s += time.monotonic() - began

    def _wait_for_room(self, backlog: Backlog, limit: int) -> None:
        """Wait until at most `limit` bytes are queued, or there is an error."""
        # If the client accepts no bytes, the monitor sets `error` after `send_timeout_s`.
        while self.is_waiting and backlog.size > limit:
            self._wait(backlog)

    def _send_or_raise(self) -> None:
        if not self.is_waiting:
            self._send()
            self._check()
