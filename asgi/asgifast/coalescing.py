"""Small body messages of one turn of the event loop, or of a few, are coalesced into one."""

from __future__ import annotations

import math
from time import monotonic

from .loops import BackgroundTask, outcome, running_loop
from .messages import COALESCED_BYTES, Message, SendOrder, response_body
from .wire import Wire

# A body message up to this size is coalesced. A larger one costs less to pass on than to copy.
SMALL_MESSAGE_BYTES = 8 * 1024
# After this many turns in a row with one message each, the next message is delayed beyond its turn.
# A middleware that passes each message from one task to another takes some turns for it.
LONE_TURNS = 4
# The most turns of a delay. Starlette's BaseHTTPMiddleware takes three for a message, and five with
# another one around it. The most seconds count too, because turns of a busy loop are long.
DELAY_TURNS = 16
DELAY_S = 0.001
# If no other message arrived in these turns, this many of the next ones are passed on at once,
# which is cheaper for an app that waits before each message. The one after them is delayed again.
PASSED_ON = 17


class DelayedMessages:
    """The small body messages of one response that wait to be sent as one.

    The owner sends them when the loop's turn ends, unless :meth:`end_turn` returns that another
    turn is better. It also sends them when `size` reaches COALESCED_BYTES.

    :ivar chunks: the messages' bodies.
    :ivar size: their bytes.
    :ivar to_pass_on: so many of the next messages are best passed on at once.
    """

    __slots__ = ("_lone_turns", "_turns", "_until", "chunks", "size", "to_pass_on")

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.size = 0
        self.to_pass_on = 0
        # Turns in a row that had one message. Not counted beyond LONE_TURNS.
        self._lone_turns = 0
        # The number of turns for which the messages have been delayed beyond their own.
        self._turns = 0
        self._until = 0.0

    def end_turn(self) -> bool:
        """Count a turn of the loop. Return whether the messages should wait for another one."""
        is_lone = len(self.chunks) == 1
        if self._lone_turns < LONE_TURNS:
            self._lone_turns = self._lone_turns + 1 if is_lone else 0
            return False
        if not self._turns:
            if not is_lone:
                self._lone_turns = 0
                return False
            self._until = monotonic() + DELAY_S
        elif self._turns == DELAY_TURNS or monotonic() > self._until:
            if is_lone:
                self.to_pass_on = PASSED_ON
            return False
        self._turns += 1
        return True

    def take(self, last: bytes = b"") -> bytes:
        """Return the waiting bodies, and one after them, as one."""
        self.chunks.append(last)
        body = b"".join(self.chunks)
        self.clear()
        return body

    def clear(self) -> None:
        """Hold nothing more."""
        self.chunks.clear()
        self.size = self._turns = 0


class Coalescer:
    """Coalesces the small body messages of one response, on either wire.

    ServerWire has a task send the delayed messages, so that they are sent even if the app stops
    waiting. The app's next send() awaits that task. This preserves the order and the back-pressure,
    and raises the error of the server's send() to the app. QueueWire writes them without a task.

    :param order: the caller that it lets through calls all methods except :meth:`offer`,
        :meth:`end_turn`, :meth:`release`, :meth:`send_apart` and :meth:`cancel`.
    :param holds: False to delay nothing: small messages are passed on at once, too.
    :ivar room: remaining bytes of the Content-Length. A message with more is sent apart, so that a
        server that refuses it has sent the messages before.
    """

    __slots__ = ("_delayed", "_order", "_task", "_wire", "holds", "room")

    def __init__(self, wire: Wire, order: SendOrder, *, holds: bool) -> None:
        self._wire = wire
        self._order = order
        self._delayed = DelayedMessages()
        self._task: BackgroundTask | None = None
        self.holds = holds
        self.room = math.inf

    def set_length(self, declared: int | None) -> None:
        """Read the Content-Length of the response, if it has one."""
        self.room = math.inf if declared is None else declared

    def offer(self, body: bytes, *, in_order: bool = False) -> bool | None:
        """Delay a message's body, if it is small and needs no wait.

        :param in_order: the order has let it through.
        :returns: True if it is delayed or written. False if the caller should pass the message on
            at once, and it counts as passed on. None otherwise.
        """
        if self._task is not None or (self._order.is_taken and not in_order):
            return None
        if not self.holds:
            return False
        delayed = self._delayed
        size = len(body)
        if size > self.room or (not delayed.chunks and not self._wire.accepts()):
            return None
        if delayed.to_pass_on:
            delayed.to_pass_on -= 1
            self.room -= size
            return self._wire.pass_on(body)
        if size > SMALL_MESSAGE_BYTES or delayed.size + size >= COALESCED_BYTES:
            return None
        self.room -= size
        if not delayed.chunks:
            self._wire.delay(self)
        delayed.chunks.append(body)
        delayed.size += size
        return True

    async def add(self, body: bytes) -> None:
        """Send a small message, mostly later."""
        await self.sent()
        is_delayed = self.offer(body, in_order=True)
        if is_delayed is None:  # there are many
            await self.flush()
            is_delayed = self.offer(body, in_order=True)
            if is_delayed is None:
                self.room -= len(body)
        if not is_delayed:
            await self._wire.send(response_body(body, more_body=True))

    async def end(self, message: Message, body: bytes) -> None:
        """Send the body's last message, with the delayed ones before it if it is small.

        The app's own task sends it. After it the server may send http.disconnect, at which a
        framework may cancel all waiting tasks.

        :param body: the message's.
        """
        size = len(body)
        # A send() that is cancelled while it waits must not lose delayed messages.
        may_wait = self._wire.has_to_wait() is not False
        if may_wait or size > COALESCED_BYTES or size > self.room or not self._delayed.chunks:
            await self.flush()
        else:
            # A task that is about to send the delayed messages finds none.
            message = {**message, "body": self._delayed.take(body)}
        await self._wire.send(message)

    async def flush(self) -> None:
        """Send the delayed messages."""
        self.release()
        await self.sent()

    def send_apart(self, message: Message) -> None:
        """Have a task send a message."""
        self._task = running_loop().create_task(_sending(self._wire, message))

    async def sent(self) -> None:
        """Wait for the task, if one is sending."""
        task = self._task
        if task is not None:
            try:
                await outcome(task)
            finally:
                if task.done() and self._task is task:
                    self._task = None

    def cancel(self) -> None:
        """Send nothing more."""
        self._delayed.clear()
        if self._task is not None:
            self._task.cancel()

    # The wire calls these two at the end of the loop's turn, after delay().

    def end_turn(self) -> bool:
        """Return whether the delayed messages should wait for another turn."""
        return self._task is None and bool(self._delayed.chunks) and self._delayed.end_turn()

    def release(self) -> None:
        """Send the delayed messages. The next send() raises an error."""
        if self._task is None and self._delayed.chunks:
            self._task = self._wire.write(self._delayed.take)


async def _sending(wire: Wire, message: Message) -> None:
    """A coroutine, which some server's send() is not, for a task."""
    await wire.send(message)
