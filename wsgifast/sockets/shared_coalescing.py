"""A coalescing writer for several threads. Each writer has its own sending thread."""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import threading
import time
import weakref
from typing import TYPE_CHECKING

from .alarm import WakeEvent
from .coalescing import MAX_BYTES, WINDOW_US, SendFailed, WriterClosed, check, refusal_error
from .options import set_nodelay
from .sending import send_all

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# The sending thread ends after this time without a message.
_IDLE_S = 1.0
# The most time for which an ending process waits until queued messages are sent.
_EXIT_S = 1.0


class SharedCoalescingWriter(contextlib.AbstractContextManager["SharedCoalescingWriter"]):
    """Join the messages of several threads for one blocking socket. All methods are thread-safe.

    Each write is one message. Messages of different threads do not mix. If another thread reads
    from a TLS socket, Python 3.13.1 or later is required: its ssl module locks the socket.

    :param sock: see :class:`CoalescingWriter`.
    :param window_us: the window in microseconds. If no send was made in this time, the thread that
        calls write() sends the message itself. Otherwise the sending thread sends it at once.
    :param max_bytes: the most bytes in the queue. A larger message is sent alone. write() waits
        while the queue is full.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        window_us: float = WINDOW_US,
        max_bytes: int = 16 * MAX_BYTES,
    ) -> None:
        check(window_us=window_us, max_bytes=max_bytes)
        set_nodelay(sock)
        self._sock = sock
        self._window_ns = int(window_us * 1000)
        self._max_bytes = max_bytes
        self._due = 0
        # The total numbers of bytes that were passed to write(), and that the kernel has accepted.
        self._written = 0
        self._sent = 0
        self._closed = False
        self._failure: Exception | None = None
        self._begin()
        _shared_writers.add(self)

    def _begin(self) -> None:
        """Start with an empty queue and without a thread, also in a forked child."""
        self._queue: list[bytes] = []
        self._size = 0
        self._written = self._sent
        # Whether a thread sends, or will send soon. That thread also sends messages that are queued
        # later.
        self._sending = False
        # The lock guards these attributes. The condition is notified when a batch is removed from
        # the queue, and when the batch was sent.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._runs = False
        self._wake_event = WakeEvent()

    def write(self, data: ReadableBuffer) -> None:
        """Send one message, or queue it for the thread that sends.

        :raises OSError: if a send by this thread fails. SendFailed if an earlier send has failed.
        :raises WriterClosed: after close().
        """
        if type(data) is not bytes:
            data = bytes(memoryview(data))
        size = len(data)
        with self._lock:
            while (
                self._sending
                and self._size
                and self._size + size > self._max_bytes
                and not self._closed
                and self._failure is None
            ):
                self._changed.wait()
            self._refuse()
            self._queue.append(data)
            self._size += size
            self._written += size
            if self._sending:
                return
            self._sending = True
        if time.monotonic_ns() < self._due or self._send_queue():
            self._wake_thread()

    def flush(self) -> None:
        """Wait until the kernel has accepted all earlier messages.

        :raises OSError: if a send has failed.
        """
        with self._lock:
            self._refuse()
            self._wait_until_sent()

    def close(self) -> None:
        """Reject further writes, and wait until all messages are sent. A second call has no effect.

        :raises OSError: if a send has failed.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
            self._wait_until_sent()
            self._wake_event.set()

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _refuse(self) -> None:
        if self._closed:
            raise WriterClosed("the writer is closed")
        if self._failure is not None:
            raise refusal_error(self._failure)

    def _wait_until_sent(self, timeout: float | None = None) -> None:
        written = self._written  # not the bytes that other threads write meanwhile
        while self._sent < written and self._failure is None:
            if not self._changed.wait(timeout):
                return
        if self._failure is not None:
            raise refusal_error(self._failure)

    def _wake_thread(self) -> None:
        """Make the sending thread send the queue, in place of the calling thread."""
        if not self._runs:
            self._runs = True
            try:
                threading.Thread(target=self._run, name="wsgifast-sender", daemon=True).start()
            except RuntimeError:  # no thread can start: the process ends, or has too many
                self._runs = False
                while self._send_queue():
                    pass
                return
        self._wake_event.set()

    def _run(self) -> None:
        while True:
            if self._wake_event.wait(_IDLE_S) and self._sending:
                with contextlib.suppress(Exception):  # the next call raises the error
                    while self._send_queue():
                        pass
            else:
                with self._lock:
                    if not self._sending:
                        self._runs = False
                        return

    def _send_queue(self) -> bool:
        """Send the queue. Return whether new messages were queued meanwhile.

        If not, the calling thread has stopped sending.
        """
        failure: Exception = SendFailed("a send was interrupted")
        done = False
        with self._lock:
            batch, self._queue = self._queue, []
            size, self._size = self._size, 0
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
                self._changed.notify_all()
        return more

    # At the exit of the process.

    def _finish(self) -> None:
        with self._lock, contextlib.suppress(SendFailed):
            self._wait_until_sent(_EXIT_S)


# All writers, for a fork and for the end of the process.
_shared_writers: weakref.WeakSet[SharedCoalescingWriter] = weakref.WeakSet()


def _at_exit() -> None:
    for writer in list(_shared_writers):
        writer._finish()


def _after_fork() -> None:
    for writer in list(_shared_writers):
        writer._begin()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork)
