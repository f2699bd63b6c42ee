"""Coalesce the small body messages of one turn of the event loop into one."""

from __future__ import annotations

from time import monotonic

from .loops import BackgroundTask, Loop, running_loop
from .messages import Send, response_body

# A body message up to this size is coalesced; a larger one costs less to pass on than to copy.
SMALL_MESSAGE_BYTES = 8 * 1024
# At this size coalesced messages are sent before the loop's turn ends. A transport's default
# high-water mark is the same.
COALESCED_BYTES = 64 * 1024
# After so many turns in a row with one message each, the next message is held for longer than its
# turn: a middleware that has each message pass from one task to another takes some turns for it.
LONE_TURNS = 4
# For at most so many turns, and so many seconds (a turn is long where the loop is busy).
HELD_TURNS = 16
HELD_S = 0.001
# If no other message came in these, so many of the next ones are passed on at once, which is
# cheaper for an app that waits before each message. The one behind them is held like that again.
PASSED_ON = 17


class Held:
    """The small body messages of one response that wait to be sent as one.

    Whoever has them sends them when the loop's turn ends, unless :meth:`turn_ended` says that they
    are best held for another one; and when `size` reaches COALESCED_BYTES.

    :ivar chunks: the messages' bodies.
    :ivar size: their bytes.
    :ivar to_pass_on: so many of the next messages are best passed on at once.
    """

    __slots__ = ("_lone", "_turns", "_until", "chunks", "size", "to_pass_on")

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.size = 0
        self.to_pass_on = 0
        # Of turns that had one message, as long as no other number is between them.
        self._lone = 0
        # That the messages have been held for.
        self._turns = 0
        self._until = 0.0

    def turn_ended(self) -> bool:
        """Whether the messages are best held for another turn of the loop."""
        is_lone = len(self.chunks) == 1
        if self._lone < LONE_TURNS:
            self._lone = self._lone + 1 if is_lone else 0
            return False
        if not self._turns:
            if not is_lone:
                self._lone = 0
                return False
            self._until = monotonic() + HELD_S
        elif self._turns == HELD_TURNS or monotonic() > self._until:
            if is_lone:
                self.to_pass_on = PASSED_ON
            return False
        self._turns += 1
        return True

    def take(self, last: bytes = b"") -> bytes:
        """The bodies held, and one behind them, as one."""
        self.chunks.append(last)
        body = b"".join(self.chunks)
        self.chunks.clear()
        self.size = self._turns = 0
        return body


class Coalescer:
    """Coalesces the small body messages of one response under any server.

    A task sends them. Whatever the app sends next awaits that task, which keeps the order and the
    back-pressure, and raises to the app what the server's send() has raised.
    """

    __slots__ = ("_held", "_loop", "_send", "_task", "_turn_scheduled")

    def __init__(self, send: Send) -> None:
        self._loop: Loop = running_loop()
        self._send = send
        self._held = Held()
        self._turn_scheduled = False
        self._task: BackgroundTask | None = None

    async def add(self, body: bytes) -> int:
        """Send a small message, mostly later.

        :returns: how many of the next messages are best passed on at once.
        """
        if self._task is not None:
            await self._wait()
        held = self._held
        if held.to_pass_on:
            following, held.to_pass_on = held.to_pass_on - 1, 0
            await self._send(response_body(body, more_body=True))
            return following
        held.chunks.append(body)
        held.size += len(body)
        if held.size >= COALESCED_BYTES:
            await self.flush()
        elif not self._turn_scheduled:
            self._schedule()
        return 0

    async def end(self, body: bytes) -> bytes:
        """Return the body's last message, with what is held before it if that is small."""
        if len(body) > COALESCED_BYTES:
            await self.flush()
        elif self._held.chunks:
            body = self._held.take(body)
        if self._task is not None:
            await self._wait()
        return body

    async def flush(self) -> None:
        """Send what is held."""
        if self._task is not None:
            await self._wait()
        if self._held.chunks:
            await self._send_held()

    def cancel(self) -> None:
        """Send nothing more."""
        self._held.chunks.clear()
        if self._task is not None:
            self._task.cancel()

    def _schedule(self) -> None:
        self._turn_scheduled = True
        self._loop.call_soon(self._on_turn_end)

    def _on_turn_end(self) -> None:
        self._turn_scheduled = False
        if self._held.turn_ended():
            self._schedule()
        elif self._held.chunks and self._task is None:
            self._task = self._loop.create_task(self._send_held())

    async def _send_held(self) -> None:
        if self._held.chunks:
            await self._send(response_body(self._held.take(), more_body=True))

    async def _wait(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            await task
