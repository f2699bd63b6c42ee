"""Send a connection's backlog on its socket, plain or with TLS, one turn at a time.

A turn sends only bytes of a file that are in the page cache. A disk thread sends the other bytes.
sendfile does not work with TLS. With TLS, a piece of the file is read into a buffer of the thread,
and sent. If the socket does not accept the piece, the piece is read again later. TLS may already
have sent a part of a piece that it refuses. So the next call must pass the same bytes again.

The socket's send buffer is small until the client has proved to be fast. Unsent bytes in all send
buffers count against the kernel's limit of memory for TCP. If the limit is reached, every
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

# The maximum number of bytes that a connection sends in one turn.
_TURN_BYTES = 4 * 1024 * 1024
# The maximum number of bytes of a file that are looked up in the page cache at once. A socket
# accepts about as many bytes at once, so a look-up is cheap in comparison.
_PROBE_BYTES = 512 * 1024
# The maximum number of bytes that a disk thread reads from one file in one step.
_DISK_STEP_BYTES = 1024 * 1024
# With TLS, which costs several times as much per byte, the maximum is _TLS_TURN_BYTES. After
# LONG_TURN_BYTES of such a turn, another thread handles the remaining work. Slow clients never
# accept so many bytes.
_TLS_TURN_BYTES = 2 * 1024 * 1024
LONG_TURN_BYTES = 512 * 1024
# After this many consecutive refusals, the kernel is out of memory. Fewer refusals prove nothing,
# because TLS also refuses a piece of which it has sent only some records.
_TLS_REFUSALS = 4 * PIECE_BYTES // (16 * 1024)

# The maximum number of unsent bytes of a multiplexed connection in the kernel.
_UNSENT_BYTES = 16 * 1024
# A client is far if its smoothed round trip takes longer than this.
_FAR_US = 2_000
# For a fast client, the number of bytes per event is doubled up to this value. Above it, the client
# has no limit.
_MAX_BYTES_PER_EVENT = 256 * 1024
# A client is fast if it accepts half of _UNSENT_BYTES in this time, which is a rate of 65 Mbit/s.
_FAST_S = 0.001


class Turn(enum.Enum):
    """The reason why a turn ended."""

    DONE = "nothing is left"
    FULL = "the socket is full, or the turn is over"
    NO_MEMORY = "the socket is writable but accepts nothing: the kernel is out of memory"
    DISK = "the next bytes of a file may not be in the page cache"


class Owner(ABC):
    """The connection or stream of an output queue.

    The queue calls these methods with the queue's lock.
    """

    __slots__ = ()

    @abstractmethod
    def wait_to_send(self, deadline: float, *, no_memory: bool) -> None:
        """Call :meth:`.OutputQueue.on_writable` when the client can accept more.

        :param deadline: the monotonic time after which the client is disconnected.
        :param no_memory: True if the kernel is out of memory for TCP. Call on_writable() after some
            time then, whether or not the socket is writable.
        :raises OSError, ValueError: if the kernel cannot watch the socket. The queue then fails.
        """

    @abstractmethod
    def resume_sending(self) -> None:
        """Call :meth:`.OutputQueue.on_writable` soon."""


class Sender(ABC):
    """Sends the output of one queue. Most methods need the queue's lock.

    :ivar send: sends as much of some bytes as the client accepts, and returns the number of bytes.
        It raises the errors of :meth:`take_turn` and of `WOULD_BLOCK`.
    :ivar free_bytes: the number of bytes that may be sent before :meth:`prepare_socket` is called.
    """

    __slots__ = ("_wait", "free_bytes")

    send: Callable[[bytes | memoryview], int]
    free_bytes: float
    _wait: ClientWait | None  # None until the first wait for the client

    @abstractmethod
    def prepare_socket(self) -> None:
        """Limit the socket's send buffer once, after `free_bytes` or before the first wait."""

    @abstractmethod
    def take_turn(self, backlog: Backlog, *, after_event: bool = False) -> Turn:
        """Send until the client accepts no more, the turn is over, or a disk is needed.

        :param after_event: whether the socket was just reported as writable.
        :raises FileTruncated: if a file has fewer bytes than expected.
        :raises OSError: if the client has disconnected, or a file cannot be read.
        """

    @abstractmethod
    def wait_until(self, *, no_memory: bool) -> float:
        """Return the monotonic time until which to wait for the client.

        :param no_memory: True if the kernel is out of memory. The deadline of the current wait then
            remains, because the client has accepted nothing.
        """

    def pace(self, now: float) -> tuple[float, int] | None:
        """Return how long the server has waited for the client, and the bytes that it has accepted.

        Any thread may call this. A stream waits for its client only while its flow-control window
        is used up.

        :param now: the monotonic time.
        :returns: None if the queue does not wait for the client.
        """
        wait = self._wait  # a copy, because the sending thread may set it to None
        return None if wait is None else wait.pace(now)

    @abstractmethod
    def step_from_disk(self, backlog: Backlog, segment: FileSegment) -> int | bytes:
        """Send or read the next bytes of the first file. A disk thread calls this without the lock.

        :returns: an argument for :meth:`record_file`.
        :raises OSError: see :meth:`take_turn`.
        """

    @abstractmethod
    def record_file(self, backlog: Backlog, done: int | bytes) -> None:
        """Record the number of sent bytes of the first file, or queue the bytes that were read."""


