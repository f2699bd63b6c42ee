"""What a connection has still to send: bytes and runs of files, in order.

Theory of operation
-------------------
A writer (the thread in the app, or whoever answers an error) hands over bytes and file segments.
They are sent at once as far as the kernel takes them; the rest stays here, the queue arms its
connection for writability (it is *draining*), and the thread that receives the event goes on.
From then on two threads may meet here, so everything is done under the connection's lock; TLS
needs it too, since one TLS object must not be used by two threads at once.

    empty --write--> (sent at once) empty
                     (kernel full)  draining --event--> draining | empty
    empty --write, more to come--> held --tick, or enough--> as above

*Held*: a generator's chunk that comes right behind another waits for company, at most until the
monitor's next tick, in which another thread sends it while the app works on (PEP 3333, "Buffering
and Streaming"). A writer that is more than `ahead` bytes before its client waits for room.

An error is final: what is queued is dropped, file descriptors are closed, writers are told.

The send buffer of a near client starts small and grows when the client is quick: what slow clients
leave lying there comes out of the memory that the kernel has for all TCP connections, and when
that is gone, every connection of the host stands still. It may be gone all the same: then a socket
is writable and takes nothing, and the queue is *starved*. To wait for writability again would spin,
so it waits for the sweep.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import cast

from ..sockets.gathering import send_some
from ..sockets.options import FIRST_SEND_BUFFER_BYTES, QUICK_S, SocketLike, limit_send_buffer
from ..sockets.sendfile import MSG_MORE, NO_SENDFILE, FileTruncated

__all__ = ["WOULD_BLOCK", "ClientGone", "OutputQueue"]

WOULD_BLOCK = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

# One turn for one connection: beyond it, the others get theirs first. A limit for each sendfile
# too: while a quick client makes room, the kernel goes on in one call.
_TURN_BYTES = 4 * 1024 * 1024
# Read at a time where sendfile does not apply; also what one TLS write is given.
_READ_BYTES = 256 * 1024
# Buffers given to one send; small chunks of a generator come in such bundles.
_BUFFERS = 64
# Held chunks are sent as soon as they are this many bytes: larger writes are no cheaper per byte.
_HOLD_BYTES = 64 * 1024

_EMPTY: deque[object] = deque()


class ClientGone(ConnectionError):
    """The client cannot be sent any more: it left, or took no byte for too long."""


class OutputQueue:
    """The output side of one connection.

    :param sock: non-blocking, plain or TLS.
    :param arm: called under the lock when the kernel is full: wait for writability; with True when
        the queue is starved: call :meth:`on_writable` again some time later. An OSError that it
        raises ends the queue.
    :param ahead: bytes in memory from which on the next write has to wait.
    """

    __slots__ = (
        "_ahead",
        "_arm",
        "_buffer_set",
        "_by_kernel",
        "_draining_since",
        "_dropped",
        "_is_tls",
        "_items",
        "_may_grow",
        "_room",
        "_sock",
        "bytes_queued",
        "closing",
        "draining",
        "error",
        "lock",
        "sent",
    )

    def __init__(
        self, sock: socket.socket, arm: Callable[[bool], None], *, ahead: int, sendfile: bool
    ) -> None:
        self.lock = threading.Lock()
        self.draining = False
        self.closing = False  # the response is whole: whoever sends its last byte finishes it
        self.error: BaseException | None = None
        self.bytes_queued = 0  # in memory
        self.sent = 0  # handed to the kernel since the last reset, everything counted
        self._dropped = 0  # bytes that were queued when an error came
        self._sock = sock
        self._arm = arm
        self._ahead = ahead
        self._is_tls = isinstance(sock, ssl.SSLSocket)
        self._by_kernel = sendfile and not self._is_tls and hasattr(os, "sendfile")
        self._items: deque[bytes | memoryview | _FileRun] = _EMPTY  # type: ignore[assignment]
        self._room: threading.Condition | None = None
        self._buffer_set = False
        self._may_grow = False  # the send buffer is the small one
        self._draining_since = 0.0

    def reset(self) -> None:
        """Begin a new response; the queue is empty."""
        self.sent = 0
        self._dropped = 0
        self.closing = False

    @property
    def empty(self) -> bool:
        return not self._items

    def write(self, data: bytes, hold: bool = False) -> bool:
        """Send bytes, or queue what the kernel does not take; wait while too far ahead.

        :param hold: more may follow at once: leave them for the next write or tick.
        :returns: True if something was held back, which :meth:`push_on` must send.
        :raises ClientGone: if the client has gone.
        """
        with self.lock:
            if self.bytes_queued > self._ahead:
                self._wait_for_room()
            if self.error is not None:
                raise ClientGone(str(self.error))
            if not self._items and not hold:
                try:
                    sent = self._sock.send(data)
                except WOULD_BLOCK:
                    sent = 0
                except OSError as error:
                    self._fail(error)
                    raise ClientGone(str(error)) from error
                self.sent += sent
                if sent == len(data):
                    return False
                self._append(memoryview(data)[sent:])
                self._start_draining()
            else:
                self._append(memoryview(data))
                if not self.draining:
                    if hold and self.bytes_queued < _HOLD_BYTES:
                        return True
                    self._send_or_raise()
            return False

    def write_all(self, buffers: list[bytes]) -> None:
        """Send several buffers in one call of the kernel where it takes them."""
        with self.lock:
            if self.error is not None:
                raise ClientGone(str(self.error))
            for data in buffers:
                if data:
                    self._append(memoryview(data))
            if not self.draining:
                self._send_or_raise()

    def write_file(self, head: bytes, fd: int, offset: int, size: int) -> None:
        """Send a head (may be empty) and a run of a file; the rest is sent from a dup of `fd`.

        :raises ClientGone: if the client has gone.
        :raises OSError: if no descriptor is left for the dup.
        """
        with self.lock:
            if self.error is not None:
                raise ClientGone(str(self.error))
            run = None
            if size > 0:
                # Before the head is queued: without a descriptor the answer is still a 500.
                run = _FileRun(os.dup(fd), offset, size, self._by_kernel)
                self._limit_buffer()
            if head:
                self._append(memoryview(head))
            if run is not None:
                self._items.append(run)
            if not self.draining:
                self._send_or_raise()

    def push_on(self, wait: bool = True) -> bool:
        """Send what was held; called by the monitor and by the writer at its end.

        :param wait: for a thread that is sending. The monitor must not.
        :returns: False if another thread was sending.
        """
        if not self.lock.acquire(blocking=wait):
            return False
        try:
            if self._items and not self.draining:
                self._send()
        finally:
            self.lock.release()
        return True

    def on_writable(self) -> bool:
        """Go on; the event's owner calls it.

        :returns: True if the response is whole and its last byte has been sent, or never will be:
            the caller finishes it. Decided under the lock, or the app's thread could do so too.
        """
        with self.lock:
            self.draining = False
            if self._may_grow and time.monotonic() - self._draining_since < QUICK_S:
                self._grow_buffer()
            if self.error is None:
                self._send(writable=True)
            if self._room is not None and self.bytes_queued <= self._ahead // 2:
                self._room.notify_all()
            return self.closing and not self.draining

    def fail(self, error: BaseException) -> None:
        """Drop everything and tell the writer."""
        with self.lock:
            self._fail(error)

    def bytes_left(self) -> int:
        """What has not been handed to the kernel; bytes that an error made pointless included."""
        with self.lock:
            return self._dropped + self._left()

    # Everything below is called with the lock held.

    def _append(self, view: memoryview) -> None:
        if self._items is _EMPTY:
            self._items = deque()
        self._items.append(view)
        self.bytes_queued += len(view)

    def _start_draining(self, starved: bool = False) -> None:
        self.draining = True
        self._limit_buffer()
        if self._may_grow:
            self._draining_since = time.monotonic()
        try:
            self._arm(starved)
        except (OSError, ValueError) as error:  # of the kernel, which can wait for no more
            self._fail(error)

    def _limit_buffer(self) -> None:
        if self._items is _EMPTY:
            self._items = deque()
        if not self._buffer_set:
            self._buffer_set = True
            # Reset just now: the next send says so.
            with contextlib.suppress(OSError):
                self._may_grow = limit_send_buffer(
                    cast(SocketLike, self._sock), FIRST_SEND_BUFFER_BYTES
                )

    def _grow_buffer(self) -> None:
        self._may_grow = False
        with contextlib.suppress(OSError):
            limit_send_buffer(cast(SocketLike, self._sock))

    def _send_or_raise(self) -> None:
        self._send()
        if self.error is not None:
            raise ClientGone(str(self.error)) from self.error

    def _send(self, writable: bool = False) -> None:
        sent = self.sent
        try:
            if not self._send_a_turn():
                self._start_draining()
        except WOULD_BLOCK:
            # TLS may have wanted something else; for the others see "starved" above.
            self._start_draining(starved=writable and self.sent == sent and not self._is_tls)
        except OSError as error:
            self._fail(error)

    def _send_a_turn(self) -> bool:
        """Send until the kernel is full, the turn is over, or nothing is left (returns True)."""
        items = self._items
        turn = _TURN_BYTES
        while items:
            if turn <= 0:
                return False
            item = items[0]
            if isinstance(item, _FileRun):
                sent, full = self._send_file(item, turn)
            else:
                sent, full = self._send_buffers(item)
            self.sent += sent
            turn -= sent
            if full:
                return False
        self._items = _EMPTY  # type: ignore[assignment]
        return True

    def _send_buffers(self, first: bytes | memoryview) -> tuple[int, bool]:
        items = self._items
        buffers = [first]
        flags = 0
        # After a refusal TLS wants the same bytes again: a queue's head only ever shrinks.
        if len(items) > 1 and not self._is_tls:
            for item in islice(items, 1, _BUFFERS):
                if isinstance(item, _FileRun):
                    break
                buffers.append(item)
            # A file follows: let the kernel put its first bytes into the same packet.
            flags = MSG_MORE if len(buffers) < len(items) and self._by_kernel else 0
        left = send_some(self._sock, buffers, flags)
        for _ in buffers:
            items.popleft()
        items.extendleft(reversed(left))
        sent = sum(map(len, buffers)) - sum(map(len, left))
        self.bytes_queued -= sent
        return sent, bool(left)

    def _send_file(self, run: _FileRun, turn: int) -> tuple[int, bool]:
        left = run.end - run.offset
        if run.by_kernel:
            offered = min(left, turn)
            try:
                sent = os.sendfile(self._sock.fileno(), run.fd, run.offset, offered)
            except OSError as error:
                if error.errno in NO_SENDFILE:
                    run.by_kernel = False  # this file system has none: read it
                    return 0, False
                raise
            if sent == 0:
                raise FileTruncated(left, run.size)
            run.offset += sent
            if sent == left:
                self._items.popleft()
                os.close(run.fd)
            return sent, sent < offered
        data = os.pread(run.fd, min(left, _READ_BYTES), run.offset)
        if not data:
            raise FileTruncated(left, run.size)
        run.offset += len(data)
        if run.offset == run.end:
            self._items.popleft()
            os.close(run.fd)
        self._items.appendleft(memoryview(data))
        self.bytes_queued += len(data)
        return 0, False

    def _left(self) -> int:
        runs = [item for item in self._items if isinstance(item, _FileRun)]
        return self.bytes_queued + sum(run.end - run.offset for run in runs)

    def _fail(self, error: BaseException) -> None:
        if self.error is None:
            self.error = error
        self._dropped += self._left()
        for item in self._items:
            if isinstance(item, _FileRun):
                os.close(item.fd)
        self._items = _EMPTY  # type: ignore[assignment]
        self.bytes_queued = 0
        self.draining = False
        if self._room is not None:
            self._room.notify_all()

    def _wait_for_room(self) -> None:
        if self._room is None:
            self._room = threading.Condition(self.lock)
        # Ends in any case: a client that takes nothing is dropped by the sweep.
        while self.draining and self.bytes_queued > self._ahead // 2:
            self._room.wait()


class _FileRun:
    """A run of a file, by a descriptor of our own."""

    __slots__ = ("by_kernel", "end", "fd", "offset", "size")

    def __init__(self, fd: int, offset: int, size: int, by_kernel: bool) -> None:
        self.fd = fd
        self.offset = offset
        self.size = size
        self.end = offset + size
        self.by_kernel = by_kernel
