"""Send a file on a connection: by sendfile, or by reads and writes.

Theory of operation. Everything runs in the event loop's thread, except reads from the disk. The
caller keeps the file's descriptor open until the transfer has ended.

- :meth:`FileTransfer.begin` makes one sendfile call of at most WINDOW_BYTES, so that other
  connections are served too. When the socket is full, the event loop watches it. Each time the
  socket is writable, a callback makes the next call.
- A thread, which may wait for the disk, sends bytes that may not be in the page cache. The thread
  uses a duplicate of the socket's descriptor. Otherwise, if the connection ended while the thread
  runs, a new connection could get the same descriptor number.
- sendfile bypasses the write buffer of the loop's transport. So a file waits until that buffer is
  empty.
- The socket's send buffer is small at first, and grows if the client reads quickly. Unsent bytes of
  slow clients count against the memory that the kernel has for all TCP connections. When this
  memory is exhausted, a socket is reported as writable but accepts no bytes. Then a timer delays
  the next attempt, because callbacks for writable sockets would use all of the processor.
- Over TLS, and if the kernel cannot send the file, a :class:`FileReader` writes blocks of the file
  to the loop's transport. It waits while the transport has called its protocol's pause_writing().
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from wsgifast.sockets import FileSegment, FileTruncated, release_send_buffer
from wsgifast.sockets.options import QUICK_S, limit_send_buffer
from wsgifast.sockets.sending import (
    BLOCK_BYTES,
    MSG_MORE,
    SendfileUnavailable,
    cached_bytes,
    read_cached,
    send_file_once,
)

from ..counters import counters

T = TypeVar("T")
# A function that is called when a range has been sent, or cannot be sent. Its arguments are the
# number of unsent bytes, and the error or None.
OnSent = Callable[[int, "Exception | None"], object]

# The most bytes of one sendfile call, which takes less than a millisecond.
WINDOW_BYTES = 1024 * 1024
# The time between two attempts while the kernel has no memory for TCP. No event tells when the
# kernel has memory again.
_MEMORY_RETRY_S = 0.1

# Without epoll, FileReader sends the files.
HAS_EPOLL = hasattr(select, "epoll")
# The time for callbacks in one event loop iteration: many times the cost of an iteration.
ITERATION_S = 0.001
# The number of callbacks between two readings of the clock. These callbacks should not take longer
# than ITERATION_S, even if each of them sends WINDOW_BYTES.
EVENTS_PER_POLL = 8


class FileOwner(asyncio.Transport):
    """The transport on which a file is sent.

    :ivar real: the event loop's transport.
    :ivar may_grow: whether the socket's send buffer is limited, and may be enlarged for a quick
        client. None before the first file or large body.
    :ivar is_paused: whether the loop's transport has called its protocol's pause_writing().
    """

    __slots__ = ("is_paused", "may_grow", "real")

    real: asyncio.Transport
    may_grow: bool | None
    is_paused: bool

    def write_block(self, data: bytes | bytearray | memoryview) -> None:
        """Write a block of the file."""
        raise NotImplementedError

    def file_ended(self, error: Exception | None) -> None:
        """Handle the end of the file whose begin() has returned False."""
        raise NotImplementedError


class FileOutput:
    """Base class of FileTransfer and FileReader: sends one range of a file.

    :ivar segment: the whole range.
    :ivar on_sent: the function that is called when the range has been sent. See write_file().
    """

    # Slots, because thousands of these objects may wait for their clients.
    __slots__ = ("_end", "_error", "_fd", "_is_in_thread", "_loop", "_offset", "_owner", "on_sent",
                 "segment")  # fmt: skip

    def __init__(
        self,
        owner: FileOwner,
        loop: asyncio.AbstractEventLoop,
        segment: FileSegment,
        on_sent: OnSent,
    ) -> None:
        self._owner = owner
        self._loop = loop
        self.segment = segment
        self._fd, self._offset, size = segment
        self._end = self._offset + size
        self._error: Exception | None = None
        self._is_in_thread = False
        self.on_sent = on_sent

    @property
    def unsent(self) -> int:
        """The bytes of the range that neither the kernel nor the loop's transport has accepted."""
        return self._end - self._offset

    def begin(self, headers: bytes) -> bool:
        """Send the headers, and after them as much of the file as is possible now.

        :returns: whether all of the file was sent. If not, file_ended() of the owner is called
            later.
        :raises SendfileUnavailable: if the kernel cannot send this file. The headers were sent, and
            none of the file.
        :raises FileTruncated: if the file ends early.
        :raises OSError: if the client has left, or the file cannot be read.
        """
        raise NotImplementedError

    def resume(self) -> None:
        """Continue after the loop's transport has called its protocol's resume_writing()."""

    def fail(self, error: Exception) -> None:
        """Stop, and report the error to file_ended(). Until then the file must remain open."""
        self._stop_waiting()
        if self._error is None:
            self._error = error
            if not self._is_in_thread:
                self._owner.file_ended(error)

    def _stop_waiting(self) -> None:
        raise NotImplementedError

    def _send_now(self) -> bool:
        """Send as much as is possible now. Return whether the whole range is sent."""
        raise NotImplementedError

    def _continue(self) -> None:
        """Continue in a callback of the loop. Call file_ended() at the end."""
        if self._error is None:
            self._attempt(self._send_now)

    def _attempt(self, send_now: Callable[[], bool]) -> None:
        error = None
        try:
            if not send_now():
                return
        except Exception as failure:  # noqa: BLE001 - passed to the sender of the file
            error = failure
        self._stop_waiting()
        self._owner.file_ended(error)

    def _call_in_thread(
        self,
        callback: Callable[[Callable[[], T]], bool],
        function: Callable[..., T],
        *args: Any,
        duplicate: int = -1,
    ) -> None:
        """Call a function that may wait for the disk, in a thread.

        :param callback: called in the loop's thread, with a function that returns the result. It
            returns whether the whole range is sent.
        :param duplicate: a descriptor to close after the call.
        """
        self._is_in_thread = True
        call = self._loop.run_in_executor(None, function, *args)
        call.add_done_callback(partial(self._on_thread_end, callback, duplicate))

    def _on_thread_end(
        self, callback: Callable[[Callable[[], T]], bool], duplicate: int, call: asyncio.Future[T]
    ) -> None:
        self._is_in_thread = False
        if duplicate != -1:
            os.close(duplicate)
        if self._error is None:
            self._attempt(partial(callback, call.result))
        else:
            call.exception()  # an exception that is not read would be logged
            self._owner.file_ended(self._error)


