"""Sends what waits for one client on its socket, a turn at a time, and says how long it may wait.

A file is sent only as far as it is in memory; what comes next of it is a disk thread's to bring.
Where the kernel cannot send it by itself, as with TLS, a piece of it is read into one buffer of the
thread and sent from there. What is not taken stays in no memory: it is read again. TLS may have
begun to send a piece that it refuses, and wants the same bytes then.

The send buffer of a near client starts small and grows when the client is quick: what slow clients
leave lying there comes out of the memory that the kernel has for all TCP connections, and when
that is gone, every connection of the host stands still.
"""

from __future__ import annotations

import contextlib
import enum
import os
import socket
import ssl
import time
from functools import partial
from typing import cast

from ..sockets.options import (
    FIRST_SEND_BUFFER_BYTES,
    NEAR_SEND_BUFFER_BYTES,
    QUICK_S,
    SocketLike,
    limit_send_buffer,
)
from ..sockets.page_cache import view_cached
from ..sockets.send_buffers import send_some
from ..sockets.sendfile import (
    MSG_MORE,
    FileSegment,
    FileTruncated,
    SendfileUnavailable,
    send_file_once,
)
from .backlog import Backlog
from .look_ahead import LookAhead
from .output_rules import OutputRules
from .transport import WOULD_BLOCK

__all__ = ["LONG_TURN_BYTES", "Sender", "Turn"]

# One turn for one connection: beyond it, the others get theirs first.
_TURN_BYTES = 4 * 1024 * 1024
# What a disk is asked for before other files have their turn.
_DISK_STEP_BYTES = 1024 * 1024
# What TLS encrypts at once, and what is read at once of a file that the kernel does not send by
# itself. Always the same: what was refused is offered again with no byte less.
_PIECE_BYTES = 128 * 1024
# A turn with TLS, which costs several times as much for each byte; and after how much of one the
# others do not wait for its end: a slow client has no such turns.
_TLS_TURN_BYTES = 2 * 1024 * 1024
LONG_TURN_BYTES = 512 * 1024
# TLS may have sent records of a piece that it refuses, with each event one at least; or it wants
# something else than room. After so many refusals in a row there is no room.
_TLS_REFUSALS = 4 * _PIECE_BYTES // (16 * 1024)
# The send buffer of a quick client with TLS: the encryption goes through more of the cache than the
# kernel does, and every time that the buffer is full costs more than a larger one.
_TLS_SEND_BUFFER_BYTES = 1024 * 1024


class Turn(enum.Enum):
    """How a turn has ended."""

    DONE = "nothing is left"
    FULL = "the kernel takes no more, or it is other connections' turn"
    AGAIN = "the kernel takes nothing, although its event has told of room"
    DISK = "the next bytes may have to come from a disk"


