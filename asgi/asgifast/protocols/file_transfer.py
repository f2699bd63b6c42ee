"""Files in the output of a connection: sent by sendfile, or read and written.

Theory of operation. Everything is done in the event loop's thread, except reads from the disk. The
file's descriptor stays the caller's, and open until the transfer has ended.

- :meth:`FileTransfer.begin` makes one sendfile call of at most WINDOW_BYTES, so that other
  connections have their turns. When the socket is full, it is watched, and each time it has room a
  callback of the loop makes the next call.
- A thread, which may wait for the disk, sends bytes that are not known to be in the page cache. It
  has a duplicate of the socket's descriptor, so that the number cannot become another connection's
  while the thread runs.
- sendfile bypasses the buffer of the loop's transport. So a file waits until that is empty.
- The socket's send buffer starts small, and grows if the client is quick. Bytes that slow clients
  leave in their buffers count against the kernel's memory for all TCP connections. When that is
  exhausted, a socket is writable and accepts nothing. Waiting for writability would spin, so a
  timer waits instead.
- A :class:`FileReader` writes blocks of the file to the loop's transport: over TLS, and where the
  kernel cannot send a file. It waits while the loop's transport has paused its protocol.
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
# Gets the number of unsent bytes, and why they were not sent.
OnSent = Callable[[int, "Exception | None"], object]

# One sendfile call: less than a millisecond, even where the send buffer has grown to megabytes.
WINDOW_BYTES = 1024 * 1024
# Between two attempts while the kernel has no memory for TCP: no event says when it has again.
_WITHOUT_MEMORY_S = 0.1

# Other systems have files read and written.
HAS_EPOLL = hasattr(select, "epoll")
# How long callbacks may take in one turn of the loop: many times the cost of the next turn.
TURN_S = 0.001
# So many callbacks between two looks at the clock: together they should take no longer than a turn,
# even if fast clients take whole windows.
EVENTS_AT_ONCE = 8


class FileOwner(asyncio.Transport):
    """The transport that a file is sent on.

    :ivar real: the event loop's transport.
    :ivar may_grow: the socket's send buffer is limited. None before the first file or large body.
    :ivar is_paused: the loop's transport has called its protocol's pause_writing().
    """

    __slots__ = ("is_paused", "may_grow", "real")

    real: asyncio.Transport
    may_grow: bool | None
    is_paused: bool

    def write_block(self, data: bytes | bytearray | memoryview) -> None:
        """Write a block of the file."""
        raise NotImplementedError

    def file_ended(self, error: Exception | None) -> None:
        """End the file that was not sent at once."""
        raise NotImplementedError


class FileOutput:
    """A range of a file on its way to the socket.

    :ivar segment: the whole range.
    :ivar on_sent: see the owner's write_file().
    """

    # Thousands may wait for their clients.
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
        """Bytes of the range that the kernel, or the loop's transport, has not."""
        return self._end - self._offset

    def begin(self, headers: bytes) -> bool:
        """Send bytes, and as much of the file behind them as is possible now.

        :returns: whether all of it was sent. If not, the owner's file_ended() follows.
        :raises SendfileUnavailable: if the kernel cannot. The bytes were sent, and no file.
        :raises FileTruncated: if the file ends early.
        :raises OSError: if the peer has gone, or the file cannot be read.
        """
        raise NotImplementedError

    def drained(self) -> None:
        """Go on: the loop's transport has called its protocol's resume_writing()."""

    def fail(self, error: Exception) -> None:
        """Stop, and use the socket no more. The file may be closed when its end is reported."""
        self._stop_waiting()
        if self._error is None:
            self._error = error
            if not self._is_in_thread:
                self._owner.file_ended(error)

    def _stop_waiting(self) -> None:
        raise NotImplementedError

    def _go_on(self) -> bool:
        """Send as much as is possible now. Return whether all is sent."""
        raise NotImplementedError

    def _continue(self) -> None:
        """Go on in a callback of the loop, which reports the end."""
        if self._error is None:
            self._attempt(self._go_on)

    def _attempt(self, go_on: Callable[[], bool]) -> None:
        error = None
        try:
            if not go_on():
                return
        except Exception as failure:  # noqa: BLE001 - the sender of the file gets it
            error = failure
        self._stop_waiting()
        self._owner.file_ended(error)

    def _call_in_thread(
        self,
        then: Callable[[Callable[[], T]], bool],
        function: Callable[..., T],
        *args: Any,
        out: int = -1,
    ) -> None:
        """Call a function that may wait for the disk. Go on with the function that returns its
        result.

        :param out: a descriptor to close behind it.
        """
        self._is_in_thread = True
        call = self._loop.run_in_executor(None, function, *args)
        call.add_done_callback(partial(self._on_thread_end, then, out))

    def _on_thread_end(
        self, then: Callable[[Callable[[], T]], bool], out: int, call: asyncio.Future[T]
    ) -> None:
        self._is_in_thread = False
        if out != -1:
            os.close(out)
        if self._error is None:
            self._attempt(partial(then, call.result))
        else:
            call.exception()  # otherwise it would be logged
            self._owner.file_ended(self._error)


