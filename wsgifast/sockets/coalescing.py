"""Coalescing writers: small messages leave together, and none waits for long.

A system call for each small message costs more than the message; Nagle's algorithm (RFC 896) saves
packets but not calls, and makes a message wait for the peer's acknowledgement. These writers send
with TCP_NODELAY and gather by hand. What they have in common:

- The bytes leave in the order in which write() was called, and all of them before close() returns.
- Memory is bounded: beyond `max_bytes` a write sends, or waits until there is room.
- An error reaches whoever sends. As nobody knows how much the peer got, the writer is broken from
  then on: every later write, flush and close raises SendFailed, with the first error as its cause.
- They do not own the socket: close() ends the writer and leaves the connection open.

When is a message sent?

`CoalescingWriter`: at most one send a window. A message after a quiet window goes out at once;
those that follow within the window are gathered, and leave with the first write after it, at
`max_bytes`, or by flush(), which belongs before every wait for an answer. What is left behind at
the end of a burst is sent by the process's flusher (flusher.py), so it waits for nobody's call.
Who does what: the thread that owns the writer appends and sends; the flusher sends only what is
overdue. Both send under one lock.

`SharedCoalescingWriter`: a message after a quiet window is sent by the thread that writes it. What
comes while somebody sends, or within the window, is left to the writer's own thread, which at once
sends the whole queue as one batch, then what was queued meanwhile, until it is empty. Writing
threads that make no system call keep the interpreter, so batches are large: four threads wrote
746,000 messages a second (p99 285 us), against 397,000 (959 us) when they were the senders
themselves. That thread does not wait for the window to end: no thread can sleep for less than
60 us, so a lone message and its answer took 139 us with such a wait, and 18 to 60 us without.

`AsyncCoalescingWriter`: the first message of a batch asks the loop for a call in its next turn, by
call_soon; creating a timer for each batch costs more than the batch. What is written before that
call joins the batch, unless it is older than the window already: then it leaves at once.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import select
import socket
import threading
import time
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from ..errors import ConfigurationError, WSGIFastError
from .flusher import Bell, flusher
from .gathering import send_all, send_some
from .options import is_plain_socket, set_nodelay

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = [
    "AsyncCoalescingWriter",
    "CoalescingWriter",
    "SendFailed",
    "SharedCoalescingWriter",
    "WriterClosed",
]

# As long as about five small sends take: less saves little, more is felt.
WINDOW_US = 10.0
# As much as one send moves at its best rate over loopback; a socket's buffer takes it whole.
MAX_BYTES = 64 * 1024
# A watched writer that has gathered nothing for so many looks in a row is left alone.
_IDLE_LOOKS = 3
# Between two looks: at first, and when a look found something to send. It doubles with each look
_SHORT_S = 50e-6
# at a writer that sends by itself, up to this: at one look a millisecond they cost 1 % of the rate,
_BUSY_S = 1e-3
# and at one whose peer takes nothing, up to this.
_FULL_S = 10e-3
# A shared writer's thread ends when it had nothing to send for so long: starting one takes 0.1 ms.
_IDLE_S = 1.0
# What a process that ends grants a peer for the messages that are still in a queue.
_EXIT_S = 1.0

Writer = TypeVar("Writer", bound="CoalescingWriter | SharedCoalescingWriter")


class SendFailed(WSGIFastError, OSError):
    """An earlier send failed (see __cause__), so the peer is missing bytes: close the socket."""


class WriterClosed(WSGIFastError, ValueError):
    """A write after close()."""


class CoalescingWriter:
    """Gathers small messages for a blocking socket; for one thread at a time.

    A message that no later call sends leaves by itself, after the window and what the system adds
    to it: the kernel's timer slack (50 us on Linux, and more if all processors are busy) and, while
    other threads compute, the interpreter's switch interval (5 ms, sys.setswitchinterval()). After
    a long burst it may be 1 ms more: looking at a busy writer more often would slow it down. The
    thread that sends it never waits: what a full connection does not take, it tries again after
    0.1 to 10 ms. Close the writer before you close its socket.

    A fork leaves what is gathered to the parent.

    :param sock: a connected socket, blocking or with a timeout. TCP_NODELAY is switched on.
    :param window_us: microseconds; at most one send in this time, unless `max_bytes` are there.
    :param max_bytes: what is gathered at most, and again as much while another part is being sent.
    :param background: False: no other thread sends, so the last messages of a burst wait for the
        next call. It is the only way for sockets that two threads may not use at once: those of
        TLS and gevent, and subclasses of socket.socket.
    :raises ConfigurationError: for an option that cannot work.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        window_us: float = WINDOW_US,
        max_bytes: int = MAX_BYTES,
        background: bool = True,
    ) -> None:
        _check(window_us=window_us, max_bytes=max_bytes)
        if background and not is_plain_socket(sock):
            raise ConfigurationError(
                f"two threads may not use a {type(sock).__module__}.{type(sock).__name__} at once: "
                "pass background=False, and flush() before you wait for an answer"
            )
        set_nodelay(sock)
        self._sock = sock
        self._window_ns = int(window_us * 1000)
        self._max_bytes = max_bytes
        # The owner's thread appends without the lock, and puts a new list here with it; the
        # flusher takes from the list in place, with it: so neither loses what the other adds.
        self._buffers: list[bytes | memoryview] = []
        # Bytes gathered since the owner's thread last sent; the flusher leaves it alone.
        self._size = 0
        # time.monotonic_ns() from when on a write sends.
        self._due = 0
        self._refusal: Exception | None = None
        # Held while something is sent, so that it leaves in order.
        self._sending = threading.Lock()
        self._watched = not background
        # The flusher's: `_due` at its last look, looks in a row with nothing to do, the next pause.
        self._seen_due = 0
        self._idle_looks = 0
        self._pause_s = _SHORT_S

    def write(self, data: ReadableBuffer) -> None:
        """Send or gather one message; what is not bytes is copied, so it may change afterwards.

        :raises OSError: if it sends and that fails; SendFailed if that has happened before.
        :raises WriterClosed: after close().
        """
        if self._refusal is not None:
            raise _again(self._refusal)
        if type(data) is not bytes:
            data = bytes(data)
        self._buffers.append(data)
        self._size += len(data)
        if time.monotonic_ns() >= self._due or self._size >= self._max_bytes:
            self.flush()
        elif not self._watched:
            self._be_watched()

    def flush(self) -> None:
        """Send what was gathered; call it before waiting for an answer.

        :raises OSError: see :meth:`write`.
        """
        with self._sending:
            if self._refusal is not None:
                raise _again(self._refusal)
            buffers, self._buffers, self._size = self._buffers, [], 0
            if not buffers:
                return
            self._refusal = SendFailed("a send was interrupted")  # unless it comes to its end
            try:
                send_all(self._sock, buffers)
            except Exception as error:
                self._refusal = error
                raise
            self._refusal = None
            self._due = time.monotonic_ns() + self._window_ns

    def close(self) -> None:
        """Send what was gathered and refuse further writes; a second close() does nothing.

        :raises OSError: see :meth:`write`.
        """
        if isinstance(self._refusal, WriterClosed):
            return
        try:
            self.flush()
        finally:
            self._refusal = WriterClosed("the writer is closed")

    def __enter__(self: Writer) -> Writer:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _be_watched(self) -> None:
        self._watched = True
        self._seen_due = self._due
        self._idle_looks = 0
        self._pause_s = _SHORT_S
        try:
            flusher.watch(self)
        except RuntimeError:  # no more threads: the process ends, or has too many
            self._watched = False
            self.flush()

    # The flusher's thread calls these.

    def look(self, *, at_exit: bool = False) -> float | None:
        early_ns = 0 if at_exit else self._due - time.monotonic_ns()
        if self._buffers and early_ns <= 0:
            if self._sending.acquire(blocking=False):
                try:
                    self._send_without_waiting()
                finally:
                    self._sending.release()
            return self._pause_s
        if self._due != self._seen_due:
            # The owner's thread sends by itself, and each look disturbs it.
            self._seen_due = self._due
            self._idle_looks = 0
            self._pause_s = min(2 * self._pause_s, _BUSY_S)
            return self._pause_s
        if self._buffers:
            return early_ns / 1e9
        self._idle_looks += 1
        return self._pause_s if self._idle_looks <= _IDLE_LOOKS else None

    def leave(self) -> bool:
        # In this order: write() gathers first and then asks whether it is watched.
        self._watched = False
        if not self._buffers:
            return False
        self._watched = True
        return True

    def forget(self) -> None:
        self._sending = threading.Lock()
        self._buffers = []
        self._watched = False

    def _send_without_waiting(self) -> None:
        buffers = self._buffers
        batch = buffers[:]
        try:
            # A socket with a timeout would wait in send(), MSG_DONTWAIT or not.
            poller = select.poll()
            poller.register(self._sock, select.POLLOUT)
            left = send_some(self._sock, batch, socket.MSG_DONTWAIT) if poller.poll(0) else batch
        except BlockingIOError:
            left = batch
        except Exception as error:  # noqa: BLE001 - the owner's next call raises it
            self._refusal = error
            buffers.clear()
            return
        buffers[: len(batch)] = left
        if left:
            self._pause_s = min(2 * self._pause_s, _FULL_S)
        else:
            self._pause_s = _SHORT_S
            self._due = self._seen_due = time.monotonic_ns() + self._window_ns