class FileTransfer(FileOutput):
    """Sends a file by sendfile. See the module's docstring."""

    __slots__ = (
        "_cached_until", "_headers", "_sock", "_timer", "_waiting_since", "_waits_for_buffer",
        "_was_quick", "_watched",
    )  # fmt: skip

    def begin(self, headers: bytes) -> bool:
        self._sock = self._owner.real.get_extra_info("socket")
        # The file is in the page cache up to this offset.
        self._cached_until = 0
        self._waiting_since = 0.0
        self._was_quick = False
        self._timer: asyncio.TimerHandle | None = None
        # The socket's descriptor while it is watched.
        self._watched = -1
        self._waits_for_buffer = self._owner.real.get_write_buffer_size() > 0
        if self._waits_for_buffer:
            self._headers = b""
            self._owner.real.write(headers)
            self._owner.real.set_write_buffer_limits(high=0)
            return False
        self._headers = headers
        return self._send_now()

    def resume(self) -> None:
        if self._waits_for_buffer and not self._owner.real.get_write_buffer_size():
            self._waits_for_buffer = False
            self._owner.real.set_write_buffer_limits()
            self._continue()

    def _send_now(self) -> bool:
        if self._owner.may_grow is None:
            self._owner.may_grow = limit_send_buffer(self._sock)
        return self._wait_after(self._send_cached)

    def _wait_after(self, send: Callable[[], int | None]) -> bool:
        """Call a function that sends bytes of the file. Arrange the next call, if bytes remain.

        :param send: returns the number of sent bytes, or None if the next bytes may not be in the
            page cache.
        :returns: whether the whole range is sent.
        """
        try:
            sent = send()
        except BlockingIOError:
            sent = 0
        except SendfileUnavailable as error:
            if self._offset != self.segment.offset:  # a part has been sent already
                raise error.__cause__ or error from None
            raise
        else:
            if sent == 0:
                raise FileTruncated(self.unsent, self.segment.size)
        if sent is None:
            self._stop_waiting()
            duplicate = os.dup(self._sock.fileno())
            count = min(self.unsent, WINDOW_BYTES)
            self._call_in_thread(
                self._wait_after,
                send_file_once,
                duplicate,
                self._fd,
                self._offset,
                count,
                duplicate=duplicate,
            )
            return False
        self._offset += sent
        counters.sendfile_bytes += sent
        if self.unsent and self._watched == -1:
            self._watch()
        return not self.unsent

    def _send_cached(self) -> int | None:
        """Send as many cached bytes of the file as the socket accepts now, up to WINDOW_BYTES."""
        if self._headers:
            self._send_headers()
        count = self._cached_count()
        return send_file_once(self._sock.fileno(), self._fd, self._offset, count) if count else None

    def _cached_count(self) -> int:
        """Return the number of next bytes that are in the page cache, up to WINDOW_BYTES.

        Return 0 if that is unknown.
        """
        start = self._offset
        known = self._cached_until
        if known <= start or not cached_bytes(self._fd, start, 1):
            known = start
        remaining = self._end - start
        if known - start < min(remaining, WINDOW_BYTES // 4):
            known += cached_bytes(self._fd, known, min(remaining, WINDOW_BYTES) - (known - start))
        self._cached_until = known
        return known - start

    def _send_headers(self) -> None:
        sock = self._sock
        # The socket objects of asyncio's and uvloop's transports have no send().
        sender = socket.socket(sock.family, sock.type, sock.proto, fileno=sock.fileno())
        try:
            sender.setblocking(False)  # in case of socket.setdefaulttimeout()
            while self._headers:
                # MSG_MORE: the kernel sends the headers together with the first bytes of the file.
                self._headers = self._headers[sender.send(self._headers, MSG_MORE) :]
        finally:
            sender.detach()

    def _watch(self) -> None:
        self._timer = None
        self._watched = self._sock.fileno()
        self._waiting_since = time.monotonic()
        call_while_writable(self._loop, self._watched, self._on_writable)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._watched != -1:
            stop_calling(self._loop, self._watched)
            self._watched = -1

    def _on_writable(self) -> None:
        if self._owner.may_grow:
            now = time.monotonic()
            was_quick, self._was_quick = self._was_quick, now - self._waiting_since < QUICK_S
            # Only after two quick events in a row, because the first receive of a slow client is
            # quick too.
            if was_quick and self._was_quick:
                self._owner.may_grow = False
                with contextlib.suppress(OSError):  # the client has left: the next send raises
                    release_send_buffer(self._sock)
            self._waiting_since = now
        before = len(self._headers), self._offset
        self._continue()
        if self._watched != -1 and (len(self._headers), self._offset) == before:
            self._stop_waiting()
            self._timer = self._loop.call_later(_MEMORY_RETRY_S, self._watch)


class FileReader(FileOutput):
    """Reads a file and writes it to the loop's transport, one block in each iteration."""

    __slots__ = ()

    def begin(self, headers: bytes) -> bool:
        if headers:
            self._owner.real.write(headers)
        return self._send_now()

    def resume(self) -> None:
        if not self._is_in_thread:
            self._continue()

    def _send_now(self) -> bool:
        size = min(BLOCK_BYTES, self.unsent)
        block = read_cached(self._fd, self._offset, size)
        if block is None:
            self._call_in_thread(self._write, os.pread, self._fd, size, self._offset)
            return False
        return self._write(lambda: block)

    def _write(self, read: Callable[[], bytes | memoryview]) -> bool:
        block = read()
        if not block:
            raise FileTruncated(self.unsent, self.segment.size)
        self._offset += len(block)
        self._owner.write_block(block)
        if not self.unsent:
            return True
        if not self._owner.is_paused:
            self._loop.call_soon(self.resume)
        return False

    def _stop_waiting(self) -> None:
        pass


# The functions below watch for writable sockets. An event loop refuses to watch the descriptor of a
# transport's socket. A duplicate of the descriptor would count against the process's limit while
# the client reads. So one epoll object watches all such sockets of a loop, and the loop watches the
# epoll object. The epoll object is closed when it watches no socket.
# Thousands of sockets may become writable at once, such as when a network link recovers. To serve
# all of them in one event loop iteration would delay all other work. So an iteration serves them
# for ITERATION_S. The next iteration begins with the sockets that were not served, because epoll
# reports them first.


def call_while_writable(
    loop: asyncio.AbstractEventLoop, fd: int, callback: Callable[[], object]
) -> None:
    """Call a function whenever a socket is writable, until :func:`stop_calling`.

    :param fd: the descriptor of the socket. It must stay open until :func:`stop_calling`, because
        another file could get its number.
    """
    watched = _watched.get(loop)
    if watched is None:
        watched = _watched[loop] = _Watched()
        loop.add_reader(watched.epoll.fileno(), watched.call_ready)
    watched.epoll.register(fd, select.EPOLLOUT)
    watched.callbacks[fd] = callback


def stop_calling(loop: asyncio.AbstractEventLoop, fd: int) -> None:
    """Undo :func:`call_while_writable`."""
    watched = _watched[loop]
    watched.epoll.unregister(fd)
    del watched.callbacks[fd]
    if not watched.callbacks:
        del _watched[loop]
        loop.remove_reader(watched.epoll.fileno())
        watched.epoll.close()


class _Watched:
    """The watched sockets of an event loop, and their callbacks."""

    def __init__(self) -> None:
        # select.epoll is used because the selectors module makes several objects for each event.
        self.epoll = select.epoll()
        self.callbacks: dict[int, Callable[[], object]] = {}

    def call_ready(self) -> None:
        """Call the callbacks of writable sockets, for up to ITERATION_S."""
        callbacks = self.callbacks
        end = time.monotonic() + ITERATION_S
        while callbacks:  # without callbacks, the epoll object is closed
            ready = self.epoll.poll(0, EVENTS_PER_POLL)
            for fd, _ in ready:
                callback = callbacks.get(fd)
                if callback is not None:  # another callback may have removed this one
                    callback()
            if len(ready) < EVENTS_PER_POLL or time.monotonic() >= end:
                return


_watched: dict[asyncio.AbstractEventLoop, _Watched] = {}