class FileTransfer(FileOutput):
    """Sends by sendfile. See the module's docstring."""

    __slots__ = (
        "_cached_to", "_headers", "_is_behind_buffer", "_sock", "_timer", "_waiting_since",
        "_was_quick", "_watched",
    )  # fmt: skip

    def begin(self, headers: bytes) -> bool:
        self._sock = self._owner.real.get_extra_info("socket")
        # Up to here the file was found in memory.
        self._cached_to = 0
        self._waiting_since = 0.0
        self._was_quick = False
        self._timer: asyncio.TimerHandle | None = None
        # The socket's descriptor while it is watched.
        self._watched = -1
        self._is_behind_buffer = self._owner.real.get_write_buffer_size() > 0
        if self._is_behind_buffer:
            self._headers = b""
            self._owner.real.write(headers)
            self._owner.real.set_write_buffer_limits(high=0)
            return False
        self._headers = headers
        return self._go_on()

    def drained(self) -> None:
        if self._is_behind_buffer and not self._owner.real.get_write_buffer_size():
            self._is_behind_buffer = False
            self._owner.real.set_write_buffer_limits()
            self._continue()

    def _go_on(self) -> bool:
        if self._owner.may_grow is None:
            self._owner.may_grow = limit_send_buffer(self._sock)
        return self._wait_after(self._send_cached)

    def _wait_after(self, send: Callable[[], int | None]) -> bool:
        """Call a function that sends, and wait until it can go on. Return whether all is sent.

        :param send: returns the number of sent bytes, or None if they may have to come from the
            disk.
        """
        try:
            sent = send()
        except BlockingIOError:
            sent = 0
        except SendfileUnavailable as error:
            if self._offset != self.segment.offset:  # too late to send the file another way
                raise error.__cause__ or error from None
            raise
        else:
            if sent == 0:
                raise FileTruncated(self.unsent, self.segment.size)
        if sent is None:
            self._stop_waiting()
            out = os.dup(self._sock.fileno())
            count = min(self.unsent, WINDOW_BYTES)
            self._call_in_thread(
                self._wait_after, send_file_once, out, self._fd, self._offset, count, out=out
            )
            return False
        self._offset += sent
        counters.sendfile_bytes += sent
        if self.unsent and self._watched == -1:
            self._watch()
        return not self.unsent

    def _send_cached(self) -> int | None:
        """Send as much of the page cache as the socket accepts now, up to one window."""
        if self._headers:
            self._send_headers()
        count = self._in_memory()
        return send_file_once(self._sock.fileno(), self._fd, self._offset, count) if count else None

    def _in_memory(self) -> int:
        """Return how many of the next bytes are in the page cache, up to one window.

        The result is 0 if that is unknown.
        """
        start = self._offset
        known = self._cached_to
        if known <= start or not cached_bytes(self._fd, start, 1):
            known = start
        left = self._end - start
        if known - start < min(left, WINDOW_BYTES // 4):
            known += cached_bytes(self._fd, known, min(left, WINDOW_BYTES) - (known - start))
        self._cached_to = known
        return known - start

    def _send_headers(self) -> None:
        sock = self._sock
        # asyncio's and uvloop's own objects have no send().
        own = socket.socket(sock.family, sock.type, sock.proto, fileno=sock.fileno())
        try:
            own.setblocking(False)  # socket.setdefaulttimeout() would have it wait
            while self._headers:
                # MSG_MORE: the headers wait for the file's first bytes, and leave with them.
                self._headers = self._headers[own.send(self._headers, MSG_MORE) :]
        finally:
            own.detach()

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
            # Twice in a row: a slow peer's first receive is quick, too.
            if was_quick and self._was_quick:
                self._owner.may_grow = False
                with contextlib.suppress(OSError):  # the peer has gone: sending will raise
                    release_send_buffer(self._sock)
            self._waiting_since = now
        before = len(self._headers), self._offset
        self._continue()
        if self._watched != -1 and (len(self._headers), self._offset) == before:
            self._stop_waiting()
            self._timer = self._loop.call_later(_WITHOUT_MEMORY_S, self._watch)


class FileReader(FileOutput):
    """Reads a file, and writes it to the loop's transport. A turn of the loop has one block."""

    __slots__ = ()

    def begin(self, headers: bytes) -> bool:
        if headers:
            self._owner.real.write(headers)
        return self._go_on()

    def drained(self) -> None:
        if not self._is_in_thread:
            self._continue()

    def _go_on(self) -> bool:
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
            self._loop.call_soon(self.drained)
        return False

    def _stop_waiting(self) -> None:
        pass


# Sockets with room. An event loop refuses to watch the descriptor of a transport's socket, and a
# duplicate would count against the process's limit for as long as the client reads. So one selector
# watches all such sockets of a loop, and the loop watches the selector: epoll can be nested. The
# selector exists as long as it watches a socket.
#
# Thousands of downloads may have room at once, such as when a link recovers. Serving all of them in
# one turn of the loop would delay everything else, so that a turn ends after TURN_S. The next one
# begins with those not served: epoll puts the events that it has reported behind the others.


def call_while_writable(
    loop: asyncio.AbstractEventLoop, fd: int, callback: Callable[[], object]
) -> None:
    """Call a function again and again while a socket has room.

    :param fd: must stay open until :func:`stop_calling`: its number may be reused.
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
    """The watched sockets of a loop, and their callbacks."""

    def __init__(self) -> None:
        # Not the selectors module, which makes objects of each event.
        self.epoll = select.epoll()
        self.callbacks: dict[int, Callable[[], object]] = {}

    def call_ready(self) -> None:
        """Call the callbacks of sockets with room, for one turn of the loop."""
        callbacks = self.callbacks
        end = time.monotonic() + TURN_S
        while callbacks:  # without one, the selector is closed
            ready = self.epoll.poll(0, EVENTS_AT_ONCE)
            for fd, _ in ready:
                callback = callbacks.get(fd)
                if callback is not None:  # another callback may have removed it
                    callback()
            if len(ready) < EVENTS_AT_ONCE or time.monotonic() >= end:
                return


_watched: dict[asyncio.AbstractEventLoop, _Watched] = {}
