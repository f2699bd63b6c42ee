"""What a connection has still to send: bytes and runs of files, in order.

Theory of operation
-------------------
A writer (the thread in the app, or whoever answers an error) hands over bytes and file segments.
They are sent at once as far as the kernel takes them; the rest stays here, and the queue is
*draining*: the thread that is told of room in the kernel goes on. From then on two threads may meet
here, so everything is done under the connection's lock; TLS needs it too, since one TLS object must
not be used by two threads at once.

    empty --write--> (sent at once) empty
                     (kernel full)  draining --writable--> draining | empty
                     (file not in memory)  draining --disk thread--> draining | empty
    empty --write, more to come--> coalescing --tick, or enough--> as above

*Coalescing*: a generator's chunk that comes right behind another waits for company, at most until
the monitor's next tick, in which another thread sends it while the app works on (PEP 3333,
"Buffering and Streaming"). A writer that is more than `ahead_bytes` before its client waits.

*Disk*: a run of a file is sent by the thread that has the event only as far as it is in memory.
What is not, or not known to be, is a disk thread's: it makes one step, outside of the lock, and
waits for room in its turn. While it does, nobody else sends.

*Memory*: what all queues hold is limited; beyond it a writer puts the rest into a temporary file,
outside of the lock too.

An error is final: what is queued is dropped, file descriptors are closed, writers are told.

When the kernel has no memory left for TCP, a socket is writable and takes nothing. To wait for
writability again would spin, so the queue is *tried again* some time later.
"""

from __future__ import annotations

import enum
import os
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..sockets.sendfile import FileSegment
from .backlog import Backlog
from .disk import DiskThreads
from .output_memory import OutputMemory
from .transport import WOULD_BLOCK, Transport

__all__ = ["ClientGone", "OutputOwner", "OutputQueue", "OutputRules"]

# One turn for one connection: beyond it, the others get theirs first.
_TURN_BYTES = 4 * 1024 * 1024
# What a disk is asked for before other files have their turn.
_DISK_STEP_BYTES = 1024 * 1024
# Chunks are coalesced up to so many bytes: larger writes are no cheaper per byte.
_COALESCED_BYTES = 64 * 1024


class ClientGone(ConnectionError):
    """The client cannot be sent any more: it left, or took no byte for too long."""


@dataclass(frozen=True)
class OutputRules:
    """What the output queues of a worker have in common.

    :param ahead_bytes: bytes in a queue from which on the next write has to wait.
    :param timeout_s: within so many seconds a client must take something.
    :param least_bytes_per_s: on average, from `timeout_s` on; 0 for any rate.
    :param sendfile: whether the kernel sends files by itself.
    :param memory: what all queues hold.
    :param disk: for files that are not in memory.
    """

    ahead_bytes: int
    timeout_s: float
    least_bytes_per_s: float
    sendfile: bool
    memory: OutputMemory
    disk: DiskThreads


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


class _Turn(enum.Enum):
    DONE = "nothing is left"
    FULL = "the kernel takes no more, or it is other connections' turn"
    DISK = "the next bytes may have to come from a disk"