class SharedCoalescingWriter:
    """Gathers the messages of several threads for one blocking socket; every method thread-safe.

    Each write is one message: those of different threads do not mix. A socket of TLS that another
    thread reads from needs a Python whose ssl module locks it (3.13.1 and later).

    :param sock: see :class:`CoalescingWriter`.
    :param window_us: microseconds; a message that comes this long after the last send is sent by
        the thread that writes it, any other by the writer's own thread, at once.
    :param max_bytes: what waits in the queue at most (a larger message goes alone); a write that
        finds no room waits.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        window_us: float = WINDOW_US,
        max_bytes: int = 16 * MAX_BYTES,
    ) -> None:
        _check(window_us=window_us, max_bytes=max_bytes)
        set_nodelay(sock)
        self._sock = sock
        self._window_ns = int(window_us * 1000)
        self._max_bytes = max_bytes
        self._due = 0
        # Bytes since the beginning: written here, and taken by the kernel.
        self._written = 0
        self._sent = 0
        self._closed = False
        self._failure: Exception | None = None
        self._begin()
        _shared_writers.add(self)

    def _begin(self) -> None:
        """Begin with nothing gathered and no thread: at first, and in a forked child."""
        self._queue: list[bytes] = []
        self._size = 0
        self._written = self._sent
        # Whether somebody sends, or is about to: he takes what is added to the queue.
        self._sending = False
        # Guards all of this. The condition on it is notified when the queue was taken, or is empty.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting = 0
        self._runs = False
        self._bell = Bell()

    def write(self, data: ReadableBuffer) -> None:
        """Send one message, or leave it to the thread that is sending.

        :raises OSError: if this thread sends and that fails; SendFailed if it failed before.
        :raises WriterClosed: after close().
        """
        if type(data) is not bytes:
            data = bytes(data)
        size = len(data)
        with self._lock:
            while (
                self._sending
                and self._size
                and self._size + size > self._max_bytes
                and not self._closed
                and self._failure is None
            ):
                self._wait()
            self._refuse()
            self._queue.append(data)
            self._size += size
            self._written += size
            if self._sending:
                return
            self._sending = True
        if time.monotonic_ns() < self._due or self._send_queue():
            self._leave_to_thread()

    def flush(self) -> None:
        """Wait until everything written before has been handed to the kernel.

        :raises OSError: if that failed.
        """
        with self._lock:
            self._refuse()
            self._wait_until_sent()

    def close(self) -> None:
        """Refuse further writes and wait until all has been sent; a second close() does nothing.

        :raises OSError: if a send failed.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._waiting:
                self._changed.notify_all()
            self._wait_until_sent()
            self._bell.ring()

    def __enter__(self: Writer) -> Writer:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _refuse(self) -> None:
        if self._closed:
            raise WriterClosed("the writer is closed")
        if self._failure is not None:
            raise _again(self._failure)

    def _wait_until_sent(self, timeout: float | None = None) -> None:
        written = self._written  # other threads may go on writing all the time
        while self._sent < written and self._failure is None:
            if not self._wait(timeout):
                return
        if self._failure is not None:
            raise _again(self._failure)

    def _wait(self, timeout: float | None = None) -> bool:
        self._waiting += 1
        try:
            return self._changed.wait(timeout)
        finally:
            self._waiting -= 1

    def _leave_to_thread(self) -> None:
        """As the one who sends: let the writer's thread do it."""
        if not self._runs:
            self._runs = True
            try:
                threading.Thread(target=self._run, name="wsgifast-sender", daemon=True).start()
            except RuntimeError:  # no more threads: the process ends, or has too many
                self._runs = False
                while self._send_queue():
                    pass
                return
        self._bell.ring()

    def _run(self) -> None:
        while True:
            if self._bell.wait(_IDLE_S) and self._sending:
                with contextlib.suppress(Exception):  # the next call raises it
                    while self._send_queue():
                        pass
            else:
                with self._lock:
                    if not self._sending:
                        self._runs = False
                        return

    def _send_queue(self) -> bool:
        """As the one who sends: send what is in the queue; return whether there is more.

        Whoever gets False does not send any longer.
        """
        failure: Exception = SendFailed("a send was interrupted")
        done = False
        with self._lock:
            batch, self._queue = self._queue, []
            size, self._size = self._size, 0
            if self._waiting:
                self._changed.notify_all()
        try:
            send_all(self._sock, batch)
            done = True
        except Exception as error:
            failure = error
            raise
        finally:
            self._due = time.monotonic_ns() + self._window_ns
            with self._lock:
                if done:
                    self._sent += size
                else:
                    self._failure = failure
                    self._queue, self._size = [], 0
                more = self._sending = bool(self._queue)
                if self._waiting:
                    self._changed.notify_all()
        return more

    # At the end of the process, and in a forked child.

    def _finish(self) -> None:
        with self._lock, contextlib.suppress(SendFailed):
            self._wait_until_sent(_EXIT_S)


