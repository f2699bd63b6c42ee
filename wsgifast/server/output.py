"""The output queue of a connection, or of one stream of HTTP/2.

Theory of operation
-------------------
The *writer*, which is the app's thread or the one that responds with an error, hands over bytes and
parts of files, in order. They are sent at once as far as the kernel takes them (sending.py). The
others wait in the backlog (backlog.py), and the queue is *draining*: the thread that gets the
socket's next event goes on, and the writer does not wait for it. From then on two threads may use
the queue, so everything happens under its lock. Nor may two threads use one TLS object at once.

    empty --write--> (all was sent)      empty
                     (socket full)       draining --writable--> draining | empty
                     (file not cached)   draining --disk thread--> draining | empty

*Coalescing.* A generator's block that closely follows another waits for the next one. The monitor's
next tick sends it at the latest, while the app goes on (PEP 3333, "Buffering and Streaming").
The thread that takes the lock next frames the delayed blocks together, and queues them.

    none delayed --a block, soon after another--> delayed --tick, or enough--> sent
                 --a block, before a slow client--> delayed --queue is empty, or enough--> queued

*Running ahead.* A writer that is more than `ahead_bytes` ahead of its client waits. If it *may run
ahead*, it goes on into a temporary file, so that a slow client does not occupy the app's thread (as
with nginx's proxy_buffering). So it does if all queues together have too much in memory. A disk
thread writes the file without the lock. The writer waits for it only if its memory is used up.

*Disk.* An event's thread sends a file only as far as the page cache has it. For other bytes a disk
thread makes one step without the lock, and waits for the socket again. It alone sends meanwhile.

An error is final: queued bytes are dropped, and the writer's next call raises :class:`ClientGone`.

When the kernel is out of memory for TCP, a socket is writable and takes nothing. Waiting until it
is writable would spin, so the queue tries again after some time.
"""

from __future__ import annotations

import contextlib
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

# A block is delayed if it follows another one this soon.
_COALESCE_S = 0.0005
# The most bytes of one response in memory while a disk thread writes its temporary file.
_MOST_BESIDE_DISK_BYTES = 8 * 1024 * 1024


