"""The output queue of a connection, or of one stream of HTTP/2: what its writer sees of it.

Theory of operation
-------------------
The *writer*, which is the app's thread or the one that answers an error, hands over bytes and runs
of files, in order. They are sent at once as far as the kernel takes them (sending.py). What is left
is sent by other threads (send_queue.py), and the writer does not wait for it.

*Coalescing.* A generator's block that closely follows another is held back for the next one, until
the monitor's next tick at most, which sends it while the app goes on (PEP 3333, "Buffering and
Streaming"). Blocks are held back without the lock, and framed together (coalescing.py): the thread
that takes the lock next adds them to the backlog.

    nothing held --a block, soon after another--> held --tick, or enough--> sent
                 --a block, before a slow client--> held --the queue is empty, or enough--> queued

*Running ahead.* A writer that is more than `ahead_bytes` ahead of its client waits, or, if it *may
run ahead*, goes on into a temporary file, so that a slow client does not hold the app's thread (as
with nginx's proxy_buffering). A temporary file is also used when all queues together hold too much
memory. A disk thread writes it without the lock; the writer waits for it only if there is too much
in memory meanwhile.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence

from ..errors import ClientGone
from ..sockets.sending import FileSegment
from .backlog import Backlog, Spilling
from .coalescing import HeldBlocks
from .send_queue import SendQueue


class OutputQueue(SendQueue):
    """What is written, and left to send."""

    __slots__ = ()

    def close(self) -> None:
        """The connection is about to be closed, and its writer is done."""
        self._rules.coalescing.queues.discard(self)
        with self.lock:
            self._fail(ClientGone("closed"))
            if self.backlog is not None:
                self.backlog.close()

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
                self._dropped += len(data)
                raise ClientGone(str(self.error))
            if not queued and not self.draining:
                sent = self._send_at_once(data)
                self._check(data)
                if sent == len(data):
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

        :param data: the head, and the first block, framed.
        :param frame: frames blocks that are sent together, as one chunk; None for no framing.
        :param compresses: whether `frame` compresses, so that little is to be given to it at once.
        :returns: what sends a further block; see :meth:`.HeldBlocks.write`.
        """
        rules = self._rules
        self._held = held = HeldBlocks(
            self,
            rules.coalescing,
            frame,
            memory=rules.memory,
            # An event stream must not run further ahead of its client.
            most_waiting=rules.ahead_bytes if may_run_ahead else rules.ahead_bytes // 4,
            compresses=compresses,
        )
        self.may_run_ahead = may_run_ahead
        self.write(data)
        return held.write

    def end_stream(self, end: Callable[[], bytes]) -> None:
        """Send the end of a stream, which is made once all its blocks have been framed."""
        with self.lock:
            self._queue_held()
            data = end()
        self.write(data)

    def write_all(self, buffers: Sequence[bytes | memoryview]) -> None:
        """Send several buffers, in one system call if possible; never waits for the client."""
        buffers = [buffer for buffer in buffers if buffer]
        with self.lock:
            self._check(*buffers)
            self._queue_held()
            backlog = self._begin_backlog()
            backlog.extend(buffers)
            self._send_or_raise()
            if not buffers or not backlog.size:
                return
            if self.keeps_all:
                backlog.count_memory()
                return
            spilling = self._begin_spilling(backlog)
        if spilling is not None:
            self._spill_soon(backlog, spilling)
        if backlog.spilling is not None:
            self._wait_for_disk(backlog)

    def write_file(self, head: bytes, fd: int, offset: int, size: int) -> None:
        """Send a head, which may be empty, and a run of a file, through a duplicate of `fd`.

        :raises OSError: if no descriptor is left; nothing was sent.
        """
        with self.lock:
            if self.error is not None:
                self._dropped += len(head) + size
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

    def is_sent(self) -> bool:
        """Whether the kernel has taken everything, or never will."""
        if self._held is None:
            return not self.draining
        self.flush()
        with self.lock:  # the monitor's tick may have taken blocks that it has not queued yet
            return not self.draining

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
            if self.draining and not wait:
                return True  # the thread that sends takes them once it has nothing else
            self._queue_held()
            if self.bytes_queued and not self.draining:
                self._send()
            if self.backlog is not None:
                self.backlog.count_memory()
        finally:
            self.lock.release()
        return True

    # Without the lock: a slow disk must not hold up the thread that sends, nor the writer.

    def _spill_soon(self, backlog: Backlog, spilling: Spilling) -> None:
        try:
            self._rules.disk.submit_temporary(lambda: self._spill(backlog, spilling))
        except OSError:
            self._end_spilling(backlog, spilling, None)

    def _spill(self, backlog: Backlog, spilling: Spilling) -> None:
        """Write to a temporary file; runs in a disk thread."""
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
        most = max(memory.most_of_one, 3 * self._rules.ahead_bytes)
        with self.lock:
            began = time.monotonic()
            while (
                backlog.spilling is not None
                and self.error is None
                and (memory.is_full or backlog.in_memory > most)
            ):
                self._wait()
            backlog.waited_s += time.monotonic() - began

    # With the lock

    def _begin_spilling(self, backlog: Backlog) -> Spilling | None:
        rest = backlog.take_excess(self._rules.ahead_bytes if self.may_run_ahead else None)
        return backlog.begin_spill(rest) if rest else None

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

    def _send_or_raise(self) -> None:
        if not self.draining:
            self._send()
            self._check()
