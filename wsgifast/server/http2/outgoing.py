"""What the streams of a connection send: in turn, under flow control, as the kernel takes it.

A stream that has something to send and is not *held back* by a window waits in turn in `_sending`.
The *pump* lets one after the other make a few frames, as long as the kernel takes them. The owner
runs it when the socket has room or windows have opened, and a task when a disk has answered. So no
more than a few frames wait in the connection's own queue, the rest in those of the streams.

All of it is done under the connection's lock: see multiplexer.py.
"""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from typing import Final

from h2.exceptions import ProtocolError

from ...errors import ClientGone
from ..endpoint import Core, Endpoint
from ..options import HTTP2Options
from ..output import OutputQueue
from ..poller import READ, WRITE
from ..sending import LONG_TURN_BYTES, Sender
from .floods import Floods
from .frames import Frames, goaway
from .stream import Stream
from .window_wait import WindowWait

__all__ = ["LEAVING", "LOST", "OPEN", "Outgoing"]

# What a stream sends before others have their turn, and where memory is short: with the heads of
# four frames, of the length that every client allows, it is four whole records of TLS.
_QUANTUM_BYTES = 64 * 1024 - 4 * 9
_SMALL_QUANTUM_BYTES = 16 * 1024
# One turn for one connection: beyond it, the others get theirs first.
_TURN_BYTES = 1024 * 1024
# Of a client that does not take the answers to its frames, no more are received.
_CLOGGED_BYTES = 128 * 1024

OPEN: Final = "open"
LEAVING: Final = "leaving"
LOST: Final = "lost"


