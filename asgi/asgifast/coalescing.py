"""Coalesce the small body messages of one turn of the event loop into one."""

from __future__ import annotations

from .loops import BackgroundTask, Loop, running_loop
from .messages import Send

__all__ = ["COALESCED_BYTES", "SMALL_MESSAGE_BYTES", "Coalescer"]

# A body message up to this size is coalesced with its neighbours; a larger one costs less to pass
# on than to copy.
SMALL_MESSAGE_BYTES = 8 * 1024
# What was coalesced goes on at this size, even if the loop's turn has not ended. A transport's own
# high-water mark is the same.
COALESCED_BYTES = 64 * 1024


class Coalescer:
    """One response's small messages, on their way to the server's send().

    The end of the turn makes a task that sends what was coalesced. Whatever is sent next waits for
    that task (:meth:`flush`), so that order and backpressure stay, and what the server's send()
    raises reaches the app.
    """

    __slots__ = ("_chunks", "_loop", "_send", "_size", "_task", "_turn_scheduled")

    def __init__(self, send: Send) -> None:
        self._loop: Loop = running_loop()
        self._send = send
        self._chunks: list[bytes] = []
        self._size = 0
        self._turn_scheduled = False
        self._task: BackgroundTask | None = None

    async def add(self, body: bytes) -> None:
        if self._task is not None:
            await self._settle()
        self._chunks.append(body)
        self._size += len(body)
        if self._size >= COALESCED_BYTES:
            await self.flush()
        elif not self._turn_scheduled:
            self._turn_scheduled = True
            self._loop.call_soon(self._turn_over)

    async def end(self, body: bytes) -> bytes:
        """Return the bytes of the body's last message: with what was coalesced in front of them, or
        alone where that was sent before."""
        if len(body) > COALESCED_BYTES:
            await self.flush()
        elif self._chunks:
            body = self._take(body)
        if self._task is not None:
            await self._settle()
        return body

    async def flush(self) -> None:
        """Have everything coalesced sent."""
        if self._task is not None:
            await self._settle()
        if self._chunks:
            await self._send_coalesced()

    def drop(self) -> None:
        """Send no more."""
        self._chunks.clear()
        if self._task is not None:
            self._task.cancel()

    def _turn_over(self) -> None:
        self._turn_scheduled = False
        if self._chunks and self._task is None:
            self._task = self._loop.create_task(self._send_coalesced())

    async def _send_coalesced(self) -> None:
        if self._chunks:
            await self._send(
                {"type": "http.response.body", "body": self._take(), "more_body": True}
            )

    async def _settle(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            await task

    def _take(self, last: bytes = b"") -> bytes:
        self._chunks.append(last)
        body = b"".join(self._chunks)
        self._chunks.clear()
        self._size = 0
        return body
