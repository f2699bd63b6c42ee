"""The sending half of an HTTP/2 connection: its streams take turns, under flow control.

A stream with something to send is either *held back*, until the client opens a window, or waits for
its turn in `_sending`. The *pump* lets one stream after the other frame a little, for as long as
the kernel takes it. So the connection's own output queue never holds more than a few frames; the
rest waits in the queues of the streams. The owner pumps when the socket is writable or windows have
opened, and a task of the pool when a disk read has finished.

Everything here runs under the connection's lock: see connection.py.
"""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError

from ...errors import ClientGone
from ..endpoint import Core, Endpoint
from ..limits import ClientWait, UploadPace
from ..output import OutputQueue
from ..poller import READ, WRITE
from ..sending import LONG_TURN_BYTES, Sender
from .frames import Floods, Frames, goaway

# What a stream frames before the others have their turn: with the headers of four frames of the
# length that every client accepts, it fills four TLS records. Less where memory is short.
_QUANTUM_BYTES = 64 * 1024 - 4 * 9
_SMALL_QUANTUM_BYTES = 16 * 1024
# What a connection frames before other connections have their turn.
_TURN_BYTES = 1024 * 1024
# With more unsent bytes than this, nothing is received: the client does not read our answers.
_CLOGGED_BYTES = 128 * 1024

OPEN: Final = "open"
LEAVING: Final = "leaving"
LOST: Final = "lost"


