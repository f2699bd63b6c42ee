"""Send one range of a file by sendfile, on a socket that the event loop's transport owns.

Theory of operation. Everything is done in the event loop's thread, except reads from the disk. The
file's descriptor stays the caller's, and open until the transfer has ended.

- :meth:`FileTransfer.step` makes one sendfile call of at most WINDOW_BYTES, so that other
  connections have their turns. The first step is made at once. When the socket is full, it is
  watched, and each time it has room a callback of the loop makes the next step.
- A thread, which may wait for the disk, sends bytes that are not known to be in the page cache. It
  has a duplicate of the socket's descriptor, so that the number cannot become another connection's
  while the thread runs.
- The socket's send buffer starts small, and grows if the client is quick. Bytes that slow clients
  leave in their buffers count against the kernel's memory for all TCP connections. When that is
  exhausted, a socket is writable and accepts nothing. Waiting for writability would spin, so a
  timer waits instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import os
import select
import socket
import time
from collections.abc import Callable
from typing import Any

from wsgifast.sockets import FileSegment, FileTruncated, release_send_buffer
from wsgifast.sockets.options import QUICK_S, limit_send_buffer
from wsgifast.sockets.sending import MSG_MORE, SendfileUnavailable, cached_bytes, send_file_once

from ..counters import counters
from ..loops import in_thread

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


class Progress(enum.Enum):
    DONE = "the kernel has the last byte"
    FULL = "the socket takes no more now, or other connections have their turn"
    COLD = "the next bytes may have to be read from the disk"


class FileOwner(asyncio.Transport):
    """The transport that a file is sent on.

    :ivar may_grow: the socket's send buffer is limited. None before the first file or large body.
    """

    __slots__ = ("may_grow",)

    may_grow: bool | None

    def file_ended(self, error: BaseException | None) -> None:
        """End the file: its last byte was sent, or an error has stopped it."""
        raise NotImplementedError


class FileTransfer:
    """See the module's docstring.

    :param sock: the transport's socket, as get_extra_info("socket") has it.
    :param head: the response headers, sent before the file in the same packet.
    """

    # Thousands may wait for their clients.
    __slots__ = (
        "_cached_to", "_end", "_error", "_fd", "_head", "_loop", "_offset", "_owner", "_segment",
        "_sock", "_timer", "_waiter", "_waiting_since", "_was_quick", "_watched",
    )  # fmt: skip

    def __init__(
        self,
        owner: FileOwner,
        loop: asyncio.AbstractEventLoop,
        sock: Any,
        head: bytes,
        segment: FileSegment,
    ) -> None:
        self._owner = owner
        self._loop = loop
        self._sock = sock
        self._head = head
        self._segment = segment
        self._fd, self._offset, size = segment
        self._end = self._offset + size
        # Up to here the file was found in memory.
        self._cached_to = 0
        self._waiter: asyncio.Future[Progress] | None = None
        self._waiting_since = 0.0
        self._was_quick = False
        self._timer: asyncio.TimerHandle | None = None
        self._error: Exception | None = None
        # The socket's descriptor while it is watched.
        self._watched = -1
        if owner.may_grow is None:
            owner.may_grow = limit_send_buffer(sock)

    def step(self) -> Progress:
        """Send as much of the page cache as the socket accepts now, up to one window.

        :raises SendfileUnavailable: if the kernel cannot. Nothing of the file was sent.
        :raises FileTruncated: if the file ends early.
        :raises OSError: if the peer has gone.
        """
        try:
            if self._head:
                self._send_head()
            count = self._in_memory()
            if count == 0:
                return Progress.COLD
            sent = send_file_once(self._sock.fileno(), self._fd, self._offset, count)
        except (OSError, SendfileUnavailable) as error:
            return self._refused(error)
        return self._sent(sent)

    async def send(self, progress: Progress) -> None:
        """Send the remaining bytes.

        :param progress: the result of the first :meth:`step`.

        :raises Exception: as :meth:`step`, and the error passed to :meth:`fail`.
        """
        try:
            while progress is not Progress.DONE:
                if self._error is not None:
                    raise self._error
                if progress is Progress.COLD:
                    progress = await self._step_in_thread()
                else:
                    # Callbacks make the steps, until one has another result.
                    self._waiter = self._loop.create_future()
                    self._watch()
                    try:
                        progress = await self._waiter
                    finally:
                        self._waiter = None
                        self._unwatch()
        except BaseException as error:
            self._owner.file_ended(error)
            raise
        self._owner.file_ended(None)

    @property
    def unsent(self) -> int:
        """Bytes of the range that the kernel has not."""
        return self._end - self._offset

    def fail(self, error: Exception) -> None:
        """Stop: send() raises the error, and the socket is not used any more."""
        self._error = error
        self._unwatch()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)

    async def _step_in_thread(self) -> Progress:
        out = os.dup(self._sock.fileno())
        count = min(self._end - self._offset, WINDOW_BYTES)
        try:
            sent = await in_thread(send_file_once, out, self._fd, self._offset, count)
        except (OSError, SendfileUnavailable) as error:
            return self._refused(error)
        finally:
            os.close(out)
        return self._sent(sent)

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

    def _send_head(self) -> None:
        sock = self._sock
        # asyncio's and uvloop's own objects have no send().
        own = socket.socket(sock.family, sock.type, sock.proto, fileno=sock.fileno())
        try:
            own.setblocking(False)  # socket.setdefaulttimeout() would have it wait
            while self._head:
                # MSG_MORE: the headers wait for the file's first bytes, and leave with them.
                self._head = self._head[own.send(self._head, MSG_MORE) :]
        finally:
            own.detach()

    def _sent(self, count: int) -> Progress:
        if count == 0:
            raise FileTruncated(self._end - self._offset, self._segment.size)
        self._offset += count
        counters.sendfile_bytes += count
        return Progress.DONE if self._offset == self._end else Progress.FULL

    def _refused(self, error: Exception) -> Progress:
        if isinstance(error, BlockingIOError):
            return Progress.FULL
        try:
            if isinstance(error, SendfileUnavailable) and self._offset != self._segment.offset:
                raise error.__cause__ or error  # too late to send the file another way
            raise error
        finally:
            del error  # its traceback has this frame

    def _watch(self) -> None:
        self._timer = None
        self._watched = self._sock.fileno()
        self._waiting_since = time.monotonic()
        call_while_writable(self._loop, self._watched, self._on_writable)

    def _unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._watched != -1:
            stop_calling(self._loop, self._watched)
            self._watched = -1

    def _on_writable(self) -> None:
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        if self._owner.may_grow:
            now = time.monotonic()
            was_quick, self._was_quick = self._was_quick, now - self._waiting_since < QUICK_S
            # Twice in a row: a slow peer's first receive is quick, too.
            if was_quick and self._was_quick:
                self._owner.may_grow = False
                with contextlib.suppress(OSError):  # the peer has gone: sending will raise
                    release_send_buffer(self._sock)
            self._waiting_since = now
        before = len(self._head), self._offset
        try:
            progress = self.step()
        except Exception as error:  # noqa: BLE001 - send() raises it
            self._unwatch()
            waiter.set_exception(error)
            del waiter  # it refers to the error, and its traceback to this frame
            return
        if progress is not Progress.FULL:
            self._unwatch()
            waiter.set_result(progress)
        elif (len(self._head), self._offset) == before:
            self._unwatch()
            self._timer = self._loop.call_later(_WITHOUT_MEMORY_S, self._watch)


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
