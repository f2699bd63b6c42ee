"""Coalesce the small body messages of one event loop iteration, or of a few, into one message."""

from __future__ import annotations

import math
from time import monotonic

from .loops import BackgroundTask, outcome, running_loop
from .messages import COALESCED_BYTES, Message, SendOrder, response_body
from .wire import Wire

# Body messages of up to this size are coalesced. A copy of a larger message would cost more than a
# separate send().
SMALL_MESSAGE_BYTES = 8 * 1024
# After this many consecutive iterations with one message each, the next message is delayed for more
# than one iteration. A middleware may take some iterations to pass a message from one task to
# another.
LONE_TURNS = 4
# The longest delay, in iterations and in seconds. Starlette's BaseHTTPMiddleware takes three
# iterations for a message, and two such middlewares take five. The seconds limit the delay on a
# busy loop, whose iterations are long.
DELAY_TURNS = 16
DELAY_S = 0.001
# If a delay has joined no messages, this many of the next messages are sent without a delay. This
# is cheaper for an app that waits before each message. The message after them is delayed again.
PASSED_ON = 17


class DelayedMessages:
    """The delayed small body messages of one response, which are sent as one.

    The owner sends them when an event loop iteration ends, unless :meth:`end_turn` returns True. It
    also sends them when `size` reaches COALESCED_BYTES.

    :ivar chunks: the bodies of the messages.
    :ivar size: the number of bytes in `chunks`.
    :ivar to_pass_on: the number of next messages to send without a delay.
    """

    __slots__ = ("_lone_turns", "_turns", "_until", "chunks", "size", "to_pass_on")

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.size = 0
        self.to_pass_on = 0
        # The number of consecutive iterations with one message, up to LONE_TURNS.
        self._lone_turns = 0
        # The number of iterations for which the messages have been delayed, after their own.
        self._turns = 0
        self._until = 0.0

    def end_turn(self) -> bool:
        """Count an iteration. Return whether the messages should wait for one more iteration."""
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
        """Return the delayed bodies, joined with a last one, and clear them."""
        self.chunks.append(last)
        body = b"".join(self.chunks)
        self.clear()
        return body

    def clear(self) -> None:
        """Discard the delayed bodies."""
        self.chunks.clear()
        self.size = self._turns = 0


class Coalescer:
    """Coalesces the small body messages of one response, for a ServerWire or a QueueWire.

    With a ServerWire, a task sends the delayed messages, even if the app sends no more. The app's
    next send() awaits that task. This preserves the order and the back-pressure, and an error of
    the server's send() is raised in the app. A QueueWire needs no task.

    :param order: a caller must have acquired it, except for :meth:`offer`, :meth:`end_turn`,
        :meth:`release`, :meth:`send_apart` and :meth:`cancel`.
    :param holds: whether small messages are delayed. If False, all messages are sent at once.
    :ivar room: the remaining bytes of the Content-Length. A longer message is sent separately. If
        the server refuses it, the earlier messages have been sent.
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
        """Store the Content-Length of the response, or None if the response has none."""
        self.room = math.inf if declared is None else declared

    def offer(self, body: bytes, *, in_order: bool = False) -> bool | None:
        """Delay the body of a message if it is small and does not have to wait.

        :param in_order: whether the caller has acquired the order.
        :returns: True if the body is delayed or written. False if the caller must send the message
            at once. None if the caller must use :meth:`add`.
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
        """Send a small body, with a delay if possible."""
        await self.sent()
        is_delayed = self.offer(body, in_order=True)
        if is_delayed is None:  # too many bytes are delayed
            await self.flush()
            is_delayed = self.offer(body, in_order=True)
            if is_delayed is None:
                self.room -= len(body)
        if not is_delayed:
            await self._wire.send(response_body(body, more_body=True))

    async def end(self, message: Message, body: bytes) -> None:
        """Send the last body message. If it is small, it is joined with the delayed messages.

        The task of the app sends it. After it the server may send http.disconnect, and a framework
        may then cancel all waiting tasks.

        :param body: the body of the message.
        """
        size = len(body)
        # If the send() may wait, it may be cancelled. The delayed messages must not be lost then.
        may_wait = self._wire.has_to_wait() is not False
        if may_wait or size > COALESCED_BYTES or size > self.room or not self._delayed.chunks:
            await self.flush()
        else:
            # If a task is about to send the delayed messages, it finds none, and sends nothing.
            message = {**message, "body": self._delayed.take(body)}
        await self._wire.send(message)

    async def flush(self) -> None:
        """Send the delayed messages."""
        self.release()
        await self.sent()

    def send_apart(self, message: Message) -> None:
        """Send a message in a new task."""
        self._task = running_loop().create_task(_sending(self._wire, message))

    async def sent(self) -> None:
        """Wait until the sending task has ended, if there is one."""
        task = self._task
        if task is not None:
            try:
                await outcome(task)
            finally:
                if task.done() and self._task is task:
                    self._task = None

    def cancel(self) -> None:
        """Discard the delayed messages, and cancel the sending task."""
        self._delayed.clear()
        if self._task is not None:
            self._task.cancel()

    # The wire calls these two methods when an event loop iteration ends, after delay().

    def end_turn(self) -> bool:
        """Return whether the delayed messages should wait for one more iteration."""
        return self._task is None and bool(self._delayed.chunks) and self._delayed.end_turn()

    def release(self) -> None:
        """Begin to send the delayed messages. The app's next send() raises an error of this."""
        if self._task is None and self._delayed.chunks:
            self._task = self._wire.write(self._delayed.take)


async def _sending(wire: Wire, message: Message) -> None:
    """Send a message. A task needs a coroutine, and not every server's send() returns one."""
    await wire.send(message)
