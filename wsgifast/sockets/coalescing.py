"""Coalescing writers join small messages into fewer sends, with a bounded delay.

The system call to send a small message costs more than the message itself. Nagle's algorithm (RFC
896) saves packets but no calls, and delays messages until the peer has acknowledged earlier ones.
These writers set TCP_NODELAY, and collect messages themselves. All of them follow these rules:

- Messages are sent in the order of the calls of write(). All are sent before close() returns.
- Memory is bounded: if more than `max_bytes` are collected, write() sends them, or waits.
- If a send fails, the call that made it raises the error. It is then unknown which bytes the peer
  has received. So all later calls raise SendFailed, whose cause is the first error.
- Writers do not own the socket: close() does not close the connection.

Theory of operation
-------------------
`CoalescingWriter` sends at most once in each window, which begins with a send. A message after the
window is sent at once. Messages within the window are collected. They are sent by the first write()
after the window, by the write() that reaches `max_bytes`, or by flush(). The caller must call
flush() before it waits for a response. At the end of a burst, the flusher sends the remaining
messages. The flusher is one thread for all writers of the process. Only the thread that owns a
writer appends messages. That thread and the flusher send, under one lock.

When a writer collects a message, the flusher begins to *watch* the writer. From time to time the
flusher checks all watched writers, and sends overdue messages. It stops watching a writer that was
idle at several checks, until the writer collects a message again. So a burst of messages costs one
wake-up of the flusher and some checks, and not a wake-up for each message or batch.

    unwatched --message collected--> watched --no message at several checks--> unwatched

The flusher never waits for a peer, so a peer that does not read does not delay other writers. The
first writer starts the flusher. While the flusher watches no writer, it sleeps. It refers only to
watched writers. A forked child has no flusher. The child drops the inherited messages, because the
parent sends them, and starts its own flusher when it needs one.

`AsyncCoalescingWriter` is for asyncio. It sends all messages of one iteration of the event loop
together. `SharedCoalescingWriter` (shared_coalescing.py) is for several threads.
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

# About the time of five small sends. A shorter window saves little, and a longer one adds latency.
WINDOW_US = 10.0
# Sends of this size are the fastest over loopback, and fit into a socket's buffer.
MAX_BYTES = 64 * 1024
# The flusher stops watching a writer that had no message at this many checks in a row.
_IDLE_CHECKS = 3
# The pause between two checks. It begins at _MIN_PAUSE_S, also after a check that sent messages.
# While the owner's thread sends messages itself, the pause doubles at each check up to
# _BUSY_PAUSE_S, because checks slow that thread down. While the peer does not read, the pause
# doubles up to _FULL_PAUSE_S.
_MIN_PAUSE_S = 50e-6
_BUSY_PAUSE_S = 1e-3
_FULL_PAUSE_S = 10e-3


class SendFailed(WSGIFastError, OSError):
    """An earlier send failed (see __cause__). The peer lacks bytes, so close the socket."""


class WriterClosed(WSGIFastError, ValueError):
    """write() was called after close()."""


_IN_USE = SocketInUse(
    "another thread sends with this writer: use SharedCoalescingWriter for several threads"
)


class CoalescingWriter(AbstractContextManager["CoalescingWriter"]):
    """Join small messages for a blocking socket. One thread at a time may use it.

    If no later call sends a message, another thread sends it after the window. The kernel's timer
    slack delays that thread (50 us on Linux, more if all CPUs are busy). While other threads
    compute, the interpreter's switch interval adds up to 5 ms (sys.setswitchinterval()). After a
    long burst, the delay may be 1 ms longer. The thread never waits for a peer. If the send buffer
    is full, it tries again after 0.1 to 10 ms. Close the writer before its socket.

    After a fork, the parent sends the messages that were collected before the fork.

    :param sock: a connected socket, blocking or with a timeout. TCP_NODELAY is set.
    :param window_us: the window in microseconds. At most one send is made in it, unless `max_bytes`
        are collected.
    :param max_bytes: the most collected bytes. During a send, as many again may be collected.
    :param background: if False, no other thread sends, and the last messages of a burst wait for
        the next call. False is required for sockets that two threads must not use at once: TLS
        sockets, gevent's sockets, and those of subclasses of socket.socket.
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
        # flusher removes messages from the same list, under the lock. So no message is lost.
        self._buffers: list[bytes | memoryview] = []
        # The bytes that were collected since the last send of the owner's thread. The flusher does
        # not change this number.
        self._size = 0
        # The end of the window, by time.monotonic_ns().
        self._due = 0
        self._refusal: Exception | None = None
        # Locked during a send, so that messages are sent in order.
        self._sending = threading.Lock()
        # write() collects messages up to this size without further checks. It is 0 while the writer
        # is not watched.
        self._limit = 0 if background else max_bytes
        # For the flusher: the value of `_due` at its last check, the number of consecutive idle
        # checks, and the next pause.
        self._checked_due = 0
        self._idle_checks = 0
        self._pause_s = _MIN_PAUSE_S

    def write(self, data: ReadableBuffer) -> None:
        """Send or collect one message. A buffer that is not bytes is copied.

        :raises OSError: if a send fails. SendFailed if an earlier send has failed.
        :raises SocketInUse: while another thread sends with this writer. The message is not sent.
        :raises WriterClosed: after close().
        """
        if self._refusal is not None:
            raise refusal_error(self._refusal)
        if type(data) is not bytes:
            data = bytes(memoryview(data))
        self._buffers.append(data)
        self._size += len(data)
        if time.monotonic_ns() >= self._due:
            self.flush()
        elif self._size >= self._limit:
            self._flush_or_watch()

    def flush(self) -> None:
        """Send the collected messages. Call it before waiting for a response.

        :raises OSError: see :meth:`write`.
        """
        with self._sending:
            if self._refusal is not None:
                raise refusal_error(self._refusal)
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
        """Send the collected messages, and reject further writes. A second call has no effect.

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

    def _flush_or_watch(self) -> None:
        if self._size >= self._max_bytes:
            self.flush()
            return
        self._limit = self._max_bytes
        self._checked_due = self._due
        self._idle_checks = 0
        self._pause_s = _MIN_PAUSE_S
        try:
            flusher.watch(self)
        except RuntimeError:  # no thread can start: the process ends, or has too many
            self._limit = 0
            self.flush()

    # Called by the flusher.

    def check_once(self, *, at_exit: bool = False) -> float | None:
        """Send overdue messages without waiting for the peer. At the exit of the process, send all.

        :returns: the seconds until the next check, or None to stop watching.
        """
        early_ns = 0 if at_exit else self._due - time.monotonic_ns()
        if self._buffers and early_ns <= 0:
            if self._sending.acquire(blocking=False):
                try:
                    self._send_without_waiting()
                finally:
                    self._sending.release()
            return self._pause_s
        if self._due != self._checked_due:
            # The owner's thread has sent messages since the last check. Checks slow that thread
            # down.
            self._checked_due = self._due
            self._idle_checks = 0
            self._pause_s = min(2 * self._pause_s, _BUSY_PAUSE_S)
            return self._pause_s
        if self._buffers:
            return max(0, early_ns) / 1e9  # 0 if new messages are already overdue
        self._idle_checks += 1
        return self._pause_s if self._idle_checks <= _IDLE_CHECKS else None

    def stop_watching(self) -> bool:
        """Stop watching the writer. Return whether it has collected messages in the meantime."""
        # The order is important: write() first appends, and then checks the limit.
        self._limit = 0
        if not self._buffers:
            return False
        self._limit = self._max_bytes
        return True

    def drop_messages(self) -> None:
        """In a forked child, drop all messages, and replace the lock, which may be locked."""
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
            unsent = send_some(self._sock, batch, socket.MSG_DONTWAIT) if poller.poll(0) else batch
        except BlockingIOError:
            unsent = batch
        except Exception as error:  # noqa: BLE001 - the owner's next call raises it
            self._refusal = error
            buffers.clear()
            return
        buffers[: len(batch)] = unsent
        if unsent:
            self._pause_s = min(2 * self._pause_s, _FULL_PAUSE_S)
        else:
            self._pause_s = _MIN_PAUSE_S
            self._due = self._checked_due = time.monotonic_ns() + self._window_ns


class Flusher:
    """The thread that sends the messages of coalescing writers. The first writer starts it."""

    def __init__(self) -> None:
        self._watched: dict[CoalescingWriter, None] = {}
        self._wake = WakeEvent()
        self._starting = threading.Lock()
        self._runs = False

    def watch(self, writer: CoalescingWriter) -> None:
        """Watch a writer until it is idle.

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
            pause = self._check_all()

    def _check_all(self) -> float | None:
        """Check each writer once. Return the seconds until the next check. None without writers."""
        pauses = []
        for writer in list(self._watched):
            pause = writer.check_once()
            if pause is None:
                del self._watched[writer]
                if not writer.stop_watching():
                    continue
                self._watched[writer] = None
                pause = _MIN_PAUSE_S
            pauses.append(pause)
        return min(pauses, default=None)

    def at_exit(self) -> None:
        for writer in list(self._watched):
            writer.check_once(at_exit=True)

    def restart_after_fork(self) -> None:
        inherited = list(self._watched)
        Flusher.__init__(self)
        for writer in inherited:
            writer.drop_messages()


