"""Coalesce the small body messages of one turn of the event loop into one."""

from __future__ import annotations

from .loops import BackgroundTask, Loop, running_loop
from .messages import Send, response_body

# A body message up to this size is coalesced; a larger one costs less to pass on than to copy.
SMALL_MESSAGE_BYTES = 8 * 1024
# At this size coalesced messages are sent before the loop's turn ends. A transport's default
# high-water mark is the same.
COALESCED_BYTES = 64 * 1024
# After so many turns in a row with one message each, messages are passed on at once, which is
# cheaper for an app that waits before each message, or whose middleware does.
LONE_TURNS = 4
# After so many of those the next message is held until the turn's end again, to look for others; if
# there are none, as many are passed on again.
PASSED_ON = 17


class Coalescer:
    """Coalesces the small body messages of one response.

    At the end of the loop's turn a task sends them. Whatever the app sends next awaits that task,
    which keeps the order and the back-pressure, and raises to the app what the server's send() has
    raised.
    """

    __slots__ = (
        "_chunks",
        "_lone",
        "_loop",
        "_send",
        "_size",
        "_task",
        "_to_pass_on",
        "_turn_scheduled",
    )

    def __init__(self, send: Send) -> None:
        self._loop: Loop = running_loop()
        self._send = send
        self._chunks: list[bytes] = []
        self._lone = 0
        self._to_pass_on = 0
        self._size = 0
        self._turn_scheduled = False
        self._task: BackgroundTask | None = None

    async def add(self, body: bytes) -> int:
        """Send a small message, mostly later.

        :returns: how many of the next messages are best passed on at once.
        """
        if self._task is not None:
            await self._wait()
        if self._to_pass_on:
            following, self._to_pass_on = self._to_pass_on - 1, 0
            await self._send(response_body(body, more_body=True))
            return following
        self._chunks.append(body)
        self._size += len(body)
        if self._size >= COALESCED_BYTES:
            await self.flush()
        elif not self._turn_scheduled:
            self._turn_scheduled = True
            self._loop.call_soon(self._on_turn_end)
        return 0

    async def end(self, body: bytes) -> bytes:
        """Return the body's last message, with what is coalesced before it if that is small."""
        if len(body) > COALESCED_BYTES:
            await self.flush()
        elif self._chunks:
            body = self._take(body)
        if self._task is not None:
            await self._wait()
        return body

    async def flush(self) -> None:
        """Send what is coalesced."""
        if self._task is not None:
            await self._wait()
        if self._chunks:
            await self._send_coalesced()

    def cancel(self) -> None:
        """Send nothing more."""
        self._chunks.clear()
        if self._task is not None:
            self._task.cancel()

    def _on_turn_end(self) -> None:
        self._turn_scheduled = False
        self._lone = self._lone + 1 if len(self._chunks) == 1 else 0
        if self._lone == LONE_TURNS:
            self._lone -= 1
            self._to_pass_on = PASSED_ON
        if self._chunks and self._task is None:
            self._task = self._loop.create_task(self._send_coalesced())

    async def _send_coalesced(self) -> None:
        if self._chunks:
            await self._send(response_body(self._take(), more_body=True))

    async def _wait(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            await task

    def _take(self, last: bytes = b"") -> bytes:
        self._chunks.append(last)
        body = b"".join(self._chunks)
        self._chunks.clear()
        self._size = 0
        return body
