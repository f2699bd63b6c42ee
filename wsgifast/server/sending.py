"""Sends a connection's backlog on its socket, one turn at a time, plain or with TLS.

A file is sent only as far as the page cache has it. A disk thread sends the other bytes. Where
sendfile does not work, as with TLS, a piece of the file is read into a buffer of the thread and
sent from there. If the socket does not take it, it is read again later. TLS may have sent a part of
a piece that it refuses. It must then get the same bytes again.

The socket's send buffer is small until the client is known to be fast. Bytes that slow clients
leave in it count against the kernel's memory for all TCP connections. When that is used up, every
connection of the host stalls.
"""

from __future__ import annotations

import contextlib
import enum
import math
import os
import socket
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import cast

from ..sockets.client_limits import ClientWait
from ..sockets.options import (
    FIRST_SEND_BUFFER_BYTES,
    QUICK_S,
    SocketLike,
    limit_send_buffer,
    limit_unsent,
    release_send_buffer,
    smoothed_round_trip_us,
)
from ..sockets.sending import (
    MSG_MORE,
    FileSegment,
    FileTruncated,
    SendfileUnavailable,
    cached_bytes,
    send_file_once,
    send_some,
    view_cached,
)
from .backlog import PIECE_BYTES, Backlog
from .output_rules import OutputRules
from .poller import WOULD_BLOCK

# The bytes that a connection sends before the others have their turn.
_TURN_BYTES = 4 * 1024 * 1024
# The bytes of a file that are looked up in the page cache at once. A socket takes as much at once,
# so the look-up costs little beside sending.
_PROBE_BYTES = 512 * 1024
# The bytes read from a disk before other files have their turn.
_DISK_STEP_BYTES = 1024 * 1024
# The bytes of a turn with TLS, which costs several times as much per byte. After LONG_TURN_BYTES
# another thread takes over the remaining work. Slow clients have no turns as long as that.
_TLS_TURN_BYTES = 2 * 1024 * 1024
LONG_TURN_BYTES = 512 * 1024
# How many refusals in a row mean that the kernel is out of memory. TLS may refuse a piece although
# it has sent at least one of its records.
_TLS_REFUSALS = 4 * PIECE_BYTES // (16 * 1024)

# The most unsent bytes of a multiplexed connection in the kernel. A client is fast if it takes half
# of them in this time: 8 KiB in 1 ms are 65 Mbit/s.
_UNSENT_BYTES = 16 * 1024
_FAR_US = 2_000
# The bytes for a client that has become fast after an event, before it gets all.
_MOST_SHARE_BYTES = 256 * 1024
_FAST_S = 0.001


class Turn(enum.Enum):
    """How a turn ended."""

    DONE = "nothing is left"
    FULL = "the socket is full, or it is other connections' turn"
    NO_MEMORY = "the socket takes nothing although it is writable: the kernel is out of memory"
    DISK = "the next bytes of a file may not be in the page cache"


class Owner(ABC):
    """The methods of its owner that an output queue calls, under its lock."""

    __slots__ = ()

    @abstractmethod
    def wait_to_send(self, deadline: float, *, no_memory: bool) -> None:
        """Have :meth:`.OutputQueue.on_writable` called once the client takes more.

        :param deadline: when to give up on the client. Monotonic.
        :param no_memory: the kernel is out of memory for TCP: have it called some time later.
        :raises OSError, ValueError: if the kernel cannot watch the socket. It ends the queue.
        """

    @abstractmethod
    def resume_sending(self) -> None:
        """Have :meth:`.OutputQueue.on_writable` called soon."""


class Sender(ABC):
    """Sends the output of one queue, under its lock except where a method says otherwise.

    :ivar send: sends as much of a block as the client takes, and returns the number of bytes. It
        raises as :meth:`take_turn` does, or an error of `WOULD_BLOCK`.
    :ivar free_bytes: the number of bytes to send before :meth:`prepare_socket` is called.
    """

    __slots__ = ("free_bytes",)

    send: Callable[[bytes | memoryview], int]
    free_bytes: float

    @abstractmethod
    def prepare_socket(self) -> None:
        """Limit the socket's send buffer, once: the connection has sent `free_bytes`, or waits."""

    @abstractmethod
    def take_turn(self, backlog: Backlog, *, after_event: bool = False) -> Turn:
        """Send until the client takes no more, the turn is over, or a disk is needed.

        :param after_event: the socket has just been reported writable.
        :raises FileTruncated: if a file ends early.
        :raises OSError: if the client has disconnected, or a file cannot be read.
        """

    @abstractmethod
    def wait_until(self, *, no_memory: bool) -> float:
        """Return when to give up on a client that is waited for from now on (monotonic).

        :param no_memory: the wait goes on. The client has had no chance to end it.
        """

    @abstractmethod
    def pace(self, now: float) -> tuple[float, int] | None:
        """Return for how long the client has been waited for, and the bytes taken since.

        For any thread. A stream waits for its client only while its window is used up.

        :param now: monotonic.
        :returns: None if the client is not waited for.
        """

    @abstractmethod
    def step_from_disk(self, backlog: Backlog, segment: FileSegment) -> int | bytes:
        """Send or read the next bytes of the first file. In a disk thread, without the lock.

        :returns: an argument for :meth:`record_file`.
        :raises OSError: as :meth:`take_turn`.
        """

    @abstractmethod
    def record_file(self, backlog: Backlog, done: int | bytes) -> None:
        """Record the number of sent bytes of the first file, or the bytes read to be sent next."""


