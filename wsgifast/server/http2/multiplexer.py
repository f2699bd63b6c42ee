"""Sends the responses of an HTTP/2 connection: its streams take turns, under flow control.

A stream with output either waits for its turn, or is *blocked* until the client opens a window. The
*pump* lets one stream after the other frame a part of its output. It transmits these frames as long
as the socket accepts them. So the connection's own output queue contains only a few frames. All
other bytes wait in the queues of the streams. The owner calls the pump when the socket is writable
or a window was opened. A task of the pool calls it when a disk thread has read a part of a file. An
app's thread frames and transmits only the block that it has just written.

Each call goes down these layers: the pump or an app's thread, the stream's queue, its sender, h2's
frames, the connection's queue, the socket. If a queue must wait, it registers the event for which
it waits. A stream's queue calls :meth:`Multiplexer.enqueue` for that, which sends nothing.

*Priorities* (RFC 9218). The most urgent stream has the next turn. Among equally urgent streams, the
streams that are not incremental are first. Incremental streams alternate. Every few turns, the
stream that has waited longest has a turn, so that no stream waits for ever. A stream cannot
overtake frames that were made before. So few frames are passed to the kernel in advance. If the
client is slow, its streams frame less in one turn.

*Gathering.* A client often sends several requests at once. A finished response is not transmitted
while other complete requests of its connection wait for a thread. After the last of them, all
responses are transmitted in one TLS record. If an app is slow, the monitor transmits the finished
responses at its next check: after about 1 ms, or after 4 ms at most if turns compute (monitor.py).
Blocks of a generator and parts of long bodies never wait.

All methods run with the connection's lock: see connection.py.
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

# The maximum number of bytes of a stream in one turn. With the headers of four frames of the size
# that every client accepts, they fill four TLS records. The small quantum is for slow clients, and
# if memory is full.
_QUANTUM_BYTES = 64 * 1024 - 4 * 9
_SMALL_QUANTUM_BYTES = 16 * 1024
# One of this many turns is for the stream that has waited longest. The others follow the
# priorities.
_TURNS_BY_PRIORITY = 8
# Gathered responses are transmitted when their size reaches this.
_GATHERED_BYTES = 60 * 1024
# The maximum number of bytes that a connection frames before other connections are served.
_TURN_BYTES = 1024 * 1024

# The maximum number of stored priorities of future streams. Each of them uses 200 bytes.
_MAX_PRIORITIES = 100

OPEN: Final = "open"
GOING_AWAY: Final = "going away"
LOST: Final = "lost"


class Multiplexer:
    """Sends the output of a connection's streams, and detects clients that do not receive.

    :param connection: the connection of the streams.
    :ivar state: the state of the connection: open, going away or lost.
    :ivar streams: the streams that are not over, by number.
    :ivar uploads: measures how fast the client sends its bodies.
    :ivar lock: protects h2's state, all output, and all states.
    :ivar priorities: the priorities of streams that have not begun, by number.
    :ivar unbegun: the streams with a complete request whose app was not called yet.
    :ivar is_pumping: whether the pump is running and will transmit the frames of the streams.
    :ivar blocked_until: the monotonic time until which the client must open the connection's
        window.
    """

    __slots__ = (
        "_encrypts", "_gathers_until", "_is_pump_pushed", "_sender", "_turns", "_turns_taken",
        "_window_wait", "application", "blocked_until", "connection", "floods", "frames",
        "is_pumping", "lock", "output", "priorities", "rules", "shared", "state", "streams",
        "unbegun", "uploads",
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
        self.output.never_spills = True
        self._encrypts = sender.encrypts
        self.floods = Floods(time.monotonic())
        self.frames = Frames(shared.options, self.floods.admit)
        self.uploads = UploadPace(shared.options.body_timeout_s)
        self.state = OPEN
        self.streams: dict[int, Stream] = {}
        self.priorities: dict[int, Priority] = {}
        self.unbegun: set[Stream] = set()
        self._gathers_until: float | None = None  # the time limit of gathered responses
        self._turns_taken = 0
        self._turns: dict[Stream, None] = {}  # an ordered set of the streams that wait for a turn
        self.is_pumping = self._is_pump_pushed = False
        self._window_wait: ClientWait | None = None  # for the connection's window
        self.blocked_until = math.inf

    # The windows of the client's bodies. Any thread may call these methods.

    def acknowledge(self, size: int, number: int) -> None:
        """Note that bytes of a stream were consumed. h2 decides when to open its windows."""
        with self.lock, contextlib.suppress(ProtocolError):  # the connection is about to be lost
            self.frames.acknowledge_received_data(size, number)

    def open_window(self, size: int, number: int | None) -> None:
        """Open the window of a stream, or of the connection, at once."""
        with self.lock:
            if size and (number is None or self.frames.is_open(number)) and self.state is not LOST:
                with contextlib.suppress(ProtocolError):  # the connection is about to be lost
                    self.frames.increment_flow_control_window(size, number)
                self.try_to_transmit()

    # The senders of streams call these methods with the lock.

    @property
    def quantum(self) -> int:
        """The number of bytes that a stream may frame in one turn."""
        is_small = self._sender.is_paced or self.rules.memory.is_full
        return _SMALL_QUANTUM_BYTES if is_small else _QUANTUM_BYTES

    def check(self, number: int) -> None:
        """Check that a stream can still send.

        :raises ClientGone: if the stream or the connection is closed.
        """
        if self.state is LOST or not self.frames.is_open(number):
            raise ClientGone("the stream is closed")

    def transmit(self) -> None:
        """Send all frames. The output queue stores those that the socket does not accept.

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
                self.output.write(data)  # the queue is empty, so this call does not wait

    def try_to_transmit(self) -> None:
        """Send all frames, and ignore a lost client: the owner's next event reports it."""
        with contextlib.suppress(ClientGone):
            self.transmit()

    def transmit_end(self) -> None:
        """Send all frames after the end of a response, or gather them with other responses.

        :raises ClientGone: if the client has disconnected.
        """
        if self.unbegun and self.frames.has_output and self.frames.body_bytes < _GATHERED_BYTES:
            now = time.monotonic()
            if self._gathers_until is None:
                self._gathers_until = now + TICK_S
                # No tick is requested. It costs 5 % of CPU, and the monitor checks slow turns.
                self.rules.to_flush[self] = self._transmit_at_tick
            if now < self._gathers_until:
                return
        self.transmit()

    def _transmit_at_tick(self) -> None:
        """Transmit gathered responses. The monitor calls this with the lock."""
        if self._gathers_until is not None:
            self.try_to_transmit()

    # Turns of streams. These methods need the lock.

    def enqueue(self, stream: Stream, *, is_over: bool = False) -> None:
        """Give a stream a turn as soon as its windows allow it.

        :param is_over: whether the stream has failed, so that its turn only ends it.
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
        """Give a stream a turn if its windows have been opened."""
        if stream.is_blocked and not stream.output.stream_sender.is_blocked():
            stream.is_blocked = False
            stream.deadline = math.inf
            self._turns[stream] = None

    def unblock_all(self) -> None:
        """Give turns to all streams whose windows have been opened."""
        if self.frames.outbound_flow_control_window > 0:
            self._end_window_wait()
        for stream in self.streams.values():
            self.unblock(stream)

    def _end_window_wait(self) -> None:
        """Note that no stream waits for the connection's window any more."""
        if self._window_wait is not None:
            self._window_wait.end()
            self.blocked_until = math.inf

    def pump(self) -> None:
        """Give turns to the streams as long as the socket accepts their frames."""
        over: list[Stream] = []
        with self.lock:
            self.is_pumping = True
            left = _TURN_BYTES
            transmitted = 0  # the number of transmitted body bytes
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
        """Remove the stream that has the next turn from `_turns`, and return it."""
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
        """Let a thread of the pool call the pump, if streams wait for their turns."""
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
            self.connection.cut_off()  # the owner's next event ends the connection

    # The end of streams and of the connection.

    def lose(self, error: Exception) -> None:
        """End the connection because the socket has failed or the client is too slow."""
        self.output.fail(error)
        self.drop(error)

    def drop(self, error: Exception) -> None:
        """End all streams."""
        self.shared.log.debug("HTTP/2 connection lost: %s", error)
        with self.lock:
            self.state = LOST
            streams = list(self.streams.values())
            lost = self.output.unsent_bytes()  # the number of framed bytes that were not sent
            for stream in reversed(streams):
                lost -= stream.output.lose(lost)
        for stream in streams:
            stream.fail(error)

    def forget(self, stream: Stream) -> None:
        """Drop a finished stream. Reset it if its response is incomplete. Needs the lock."""
        number = stream.number
        del self.streams[number]
        self._turns.pop(stream, None)
        self.unbegun.discard(stream)
        if self._window_wait and not any(each.is_blocked for each in self.streams.values()):
            self._end_window_wait()
        self.reset(stream)
        stream.output.close()

    def reset(self, stream: Stream) -> None:
        """Reset a stream if the client still regards it as open. Needs the lock."""
        if self.state is LOST:
            return
        if self.frames.is_open(stream.number):
            failed = stream.output.error is not None
            code = ErrorCodes.CANCEL if failed else ErrorCodes.INTERNAL_ERROR
            if stream.output.stream_sender.has_sent_end:
                # The rest of the request is not needed (RFC 9113 section 8.1).
                code = ErrorCodes.NO_ERROR
            with contextlib.suppress(ProtocolError):  # the connection is about to be lost
                self.frames.reset_stream(stream.number, code)
        if not self.streams:
            self.frames.forget_closed()
        try:  # suppress() takes longer, and each response ends here
            self.transmit_end()
        except ClientGone:
            pass  # the owner's next event reports it

    def send_goaway(self, last_stream: int) -> None:
        """Send a GOAWAY frame, and leave the connection open."""
        with contextlib.suppress(ClientGone):
            self.transmit()
            self.output.write_buffers((goaway(last_stream),))

    def first_priority(self, number: int, value: str | None) -> Priority:
        """Return the priority of a new stream.

        :param value: the request's `priority` header, or None.
        """
        updated = self.priorities.pop(number, None)
        if updated is not None:
            return updated
        return NO_PRIORITY if value is None else parse_priority(value)

    def prioritize(self, number: int, value: str) -> None:
        """Set the priority of a stream, which may not have begun yet (RFC 9218 section 7.1)."""
        stream = self.streams.get(number)
        if stream is not None:
            stream.priority = parse_priority(value)
        elif number > self.frames.highest_inbound_stream_id:
            self.priorities.pop(number, None)
            if len(self.priorities) < _MAX_PRIORITIES:
                self.priorities[number] = parse_priority(value)


def _order(stream: Stream) -> tuple[int, int, int]:
    """Return a stream's sort key. The stream with the smallest key has the next turn."""
    urgency, is_incremental = stream.priority
    # Responses that are not incremental are sent one after the other, in the order of requests.
    return urgency, ALL_STREAMS if is_incremental else stream.number, stream.last_turn


def _last_turn(stream: Stream) -> int:
    return stream.last_turn