class SocketSender(Sender):
    """Sends on a socket. http2/response.py has the sender for a stream.

    :param sock: a non-blocking socket, plain or with TLS.
    :ivar free_bytes: infinite after :meth:`prepare_socket` was called.
    :ivar encrypts: whether the socket uses TLS.
    :ivar sends_files: whether sendfile works. It never works with TLS.
    """

    __slots__ = (
        "_accepted", "_full_since", "_is_full", "_may_grow", "_refusals", "_refused", "_rules",
        "_sock", "_was_quick", "encrypts", "send", "sends_files",
    )  # fmt: skip

    def __init__(self, sock: socket.socket, rules: OutputRules) -> None:
        self._sock = sock
        self._rules = rules
        self.encrypts = isinstance(sock, ssl.SSLSocket)
        self.send = partial(_encrypt, sock) if self.encrypts else sock.send
        self.sends_files = rules.options.sendfile and not self.encrypts and hasattr(os, "sendfile")
        self.free_bytes: float = FIRST_SEND_BUFFER_BYTES
        self._may_grow = False  # whether the send buffer is still small
        self._was_quick = False  # whether the socket was soon writable again the last time
        self._full_since = 0.0
        self._is_full = False  # whether the socket has accepted only a part of the last send
        self._refused = 0  # the size of the file's piece that TLS refused and must get again
        self._refusals = 0  # the number of writable events in a row with no byte accepted
        self._wait = None  # reset when all of the response was sent
        self._accepted = 0  # the number of bytes that the socket has accepted

    def take_turn(self, backlog: Backlog, *, after_event: bool = False) -> Turn:
        if after_event:
            self._on_writable()
        before = self._accepted
        end = before + (_TLS_TURN_BYTES if self.encrypts else _TURN_BYTES)
        is_long = False
        try:
            while (first := backlog.first) is not None:
                if self._accepted >= end:
                    return Turn.FULL
                if self.encrypts and not is_long and self._accepted - before >= LONG_TURN_BYTES:
                    is_long = True
                    self._rules.share_work()
                if isinstance(first, FileSegment):
                    self.prepare_socket()
                    done = self._send_file(backlog, first, end - self._accepted, may_wait=False)
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
            if self._accepted > before or not after_event:
                self._refusals = 0
                return Turn.FULL
            self._refusals += 1
            starves = not self.encrypts or self._refusals >= _TLS_REFUSALS
            return Turn.NO_MEMORY if starves else Turn.FULL
        self._wait = None
        return Turn.DONE

    def wait_until(self, *, no_memory: bool) -> float:
        self.prepare_socket()
        self._full_since = time.monotonic()
        if self._wait is None:
            self._wait = self._rules.new_wait()
        return self._wait.deadline if no_memory else self._wait.begin()

    # Sending bytes.

    def _send_buffers(self, backlog: Backlog) -> None:
        if self.encrypts:
            self._send_first_buffer(backlog)
            return
        buffers, file_follows = backlog.buffers()
        flags = MSG_MORE if file_follows and self.sends_files else 0
        unsent = send_some(self._sock, buffers, flags)
        self._is_full = bool(unsent)
        self._count(backlog.replace_buffers(len(buffers), unsent))

    def _send_first_buffer(self, backlog: Backlog) -> None:
        # After a refusal, TLS needs the same bytes, which are still the first ones of the backlog.
        first = backlog.buffers()[0][0]
        unsent = first[self.send(first) :]
        self._is_full = False
        self._count(backlog.replace_buffers(1, [unsent] if unsent else ()))

    def _count(self, size: int) -> None:
        self._accepted += size
        self.free_bytes -= size
        if self._wait is not None:
            self._wait.moved += size

    # Sending files.

    def step_from_disk(self, backlog: Backlog, segment: FileSegment) -> int | bytes:
        if self._wait is not None:
            self._wait.end()  # the time limit of the client must not include a slow disk
        try:
            return self._send_file(backlog, segment, _DISK_STEP_BYTES, may_wait=True) or 0
        except WOULD_BLOCK:
            return 0

    def record_file(self, backlog: Backlog, done: int | bytes) -> None:
        if isinstance(done, bytes):
            backlog.insert_read(done)
            self._refused = 0  # the piece is in the backlog now, so it is not read again
            return
        self._count(done)
        if self.sends_files:
            self._rules.shared.counters.sendfile_bytes += done
        backlog.advance_file(done, by_kernel=self.sends_files)

    def _send_file(
        self, backlog: Backlog, segment: FileSegment, limit: int, *, may_wait: bool
    ) -> int | bytes | None:
        """Send the next bytes of a file.

        :param may_wait: whether to wait for the disk.
        :returns: the number of sent bytes. Or the bytes that were read, if sendfile does not work
            and `may_wait` is True. Or None, if the bytes may not be cached and `may_wait` is False.
        """
        fd, offset, segment_size = segment
        position = offset + backlog.file_sent
        remaining = segment_size - backlog.file_sent
        size = min(remaining, limit)
        result: int | bytes | None = None
        if self.sends_files:
            if not may_wait:
                size = cached_bytes(fd, position, min(size, _PROBE_BYTES))
                if not size:
                    return None
            try:
                result = send_file_once(self._sock.fileno(), fd, position, size)
                self._is_full = result < size
            except SendfileUnavailable:
                self.sends_files = False
        if result is None:
            # A refused piece is not stored but read again, so that slow clients use no memory.
            size = min(remaining, PIECE_BYTES)
            if not may_wait:
                result = self._send_cached(fd, position, size)
            elif len(result := os.pread(fd, size, position)) < self._refused:
                result = b""
        if not result and result is not None:
            raise FileTruncated(remaining, segment_size)
        return result

    def _send_cached(self, fd: int, position: int, size: int) -> int | None:
        """Send a piece of a file from the page cache. Return None if a part is not cached."""
        data = view_cached(fd, position, size)
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
        """Enlarge the send buffer of a fast client after a writable event."""
        if not self._may_grow:
            return
        was_quick, self._was_quick = self._was_quick, time.monotonic() - self._full_since < QUICK_S
        # Two quick events are necessary, because even a slow client's first receive is quick.
        if was_quick and self._was_quick:
            self._may_grow = False
            with contextlib.suppress(OSError):  # the client has left, and the next send fails
                release_send_buffer(cast(SocketLike, self._sock))


