"""The sending half of an HTTP/2 connection: its streams take turns, under flow control.

A stream with something to send is either *blocked*, until the client opens a window, or waits for
its turn. The *pump* has the streams frame a little, one after the other. It transmits their frames
for as long as the kernel takes them. So the connection's own output queue contains only a few
frames. All other bytes wait in the queues of the streams. The owner pumps when the socket is
writable or windows have opened, and a task of the pool when a disk read has finished. An app's
thread frames, and transmits, only the block that it has just written.

Calls go down: the pump, or an app's thread > the stream's queue > its sender > h2's frames. Then:
the connection's queue > the socket. A queue that cannot go on reports the event that it waits for.
A stream's queue does so by :meth:`Multiplexer.enqueue`, which sends nothing.

*Priorities* (RFC 9218). The most urgent stream has the next turn. Among equally urgent streams,
those that are not incremental are first. The others follow in a circle. Every few turns the stream
that has waited for longest has the turn, so that each stream goes on. A stream cannot overtake
frames that are made already. So the kernel gets little in advance. If the client does not take
all at once, its streams frame less in one turn.

*Gathering.* A client often sends several requests at once. A response that has ended is not
transmitted while other complete requests of its connection wait for a thread. The last of them
transmits for all, in one TLS record. A response waits for one tick at most (monitor.py), in case
an app is slow. Streamed blocks, and the parts of long bodies, never wait.

Everything here runs under the connection's lock: see connection.py.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from typing import TYPE_CHECKING, Final

from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError

from ...errors import ClientGone
from ...http.stream_headers import NO_PRIORITY, Priority, parse_priority
from ...sockets.client_limits import ClientWait, UploadPace
from ..application import Application
from ..monitor import TICK_S
from ..output import OutputQueue
from ..output_rules import OutputRules
from ..sending import LONG_TURN_BYTES, MultiplexedSender
from .floods import Floods
from .frames import ALL_STREAMS, Frames, goaway

if TYPE_CHECKING:
    from .connection import HTTP2Connection
    from .stream import Stream

# The bytes of a stream in one turn. With the headers of four frames of the length that every client
# accepts, they fill four TLS records. Less where memory is short.
_QUANTUM_BYTES = 64 * 1024 - 4 * 9
_SMALL_QUANTUM_BYTES = 16 * 1024
# So many turns go by priority before the stream has one that has waited for longest.
_TURNS_BY_PRIORITY = 8
# The most bytes gathered before they are transmitted.
_GATHERED_BYTES = 60 * 1024
# The bytes that a connection frames before other connections have their turn.
_TURN_BYTES = 1024 * 1024

# Priorities of streams that have not begun. Each takes 200 bytes.
_MOST_PRIORITIES = 100

OPEN: Final = "open"
GOING_AWAY: Final = "going away"
LOST: Final = "lost"


class Multiplexer:
    """Sends for the streams of a connection, and gives up on clients that do not receive.

    :param connection: the connection of these streams.
    :ivar state: of the connection: open, going away or lost.
    :ivar streams: those that are not over, by number.
    :ivar uploads: how fast the client sends its bodies.
    :ivar lock: guards h2's state, all output, and every change of a state.
    :ivar priorities: of streams that have not begun, by number.
    :ivar unbegun: the streams with a complete request for which no app has been called.
    :ivar is_pumping: the pump transmits the frames of the streams.
    :ivar blocked_until: when to give up on a client that does not open the connection's window.
    """

    __slots__ = (
        "_encrypts",
        "_gathers_until",
        "_is_pump_pushed",
        "_sender",
        "_turns",
        "_turns_taken",
        "_window_wait",
        "application",
        "blocked_until",
        "connection",
        "floods",
        "frames",
        "is_pumping",
        "lock",
        "output",
        "priorities",
        "rules",
        "shared",
        "state",
        "streams",
        "unbegun",
        "uploads",
    )  # fmt: skip

    def __init__(
        self, connection: HTTP2Connection, application: Application, rules: OutputRules
    ) -> None:
        self.shared = shared = connection.shared
        self.application = application
        self.connection = connection
        self.rules = rules
        self.lock = threading.RLock()
        self._sender = sender = MultiplexedSender(connection.sock, rules)
        self.output = OutputQueue(sender, connection, rules, self.lock)
        self.output.keeps_all = True
        self._encrypts = sender.encrypts
        self.floods = Floods(time.monotonic())
        self.frames = Frames(shared.options, self.floods.admit)
        self.uploads = UploadPace(shared.options.body_timeout_s)
        self.state = OPEN
        self.streams: dict[int, Stream] = {}
        self.priorities: dict[int, Priority] = {}
        self.unbegun: set[Stream] = set()
        self._gathers_until: float | None = None  # set while responses wait to be transmitted
        self._turns_taken = 0
        self._turns: dict[Stream, None] = {}  # those that wait for their turn, in order
        self.is_pumping = self._is_pump_pushed = False
        self._window_wait: ClientWait | None = None  # for the connection's window
        self.blocked_until = math.inf

    # Windows of the client's bodies. For any thread.

    def acknowledge(self, size: int, number: int) -> None:
        """Some bytes of a stream have been consumed. h2 decides when its windows open again."""
        with self.lock, contextlib.suppress(ProtocolError):  # the connection is about to be lost
            self.frames.acknowledge_received_data(size, number)

    def open_window(self, size: int, number: int | None) -> None:
        """Open the window of a stream, or of the connection, at once."""
        with self.lock:
            if size and (number is None or self.frames.is_open(number)) and self.state is not LOST:
                with contextlib.suppress(ProtocolError):  # as above
                    self.frames.increment_flow_control_window(size, number)
                self.try_to_transmit()

    # Called by the senders of streams, under the lock.

    @property
    def quantum(self) -> int:
        """Bytes that a stream may frame in one turn."""
        is_small = self._sender.is_paced or self.rules.memory.is_full
        return _SMALL_QUANTUM_BYTES if is_small else _QUANTUM_BYTES

    def check(self, number: int) -> None:
        """:raises ClientGone: if nothing can be sent on a stream any more."""
        if self.state is LOST or not self.frames.is_open(number):
            raise ClientGone("the stream is closed")

    def transmit(self) -> None:
        """Send frames. Those that the kernel does not take stay in the output queue.

        :raises ClientGone: if the client has disconnected.
        """
        if self._gathers_until is not None:
            self._gathers_until = None
            self.rules.to_flush.pop(self, None)
        if self._window_wait is not None:
            self._window_wait.moved += self.frames.body_bytes
        data = self.frames.data_to_send()
        if data:
            if self.output.is_waiting:
                self.output.write_buffers((data,))
            else:
                self.output.write(data)  # the queue is empty: this does not wait

    def try_to_transmit(self) -> None:
        """As :meth:`transmit`. The owner's next event reports a client that has disconnected."""
        with contextlib.suppress(ClientGone):
            self.transmit()

    def transmit_end(self) -> None:
        """As :meth:`transmit`, for a response that has ended: it may wait for others.

        :raises ClientGone: if the client has disconnected.
        """
        if self.unbegun and self.frames.has_output and self.frames.body_bytes < _GATHERED_BYTES:
            now = time.monotonic()
            if self._gathers_until is None:
                self._gathers_until = now + TICK_S
                # No tick is requested: there is one in any case if an app takes that long.
                self.rules.to_flush[self] = self._transmit_at_tick
            if now < self._gathers_until:
                return
        self.transmit()

    def _transmit_at_tick(self) -> bool:
        """Transmit gathered responses, in the monitor's thread. It never waits for the lock."""
        if not self.lock.acquire(blocking=False):
            return False
        try:
            if self._gathers_until is not None:
                self.try_to_transmit()
        finally:
            self.lock.release()
        return True

    # Turns, under the lock.

    def enqueue(self, stream: Stream, *, is_over: bool = False) -> None:
        """Have a stream take its turn, once its windows allow it.

        :param is_over: it has failed, and takes its turn only to end.
        """
        stream.is_blocked = not is_over and stream.output.stream_sender.is_blocked()
        if stream.is_blocked:
            self.connection.cap_deadline(stream.deadline)
            if self.frames.outbound_flow_control_window <= 0:
                self._window_wait = self._window_wait or self.rules.new_wait()
                self.blocked_until = self._window_wait.begin()
                self.connection.cap_deadline(self.blocked_until)
            return
        self._turns[stream] = None
        if not self.is_pumping:
            self._pump_soon()

    def unblock(self, stream: Stream) -> None:
        """The windows of a stream may have opened."""
        if stream.is_blocked and not stream.output.stream_sender.is_blocked():
            stream.is_blocked = False
            stream.deadline = math.inf
            self._turns[stream] = None

    def unblock_all(self) -> None:
        """The window of the connection, or of all streams, may have opened."""
        if self.frames.outbound_flow_control_window > 0:
            self._end_window_wait()
        for stream in self.streams.values():
            self.unblock(stream)

    def _end_window_wait(self) -> None:
        """No stream waits for the connection's window any more."""
        if self._window_wait is not None:
            self._window_wait.end()
            self.blocked_until = math.inf

    def pump(self) -> None:
        """Let the streams take turns for as long as the kernel takes their frames."""
        over: list[Stream] = []
        with self.lock:
            self.is_pumping = True
            left = _TURN_BYTES
            transmitted = 0  # of their bodies
            shares = self._encrypts
            try:
                while self._turns and left > 0 and self._can_transmit():
                    stream = self._next_in_turn()
                    if stream.output.on_writable():
                        over.append(stream)
                    left -= self.quantum
                    if self.frames.body_bytes >= self.quantum:
                        transmitted += self.frames.body_bytes
                        self.try_to_transmit()
                    if shares and transmitted >= LONG_TURN_BYTES:
                        shares = False
                        self.rules.share_work()
            finally:
                self.is_pumping = False
            self.try_to_transmit()
            self._pump_soon()
        for stream in over:
            stream.finish()

    def _next_in_turn(self) -> Stream:
        """Take the stream that has the next turn from those that wait."""
        turns = self._turns
        stream = next(iter(turns))
        if len(turns) > 1:
            self._turns_taken += 1
            by_priority = self._turns_taken % _TURNS_BY_PRIORITY
            stream = min(turns, key=_order if by_priority else _last_turn)
            stream.last_turn = self._turns_taken
        del turns[stream]
        return stream

    def _can_transmit(self) -> bool:
        output = self.output
        return not output.is_waiting and output.error is None and self.state is not LOST

    def _pump_soon(self) -> None:
        """Have a thread of the pool go on, if there is anything to do."""
        if self._turns and not self._is_pump_pushed and self._can_transmit():
            self._is_pump_pushed = True
            self.connection.registry.defer(self._pump_as_task)

    def _pump_as_task(self) -> None:
        self._is_pump_pushed = False
        try:
            self.pump()
        except Exception as error:
            self.shared.log.exception("Error in a connection")
            self.output.fail(error)
            self.connection.cut_off()  # its owner's next event ends it

    # Ends

    def lose(self, error: Exception) -> None:
        """The socket has failed or is overdue: nothing can be sent any more."""
        self.output.fail(error)
        self.drop(error)

    def drop(self, error: Exception) -> None:
        """End all streams."""
        self.shared.log.debug("HTTP/2 connection lost: %s", error)
        with self.lock:
            self.state = LOST
            streams = list(self.streams.values())
            lost = self.output.bytes_left()  # of frames that the kernel has not taken
            for stream in reversed(streams):
                lost -= stream.output.lose(lost)
        for stream in streams:
            stream.fail(error)

    def forget(self, stream: Stream) -> None:
        """Drop a stream that is over, and reset it if anything is missing. Under the lock."""
        number = stream.number
        del self.streams[number]
        self._turns.pop(stream, None)
        self.unbegun.discard(stream)
        if self._window_wait and not any(each.is_blocked for each in self.streams.values()):
            self._end_window_wait()
        self.reset(stream)
        stream.output.close()

    def reset(self, stream: Stream) -> None:
        """Tell the client that nothing more is sent on a stream. Under the lock."""
        if self.state is LOST:
            return
        if self.frames.is_open(stream.number):
            failed = stream.output.error is not None
            code = ErrorCodes.CANCEL if failed else ErrorCodes.INTERNAL_ERROR
            if stream.output.stream_sender.has_sent_end:
                # The client need not complete its request (RFC 9113 section 8.1).
                code = ErrorCodes.NO_ERROR
            with contextlib.suppress(ProtocolError):  # the connection is about to be lost
                self.frames.reset_stream(stream.number, code)
        if not self.streams:
            self.frames.forget_closed()
        with contextlib.suppress(ClientGone):  # as in try_to_transmit()
            self.transmit_end()

    def send_goaway(self, last_stream: int) -> None:
        """Send a GOAWAY frame after which the connection goes on."""
        with contextlib.suppress(ClientGone):
            self.transmit()
            self.output.write_buffers((goaway(last_stream),))

    def first_priority(self, number: int, value: str | None) -> Priority:
        """Return the priority of a stream that begins.

        :param value: of its priority field. None without one.
        """
        updated = self.priorities.pop(number, None)
        if updated is not None:
            return updated
        return NO_PRIORITY if value is None else parse_priority(value)

    def prioritize(self, number: int, value: str) -> None:
        """Set the priority of a stream, which may not have begun (RFC 9218 section 7.1)."""
        stream = self.streams.get(number)
        if stream is not None:
            stream.priority = parse_priority(value)
        elif number > self.frames.highest_inbound_stream_id:
            self.priorities.pop(number, None)
            if len(self.priorities) < _MOST_PRIORITIES:
                self.priorities[number] = parse_priority(value)


def _order(stream: Stream) -> tuple[int, int, int]:
    """Return a stream's sort key. The stream with the smallest key has the next turn."""
    urgency, is_incremental = stream.priority
    # Responses that are not incremental are sent one after the other, as they were requested.
    return urgency, ALL_STREAMS if is_incremental else stream.number, stream.last_turn


def _last_turn(stream: Stream) -> int:
    return stream.last_turn
