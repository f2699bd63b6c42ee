"""The writing end of an output queue: what the app's thread calls.

Theory of operation
-------------------
The writer, which is the app's thread or the one that answers an error, hands over bytes and runs of
files, in order. They are sent at once as far as the kernel takes them. The rest is sent by other
threads (send_queue.py), and the writer does not wait for it.

*Coalescing.* A generator's block that closely follows another is held back for the next one, until
the monitor's next tick at most, which sends it while the app goes on (PEP 3333, "Buffering and
Streaming"). Blocks of a stream that has begun are gathered without the lock, and framed together:
the thread that takes the lock next adds them to the backlog.

    empty --write_more or write_next, soon after another--> coalescing --tick, or enough--> sent

*Running ahead.* A writer that is more than `ahead_bytes` ahead of its client waits, or, if it *may
run ahead*, goes on into a temporary file, so that a slow client does not hold the app's thread (as
with nginx's proxy_buffering). A temporary file is also used when all queues together hold too much
memory. It is written without the lock.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence

from ..errors import ClientGone
from ..sockets.sendfile import FileSegment
from .output_rules import OutputRules
from .send_queue import OutputOwner, SenderLike, SendQueue
from .transport import WOULD_BLOCK

__all__ = ["OutputQueue"]

# A block is held back if it follows another one this soon.
_COALESCE_S = 0.0005
# Blocks are coalesced up to this size: larger writes are no cheaper per byte.
_COALESCED_BYTES = 64 * 1024


class OutputQueue(SendQueue):
    """The output of one connection, or of one stream of HTTP/2.

    :ivar frame: frames blocks that are sent together, as one chunk; None for no framing.
    :ivar may_run_ahead: what is more than `ahead_bytes` may go to a temporary file.
    """

    __slots__ = ("_gathered", "_last_block", "_send_now", "frame", "may_run_ahead")

    def __init__(
        self,
        sender: SenderLike,
        owner: OutputOwner,
        rules: OutputRules,
        lock: threading.Lock | threading.RLock | None = None,
    ) -> None:
        super().__init__(sender, owner, rules, lock)
        self.may_run_ahead = False
        self.frame: Callable[[bytes], bytes] | None = None
        self._gathered = _Gathered()
        self._last_block = 0.0  # when the app handed its last block over
        self._send_now = sender.send

    def reset(self) -> None:
        """Prepare for the next response; the queue is empty."""
        self.frame = None
        self._dropped = 0
        self.closing = False
        self.may_run_ahead = False
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

    def may_hold_blocks(self) -> bool:
        """Whether blocks may be held back, which :meth:`flush` would send."""
        return self.backlog is not None or bool(self._gathered.blocks)

    # Called by the writer

    def write(self, data: bytes) -> None:
        """Send bytes, and queue what the kernel does not take; may wait for the client.

        :raises ClientGone: if the client has gone.
        """
        rest: bytes | memoryview = data
        with self.lock:
            if self._gathered.blocks:
                self._queue_gathered()
            queued = 0 if self.backlog is None else self.backlog.size
            if queued > self._rules.ahead_bytes and not self._runs_ahead():
                self._wait_for_room(self._rules.ahead_bytes // 2)
            if self.error is not None:
                raise ClientGone(str(self.error))
            if not queued and not self.draining:
                try:
                    sent = self._send_now(data)
                except WOULD_BLOCK:
                    sent = 0
                except OSError as error:
                    self._fail(error)
                    raise ClientGone(str(error)) from error
                if sent == len(data):
                    return
                rest = memoryview(data)[sent:]
        self.write_all((rest,))

    def write_more(self, block: bytes) -> None:
        """As :meth:`write`, but the block may be held back for the next one."""
        now = time.monotonic()
        behind = now - self._last_block < _COALESCE_S
        self._last_block = now
        if not (behind and self._rules.coalescing.request_tick() and self._hold_back(block)):
            self.write(block)

    def _hold_back(self, block: bytes) -> bool:
        """Hold a block back until the next one or the next tick; False if that is useless."""
        with self.lock:
            self._queue_gathered()
            if self.draining or self.bytes_queued + len(block) >= _COALESCED_BYTES:
                return False
            self._check()
            self._begin_backlog().append(block)
        self._await_tick()
        return True

    def write_next(self, block: bytes) -> None:
        """As :meth:`write_more`, for a stream that has begun, whose blocks are framed here.

        :raises ClientGone: if the client has gone.
        """
        now = time.monotonic()
        behind = now - self._last_block < _COALESCE_S
        self._last_block = now
        gathered = self._gathered
        # Append first. A tick removes the queue from `coalescing.queues` and then takes the blocks:
        # if it came too early for this block, the check below finds the queue missing.
        gathered.blocks.append(block)
        gathered.size = size = gathered.size + len(block)
        if behind and size < _COALESCED_BYTES and not self.draining and self.error is None:
            if self in self._rules.coalescing.queues:
                return
            if self._rules.coalescing.request_tick():
                self._await_tick()
                return
        with self.lock:
            data = gathered.take()
            self._check()
        if data:
            self.write(data if self.frame is None else self.frame(data))

    def _await_tick(self) -> None:
        coalescing = self._rules.coalescing
        coalescing.queues.add(self)
        if not coalescing.request_tick():
            self.flush()  # the monitor has stopped meanwhile

    def write_all(self, buffers: Sequence[bytes | memoryview]) -> None:
        """Send several buffers, in one system call if possible; never waits for the client.

        :raises ClientGone: if the client has gone.
        """
        buffers = [buffer for buffer in buffers if buffer]
        with self.lock:
            self._check()
            self._queue_gathered()
            backlog = self._begin_backlog()
            for buffer in buffers:
                backlog.append(buffer)
            self._send_or_raise()
            if not buffers or not backlog.size:
                return
            if not backlog.reserve_memory():
                rest = backlog.take_back()
            elif self.may_run_ahead and backlog.in_memory > 2 * self._rules.ahead_bytes:
                rest = backlog.take_back(keep=self._rules.ahead_bytes)
            else:
                return
        # Without the lock: a slow disk must not hold up the thread that sends.
        spilled = None
        try:
            spilled = backlog.spill(rest)
        except OSError as error:
            self._rules.memory.warn_of_failed_spill(error)
            self.may_run_ahead = False
        with self.lock:
            self._check()
            if spilled is not None:
                backlog.append_file(spilled)
            else:
                for buffer in rest:
                    backlog.append(buffer)
            self._send_or_raise()

    def write_file(self, head: bytes, fd: int, offset: int, size: int) -> None:
        """Send a head, which may be empty, and a run of a file, through a duplicate of `fd`.

        :raises ClientGone: if the client has gone.
        :raises OSError: if no descriptor is left; nothing was sent.
        """
        with self.lock:
            self._check()
            # First of all: if no descriptor is left, the app's answer can still be a 500.
            segment = FileSegment(os.dup(fd), offset, size) if size > 0 else None
            self._queue_gathered()
            backlog = self._begin_backlog()
            if head:
                backlog.append(head)
            if segment is not None:
                backlog.append_file(segment)
            self._send_or_raise()

    def flush(self, *, wait: bool = True) -> bool:
        """Send the blocks that are held back.

        :param wait: whether to wait for the lock.
        :returns: False if another thread has it.
        """
        self._rules.coalescing.queues.discard(self)
        if not self.lock.acquire(blocking=wait):
            return False
        try:
            self._queue_gathered()
            if self.backlog is not None and self.backlog.size and not self.draining:
                self._send()
        finally:
            self.lock.release()
        return True

    def drain(self) -> None:
        """Send everything, and wait until the client has taken it or is given up."""
        self.flush()
        with self.lock:
            self._wait_for_room(0)

    def bytes_left(self) -> int:
        """Bytes that the kernel has not taken, including those that an error has dropped."""
        with self.lock:
            return self._dropped + self._gathered.size + self.bytes_queued

    # Needs the lock

    def _queue_gathered(self) -> None:
        """Frame the gathered blocks and add them to the backlog; after an error, drop them."""
        data = self._gathered.take()
        if not data:
            return
        if self.error is not None:
            self._dropped += len(data)
        else:
            self._begin_backlog().append(data if self.frame is None else self.frame(data))

    def _runs_ahead(self) -> bool:
        """Whether the writer need not wait for the client."""
        if not self.may_run_ahead:
            return False
        return self.backlog is None or self.backlog.may_spill(self._rules.response_on_disk_bytes)

    def _fail(self, error: BaseException) -> None:
        self._dropped += len(self._gathered.take())
        super()._fail(error)


class _Gathered:
    """Unframed blocks of a stream that are held back.

    Only the writer appends; the thread that takes them has the queue's lock. The two need no lock
    between them: CPython copies a list in one step, and what is appended later stays.

    :ivar blocks: none of them empty.
    :ivar size: their bytes; it may be wrong for a moment, which a limit and a log tolerate.
    """

    __slots__ = ("blocks", "size")

    def __init__(self) -> None:
        self.blocks: list[bytes] = []
        self.size = 0

    def take(self) -> bytes:
        """Remove all blocks, and return them joined."""
        taken = self.blocks[:]
        del self.blocks[: len(taken)]
        self.size = 0
        return b"".join(taken)
