"""Coalescing writers send small messages together, and no message waits for long.

A system call for each small message costs more than the message. Nagle's algorithm (RFC 896) saves
packets but not calls, and makes a message wait for the peer's acknowledgement. These writers set
TCP_NODELAY and gather messages themselves. They have this in common:

- Messages are sent in the order of the calls of write(), and all of them before close() returns.
- Memory is bounded: beyond `max_bytes` a write sends, or waits until there is room.
- An error is raised in the thread that sends. Because it is unknown how much the peer has received,
  the writer is then broken: every later call raises SendFailed, with the first error as its cause.
- They do not own the socket: close() ends the writer and leaves the connection open.

Theory of operation
-------------------
`CoalescingWriter` sends at most once per window. A message after a quiet window is sent at once.
Those that follow within the window are gathered, and sent with the first write after it, at
`max_bytes`, or by flush(), which must be called before waiting for a response. The flusher, one
thread of the process, sends the remaining messages at the end of a burst. Only the thread that owns
the writer appends. Both threads send, under one lock.

A writer that gathers something has itself *watched*. The flusher looks at all watched writers,
sends overdue messages, and stops watching a writer that has been idle for some looks. The writer is
watched again when it gathers the next message. So a burst of messages costs one wake-up at its
beginning, and the looks while it lasts, but none for each message or batch.

    unwatched --something gathered--> watched --nothing gathered for some looks--> unwatched

The flusher never waits for a peer, so one that does not read delays no other. It is started for the
first writer, sleeps while it watches none, and keeps no reference to a writer that it does not
watch. A forked child has no such thread. It drops the inherited messages, which the parent sends,
and starts its own thread when it needs one.

`AsyncCoalescingWriter` is for asyncio. It sends all messages of one turn of the loop together.
`SharedCoalescingWriter` (shared_coalescing.py) is for several threads.
"""

from __future__ import annotations

import atexit
import os
import select
import socket
import threading
import time
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from ..checks import is_count, is_number
from ..errors import ConfigurationError, WSGIFastError
from .alarm import WakeEvent
from .options import SocketInUse, is_plain_socket, set_nodelay
from .sending import send_all, send_some

if TYPE_CHECKING:
    import asyncio

    from _typeshed import ReadableBuffer

# About the time of five small sends: less saves little, more adds noticeable latency.
WINDOW_US = 10.0
# The size of a send with the best rate over loopback. It fits into a socket's buffer.
MAX_BYTES = 64 * 1024
# A watched writer that has gathered nothing for this many looks in a row is no longer watched.
_IDLE_LOOKS = 3
# The pause between two looks, at first and after a look that found something to send. It doubles
# after each look at a writer that sends without the flusher, up to the second value, because looks
# slow it down. It doubles after each look at a writer with a stalled peer, up to the third value.
_SHORT_S = 50e-6
_BUSY_S = 1e-3
_FULL_S = 10e-3


class SendFailed(WSGIFastError, OSError):
    """An earlier send failed (see __cause__). The peer misses bytes, so close the socket."""


class WriterClosed(WSGIFastError, ValueError):
    """A write after close()."""


_IN_USE = SocketInUse(
    "another thread sends with this writer: use SharedCoalescingWriter for several threads"
)


