"""What a connection has still to send: bytes and runs of files, in order.

Theory of operation
-------------------
A writer (the thread in the app, or whoever answers an error) hands over bytes and file segments.
They are sent at once as far as the kernel takes them (sending.py); the rest stays here, and the
queue is *draining*: the thread that is told of room in the kernel goes on. From then on two threads
may meet here, so everything is done under the connection's lock; TLS needs it too, since one TLS
object must not be used by two threads at once.

    empty --write--> (sent at once) empty
                     (kernel full)  draining --writable--> draining | empty
                     (file not in memory)  draining --disk thread--> draining | empty
    empty --write_more, write_next, behind another--> coalescing --tick, or enough--> as above

*Coalescing*: a generator's chunk that comes right behind another waits for company, at most until
the monitor's next tick, in which another thread sends it while the app works on (PEP 3333,
"Buffering and Streaming"). The chunks of a stream are gathered without the lock, since each is a
moment's work, and framed together: whoever takes the lock next puts them behind what waits. A
writer that is more than `ahead_bytes` before its client waits.

*Disk*: a run of a file is sent by the thread that has the event only as far as it is in memory.
What is not, or not known to be, is a disk thread's: it makes one step, outside of the lock, and
waits for room in its turn. While it does, nobody else sends.

*Memory*: what all queues hold is limited; beyond it a writer puts the rest into a temporary file,
outside of the lock too. So does a writer that *may run ahead* of its client, in place of waiting:
then a slow client does not keep the app's thread (nginx's proxy_buffering is the example).

An error is final: what is queued is dropped, file descriptors are closed, writers are told.

When the kernel has no memory left for TCP, a socket is writable and takes nothing. To wait for
writability again would spin, so the queue is *tried again* some time later.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from ..sockets.sendfile import FileSegment
from .backlog import Backlog
from .gathered import Gathered
from .output_rules import OutputRules
from .sending import Turn
from .transport import WOULD_BLOCK

__all__ = ["ClientGone", "OutputOwner", "OutputQueue", "Sends"]

# A block that comes so soon after the one before waits for more, until the next tick at most.
_COALESCE_S = 0.0005
# Blocks are coalesced up to so many bytes: larger writes are no cheaper per byte.
_COALESCED_BYTES = 64 * 1024


class ClientGone(ConnectionError):
    """The client cannot be sent any more: it left, or took no byte for too long."""


class OutputOwner(Protocol):
    """What a queue asks of its connection; called under the queue's lock."""

    def wait_to_send(self, deadline: float, *, retry: bool) -> None:
        """Have :meth:`OutputQueue.on_writable` called once the socket is writable.

        :param deadline: monotonic; when the client is to be given up.
        :param retry: have it called some time later instead, writable or not.
        :raises OSError, ValueError: if the kernel can watch no more; it ends the queue.
        """

    def resume_sending(self) -> None:
        """Have :meth:`OutputQueue.on_writable` called soon."""


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


class OutputQueue:
    """The output side of one connection, or of a stream of HTTP/2.

    :param lock: by default one of its own.
    :ivar backlog: what is left to send; None as long as nothing of a response ever was.
    :ivar draining: somebody will go on sending: whoever has the socket's event, or a disk thread.
    :ivar frame: what goes around the blocks of a stream that leave together; None: nothing.
    :ivar may_run_ahead: what is more than `ahead_bytes` may wait in a temporary file.
    :ivar closing: the response is whole: whoever sends its last byte finishes it.
    """

    __slots__ = (
        "_dropped",
        "_gathered",
        "_last_block",
        "_owner",
        "_room",
        "_rules",
        "_send_now",
        "_sender",
        "backlog",
        "closing",
        "draining",
        "error",
        "frame",
        "lock",
        "may_run_ahead",
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
        self.may_run_ahead = False
        self.error: BaseException | None = None
        self.backlog: Backlog | None = None  # most responses need none
        self.frame: Callable[[bytes], bytes] | None = None
        self._gathered = Gathered()
        self._dropped = 0  # bytes that were queued when an error came
        self._last_block = 0.0  # when the app handed its last block over
        self._owner = owner
        self._rules = rules
        self._send_now = sender.send
        self._sender = sender
        self._room: threading.Condition | None = None

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

    @property
    def bytes_queued(self) -> int:
        return 0 if self.backlog is None else self.backlog.size

    @property
    def waits_for_company(self) -> bool:
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
        if not (behind and self._rules.coalescing.ticks_soon() and self._leave(block)):
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
            if self._rules.coalescing.ticks_soon():
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
        if not coalescing.ticks_soon():
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
            self._rules.memory.warn("Output stays in memory: no temporary file takes it: %s", error)
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

    # Whoever has the connection

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

    def bytes_left(self) -> int:
        """What has not been handed to the kernel; bytes that an error made pointless included."""
        with self.lock:
            return self._dropped + self._gathered.size + self.bytes_queued

    # Everything below is called with the lock held, unless it says otherwise.

    def _check(self) -> None:
        if self.error is not None:
            raise ClientGone(str(self.error)) from self.error

    def _queue_gathered(self) -> None:
        """Put what was gathered behind what waits, framed; after an error it is dropped."""
        data = self._gathered.take()
        if not data:
            return
        if self.error is not None:
            self._dropped += len(data)
        else:
            self._begin_backlog().append(data if self.frame is None else self.frame(data))

    def _begin_backlog(self) -> Backlog:
        if self.backlog is None:
            self.backlog = Backlog(self._rules.memory)
        return self.backlog

    def _runs_ahead(self) -> bool:
        """Whether a writer need not wait for its client."""
        if not self.may_run_ahead:
            return False
        return self.backlog is None or self.backlog.may_spill(self._rules.response_on_disk_bytes)

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
        self._dropped += len(self._gathered.take())
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