class SocketSender(Sender):
    """Sends on a socket. http2/response.py has the sender of a stream.

    :param sock: non-blocking, plain or TLS.
    :ivar free_bytes: infinite once :meth:`prepare_socket` has been called.
    :ivar encrypts: whether the socket is TLS.
    :ivar sends_files: whether sendfile works. Never with TLS.
    """

    __slots__ = (
        "_full_since", "_is_full", "_may_grow", "_refusals", "_refused", "_rules", "_sock",
        "_taken", "_wait", "_was_quick", "encrypts", "send", "sends_files",
    )  # fmt: skip

    def __init__(self, sock: socket.socket, rules: OutputRules) -> None:
        self._sock = sock
        self._rules = rules
        self.encrypts = isinstance(sock, ssl.SSLSocket)
        self.send = partial(_encrypt, sock) if self.encrypts else sock.send
        self.sends_files = rules.options.sendfile and not self.encrypts and hasattr(os, "sendfile")
        self.free_bytes: float = FIRST_SEND_BUFFER_BYTES
        self._may_grow = False  # whether it is the small one
        self._was_quick = False  # it was writable again soon, when it was last full
        self._full_since = 0.0
        self._is_full = False  # the socket has taken only a part of the last send
        self._refused = 0  # bytes of a file that TLS has refused, and must be given again
        self._refusals = 0  # writable events in a row after which nothing was taken
        self._wait: ClientWait | None = None  # until all of the response is sent
        self._taken = 0  # bytes

    def take_turn(self, backlog: Backlog, *, after_event: bool = False) -> Turn:
        if after_event:
            self._on_writable()
        before = self._taken
        end = before + (_TLS_TURN_BYTES if self.encrypts else _TURN_BYTES)
        is_long = False
        try:
            while (first := backlog.first) is not None:
                if self._taken >= end:
                    return Turn.FULL
                if self.encrypts and not is_long and self._taken - before >= LONG_TURN_BYTES:
                    is_long = True
                    self._rules.share_work()
                if isinstance(first, FileSegment):
                    self.prepare_socket()
                    done = self._send_file(backlog, first, end - self._taken, may_wait=False)
                    if done is None:
                        return Turn.DISK
                    self.record_file(backlog, done)
                else:
                    if backlog.size > self.free_bytes:
                        self.prepare_socket()
                    self._send_buffers(backlog)
                if self._is_full:
                    return Turn.FULL
        except WOULD_BLOCK:
            if self._taken > before or not after_event:
                self._refusals = 0
                return Turn.FULL
            self._refusals += 1
            starves = not self.encrypts or self._refusals >= _TLS_REFUSALS
            return Turn.NO_MEMORY if starves else Turn.FULL
        self._wait = None
        return Turn.DONE

    def wait_until(self, *, no_memory: bool) -> float:
        self.prepare_socket()
        if self._may_grow:
            self._full_since = time.monotonic()
        if self._wait is None:
            self._wait = self._rules.new_wait()
        return self._wait.deadline if no_memory else self._wait.begin()

    def pace(self, now: float) -> tuple[float, int] | None:
        wait = self._wait
        return None if wait is None else wait.pace(now)

    # Bytes

    def _send_buffers(self, backlog: Backlog) -> None:
        if self.encrypts:
            self._send_first_buffer(backlog)
            return
        buffers, file_follows = backlog.buffers()
        flags = MSG_MORE if file_follows and self.sends_files else 0
        left = send_some(self._sock, buffers, flags)
        self._is_full = bool(left)
        self._count(backlog.replace_buffers(len(buffers), left))

    def _send_first_buffer(self, backlog: Backlog) -> None:
        # After a refusal TLS needs the same bytes, which the front of the backlog still has.
        first = backlog.buffers()[0][0]
        rest = first[self.send(first) :]
        self._is_full = False
        self._count(backlog.replace_buffers(1, [rest] if rest else ()))

    def _count(self, size: int) -> None:
        self._taken += size
        self.free_bytes -= size
        if self._wait is not None:
            self._wait.moved += size

    # Files

    def step_from_disk(self, backlog: Backlog, segment: FileSegment) -> int | bytes:
        if self._wait is not None:
            self._wait.end()  # the client is not to blame for the disk
        try:
            return self._send_file(backlog, segment, _DISK_STEP_BYTES, may_wait=True) or 0
        except WOULD_BLOCK:
            return 0

    def record_file(self, backlog: Backlog, done: int | bytes) -> None:
        if isinstance(done, bytes):
            backlog.insert_read(done)
            self._refused = 0  # from now on the piece is stored until it is sent
            return
        self._count(done)
        if self.sends_files:
            self._rules.counters.sendfile_bytes += done
        backlog.advance_file(done, by_kernel=self.sends_files)

    def _send_file(
        self, backlog: Backlog, segment: FileSegment, most: int, *, may_wait: bool
    ) -> int | bytes | None:
        """Send the next bytes of a file.

        :param may_wait: for the disk.
        :returns: the number of bytes sent. Without sendfile and if it may wait: the bytes read.
            None if it must not wait and the disk may be needed.
        """
        fd, offset, whole = segment
        place = offset + backlog.file_sent
        left = whole - backlog.file_sent
        size = min(left, most)
        result: int | bytes | None = None
        if self.sends_files:
            if not may_wait:
                size = cached_bytes(fd, place, min(size, _PROBE_BYTES))
                if not size:
                    return None
            try:
                result = send_file_once(self._sock.fileno(), fd, place, size)
                self._is_full = result < size
            except SendfileUnavailable:
                self.sends_files = False
        if result is None:
            # A piece that is not taken is read again, so that slow clients use no memory.
            size = min(left, PIECE_BYTES)
            if not may_wait:
                result = self._send_cached(fd, place, size)
            elif len(result := os.pread(fd, size, place)) < self._refused:
                result = b""
        if not result and result is not None:
            raise FileTruncated(left, whole)
        return result

    def _send_cached(self, fd: int, place: int, size: int) -> int | None:
        """Read a piece of a file from the page cache and send it. None if a part is not there."""
        data = view_cached(fd, place, size)
        if data is None or 0 < len(data) < size:
            return None
        if not data:
            return 0
        self._refused = len(data)
        sent = self.send(data)
        self._refused = 0
        self._is_full = sent < len(data)
        return sent

    # The socket's send buffer

    def prepare_socket(self) -> None:
        if self.free_bytes != math.inf:
            self.free_bytes = math.inf
            self._may_grow = limit_send_buffer(cast(SocketLike, self._sock))

    def _on_writable(self) -> None:
        """The socket is writable again. Give a fast client a larger buffer."""
        if not self._may_grow:
            return
        was_quick, self._was_quick = self._was_quick, time.monotonic() - self._full_since < QUICK_S
        # Twice in a row: a slow client's first receive is quick, too.
        if was_quick and self._was_quick:
            self._may_grow = False
            with contextlib.suppress(OSError):  # the client has disconnected: the next send fails
                release_send_buffer(cast(SocketLike, self._sock))


