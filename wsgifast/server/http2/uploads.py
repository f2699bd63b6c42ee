"""Request bodies on streams that are not buffered: the app's thread reads them as they arrive."""

from __future__ import annotations

import io
import threading
import time
from collections import deque
from threading import TIMEOUT_MAX
from typing import TYPE_CHECKING

from ...errors import RequestError, without_frames

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

    from .outgoing import Outgoing


class StreamedUpload(io.RawIOBase):
    """The raw stream under `wsgi.input`; wrap it in an io.BufferedReader.

    The connection's owner feeds it, the app's thread reads. It never holds more than the stream's
    flow-control window, which is opened again by what the app has read.

    :param number: of the stream.
    :ivar failure: why the body cannot be read to its end.
    """

    def __init__(self, session: Outgoing, number: int) -> None:
        self.failure: Exception | None = None
        self._session = session
        self._number = number
        self._came = threading.Condition(session.lock)
        self._parts: deque[tuple[memoryview, int]] = deque()  # with the padding of each
        self._has_ended = False
        self._received_before = session.uploads.received
        self._waited_s = 0.0

    # Called by the connection's owner

    def feed(self, data: bytes, size: int) -> None:
        """Add a part.

        :param size: its size in the flow-control windows, padding included.
        """
        with self._came:
            # The connection's window opens at once: other streams need it.
            self._session.open_window(size, None)
            if self.closed or not data:
                self._session.open_window(size, self._number)
            else:
                self._parts.append((memoryview(data), size - len(data)))
                self._came.notify_all()

    def end(self) -> None:
        with self._came:
            self._has_ended = True
            self._came.notify_all()

    def fail(self, error: Exception) -> None:
        with self._came:
            if not self._has_ended:
                self.failure = self.failure or error
            self._came.notify_all()

    # Called by the app's thread

    def close(self) -> None:
        if self.failure is not None:
            without_frames(self.failure)
        super().close()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """:raises RequestError: if the client sends nothing for too long.

        :raises ClientGone: if the stream ends before the body does.
        """
        view = memoryview(buffer).cast("B")
        with self._came:
            while view and not self._parts and not self._has_ended:
                self._wait()
            if not self._parts:
                return 0
            part, padding = self._parts.popleft()
            size = min(len(view), len(part))
            view[:size] = part[:size]
            if size < len(part):
                self._parts.appendleft((part[size:], padding))
                padding = 0
            self._session.open_window(size + padding, self._number)
            return size

    def _wait(self) -> None:
        if self.failure is not None:
            raise self.failure
        began = time.monotonic()
        deadline = self._deadline(began)
        while not self._came.wait(min(max(0.0, deadline - time.monotonic()), TIMEOUT_MAX)):
            passed, deadline = deadline, self._deadline(began)
            if deadline <= passed:
                self.failure = RequestError(408, "The request body did not come in time")
                raise self.failure
        self._waited_s += time.monotonic() - began

    def _deadline(self, began: float) -> float:
        return self._session.uploads.deadline(began, self._received_before, self._waited_s)