flusher = Flusher()
atexit.register(flusher.at_exit)
os.register_at_fork(after_in_child=flusher.restart_after_fork)


class AsyncCoalescingWriter:
    """Join messages for an asyncio stream or transport. Only the loop's thread may use it.

    :param stream: a StreamWriter, or a transport with a protocol that does its own flow control.
    :param window_us: the longest time in microseconds for which messages are collected. After it,
        they are sent without waiting for the next iteration of the event loop.
    :param max_bytes: the most collected bytes. More are passed to the transport at once.
    """

    def __init__(
        self,
        stream: asyncio.StreamWriter | asyncio.WriteTransport,
        *,
        window_us: float = WINDOW_US,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        check(window_us=window_us, max_bytes=max_bytes)
        import asyncio  # already imported: its event loop runs this code

        self._stream = stream if isinstance(stream, asyncio.StreamWriter) else None
        self._transport = stream.transport if isinstance(stream, asyncio.StreamWriter) else stream
        self._loop = asyncio.get_running_loop()
        self._window_ns = int(window_us * 1000)
        self._max_bytes = max_bytes
        self._buffers: list[bytes] = []
        self._size = 0
        self._due = 0
        self._flush_is_scheduled = False
        self._closed = False

    def write(self, data: ReadableBuffer) -> None:
        """Collect one message.

        Await drain() from time to time. Otherwise the transport's buffer grows without bounds, as
        it does with any asyncio stream.

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
            if not self._flush_is_scheduled:
                self._flush_is_scheduled = True
                self._loop.call_soon(self._on_next_iteration)
        buffers.append(data)
        self._size += len(data)
        if self._size >= self._max_bytes or time.monotonic_ns() >= self._due:
            self.flush()

    def flush(self) -> None:
        """Pass the collected messages to the transport, which sends them at once if it can."""
        if self._buffers:
            buffers, self._buffers, self._size = self._buffers, [], 0
            # writelines() is not faster. Before Python 3.12 it joins the messages too. In newer
            # versions it calls sendmsg with a list, which is slower for small messages.
            self._transport.write(buffers[0] if len(buffers) == 1 else b"".join(buffers))

    async def drain(self) -> None:
        """Flush. If the writer was made with a StreamWriter, wait until the transport has room.

        :raises OSError: if the connection is lost.
        """
        self.flush()
        if self._stream is not None:
            await self._stream.drain()

    async def close(self) -> None:
        """Flush, reject further writes, and wait like :meth:`drain`. The stream stays open.

        :raises OSError: if the connection is lost.
        """
        self._closed = True
        await self.drain()

    def _on_next_iteration(self) -> None:
        self._flush_is_scheduled = False
        self.flush()


def check(*, max_bytes: int, window_us: float = 0.0) -> None:
    if not is_count(max_bytes, least=1):
        raise ConfigurationError(f"max_bytes={max_bytes!r}: a whole number from 1 on")
    if not is_number(window_us, least=0, most=1e6):
        raise ConfigurationError(
            f"window_us={window_us!r}: allowed are 0 to 1,000,000 microseconds"
        )


def refusal_error(refusal: Exception) -> Exception:
    """Return the exception to raise for a writer that is closed or broken."""
    if isinstance(refusal, (WriterClosed, SocketInUse)):
        return type(refusal)(*refusal.args)
    error = SendFailed(f"an earlier send failed: {refusal}")
    error.__cause__ = refusal
    return error