class Outgoing:
    """What streams use to send, and the owner to see that they do.

    :param end: called when a stream is over, without the lock, by the thread that ended it.
    :ivar state: of the connection: open, leaving or lost.
    :ivar streams: those that are not over, by number.
    :ivar uploads: how fast the client sends its bodies.
    :ivar lock: guards h2's state, all output, and every change of a state.
    """

    __slots__ = (
        "_encrypts", "_framed", "_is_pump_pushed", "_is_pumping", "_pumped", "_sending",
        "_wants_write", "_window_wait", "blocked_until", "connection", "core", "end", "floods",
        "frames", "lock", "output", "rules", "state", "streams", "until_sent", "uploads",
    )  # fmt: skip

    def __init__(self, core: Core, connection: Endpoint, end: Callable[[Any], None]) -> None:
        self.core = core
        self.end = end
        self.connection = connection
        self.rules = rules = core.output_rules
        self.lock = threading.RLock()
        sender = Sender(connection.sock, rules)
        self.output = OutputQueue(sender, self, rules, self.lock)
        self.output.keeps_all = True
        self._encrypts = sender.encrypts
        self.floods = Floods(time.monotonic())
        self.frames = Frames(core.http2, self.floods.admit)
        self.uploads = UploadPace(core.options.body_timeout_s)
        self.state = OPEN
        # Streams are Any here: their module imports this one.
        self.streams: dict[int, Any] = {}
        self._sending: dict[Any, None] = {}
        self._framed = 0  # body bytes since the last send
        self._pumped = 0  # body bytes since the pump began
        self._is_pumping = self._is_pump_pushed = False
        self._wants_write = False  # the output queue waits for the socket
        self.until_sent = math.inf  # and gives the client up then
        self._window_wait: ClientWait | None = None  # for the connection's window
        self.blocked_until = math.inf  # and the client is given up then

    # Windows of the client's bodies; for any thread.

    def acknowledge(self, size: int, number: int) -> None:
        """Some bytes of a stream have been consumed; h2 decides when its windows open again."""
        with self.lock, contextlib.suppress(ProtocolError):  # the connection is about to be lost
            self.frames.acknowledge_received_data(size, number)

    def open_window(self, size: int, number: int | None) -> None:
        """Open the window of a stream, or of the connection, at once."""
        with self.lock:
            if size and (number is None or self.frames.is_open(number)) and self.state is not LOST:
                with contextlib.suppress(ProtocolError):  # as above
                    self.frames.increment_flow_control_window(size, number)
                self.transmit_or_wait()

    # Called by the senders of streams, under the lock.

    @property
    def is_congested(self) -> bool:
        """Whether framed bytes are still unsent."""
        return self.output.draining

    @property
    def quantum(self) -> int:
        """Bytes that a stream may frame in one turn."""
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
        """Send what has been framed; what the kernel does not take stays in the output queue.

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
                self.output.write(data)  # the queue is empty: this does not wait

    def transmit_or_wait(self) -> None:
        """As :meth:`transmit`; a client that has gone is left to the owner's next event."""
        with contextlib.suppress(ClientGone):
            self.transmit()

    # Turns, under the lock.

    def queue(self, stream: Any, *, is_over: bool = False) -> None:
        """Have a stream take its turn, once its windows allow it.

        :param is_over: it has failed, and takes its turn only to end.
        """
        stream.is_held_back = not is_over and stream.output.stream_sender.is_held_back()
        if stream.is_held_back:
            self.cap_deadline(stream.deadline)
            if self.frames.window <= 0:
                self._window_wait = self._window_wait or self.rules.new_wait()
                self.blocked_until = self._window_wait.begin()
                self.cap_deadline(self.blocked_until)
            return
        self._sending[stream] = None
        if not self._is_pumping and not self.is_congested:
            self._pump_soon()

    def unblock(self, stream: Any) -> None:
        """The windows of a stream may have opened."""
        if stream.is_held_back and not stream.output.stream_sender.is_held_back():
            stream.is_held_back = False
            stream.deadline = math.inf
            self._sending[stream] = None

    def unblock_all(self) -> None:
        """The window of the connection, or of all streams, may have opened."""
        if self.frames.window > 0:
            self.end_window_wait()
        for stream in self.streams.values():
            self.unblock(stream)

    def end_window_wait(self) -> None:
        """No stream waits for the connection's window any more."""
        if self._window_wait is not None:
            self._window_wait.end()
            self.blocked_until = math.inf

    def pump(self) -> None:
        """Let the streams take turns for as long as the kernel takes what they frame."""
        over: list[Any] = []
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
                        self.rules.share_work()
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
            with contextlib.suppress(OSError):  # which the owner's next event reports
                self.connection.sock.shutdown(socket.SHUT_RDWR)

    # Ends

    def lose(self, error: Exception) -> None:
        """The socket has failed or is overdue: nothing can be sent any more."""
        self.output.fail(error)
        self.drop(error)

    def drop(self, error: Exception) -> None:
        """End all streams."""
        self.core.log.debug("HTTP/2 connection lost: %s", error)
        with self.lock:
            self.state = LOST
            streams = list(self.streams.values())
            lost = self.output.bytes_left()  # of frames that the kernel has not taken
            for stream in reversed(streams):
                lost -= stream.output.lose(lost)
        for stream in streams:
            stream.fail(error)

    def forget(self, stream: Any) -> None:
        """Drop a stream that is over, and reset it if anything is missing; under the lock."""
        number = stream.number
        del self.streams[number]
        self._sending.pop(stream, None)
        if not any(each.is_held_back for each in self.streams.values()):
            self.end_window_wait()
        error = stream.output.error
        stream.output.close()
        if self.state is LOST:
            return
        if self.frames.is_open(number):
            code = ErrorCodes.CANCEL if error is not None else ErrorCodes.INTERNAL_ERROR
            if stream.output.stream_sender.has_ended:
                # The client need not send the rest of its request (RFC 9113 section 8.1).
                code = ErrorCodes.NO_ERROR
            with contextlib.suppress(ProtocolError):  # the connection is about to be lost
                self.frames.reset_stream(number, code)
        self.transmit_or_wait()

    # The socket.

    def on_writable(self) -> None:
        """The socket is writable; the owner calls this."""
        with self.lock:
            if self._wants_write:
                self._wants_write = False
                self.until_sent = math.inf
                self.output.on_writable()

    def wait_for_socket(self) -> None:
        """Have the owner's next event come as soon as the socket is writable."""
        with self.lock:
            self._wants_write = True
            self.core.registry.change(self.connection, self.awaited())

    def wait_to_send(self, deadline: float, *, retry: bool) -> None:
        """See :class:`~..send_queue.OutputOwner`; the connection may have any owner, or none."""
        self.until_sent = deadline
        self.cap_deadline(deadline)
        if retry:
            self.connection.retries = True
        else:
            self.wait_for_socket()

    def resume_sending(self) -> None:
        """See :class:`~..send_queue.OutputOwner`; not called, as this queue is never `closing`."""

    def announce_end(self, last_stream: int) -> None:
        """Send a GOAWAY frame."""
        with contextlib.suppress(ClientGone):
            self.transmit()
            self.output.write_all((goaway(last_stream),))

    def cap_deadline(self, deadline: float) -> None:
        """Have the sweep look at the connection by then at the latest."""
        if deadline < self.connection.deadline:
            self.connection.deadline = deadline

    def awaited(self) -> int:
        """The events to wait for."""
        clogged = self.output.draining and self.output.bytes_queued > _CLOGGED_BYTES
        return (0 if clogged else READ) | (WRITE if self._wants_write else 0)
