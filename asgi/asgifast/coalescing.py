"""Coalesce small body messages: those of one event loop iteration become one message."""

from __future__ import annotations

import math
from time import monotonic

from .loops import BackgroundTask, running_loop, wait_for
from .messages import COALESCED_BYTES, Message, SendOrder, response_body
from .wire import Wire

# Body messages of up to this size are coalesced. A copy of a larger message would cost more than a
# separate send().
SMALL_MESSAGE_BYTES = 8 * 1024
# After this many consecutive iterations with one message each, the next message is delayed for more
# than one iteration. A middleware may take some iterations to pass a message from one task to
# another.
SINGLE_ITERATIONS = 4
# The longest delay, in iterations and in seconds. Starlette's BaseHTTPMiddleware takes three
# iterations for a message, and two such middlewares take five. The seconds limit the delay on a
# busy loop, whose iterations are long.
DELAY_ITERATIONS = 16
DELAY_S = 0.001
# If a delay has joined no messages, this many of the next messages are sent without a delay. This
# is cheaper for an app that waits before each message. The message after them is delayed again.
UNDELAYED_MESSAGES = 17


class DelayedMessages:
    """The delayed small body messages of one response, which are sent as one.

    The owner sends them when an event loop iteration ends, unless :meth:`end_iteration` returns
    True. It also sends them when `size` reaches COALESCED_BYTES.

    :ivar chunks: the bodies of the messages.
    :ivar size: the number of bytes in `chunks`.
    :ivar undelayed_messages: the number of next messages to send without a delay.
    """

    __slots__ = (
        "_delay_ends_at", "_iterations", "_single_iterations", "chunks", "size",
        "undelayed_messages",
    )  # fmt: skip

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.size = 0
        self.undelayed_messages = 0
        # The number of consecutive iterations with one message, up to SINGLE_ITERATIONS.
        self._single_iterations = 0
        # The number of iterations for which the messages have been delayed. The iteration in which
        # the app sent them does not count.
        self._iterations = 0
        self._delay_ends_at = 0.0

    def end_iteration(self) -> bool:
        """Count an iteration. Return whether the messages should wait for one more iteration."""
        is_single = len(self.chunks) == 1
        if self._single_iterations < SINGLE_ITERATIONS:
            self._single_iterations = self._single_iterations + 1 if is_single else 0
            return False
        if not self._iterations:
            if not is_single:
                self._single_iterations = 0
                return False
            self._delay_ends_at = monotonic() + DELAY_S
        elif self._iterations == DELAY_ITERATIONS or monotonic() > self._delay_ends_at:
            if is_single:
                self.undelayed_messages = UNDELAYED_MESSAGES
            return False
        self._iterations += 1
        return True

    def pop_joined(self, last: bytes = b"") -> bytes:
        """Return the delayed bodies, joined with a last one, and clear them."""
        self.chunks.append(last)
        body = b"".join(self.chunks)
        self.clear()
        return body

    def clear(self) -> None:
        """Discard the delayed bodies."""
        self.chunks.clear()
        self.size = self._iterations = 0