class CoalescingWriter(AbstractContextManager["CoalescingWriter"]):
    """Join small messages for a blocking socket. One thread at a time may use it.

    If no later call sends a message, another thread sends it after the window. Two delays of the
    system are added: the kernel's timer slack (50 us on Linux, more if all CPUs are busy), and,
    while other threads compute, the interpreter's switch interval (5 ms, sys.setswitchinterval()).
    After a long burst it may take 1 ms more. That thread never waits for a peer. If a connection is
    full, it tries again after 0.1 to 10 ms. Close the writer before its socket.

    After a fork, the parent sends the messages that were collected before.

    :param sock: a connected socket, blocking or with a timeout. TCP_NODELAY is set.
    :param window_us: microseconds. There is at most one send in this time, unless `max_bytes` are
        collected.
    :param max_bytes: limit of the collected bytes, and as many again during a send.
    :param background: False: no other thread sends, and the last messages of a burst wait for the
        next call. Required for sockets that two threads must not use at once: those of TLS and
        gevent, and subclasses of socket.socket.
    :raises ConfigurationError: if an option has an invalid value.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        window_us: float = WINDOW_US,
        max_bytes: int = MAX_BYTES,
        background: bool = True,
    ) -> None:
        check(window_us=window_us, max_bytes=max_bytes)
        set_nodelay(sock)
        if background and not is_plain_socket(sock):
            raise ConfigurationError(
                f"two threads may not use a {type(sock).__module__}.{type(sock).__name__} at once: "
                "pass background=False, and flush() before you wait for a response"
            )
        self._sock = sock
        self._window_ns = int(window_us * 1000)
        self._max_bytes = max_bytes
        # The owner's thread appends without the lock, and replaces the list under the lock. The
        # flusher removes from the list in place, under the lock. So nothing is lost.
        self._buffers: list[bytes | memoryview] = []
        # Bytes gathered since the owner's thread last sent. The flusher does not change it.
        self._size = 0
        # time.monotonic_ns() from which on a write sends.
        self._due = 0
        self._refusal: Exception | None = None
        # Held during a send, to keep the order.
        self._sending = threading.Lock()
        # How much write() gathers before it looks closer: nothing while the writer is not watched.
        self._limit = 0 if background else max_bytes
        # For the flusher: `_due` at its last look, idle looks in a row, the next pause.
        self._seen_due = 0
        self._idle_looks = 0
        self._pause_s = _SHORT_S

    def write(self, data: ReadableBuffer) -> None:
        """Send or collect one message. Anything but bytes is copied.

        :raises OSError: if it sends and that fails, or SendFailed if an earlier send failed.
        :raises SocketInUse: while another thread sends with this writer. The message is not sent.
        :raises WriterClosed: after close().
        """
        if self._refusal is not None:
            raise again(self._refusal)
        if type(data) is not bytes:
            data = bytes(memoryview(data))
        self._buffers.append(data)
        self._size += len(data)
        if time.monotonic_ns() >= self._due:
            self.flush()
        elif self._size >= self._limit:
            self._flush_or_be_watched()

    def flush(self) -> None:
        """Send the collected messages. Call it before waiting for a response.

        :raises OSError: see :meth:`write`.
        """
        with self._sending:
            if self._refusal is not None:
                raise again(self._refusal)
            buffers, self._buffers, self._size = self._buffers, [], 0
            if not buffers:
                return
            try:
                self._refusal = _IN_USE  # for a write() of another thread
                send_all(self._sock, buffers)
            except BaseException as error:
                interrupted = SendFailed("a send was interrupted")
                self._refusal = error if isinstance(error, Exception) else interrupted
                raise
            self._refusal = None
            self._due = time.monotonic_ns() + self._window_ns

    def close(self) -> None:
        """Send the collected messages and refuse further writes. A second call has no effect.

        :raises OSError: see :meth:`write`.
        """
        if isinstance(self._refusal, WriterClosed):
            return
        try:
            self.flush()
        finally:
            self._refusal = WriterClosed("the writer is closed")

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _flush_or_be_watched(self) -> None:
        if self._size >= self._max_bytes:
            self.flush()
            return
        self._limit = self._max_bytes
        self._seen_due = self._due
        self._idle_looks = 0
        self._pause_s = _SHORT_S
        try:
            flusher.watch(self)
        except RuntimeError:  # no thread: the process ends, or has too many
            self._limit = 0
            self.flush()

    # Called by the flusher.

    def look(self, *, at_exit: bool = False) -> float | None:
        """Send overdue messages, or all at the exit of the process. Never wait for the peer.

        :returns: seconds until the next look, or None to stop watching.
        """
        early_ns = 0 if at_exit else self._due - time.monotonic_ns()
        if self._buffers and early_ns <= 0:
            if self._sending.acquire(blocking=False):
                try:
                    self._send_without_waiting()
                finally:
                    self._sending.release()
            return self._pause_s
        if self._due != self._seen_due:
            # The owner's thread sends by itself, and looks slow it down.
            self._seen_due = self._due
            self._idle_looks = 0
            self._pause_s = min(2 * self._pause_s, _BUSY_S)
            return self._pause_s
        if self._buffers:
            return max(0, early_ns) / 1e9  # gathered meanwhile, if it is overdue
        self._idle_looks += 1
        return self._pause_s if self._idle_looks <= _IDLE_LOOKS else None

    def leave(self) -> bool:
        """Stop watching the writer. Return whether messages were gathered meanwhile."""
        # In this order: write() appends first and then checks the limit.
        self._limit = 0
        if not self._buffers:
            return False
        self._limit = self._max_bytes
        return True

    def forget(self) -> None:
        """In a forked child, drop the gathered messages, and the lock, which may be locked."""
        self._sending = threading.Lock()
        self._buffers = []
        self._limit = 0

    def _send_without_waiting(self) -> None:
        buffers = self._buffers
        batch = buffers[:]
        try:
            # A socket with a timeout waits in send() even with MSG_DONTWAIT.
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


class Flusher:
    """The thread that sends the messages of coalescing writers. The first writer starts it."""

    def __init__(self) -> None:
        self._watched: dict[CoalescingWriter, None] = {}
        self._wake = WakeEvent()
        self._starting = threading.Lock()
        self._runs = False

    def watch(self, writer: CoalescingWriter) -> None:
        """Look at a writer until it is idle.

        :raises RuntimeError: if no thread can be started.
        """
        if not self._runs:
            with self._starting:
                if not self._runs:
                    thread = threading.Thread(target=self._run, name="wsgifast-flusher")
                    thread.daemon = True
                    thread.start()
                    self._runs = True
        self._watched[writer] = None
        self._wake.set()

    def _run(self) -> None:
        pause: float | None = None
        while True:
            self._wake.wait(pause)
            pause = self._look_at_all()

    def _look_at_all(self) -> float | None:
        """Look at each writer once. Return seconds until the next look, None without writers."""
        pauses = []
        for writer in list(self._watched):
            pause = writer.look()
            if pause is None:
                del self._watched[writer]
                if not writer.leave():
                    continue
                self._watched[writer] = None
                pause = _SHORT_S
            pauses.append(pause)
        return min(pauses, default=None)

    def at_exit(self) -> None:
        for writer in list(self._watched):
            writer.look(at_exit=True)

    def begin_again(self) -> None:
        inherited = list(self._watched)
        Flusher.__init__(self)
        for writer in inherited:
            writer.forget()


flusher = Flusher()
atexit.register(flusher.at_exit)
os.register_at_fork(after_in_child=flusher.begin_again)


class AsyncCoalescingWriter:
    """Join messages for an asyncio stream or transport. Only the loop's thread may use it.

    :param stream: a StreamWriter, or a transport with a protocol that does its own flow control.
    :param window_us: microseconds after which a batch does not wait for the loop's next turn.
    :param max_bytes: limit of the collected bytes. Beyond it they are passed to the transport.
    """

    def __init__(
        self,
        stream: asyncio.StreamWriter | asyncio.WriteTransport,
        *,
        window_us: float = WINDOW_US,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        check(window_us=window_us, max_bytes=max_bytes)
        import asyncio  # loaded already, since its loop runs this

        self._stream = stream if isinstance(stream, asyncio.StreamWriter) else None
        self._transport = stream.transport if isinstance(stream, asyncio.StreamWriter) else stream
        self._loop = asyncio.get_running_loop()
        self._window_ns = int(window_us * 1000)
        self._max_bytes = max_bytes
        self._buffers: list[bytes] = []
        self._size = 0
        self._due = 0
        self._turn_requested = False
        self._closed = False

    def write(self, data: ReadableBuffer) -> None:
        """Collect one message.

        Await drain() now and then, or the transport's buffer grows without bounds, as with any
        asyncio stream.

        :raises SendFailed: if the connection is lost.
        :raises WriterClosed: after close().
        """
        if self._closed:
            raise WriterClosed("the writer is closed")
        if type(data) is not bytes:
            data = bytes(memoryview(data))
        buffers = self._buffers
        if not buffers:
            if self._transport.is_closing():
                raise SendFailed("the connection is closed")
            self._due = time.monotonic_ns() + self._window_ns
            if not self._turn_requested:
                self._turn_requested = True
                self._loop.call_soon(self._next_turn)
        buffers.append(data)
        self._size += len(data)
        if self._size >= self._max_bytes or time.monotonic_ns() >= self._due:
            self.flush()

    def flush(self) -> None:
        """Pass the collected messages to the transport, which sends at once if it can."""
        if self._buffers:
            buffers, self._buffers, self._size = self._buffers, [], 0
            # Not writelines(): before Python 3.12 it joins too. Since then it calls sendmsg with
            # a list, which is slower for small messages.
            self._transport.write(buffers[0] if len(buffers) == 1 else b"".join(buffers))

    async def drain(self) -> None:
        """Flush, and wait until the transport has room again. A bare transport is only flushed.

        :raises OSError: if the connection is lost.
        """
        self.flush()
        if self._stream is not None:
            await self._stream.drain()

    async def close(self) -> None:
        """Flush, refuse further writes, and wait like :meth:`drain`. The stream stays open.

        :raises OSError: if the connection is lost.
        """
        self._closed = True
        await self.drain()

    def _next_turn(self) -> None:
        self._turn_requested = False
        self.flush()


def check(*, max_bytes: int, window_us: float = 0.0) -> None:
    if not is_count(max_bytes, least=1):
        raise ConfigurationError(f"max_bytes={max_bytes!r}: a whole number from 1 on")
    if not is_number(window_us, least=0, most=1e6):
        raise ConfigurationError(
            f"window_us={window_us!r}: allowed are 0 to 1,000,000 microseconds"
        )


def again(refusal: Exception) -> Exception:
    """Return the exception to raise for a writer that is closed or broken."""
    if isinstance(refusal, (WriterClosed, SocketInUse)):
        return type(refusal)(*refusal.args)
    error = SendFailed(f"an earlier send failed: {refusal}")
    error.__cause__ = refusal
    return error
