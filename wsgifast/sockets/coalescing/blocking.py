"""The coalescing writer for one thread; the flusher sends what its calls leave behind."""

from __future__ import annotations

import select
import socket
import threading
import time
from typing import TYPE_CHECKING

from ...errors import ConfigurationError
from ..options import SocketInUse, is_plain_socket, set_nodelay
from ..send_buffers import send_all, send_some
from .common import MAX_BYTES, WINDOW_US, ClosingWriter, SendFailed, WriterClosed, again, check
from .flusher import flusher

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# A watched writer that has gathered nothing for this many looks in a row is no longer watched.
_IDLE_LOOKS = 3
# The pause between two looks: at first, and after a look that found something to send. It doubles
# after each look at a writer that sends by itself, up to the second value, because looks slow it
# down; and after each look at a writer whose peer takes nothing, up to the third.
_SHORT_S = 50e-6
_BUSY_S = 1e-3
_FULL_S = 10e-3
_IN_USE = SocketInUse(
    "another thread sends with this writer: use SharedCoalescingWriter for several threads"
)


class CoalescingWriter(ClosingWriter):
    """Gathers small messages for a blocking socket; for one thread at a time.

    A message that no later call sends is sent by another thread, after the window and what the
    system adds to it: the kernel's timer slack (50 us on Linux, more if all CPUs are busy) and,
    while other threads compute, the interpreter's switch interval (5 ms, sys.setswitchinterval()).
    After a long burst it may take 1 ms more. That thread never waits for a peer: what a full
    connection does not take, it tries again after 0.1 to 10 ms. Close the writer before its socket.

    After a fork, the parent sends what was gathered before.

    :param sock: a connected socket, blocking or with a timeout. TCP_NODELAY is switched on.
    :param window_us: microseconds; at most one send in this time, unless there are `max_bytes`.
    :param max_bytes: the most that is gathered, and again as much while another part is being sent.
    :param background: False: no other thread sends, and the last messages of a burst wait for the
        next call. Required for sockets that two threads must not use at once: those of TLS and
        gevent, and subclasses of socket.socket.
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
        check(window_us=window_us, max_bytes=max_bytes)
        set_nodelay(sock)
        if background and not is_plain_socket(sock):
            raise ConfigurationError(
                f"two threads may not use a {type(sock).__module__}.{type(sock).__name__} at once: "
                "pass background=False, and flush() before you wait for an answer"
            )
        self._sock = sock
        self._window_ns = int(window_us * 1000)
        self._max_bytes = max_bytes
        # The owner's thread appends without the lock, and replaces the list with it; the flusher
        # removes from the list in place, with the lock. So nothing is lost.
        self._buffers: list[bytes | memoryview] = []
        # Bytes gathered since the owner's thread last sent; the flusher does not change it.
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
        """Send or gather one message; anything but bytes is copied.

        :raises OSError: if it sends and that fails; SendFailed if that has happened before.
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
        """Send what was gathered; call it before waiting for an answer.

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
        """Send what was gathered and refuse further writes; a second close() does nothing.

        :raises OSError: see :meth:`write`.
        """
        if isinstance(self._refusal, WriterClosed):
            return
        try:
            self.flush()
        finally:
            self._refusal = WriterClosed("the writer is closed")

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
        """Send what is overdue, or everything at the exit of the process; never wait for the peer.

        :returns: seconds until the next look; None to be watched no longer.
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
            return early_ns / 1e9
        self._idle_looks += 1
        return self._pause_s if self._idle_looks <= _IDLE_LOOKS else None

    def leave(self) -> bool:
        """The writer is no longer watched; returns whether something was gathered meanwhile."""
        # In this order: write() appends first and then checks the limit.
        self._limit = 0
        if not self._buffers:
            return False
        self._limit = self._max_bytes
        return True

    def forget(self) -> None:
        """In a forked child: drop what was gathered, and the lock, which may be held."""
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