# All there are, for a fork and for the end of the process.
_shared_writers: weakref.WeakSet[SharedCoalescingWriter] = weakref.WeakSet()


def _at_exit() -> None:
    for writer in list(_shared_writers):
        writer._finish()


def _after_fork() -> None:
    for writer in list(_shared_writers):
        writer._begin()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork)


class AsyncCoalescingWriter:
    """Gathers messages for an asyncio stream or transport; for the loop's own thread only.

    :param stream: a StreamWriter, or a transport whose protocol does its own flow control.
    :param window_us: microseconds after which a batch does not wait for the loop's next turn.
    :param max_bytes: what is gathered at most before it is handed to the transport.
    """

    def __init__(
        self,
        stream: asyncio.StreamWriter | asyncio.WriteTransport,
        *,
        window_us: float = WINDOW_US,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        _check(window_us=window_us, max_bytes=max_bytes)
        self._stream = stream if isinstance(stream, asyncio.StreamWriter) else None
        self._transport = stream.transport if isinstance(stream, asyncio.StreamWriter) else stream
        self._loop = asyncio.get_running_loop()
        self._window_ns = int(window_us * 1000)
        self._max_bytes = max_bytes
        self._buffers: list[bytes] = []
        self._size = 0
        self._due = 0
        self._turn_asked = False
        self._closed = False

    def write(self, data: ReadableBuffer) -> None:
        """Gather one message. Without an await of drain() now and then, the transport's own
        buffer grows without bounds, as with any asyncio stream.

        :raises SendFailed: if the connection is lost.
        :raises WriterClosed: after close().
        """
        if self._closed:
            raise WriterClosed("the writer is closed")
        if type(data) is not bytes:
            data = bytes(data)
        buffers = self._buffers
        if not buffers:
            if self._transport.is_closing():
                raise SendFailed("the connection is closed")
            self._due = time.monotonic_ns() + self._window_ns
            if not self._turn_asked:
                self._turn_asked = True
                self._loop.call_soon(self._next_turn)
        buffers.append(data)
        self._size += len(data)
        if self._size >= self._max_bytes or time.monotonic_ns() >= self._due:
            self.flush()

    def flush(self) -> None:
        """Hand what was gathered to the transport, which sends at once if it can."""
        if self._buffers:
            buffers, self._buffers, self._size = self._buffers, [], 0
            # Not writelines(): it joins too before Python 3.12, and later hands sendmsg a list of
            # buffers, which for messages of this size is slower.
            self._transport.write(buffers[0] if len(buffers) == 1 else b"".join(buffers))

    async def drain(self) -> None:
        """Flush, and wait until the transport has room again; with a bare transport, only flush.

        :raises OSError: if the connection is lost.
        """
        self.flush()
        if self._stream is not None:
            await self._stream.drain()

    async def close(self) -> None:
        """Flush, refuse further writes, wait as :meth:`drain` does; the stream stays open.

        :raises OSError: if the connection is lost.
        """
        self._closed = True
        await self.drain()

    def _next_turn(self) -> None:
        self._turn_asked = False
        self.flush()


def _check(*, max_bytes: int, window_us: float = 0.0) -> None:
    if max_bytes < 1:
        raise ConfigurationError(f"max_bytes={max_bytes}: it must be 1 or more")
    if not 0 <= window_us <= 1e6:
        raise ConfigurationError(f"window_us={window_us}: allowed are 0 to 1,000,000 microseconds")


def _again(refusal: Exception) -> Exception:
    """What a call raises on a writer that is closed or broken."""
    if isinstance(refusal, WriterClosed):
        return WriterClosed(*refusal.args)
    error = SendFailed(f"an earlier send failed: {refusal}")
    error.__cause__ = refusal
    return error