class OutputQueue:
    """The written output that is not sent yet.

    :param lock: by default one of its own.
    :ivar owner: waits for the client.
    :ivar sender: sends on the socket, or on the stream.
    :ivar backlog: waiting bytes and files, or None while every response was sent at once.
    :ivar draining: an event's thread, or a disk thread, will go on sending.
    :ivar delayed: the delayed blocks of a stream, or None before a stream.
    :ivar may_run_ahead: bytes beyond `ahead_bytes` may go to a temporary file.
    :ivar keeps_all: nothing goes to a temporary file: it holds little, and is written under a lock.
    :ivar closing: the response is complete: the thread that sends its last byte finishes it.
    :ivar error: why nothing can be sent any more.
    """

    __slots__ = (
        "_dropped", "_room", "_rules", "backlog", "closing", "delayed", "draining", "error",
        "keeps_all", "lock", "may_run_ahead", "owner", "sender",
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
        self.draining = False
        self.keeps_all = False
        self.owner = owner
        self._rules = rules
        self._room: threading.Condition | None = None
        self.delayed: DelayedBlocks | None = None
        self.reset()

    def reset(self) -> None:
        """Prepare for the next response. The queue is empty."""
        self._dropped = 0  # bytes that an error has dropped
        self.closing = False
        self.may_run_ahead = False
        self.delayed = None  # of a stream
        if self.backlog is not None:
            self.backlog.close()
            self.backlog = None

    @property
    def bytes_queued(self) -> int:
        """For any thread, also without the lock."""
        backlog = self.backlog  # which the end of a response removes
        return 0 if backlog is None else backlog.size

    # Called by the writer. All of it raises ClientGone if the client has disconnected.

    def write(self, data: bytes) -> None:
        """Send bytes, and queue those that the kernel does not take. May wait for the client."""
        rest: bytes | memoryview = data
        with self.lock:
            if self.delayed is not None and self.delayed.blocks:
                self._queue_delayed()
            queued = 0
            if self.backlog is not None:
                queued = self._wait_for_backlog(self.backlog)
            if self.error is not None:
                self._dropped += len(data)
                raise ClientGone(str(self.error))
            if not queued and not self.draining:
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
                    self._check(data)
                sender.free_bytes -= sent
                if sent == size:
                    return
                rest = memoryview(data)[sent:]
        self.write_all((rest,))

    def begin_stream(
        self,
        data: bytes,
        *,
        frame: Callable[[bytes], bytes] | None,
        may_run_ahead: bool,
        compresses: bool = False,
    ) -> Callable[[bytes], None]:
        """Send the beginning of a stream.

        :param data: the headers, and the first block, framed.
        :param frame: frames blocks that are sent together, as one chunk. None for no framing.
        :param compresses: whether `frame` compresses. It then gets fewer bytes at once.
        :returns: :meth:`write_block`, for the further blocks.
        """
        # An event stream may be less ahead of its client than others.
        ahead_bytes = self._rules.ahead_bytes // (1 if may_run_ahead else 4)
        self.delayed = DelayedBlocks(frame, most_waiting=ahead_bytes, compresses=compresses)
        self.may_run_ahead = may_run_ahead
        self.write(data)
        return self.write_block

    def write_block(self, block: bytes) -> None:
        """As :meth:`write`, but the block of a stream may be delayed for the next one.

        Before a slow client, it is delayed without a tick: the queue takes blocks once it has
        nothing else to send, or when there are many. They count as no memory that waits for
        clients: the end of the app's turn queues them.
        """
        delayed = self.delayed
        assert delayed is not None
        now = time.monotonic()
        follows = now - delayed.last_block_at < _COALESCE_S
        delayed.last_block_at = now
        # First. A tick removes the queue from `to_flush` and then takes the blocks: if it came too
        # early for this one, the check below finds the queue missing.
        delayed.blocks.append(block)
        delayed.size = size = delayed.size + len(block)
        if self.draining:
            # Its thread sets `draining` to False before it takes the blocks for the last time: it
            # finds this one.
            if size < delayed.most_waiting and self.error is None:
                return
        elif follows and size < delayed.most_delayed and self.error is None:
            rules = self._rules
            if self not in rules.to_flush:
                rules.flush_soon(self, self.flush_at_tick)
            return
        with self.lock:
            data = delayed.pop_all()
        if data:
            self.write(data)

    def end_stream(self, end: Callable[[], bytes]) -> None:
        """Send the end of a stream, which is made once all its blocks have been framed."""
        with self.lock:
            self._queue_delayed()
            data = end()
        self.write(data)

    def write_all(self, buffers: Sequence[bytes | memoryview]) -> None:
        """Send several buffers, in one system call if possible.

        It never waits for the client. It may wait for a disk thread.
        """
        buffers = [buffer for buffer in buffers if buffer]
        with self.lock:
            self._check(*buffers)
            self._queue_delayed()
            backlog = self._begin_backlog()
            for buffer in buffers:
                backlog.append(buffer)
            self._send_or_raise()
            if not backlog.size:
                return
            if self.keeps_all:
                backlog.count_memory()
                return
            spilling = self._begin_spilling(backlog)
        if spilling is not None:
            self._spill_soon(backlog, spilling)
        if backlog.spilling is not None:
            self._wait_for_disk(backlog)

    def write_file(self, headers: bytes, fd: int, offset: int, size: int) -> None:
        """Send headers, which may be empty, and a part of a file, through a duplicate of `fd`.

        :raises OSError: if no descriptor is left. Nothing was sent then.
        """
        with self.lock:
            if self.error is not None:
                self._dropped += len(headers) + size
            self._check()
            # First of all: if no descriptor is left, the app's response can still be a 500.
            segment = FileSegment(os.dup(fd), offset, size) if size > 0 else None
            self._queue_delayed()
            backlog = self._begin_backlog()
            if headers:
                backlog.append(headers)
            if segment is not None:
                backlog.append_file(segment)
            self._send_or_raise()

    def is_sent(self) -> bool:
        """Return whether the kernel has taken everything, or never will."""
        if self.delayed is None:
            return not self.draining
        self.flush()
        with self.lock:  # the monitor's tick may have taken blocks that it has not queued yet
            return not self.draining

    def wait_until_sent(self) -> None:
        """Send everything, and wait until the client has taken it or is given up."""
        self.flush()
        with self.lock:
            self._wait_for_room(0)

    def flush(self) -> None:
        """Send the delayed blocks, or queue them as :meth:`write_all` does."""
        if self.delayed is not None and self.delayed.blocks:
            self._rules.to_flush.pop(self, None)
            with contextlib.suppress(ClientGone):  # which the writer's next call reports
                self.write_all(())

    # Called by any thread

    def flush_at_tick(self) -> bool:
        """As :meth:`flush`, but never wait. Return False if another thread has the lock."""
        if self.delayed is None or not self.delayed.blocks:
            return True
        if not self.lock.acquire(blocking=False):
            return False
        try:
            if self.draining:
                return True  # the thread that sends takes them once it has nothing else
            self._queue_delayed()
            if self.bytes_queued:
                self._send()
            if self.backlog is not None:
                self.backlog.count_memory()
        finally:
            self.lock.release()
        return True

    def on_writable(self) -> bool:
        """Go on sending. Called by the owner of the socket's event.

        :returns: True if the caller is to finish the response: it is complete, and nothing is left
            to send. Decided under the lock, so that the app's thread does not finish it as well.
        """
        with self.lock:
            self.draining = False
            if self.error is None:
                self._send(after_event=True)
            if self._room is not None and self.bytes_queued <= self._rules.ahead_bytes // 2:
                self._room.notify_all()
            return self.closing and not self.draining

    def fail(self, error: BaseException) -> None:
        """Drop everything. The writer's next call raises."""
        with self.lock:
            self._fail(error)

    def close(self) -> None:
        """The connection is about to be closed, and its writer is done."""
        self._rules.to_flush.pop(self, None)
        with self.lock:
            self._fail(ClientGone("closed"))
            if self.backlog is not None:
                self.backlog.close()

    def bytes_left(self) -> int:
        """Bytes that the kernel has not taken, including those that an error has dropped."""
        with self.lock:
            return self._dropped + (self.delayed.size if self.delayed else 0) + self.bytes_queued

    def replace(self, data: bytes, error: BaseException) -> None:
        """Send bytes in place of the writer's, as far as the kernel takes them. Needs the lock.

        :param error: the writer's next call raises it.
        """
        if data and self.error is None:
            with contextlib.suppress(OSError):
                self.sender.send(data)
        self._fail(error)

    # Without the lock: a slow disk must not hold up the thread that sends, nor the writer.

    def _spill_soon(self, backlog: Backlog, spilling: Spilling) -> None:
        try:
            self._rules.disk.submit_temporary(lambda: self._spill(backlog, spilling))
        except OSError:
            self._end_spilling(backlog, spilling, None)

    def _spill(self, backlog: Backlog, spilling: Spilling) -> None:
        """Write to a temporary file, in a disk thread."""
        segment = backlog.spill(spilling.buffers)
        more = self._end_spilling(backlog, spilling, segment)
        if more is not None:
            self._spill_soon(backlog, more)

    def _end_spilling(
        self, backlog: Backlog, spilling: Spilling, segment: FileSegment | None
    ) -> Spilling | None:
        with self.lock:
            backlog.end_spill(spilling, segment)
            if self._room is not None:
                self._room.notify_all()
            if self.backlog is not backlog or self.error is not None:
                return None  # the response is over
            if segment is None:
                self.may_run_ahead = False
                return None
            return self._begin_spilling(backlog)

    def _wait_for_disk(self, backlog: Backlog) -> None:
        """Wait for a disk thread, if a response takes too much memory meanwhile, or all of them."""
        memory = self._rules.memory
        with self.lock:
            began = time.monotonic()
            while (
                backlog.spilling is not None
                and self.error is None
                and (memory.is_full or backlog.in_memory > _MOST_BESIDE_DISK_BYTES)
            ):
                self._wait()
            backlog.waited_s += time.monotonic() - began

    def _go_on_from_disk(self, backlog: Backlog, segment: FileSegment) -> None:
        """Make one step of sending a file, in a disk thread and without the lock."""
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

    # With the lock

    def _check(self, *lost: bytes | memoryview) -> None:
        """Raise if there was an error.

        :param lost: the bytes to be written, which are dropped then.
        """
        if self.error is not None:
            self._dropped += sum(map(len, lost))
            raise ClientGone(str(self.error)) from self.error

    def _fail(self, error: BaseException) -> None:
        self.error = self.error or without_frames(error)
        self._queue_delayed()
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
                self._start_draining(no_memory=turn is Turn.NO_MEMORY)
        backlog.release_memory()

    def _start_draining(self, *, no_memory: bool = False) -> None:
        self.draining = True
        try:
            deadline = self.sender.wait_until(no_memory=no_memory)
            self.owner.wait_to_send(deadline, no_memory=no_memory)
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

    def _begin_spilling(self, backlog: Backlog) -> Spilling | None:
        rest = backlog.take_excess(self._rules.ahead_bytes if self._may_spill(backlog) else None)
        return backlog.begin_spill(rest) if rest else None

    def _may_spill(self, backlog: Backlog) -> bool:
        """Return whether bytes beyond `ahead_bytes` may go to a temporary file."""
        limit = self._rules.options.response_on_disk_bytes
        return self.may_run_ahead and backlog.may_spill(limit)

    def _wait(self) -> None:
        if self._room is None:
            self._room = threading.Condition(self.lock)
        self._room.wait()

    def _wait_for_room(self, most: int) -> None:
        """Wait until at most `most` bytes are queued, or the queue has failed."""
        began = time.monotonic()
        # The sweep ends this if the client takes nothing.
        while self.draining and self.bytes_queued > most:
            self._wait()
        if self.backlog is not None:
            self.backlog.waited_s += time.monotonic() - began

    def _wait_for_backlog(self, backlog: Backlog) -> int:
        """Wait for the client if too much is queued. Return the bytes that were queued before."""
        queued, most = backlog.size, self._rules.ahead_bytes
        if queued > most and not self._may_spill(backlog):
            self._wait_for_room(most // 2)
        return queued

    def _send_or_raise(self) -> None:
        if not self.draining:
            self._send()
            self._check()