class Coalescer:
    """Coalesces the small body messages of one response, for a ServerWire or a QueueWire.

    With a ServerWire, a task sends the delayed messages when the iteration ends. The app's next
    send() awaits that task. So the messages remain in order, a slow client slows down the app, and
    an error of the server's send() is raised in the app. A QueueWire needs no task.

    :param order: the order of the app's send() calls. A caller must have acquired it, except for
        :meth:`try_delay`, :meth:`end_iteration`, :meth:`release`, :meth:`send_in_task` and
        :meth:`cancel`.
    :param may_delay: whether small messages are delayed. If False, all messages are sent at once.
    :ivar remaining_bytes: the remaining bytes of the Content-Length. A longer message is sent
        separately, after the delayed messages. So the delayed messages are sent even if the server
        refuses the longer one.
    """

    __slots__ = ("_delayed", "_order", "_task", "_wire", "may_delay", "remaining_bytes")

    def __init__(self, wire: Wire, order: SendOrder, *, may_delay: bool) -> None:
        self._wire = wire
        self._order = order
        self._delayed = DelayedMessages()
        self._task: BackgroundTask | None = None
        self.may_delay = may_delay
        self.remaining_bytes = math.inf

    def set_length(self, declared: int | None) -> None:
        """Store the Content-Length of the response, or None if the response has none."""
        self.remaining_bytes = math.inf if declared is None else declared

    def try_delay(self, body: bytes, *, order_is_acquired: bool = False) -> bool | None:
        """Delay the body of a message, if it is small and no earlier message must be sent first.

        :param order_is_acquired: whether the caller has acquired the order.
        :returns: True if the body is delayed or written. False if the caller must send the message
            at once. None if the caller must use :meth:`add`.
        """
        if self._task is not None or (self._order.is_acquired and not order_is_acquired):
            return None
        if not self.may_delay:
            return False
        delayed = self._delayed
        size = len(body)
        if size > self.remaining_bytes or (not delayed.chunks and not self._wire.can_write_body()):
            return None
        if delayed.undelayed_messages:
            delayed.undelayed_messages -= 1
            self.remaining_bytes -= size
            return self._wire.write_body_now(body)
        if size > SMALL_MESSAGE_BYTES or delayed.size + size >= COALESCED_BYTES:
            return None
        self.remaining_bytes -= size
        if not delayed.chunks:
            self._wire.delay(self)
        delayed.chunks.append(body)
        delayed.size += size
        return True

    async def add(self, body: bytes) -> None:
        """Send a small body, with a delay if possible."""
        await self.wait_for_task()
        is_delayed = self.try_delay(body, order_is_acquired=True)
        if is_delayed is None:  # the delayed bodies must be sent first
            await self.flush()
            is_delayed = self.try_delay(body, order_is_acquired=True)
            if is_delayed is None:
                self.remaining_bytes -= len(body)
        if not is_delayed:
            await self._wire.send(response_body(body, more_body=True))

    async def end(self, message: Message, body: bytes) -> None:
        """Send the last body message. If it is small, it is joined with the delayed messages.

        The last message is sent in the app's own task. After that message, the server may send
        http.disconnect, and a framework may then cancel all other tasks of the request.

        :param body: the body of the message.
        """
        size = len(body)
        # A send() that waits may be cancelled. Then the delayed messages would be lost with it.
        may_wait = self._wire.has_to_wait() is not False
        if (
            may_wait
            or size > COALESCED_BYTES
            or size > self.remaining_bytes
            or not self._delayed.chunks
        ):
            await self.flush()
        else:
            # A task that was about to send the delayed messages then finds no message, and sends
            # nothing.
            message = {**message, "body": self._delayed.pop_joined(body)}
        await self._wire.send(message)

    async def flush(self) -> None:
        """Send the delayed messages."""
        self.release()
        await self.wait_for_task()

    def send_in_task(self, message: Message) -> None:
        """Send a message in a new task."""
        self._task = running_loop().create_task(_sending(self._wire, message))

    async def wait_for_task(self) -> None:
        """Wait until the sending task has ended, if there is one."""
        task = self._task
        if task is not None:
            try:
                await wait_for(task)
            finally:
                if task.done() and self._task is task:
                    self._task = None

    def cancel(self) -> None:
        """Discard the delayed messages, and cancel the sending task."""
        self._delayed.clear()
        if self._task is not None:
            self._task.cancel()

    # The wire calls these two methods when an event loop iteration ends, after delay().

    def end_iteration(self) -> bool:
        """Return whether the delayed messages should wait for one more iteration."""
        return self._task is None and bool(self._delayed.chunks) and self._delayed.end_iteration()

    def release(self) -> None:
        """Begin to send the delayed messages. The app's next send() raises the error, if any."""
        if self._task is None and self._delayed.chunks:
            self._task = self._wire.write(self._delayed.pop_joined)


async def _sending(wire: Wire, message: Message) -> None:
    """Send a message. A task needs a coroutine, and not every server's send() returns one."""
    await wire.send(message)