class MultiplexedSender(SocketSender):
    """Passes few bytes at a time to the kernel for a slow client. So no urgent response is late.

    TCP_NOTSENT_LOWAT delays the writable event until the kernel has sent nearly all bytes. But
    after the event, the kernel would accept packets of 64 KiB. So this sender passes fewer bytes to
    the kernel until the next event.
    """

    __slots__ = ("_allowed_bytes", "_bytes_per_event", "_paused_at", "_refused_bytes", "_send_all")

    def __init__(self, sock: socket.socket, rules: OutputRules) -> None:
        super().__init__(sock, rules)
        self._send_all, self.send = self.send, self._send_part
        # The number of bytes that may be sent after one writable event, and how many of these bytes
        # may still be sent.
        self._bytes_per_event = self._allowed_bytes = math.inf
        self._refused_bytes = 0  # the number of bytes that TLS refused and must get again
        self._paused_at = 0.0

    def _send_part(self, data: bytes | memoryview) -> int:
        size = len(data)
        if size > self._allowed_bytes:
            size = max(int(self._allowed_bytes), self._refused_bytes)
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
            self._refused_bytes = size if self.encrypts and not sent else 0
        self._allowed_bytes = max(0, self._allowed_bytes - sent)
        return sent

    def _send_buffers(self, backlog: Backlog) -> None:
        self._send_first_buffer(backlog)

    def _on_writable(self) -> None:
        super()._on_writable()
        was_paced = self.is_paced
        if time.monotonic() - self._paused_at > _FAST_S and self._is_far():
            self._bytes_per_event = _UNSENT_BYTES
        else:
            # The limit is not removed at once, because one quick event may be a coincidence.
            self._bytes_per_event *= 2
            if self._bytes_per_event > _MAX_BYTES_PER_EVENT:
                self._bytes_per_event = math.inf
        if self.is_paced is not was_paced:
            limit_unsent(cast(SocketLike, self._sock), _UNSENT_BYTES if self.is_paced else 0)
        self._allowed_bytes = self._bytes_per_event

    @property
    def is_paced(self) -> bool:
        """Whether the client is slow, so that the number of bytes after an event is limited."""
        return self._bytes_per_event < math.inf

    def _is_far(self) -> bool:
        """Return whether the client's round trip is long. A near client may just be busy."""
        try:
            return smoothed_round_trip_us(cast(SocketLike, self._sock)) > _FAR_US
        except OSError:  # a Unix socket, or the client has left
            return False


def _encrypt(sock: socket.socket, data: bytes | memoryview) -> int:
    """Send the first piece of some bytes with TLS. TLS accepts the whole piece or nothing."""
    return sock.send(data if len(data) <= PIECE_BYTES else memoryview(data)[:PIECE_BYTES])