class Outgoing:
    """The sending end of a connection, for its streams and its owner.

    :ivar state: of the connection: open, leaving, lost.
    :ivar streams: those that are not over, by their numbers.
    """

    __slots__ = (
        "_encrypts",
        "_framed",
        "_is_pump_pushed",
        "_is_pumping",
        "_pumped",
        "_sending",
        "_wants_write",
        "_window_wait",
        "blocked_until",
        "connection",
        "core",
        "floods",
        "frames",
        "lock",
        "output",
        "rules",
        "state",
        "streams",
        "until_sent",
    )

    def __init__(self, core: Core, connection: Endpoint, http2: HTTP2Options) -> None:
        self.core = core
        self.connection = connection
        self.rules = rules = core.output_rules
        self.lock = threading.RLock()
        sender = Sender(connection.sock, rules)
        self.output = OutputQueue(sender, self, rules, self.lock)
        self._encrypts = sender.encrypts
        self.frames = Frames(http2)
        self.floods = Floods(time.monotonic())
        self.state = OPEN
        self.streams: dict[int, Stream] = {}
        self._sending: dict[Stream, None] = {}
        self._framed = 0  # bytes since the last send
        self._pumped = 0  # bytes since the pump began
        self._is_pumping = self._is_pump_pushed = False
        self._wants_write = False  # the output queue waits for the socket
        self.until_sent = math.inf  # for how long it does
        self._window_wait: WindowWait | None = None  # for the window of the connection
        self.blocked_until = math.inf

    def acknowledge(self, size: int, number: int) -> None:
        """So many bytes of a stream have been taken in: its windows open again, in h2's time."""
        with self.lock, contextlib.suppress(ProtocolError):  # the connection is about to be lost
            self.frames.acknowledge_received_data(size, number)

    def open_window(self, size: int, number: int | None) -> None:
        """Open the window of a stream, or that of the connection, at once."""
        with self.lock:
            if size and (number is None or self.frames.is_open(number)) and self.state is not LOST:
                with contextlib.suppress(ProtocolError):  # as above
                    self.frames.increment_flow_control_window(size, number)
                self.transmit_or_wait()

    # Sending; all of it under the lock.

    @property
    def is_congested(self) -> bool:
        """Whether what has been framed is not sent yet."""
        return self.output.draining

    @property
    def quantum(self) -> int:
        """Bytes that a stream may frame at once."""
        return _SMALL_QUANTUM_BYTES if self.rules.memory.is_full else _QUANTUM_BYTES

    def check(self, number: int) -> None:
        """:raises ClientGone: if nothing can be sent on a stream any more."""
        if self.state is LOST or not self.frames.is_open(number):
            raise ClientGone("the stream is closed")

    def on_framed(self, size: int) -> None:
        """A stream has framed some bytes of its body."""
        self._framed += size
        self._pumped += size
        if not self._is_pumping or self._framed >= _QUANTUM_BYTES:
            self.transmit()

    def transmit(self) -> None:
        """Send what has been framed; what the kernel does not take waits in the queue.

        :raises ClientGone: if the client has gone.
        """
        if self._window_wait is not None:
            self._window_wait.taken += self._framed
        self._framed = 0
        data = self.frames.data_to_send()
        if data:
            if self.output.draining:
                self.output.write_all((data,))
            else:
                self.output.write(data)  # it is empty: this does not wait

    def transmit_or_wait(self) -> None:
        with contextlib.suppress(ClientGone):  # the owner's next event tells
            self.transmit()

    def queue(self, stream: Stream, *, is_over: bool = False) -> None:
        """A stream waits for its turn, or for a window.

        :param is_over: for its end: it has failed.
        """
        stream.is_held_back = not is_over and stream.output.sender.is_held_back()
        if stream.is_held_back:
            self.note_deadline(stream.deadline)
            if self.frames.window <= 0:
                self._window_wait = self._window_wait or WindowWait(self.rules)
                self.blocked_until = self._window_wait.begin()
                self.note_deadline(self.blocked_until)
            return
        self._sending[stream] = None
        if not self._is_pumping and not self.is_congested:
            self._pump_soon()

    def take_up(self, stream: Stream) -> None:
        """The windows of a stream may have opened."""
        if stream.is_held_back and not stream.output.sender.is_held_back():
            stream.is_held_back = False
            stream.deadline = math.inf
            self._sending[stream] = None

    def take_up_all(self) -> None:
        if self.frames.window > 0:
            self.end_window_wait()
        for stream in self.streams.values():
            self.take_up(stream)

    def end_window_wait(self) -> None:
        """Nobody waits for the connection's window any more."""
        if self._window_wait is not None:
            self._window_wait.end()
            self.blocked_until = math.inf

    def pump(self) -> None:
        """Let streams that wait send in turn, as long as the kernel takes it."""
        over: list[Stream] = []
        with self.lock:
            self._is_pumping = True
            left = _TURN_BYTES
            is_long = False
            self._pumped = 0
            try:
                while self._sending and left > 0 and not self.is_congested:
                    stream = next(iter(self._sending))
                    del self._sending[stream]
                    if stream.output.on_writable():
                        over.append(stream)
                    left -= self.quantum
                    if self._encrypts and not is_long and self._pumped >= LONG_TURN_BYTES:
                        is_long = True
                        self.rules.make_way()
            finally:
                self._is_pumping = False
            self.transmit_or_wait()
            if self._sending and not self.is_congested:
                self._pump_soon()
        for stream in over:
            stream.finish()

    def _pump_soon(self) -> None:
        if not self._is_pump_pushed and self.state is not LOST:
            self._is_pump_pushed = True
            self.core.run_soon(self._pump_as_task)

    def _pump_as_task(self) -> None:
        self._is_pump_pushed = False
        try:
            self.pump()
        except Exception as error:
            self.core.log.exception("Error in a connection")
            self.output.fail(error)
            with contextlib.suppress(OSError):  # the owner finds it so
                self.connection.sock.shutdown(socket.SHUT_RDWR)

    def on_writable(self) -> None:
        """The socket has room."""
        with self.lock:
            if self._wants_write:
                self._wants_write = False
                self.until_sent = math.inf
                self.output.on_writable()

    def wait_for_socket(self) -> None:
        """Have the owner take the connection up as soon as the socket has room."""
        with self.lock:
            self._wants_write = True
            self.core.registry.change(self.connection, self.awaited())

    # What the connection's queue asks for, under the lock.

    def wait_to_send(self, deadline: float, *, retry: bool) -> None:
        """As :class:`~..output.OutputOwner` has it: whoever owns the connection, or none does."""
        self.until_sent = deadline
        self.note_deadline(deadline)
        if retry:
            self.connection.retries = True
        else:
            self._wants_write = True
            self.core.registry.change(self.connection, self.awaited())

    def resume_sending(self) -> None:
        """Its disk has failed; the owner's next event tells."""

    def announce_end(self, last_stream: int) -> None:
        with contextlib.suppress(ClientGone):
            self.transmit()
            self.output.write_all((goaway(last_stream),))

    def note_deadline(self, deadline: float) -> None:
        """Somebody is to be given up by then; the sweep finds out who."""
        if deadline < self.connection.deadline:
            self.connection.deadline = deadline

    def awaited(self) -> int:
        clogged = self.output.draining and self.output.bytes_queued > _CLOGGED_BYTES
        return (0 if clogged else READ) | (WRITE if self._wants_write else 0)
