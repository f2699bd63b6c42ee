"""The two wires. A wire is the interface through which an Exchange sends a response.

:class:`ServerWire` sends ASGI messages to any server. QueueWire (protocols/queue_wire.py) belongs
to asgifast's uvicorn protocols, and writes into the output queue of the connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol

from .loops import BackgroundTask, Loop, running_loop
from .messages import Message, Send, flow_of, response_body
from .whole_responses import whole_sender_for


class DelayedOutput(Protocol):
    """Output that waits for the end of an event loop iteration.

    end_iteration() returns whether the output should wait for one more iteration. If not, release()
    sends the output.
    """

    def end_iteration(self) -> bool: ...

    def release(self) -> None: ...


class Wire:
    """The interface to the server for one response. Only one call may be in progress at a time.

    :ivar send: sends a message, and waits while the client reads slowly.
    """

    __slots__ = ()

    # Whether this is a QueueWire. A QueueWire also sends files, and coalesces messages without a
    # task.
    is_queue: ClassVar[bool] = False
    send: Send
    # uvicorn's RequestResponseCycle. Only a QueueWire has it.
    cycle: Any

    def send_at_once(self, start: Message, message: Message) -> bool:
        """Send a small response in one write, without an await. Return False if it was not sent.

        The Exchange calls this first, for the first body message after a delayed start message.
        """
        raise NotImplementedError

    async def send_both(self, start: Message, message: Message) -> None:
        """Send a start message and the only body message of a response, one after the other.

        The Exchange calls this if send_at_once() has returned False. It may wait for the client.
        """
        await self.send(start)
        await self.send(message)

    def has_started(self) -> bool | None:
        """Return whether the server has accepted a start message, or None if that is unknown."""
        raise NotImplementedError

    def has_to_wait(self) -> bool | None:
        """Return whether send() would wait for the client to read, or None if that is unknown."""
        raise NotImplementedError

    # Small parts of a body, which are sent without send()

    def can_write_body(self) -> bool:
        """Return whether parts of the body may be delayed or written now."""
        return True

    def write_body_now(self, body: bytes) -> bool:
        """Write a part of the body now. Return False if the caller has to use send()."""
        return False

    def delay(self, output: DelayedOutput) -> None:
        """Call the methods of an output when the event loop iteration ends."""
        raise NotImplementedError

    def write(self, pop_body: Callable[[], bytes]) -> BackgroundTask | None:
        """Send the bytes that a function returns.

        Return the task that sends them, if there is one.
        """
        raise NotImplementedError


class ServerWire(Wire):
    """Sends messages through the send() of a server or of a middleware."""

    __slots__ = ("_delayed", "_loop", "send")

    # The running loop, for callbacks and tasks. The first delay() sets this attribute.
    _loop: Loop

    def __init__(self, send: Send) -> None:
        self.send = send
        # The output to call when the event loop iteration ends.
        self._delayed: DelayedOutput | None = None

    def send_at_once(self, start: Message, message: Message) -> bool:
        send_whole = whole_sender_for(self.send)
        return send_whole is not None and send_whole(self._server, start, message)

    def has_started(self) -> bool | None:
        started: bool | None = getattr(self._server, "response_started", None)  # uvicorn's
        return started

    def has_to_wait(self) -> bool | None:
        waits: bool | None = getattr(flow_of(self.send), "write_paused", None)
        return waits

    @property
    def _server(self) -> Any:
        return getattr(self.send, "__self__", None)

    def delay(self, output: DelayedOutput) -> None:
        if self._delayed is None:
            self._loop = running_loop()
            self._schedule(output)

    def _schedule(self, output: DelayedOutput) -> None:
        self._delayed = output
        self._loop.call_soon(self._on_iteration_end)

    def _on_iteration_end(self) -> None:
        output, self._delayed = self._delayed, None
        assert output is not None
        if output.end_iteration():
            self._schedule(output)
        else:
            output.release()

    def write(self, pop_body: Callable[[], bytes]) -> BackgroundTask | None:
        return self._loop.create_task(self._send_popped(pop_body))

    async def _send_popped(self, pop_body: Callable[[], bytes]) -> None:
        body = pop_body()
        if body:  # another message may have sent the bytes meanwhile
            await self.send(response_body(body, more_body=True))