class MultiplexedSender(SocketSender):
    """Gives the kernel of a slow client little ahead, so that an urgent response waits for little.

    TCP_NOTSENT_LOWAT delays the writable event until the kernel has sent nearly everything. But
    after the event the kernel accepts whole packets of 64 KiB. So this sender then sends a part of
    that, until the next event.
    """

    __slots__ = ("_least", "_left", "_paused_at", "_send_all", "_share")

    def __init__(self, sock: socket.socket, rules: OutputRules) -> None:
        super().__init__(sock, rules)
        self._send_all, self.send = self.send, self._send_part
        self._share = math.inf  # bytes that may be sent after one writable event
        self._left = math.inf  # how many of them have not been sent
        self._least = 0  # bytes that TLS has refused, and must be given again
        self._paused_at = 0.0

    def _send_part(self, data: bytes | memoryview) -> int:
        size = len(data)
        if size > self._left:
            size = max(int(self._left), self._least)
            if not size:
                self._paused_at = time.monotonic()
                raise BlockingIOError
            data = memoryview(data)[:size]
        sent = 0
        try:
            sent = self._send_all(data)
        finally:
            if sent < size:
                self._paused_at = time.monotonic()
            self._least = size if self.encrypts and not sent else 0
        self._left = max(0, self._left - sent)
        return sent

    def _send_buffers(self, backlog: Backlog) -> None:
        self._send_first_buffer(backlog)

    def _on_writable(self) -> None:
        super()._on_writable()
        was_paced = self.is_paced
        if time.monotonic() - self._paused_at > _FAST_S and self._is_far():
            self._share = _UNSENT_BYTES
        else:
            self._share *= 2  # one quick event may be chance
            if self._share > _MOST_SHARE_BYTES:
                self._share = math.inf
        if self.is_paced is not was_paced:
            limit_unsent(cast(SocketLike, self._sock), _UNSENT_BYTES if self.is_paced else 0)
        self._left = self._share

    @property
    def is_paced(self) -> bool:
        """Whether the client is slow."""
        return self._share < math.inf

    def _is_far(self) -> bool:
        """Return whether bytes need long to the client now. A near one may just be busy."""
        try:
            return smoothed_round_trip_us(cast(SocketLike, self._sock)) > _FAR_US
        except OSError:  # a Unix socket, or no client any more
            return False


def _encrypt(sock: socket.socket, data: bytes | memoryview) -> int:
    """Send the first piece of some bytes with TLS, which takes it whole or not at all."""
    return sock.send(data if len(data) <= PIECE_BYTES else memoryview(data)[:PIECE_BYTES])