class OutputQueue:
    """The output side of one connection.

    :param sock: non-blocking, plain or TLS.
    :ivar backlog: what is left to send; None as long as nothing of a response ever was.
    """

    __slots__ = (
        "_deadline",
        "_dropped",
        "_owner",
        "_room",
        "_rules",
        "_sent_before",
        "_transport",
        "_waiting_since",
        "backlog",
        "closing",
        "draining",
        "error",
        "lock",
        "sent",
    )

    def __init__(self, sock: socket.socket, owner: OutputOwner, rules: OutputRules) -> None:
        self.lock = threading.Lock()
        self.draining = False
        self.closing = False  # the response is whole: whoever sends its last byte finishes it
        self.error: BaseException | None = None
        self.sent = 0  # handed to the kernel since the last reset, everything counted
        self._dropped = 0  # bytes that were queued when an error came
        self._owner = owner
        self._rules = rules
        self._transport = Transport(sock, sendfile=rules.sendfile)
        self.backlog: Backlog | None = None  # most responses need none
        self._room: threading.Condition | None = None
        self._deadline = 0.0
        self._waiting_since: float | None = None  # for the client, with something left to send
        self._sent_before = 0

    def reset(self) -> None:
        """Begin a new response; the queue is empty."""
        self.sent = 0
        self._dropped = 0
        self.closing = False
        if self.backlog is not None:
            self.backlog.close()
            self.backlog = None

    def close(self) -> None:
        """The connection is about to be closed; nobody writes any more."""
        with self.lock:
            self._fail(ClientGone("closed"))
            if self.backlog is not None:
                self.backlog.close()

    @property
    def bytes_queued(self) -> int:
        return 0 if self.backlog is None else self.backlog.size

    # Writers

    def write(self, data: bytes, *, coalesce: bool = False) -> bool:
        """Send bytes, or queue what the kernel does not take; wait while too far ahead.

        :param coalesce: more may follow at once: leave them for the next write or :meth:`flush`.
        :returns: True if they were left.
        :raises ClientGone: if the client has gone.
        """
        with self.lock:
            queued = 0 if self.backlog is None else self.backlog.size
            if queued > self._rules.ahead_bytes:
                self._wait_for_room()
            if self.error is not None:
                raise ClientGone(str(self.error))
            rest: bytes | memoryview = data
            if coalesce:
                if not self.draining and queued + len(data) < _COALESCED_BYTES:
                    self._add(data)
                    return True
            elif not queued and not self.draining:
                try:
                    sent = self._transport.sock.send(data)
                except WOULD_BLOCK:
                    sent = 0
                except OSError as error:
                    self._fail(error)
                    raise ClientGone(str(error)) from error
                self.sent += sent
                if sent == len(data):
                    return False
                rest = memoryview(data)[sent:]
        self.write_all((rest,))
        return False

    def write_all(self, buffers: Sequence[bytes | memoryview]) -> None:
        """Send several buffers in one call of the kernel where it takes them; never wait.

        :raises ClientGone: if the client has gone.
        """
        with self.lock:
            self._check()
            added = 0
            for buffer in buffers:
                if buffer:
                    self._add(buffer)
                    added += 1
            self._send_or_raise()
            backlog = self.backlog
            if not added or backlog is None or not backlog.size or backlog.reserve_memory():
                return
            rest = backlog.take_back(added)
        # Without the lock: a disk that is slow to write holds nobody else up.
        spilled = None
        try:
            spilled = backlog.spill(rest)
        except OSError as error:
            self._rules.memory.warn("Output stays in memory: no temporary file takes it: %s", error)
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
            if head:
                self._add(head)
            if segment is not None:
                self._transport.limit_buffer()
                self._begin_backlog().append_file(segment)
            self._send_or_raise()

    def flush(self, *, wait: bool = True) -> bool:
        """Send what was left for more to come; called by the monitor and by the writer.

        :param wait: for a thread that is sending. The monitor must not.
        :returns: False if another thread was sending.
        """
        if not self.lock.acquire(blocking=wait):
            return False
        try:
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
                self._transport.note_writable()
                self._send(after_event=True)
            if self._room is not None and self.bytes_queued <= self._rules.ahead_bytes // 2:
                self._room.notify_all()
            return self.closing and not self.draining

    def fail(self, error: BaseException) -> None:
        """Drop everything and tell the writer."""
        with self.lock:
            self._fail(error)

    def bytes_left(self) -> int:
        """What has not been handed to the kernel; bytes that an error made pointless included."""
        with self.lock:
            return self._dropped + self.bytes_queued

    # Everything below is called with the lock held, unless it says otherwise.

    def _check(self) -> None:
        if self.error is not None:
            raise ClientGone(str(self.error)) from self.error

    def _begin_backlog(self) -> Backlog:
        if self.backlog is None:
            self.backlog = Backlog(self._rules.memory)
        return self.backlog

    def _add(self, buffer: bytes | memoryview) -> None:
        self._begin_backlog().append(buffer)

    def _wait_for_room(self) -> None:
        if self._room is None:
            self._room = threading.Condition(self.lock)
        # Ends in any case: a client that takes nothing is dropped by the sweep.
        while self.draining and self.bytes_queued > self._rules.ahead_bytes // 2:
            self._room.wait()

    def _fail(self, error: BaseException) -> None:
        if self.error is None:
            self.error = error
        if self.backlog is not None:
            self._dropped += self.backlog.size
            self.backlog.clear()
        self.draining = False
        if self._room is not None:
            self._room.notify_all()

    # Sending

    def _send_or_raise(self) -> None:
        if not self.draining:
            self._send()
            self._check()

    def _send(self, after_event: bool = False) -> None:
        before = self.sent
        backlog = self.backlog
        try:
            turn = _Turn.DONE if backlog is None else self._send_turn(backlog)
        except WOULD_BLOCK:
            # TLS may have wanted something else; for the others see "tried again" above.
            nothing = after_event and self.sent == before and not self._transport.is_tls
            self._start_draining(retry=nothing)
        except OSError as error:
            self._fail(error)
        else:
            if turn is _Turn.DONE:
                self._waiting_since = None
            elif turn is _Turn.FULL:
                self._start_draining()
            else:
                self._call_disk_thread()
        if backlog is not None:
            backlog.release_memory()

    def _start_draining(self, retry: bool = False) -> None:
        self.draining = True
        self._transport.note_full()
        if not retry:
            self._deadline = self._next_deadline()
        try:
            self._owner.wait_to_send(self._deadline, retry=retry)
        except (OSError, ValueError) as error:
            self._fail(error)

    def _next_deadline(self) -> float:
        now = time.monotonic()
        rules = self._rules
        if self._waiting_since is None:
            self._waiting_since = now
            self._sent_before = self.sent
        deadline = now + rules.timeout_s
        if rules.least_bytes_per_s:
            earned_s = (self.sent - self._sent_before) / rules.least_bytes_per_s
            deadline = min(deadline, self._waiting_since + rules.timeout_s + earned_s)
        return deadline

    def _send_turn(self, backlog: Backlog) -> _Turn:
        """Send until the kernel is full, the turn is over, or the disk is needed."""
        transport = self._transport
        end = self.sent + _TURN_BYTES
        while (first := backlog.first) is not None:
            if self.sent >= end:
                return _Turn.FULL
            if not isinstance(first, FileSegment):
                self._send_buffers(backlog)
                if transport.is_full:
                    return _Turn.FULL
                continue
            done = self._send_file(backlog, first, end - self.sent, may_wait=False)
            if done is None:
                return _Turn.DISK
            self._note_file(backlog, done)
            if isinstance(done, int) and transport.is_full:
                return _Turn.FULL
        return _Turn.DONE

    def _send_buffers(self, backlog: Backlog) -> None:
        buffers, file_follows = backlog.buffers()
        if self._transport.is_tls:
            # After a refusal TLS wants the same bytes again: a backlog's front only ever shrinks.
            del buffers[1:]
        left = self._transport.send(buffers, file_follows=file_follows)
        self.sent += backlog.replace_buffers(len(buffers), left)

    def _send_file(
        self, backlog: Backlog, segment: FileSegment, most: int, *, may_wait: bool
    ) -> int | bytes | None:
        return self._transport.send_file(
            segment,
            backlog.file_sent,
            most,
            may_wait=may_wait,
            memory_is_short=self._rules.memory.is_full,
        )

    def _note_file(self, backlog: Backlog, done: int | bytes) -> None:
        if isinstance(done, int):
            self.sent += done
            backlog.advance_file(done)
        else:
            backlog.insert_read(done)

    def _call_disk_thread(self) -> None:
        backlog = self.backlog
        assert backlog is not None
        segment = backlog.first
        assert isinstance(segment, FileSegment)
        self.draining = True
        self._transport.limit_buffer()
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
        began = time.monotonic()
        done: int | bytes | None = None
        failure: OSError | None = None
        try:
            done = self._send_file(backlog, segment, _DISK_STEP_BYTES, may_wait=True)
        except WOULD_BLOCK:
            pass
        except OSError as error:
            failure = error
        with self.lock:
            if self._waiting_since is not None:  # what the disk took is not the client's time
                self._waiting_since += time.monotonic() - began
            if failure is not None:
                self._fail(failure)
            elif self.error is None:
                if done is not None:
                    self._note_file(backlog, done)
                self._start_draining()
            backlog.release(segment.fd)
            if self.error is not None and self.closing:
                self._owner.resume_sending()  # who sees that it is over, and finishes