class Sender:
    """The sending end of one connection; called under its queue's lock, but for a disk's step.

    :param sock: non-blocking, plain or TLS.
    :ivar send: sends a block as far as the kernel takes it.
    :ivar encrypts: whether that is TLS.
    :ivar sends_files: whether the kernel sends files by itself; with TLS it never does.
    """

    __slots__ = (
        "_ahead",
        "_deadline",
        "_full_since",
        "_is_full",
        "_may_grow",
        "_refusals",
        "_refused",
        "_rules",
        "_sized",
        "_sock",
        "_taken",
        "_waiting_since",
        "encrypts",
        "send",
        "sends_files",
    )

    def __init__(self, sock: socket.socket, rules: OutputRules) -> None:
        self._sock = sock
        self._rules = rules
        self.encrypts = isinstance(sock, ssl.SSLSocket)
        self.send = partial(_encrypt, sock) if self.encrypts else sock.send
        self.sends_files = rules.sendfile and not self.encrypts and hasattr(os, "sendfile")
        self._sized = False  # whether the send buffer has been chosen
        self._may_grow = False  # it is the small one
        self._full_since = 0.0
        self._is_full = False  # the kernel has taken less than it was last given
        self._ahead: LookAhead | None = None  # made for the first file
        self._refused = 0  # bytes of a file that would have blocked: TLS takes no fewer then
        self._refusals = 0  # events in a row that have told of room, and nothing was taken
        self._waiting_since: float | None = None  # for the client, with something left to send
        self._taken = 0  # bytes, since then
        self._deadline = 0.0

    def take_turn(self, backlog: Backlog, *, after_event: bool = False) -> Turn:
        """Send until the kernel is full, the turn is over, or the disk is needed.

        :param after_event: the socket was writable just now.
        :raises FileTruncated: if a file ends early.
        :raises OSError: if the client has gone, or a file cannot be read.
        """
        if after_event:
            self._note_writable()
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
                    self._limit_buffer()
                    done = self._send_file(backlog, first, end - self._taken, may_wait=False)
                    if done is None:
                        return Turn.DISK
                    self.note_file(backlog, done)
                else:
                    self._send_buffers(backlog)
                if self._is_full:
                    return Turn.FULL
        except WOULD_BLOCK:
            if self._taken > before or not after_event:
                self._refusals = 0
                return Turn.FULL
            self._refusals += 1
            starves = not self.encrypts or self._refusals >= _TLS_REFUSALS
            return Turn.AGAIN if starves else Turn.FULL
        self._waiting_since = None
        return Turn.DONE

    def wait_until(self, *, again: bool) -> float:
        """The client is waited for from now on; when it is to be given up, by the monotonic clock.

        :param again: as it was before: it is not the client that keeps us waiting.
        """
        self._limit_buffer()
        now = time.monotonic()
        if self._may_grow:
            self._full_since = now
        if again:
            return self._deadline
        if self._waiting_since is None:
            self._waiting_since = now
            self._taken = 0
        self._deadline = now + self._rules.time_left_s(now - self._waiting_since, self._taken)
        return self._deadline

    def pace(self, now: float) -> tuple[float, int] | None:
        """See :meth:`~.output.Sends.pace`."""
        since, taken = self._waiting_since, self._taken
        return None if since is None else (now - since, taken)

    # Bytes

    def _send_buffers(self, backlog: Backlog) -> None:
        buffers, file_follows = backlog.buffers()
        if self.encrypts:
            # After a refusal TLS wants the same bytes again: a backlog's front only ever shrinks.
            del buffers[1:]
            rest = buffers[0][self.send(buffers[0]) :]
            self._is_full = False
            self._taken += backlog.replace_buffers(1, [rest] if rest else ())
            return
        flags = MSG_MORE if file_follows and self.sends_files else 0
        left = send_some(self._sock, buffers, flags)
        self._is_full = bool(left)
        self._taken += backlog.replace_buffers(len(buffers), left)

    # Files

    def step_from_disk(self, backlog: Backlog, segment: FileSegment) -> int | bytes:
        """Send or read the next bytes of the file in front, and wait for its disk.

        In a disk thread, and without the lock: nobody else may send meanwhile.

        :returns: what :meth:`note_file` is to be told, with the lock.
        :raises OSError: as :meth:`take_turn`.
        """
        began = time.monotonic()
        try:
            return self._send_file(backlog, segment, _DISK_STEP_BYTES, may_wait=True) or 0
        except WOULD_BLOCK:
            return 0
        finally:
            if self._waiting_since is not None:  # what the disk took is not the client's time
                self._waiting_since += time.monotonic() - began

    def note_file(self, backlog: Backlog, done: int | bytes) -> None:
        """Take note of what was sent of the file in front, or read of it, to be sent next."""
        if isinstance(done, bytes):
            backlog.insert_read(done)
            self._refused = 0  # it stands in front from now on, and stays until it is taken
            return
        self._taken += done
        if self.sends_files:
            self._rules.counters.sendfile_bytes += done
        backlog.advance_file(done, by_kernel=self.sends_files)

    def _send_file(
        self, backlog: Backlog, segment: FileSegment, most: int, *, may_wait: bool
    ) -> int | bytes | None:
        """Send the next bytes of a file.

        :param may_wait: for the disk.
        :returns: how many bytes the kernel has taken; what was read in their place, where the disk
            was waited for and the kernel cannot send files; None if the disk must be waited for, or
            may have to be.
        """
        fd, offset, whole = segment
        place = offset + backlog.file_sent
        left = whole - backlog.file_sent
        size = min(left, most)
        result: int | bytes | None = None
        if self.sends_files:
            if not may_wait:
                if self._ahead is None:
                    self._ahead = LookAhead(self._rules.seen)
                cached = self._ahead.cached_bytes(fd, place, left, begin=left == whole)
                if not cached:
                    return None
                size = min(size, cached)
            try:
                result = send_file_once(self._sock.fileno(), fd, place, size)
                self._is_full = result < size
            except SendfileUnavailable:
                self.sends_files = False
        if result is None:
            # What is not taken is read again, from memory: a slow client's keeps none.
            size = min(left, _PIECE_BYTES)
            if not may_wait:
                result = self._send_cached(fd, place, size)
            elif len(result := os.pread(fd, size, place)) < self._refused:
                result = b""
        if not result and result is not None:
            raise FileTruncated(left, whole)
        return result

    def _send_cached(self, fd: int, place: int, size: int) -> int | None:
        """Read a piece of a file from memory and send it; None if not all of it is there."""
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

    # The kernel's buffer

    def _limit_buffer(self) -> None:
        """Choose the send buffer, once: more is to be sent than an answer of the usual size."""
        if not self._sized:
            self._sized = True
            # Reset just now: the next send says so.
            with contextlib.suppress(OSError):
                self._may_grow = limit_send_buffer(
                    cast(SocketLike, self._sock), FIRST_SEND_BUFFER_BYTES
                )

    def _note_writable(self) -> None:
        """The client has made room; a quick one is given a larger buffer."""
        if self._may_grow and time.monotonic() - self._full_since < QUICK_S:
            self._may_grow = False
            with contextlib.suppress(OSError):  # as above
                limit_send_buffer(
                    cast(SocketLike, self._sock),
                    _TLS_SEND_BUFFER_BYTES if self.encrypts else NEAR_SEND_BUFFER_BYTES,
                )


def _encrypt(sock: socket.socket, data: bytes | memoryview) -> int:
    """Send the first piece of some bytes with TLS, which takes all of it or would block."""
    return sock.send(data if len(data) <= _PIECE_BYTES else memoryview(data)[:_PIECE_BYTES])
