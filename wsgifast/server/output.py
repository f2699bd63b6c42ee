"""What a connection has still to send: bytes and runs of files, in order; the writer's side.

Theory of operation
-------------------
A writer (the thread in the app, or whoever answers an error) hands over bytes and file segments.
They are sent at once as far as the kernel takes them; the rest goes on by itself (send_queue.py),
and the writer does not wait for it.

*Coalescing*: a generator's chunk that comes right behind another waits for the next, at most until
the monitor's next tick, in which another thread sends it while the app works on (PEP 3333,
"Buffering and Streaming"). The chunks of a stream are gathered without the lock, since each is a
moment's work, and framed together: whoever takes the lock next puts them behind what waits. A
writer that is more than `ahead_bytes` before its client waits.

    empty --write_more, write_next, behind another--> coalescing --tick, or enough--> sent

*Memory*: what all queues hold is limited; beyond it a writer puts the rest into a temporary file,
outside of the lock. So does a writer that *may run ahead* of its client, in place of waiting: then
a slow client does not keep the app's thread (nginx's proxy_buffering is the example).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence

from ..errors import ClientGone
from ..sockets.sendfile import FileSegment
from .output_rules import OutputRules
from .send_queue import OutputOwner, SendQueue, Sends
from .transport import WOULD_BLOCK

__all__ = ["OutputOwner", "OutputQueue", "Sends"]

# A block that comes so soon after the one before waits for more, until the next tick at most.
_COALESCE_S = 0.0005
# Blocks are coalesced up to so many bytes: larger writes are no cheaper per byte.
_COALESCED_BYTES = 64 * 1024


class OutputQueue(SendQueue):
    """The output side of one connection, or of a stream of HTTP/2.

    :ivar frame: what goes around the blocks of a stream that leave together; None: nothing.
    :ivar may_run_ahead: what is more than `ahead_bytes` may wait in a temporary file.
    """

    __slots__ = ("_gathered", "_last_block", "_send_now", "frame", "may_run_ahead")

    def __init__(
        self,
        sender: Sends,
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
        """Begin a new response; the queue is empty."""
        self.frame = None
        self._dropped = 0
        self.closing = False
        self.may_run_ahead = False
        if self.backlog is not None:
            self.backlog.close()
            self.backlog = None

    def close(self) -> None:
        """The connection is about to be closed; nobody writes any more."""
        self._rules.coalescing.queues.discard(self)
        with self.lock:
            self._fail(ClientGone("closed"))
            if self.backlog is not None:
                self.backlog.close()

    def may_hold_blocks(self) -> bool:
        """Whether something of the writer's may be left that no event and no disk thread sends."""
        return self.backlog is not None or bool(self._gathered.blocks)

    # Writers

    def write(self, data: bytes) -> None:
        """Send bytes, or queue what the kernel does not take; wait while too far ahead.

        :raises ClientGone: if the client has gone.
        """
        rest: bytes | memoryview = data
        with self.lock:
            if self._gathered.blocks:
                self._queue_gathered()
            queued = 0 if self.backlog is None else self.backlog.size
            if queued > self._rules.ahead_bytes and not self._runs_ahead():
                self._wait_for_room()
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
        """As :meth:`write`, for a block that others may follow at once."""
        now = time.monotonic()
        behind = now - self._last_block < _COALESCE_S
        self._last_block = now
        if not (behind and self._rules.coalescing.request_tick() and self._leave(block)):
            self.write(block)

    def _leave(self, block: bytes) -> bool:
        """Leave a block for the next one, or the next tick; False where that would win nothing."""
        with self.lock:
            self._queue_gathered()
            if self.draining or self.bytes_queued + len(block) >= _COALESCED_BYTES:
                return False
            self._check()
            self._begin_backlog().append(block)
        self._await_tick()
        return True

    def write_next(self, block: bytes) -> None:
        """As :meth:`write_more`, for a block of a stream that has begun: `frame` is put around it.

        :raises ClientGone: if the client has gone.
        """
        now = time.monotonic()
        behind = now - self._last_block < _COALESCE_S
        self._last_block = now
        gathered = self._gathered
        # In this order: whoever has taken the gathered blocks before this one has taken the queue
        # out of those that the next tick sends.
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
            self.flush()  # the last tick came meanwhile: nobody else would send it

    def write_all(self, buffers: Sequence[bytes | memoryview]) -> None:
        """Send several buffers in one call of the kernel where it takes them; never wait.

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
        # Without the lock: a disk that is slow to write holds nobody else up.
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
        """Send a head (may be empty) and a run of a file; the rest is sent from a dup of `fd`.

        :raises ClientGone: if the client has gone.
        :raises OSError: if no descriptor is left for the dup; nothing was sent.
        """
        with self.lock:
            self._check()
            # Before the head is queued: without a descriptor the answer is still a 500.
            segment = FileSegment(os.dup(fd), offset, size) if size > 0 else None
            self._queue_gathered()
            backlog = self._begin_backlog()
            if head:
                backlog.append(head)
            if segment is not None:
                backlog.append_file(segment)
            self._send_or_raise()

    def flush(self, *, wait: bool = True) -> bool:
        """Send what was left for more to come.

        :param wait: for a thread that is sending.
        :returns: False if another thread was sending.
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

    def bytes_left(self) -> int:
        """What has not been handed to the kernel; bytes that an error made pointless included."""
        with self.lock:
            return self._dropped + self._gathered.size + self.bytes_queued

    # With the lock held.

    def _queue_gathered(self) -> None:
        """Put what was gathered behind what waits, framed; after an error it is dropped."""
        data = self._gathered.take()
        if not data:
            return
        if self.error is not None:
            self._dropped += len(data)
        else:
            self._begin_backlog().append(data if self.frame is None else self.frame(data))

    def _runs_ahead(self) -> bool:
        """Whether a writer need not wait for its client."""
        if not self.may_run_ahead:
            return False
        return self.backlog is None or self.backlog.may_spill(self._rules.response_on_disk_bytes)

    def _fail(self, error: BaseException) -> None:
        self._dropped += len(self._gathered.take())
        super()._fail(error)


class _Gathered:
    """Blocks of a stream that wait for each other, in their order.

    Who makes them appends, and is alone in that; whoever takes has the queue's lock. The two need
    no lock between them: a list is copied in one step, and what comes after that stays.

    :ivar blocks: not empty; none of them framed.
    :ivar size: bytes of them. It may be wrong for a moment, as it is for a bound and for the log.
    """

    __slots__ = ("blocks", "size")

    def __init__(self) -> None:
        self.blocks: list[bytes] = []
        self.size = 0

    def take(self) -> bytes:
        """All blocks as one; b"" if there are none."""
        taken = self.blocks[:]
        del self.blocks[: len(taken)]
        self.size = 0
        return b"".join(taken)
