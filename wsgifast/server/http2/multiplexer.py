"""HTTP/2 on one connection: received frames go to their streams, which take turns in sending.

Theory of operation
-------------------
The connection's *owner* is the thread that has claimed it (registry.py). It receives, and it alone
creates streams. Between its turns the connection waits, also while apps run on its streams. Whoever
sends does so under the connection's one lock: the owner, app threads, the monitor's tick and disk
threads. The lock also guards h2's state and the output queue, so that frames leave in the order in
which they were made (HPACK depends on it). Nobody waits for a client under the lock.

    open --error, or the client has gone--> lost --no app runs--> closed
         --GOAWAY for all streams, then for new ones--> leaving --no stream is left--> closed

A *lost* connection waits for no event: the thread that ends its last stream closes it.
"""

from __future__ import annotations

import contextlib
import time

from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError

from ...errors import ClientGone
from ..channel import Channel
from ..endpoint import Core, Endpoint
from ..exchange import Exchange
from ..parser import Parser
from ..poller import READ, WRITE
from .frames import ALL_STREAMS
from .incoming import Incoming
from .outgoing import LEAVING, LOST, OPEN
from .stream import RUNNING, Stream

__all__ = ["Multiplexer"]

# How long after the first GOAWAY new streams are accepted: the client may have sent them before.
_SECOND_GOAWAY_S = 1.0

_SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"


class Multiplexer(Incoming):
    """Speaks HTTP/2 on a connection; implements :class:`~..endpoint.Streams`."""

    __slots__ = ("_deadline_of_idle", "_is_in_turn", "_second_goaway_at")

    def __init__(self, core: Core, connection: Endpoint, parser: Parser) -> None:
        super().__init__(core, connection, parser)
        self._is_in_turn = False  # a thread owns the connection and will close it if it must
        self._deadline_of_idle = time.monotonic() + core.options.head_timeout_s
        self._second_goaway_at: float | None = None  # set with the first GOAWAY

    # Called by the connection's owner.

    def begin(self, received: bytes, exchange: Exchange | None) -> Channel | None:
        """Start with what has been received already.

        :param exchange: the HTTP/1.1 request that asked for the upgrade, which becomes stream 1.
        """
        self._is_in_turn = True
        self.connection.deadline = self._deadline_of_idle
        with self.lock:
            if exchange is not None:
                self.output.write_all((_SWITCH,))
                self.frames.begin(exchange.upgrade)
                is_head = exchange.req.method == "HEAD"
                stream = self.streams[1] = Stream(self, 1, is_head=is_head)
                stream.exchange = exchange
                stream.has_ended = True
                self.make_ready(stream)
            else:
                self.frames.begin()
            self.transmit_or_wait()
        if received:
            self.take(received)
        return self._end_turn()

    def on_event(self, event: int) -> Channel | None:
        """Handle an event; returns a stream whose app is to run."""
        self._is_in_turn = True
        if event & WRITE:
            self.on_writable()
        if event & ~WRITE or not event:
            self.receive()
        return self._end_turn()

    def on_overdue(self) -> None:
        """End what is overdue: the connection, or some of its streams."""
        self._is_in_turn = True
        now = time.monotonic()
        timeouts = self.core.counters.timeouts
        if self.until_sent < now or self.blocked_until < now:
            timeouts["send"] += 1
            self.lose(TimeoutError("the client took no byte in time"))
        for stream in [each for each in list(self.streams.values()) if each.deadline < now]:
            stream.on_overdue()
        if not self.streams and self._deadline_of_idle < now:
            timeouts["keepalive"] += 1
            self._leave()
        with self.lock:
            deadlines = [stream.deadline for stream in self.streams.values()]
            self.connection.deadline = min(deadlines, default=self._deadline_of_idle)
            self.cap_deadline(self.until_sent)
            self.cap_deadline(self.blocked_until)
            if self._second_goaway_at is not None and self.state is OPEN:
                self.cap_deadline(self._second_goaway_at)
        self._run_soon(self._end_turn())

    def retry(self) -> None:
        """The kernel was out of memory for the socket: wait for it again."""
        self._is_in_turn = True
        self.wait_for_socket()
        self._run_soon(self._end_turn())

    def let_go(self) -> bool:
        """The connection is to be closed; False while apps run on it, the last of which does it."""
        with self.lock:
            self._is_in_turn = True
            if self.state is not LOST:
                self.drop(ClientGone("closed"))
            self._is_in_turn = False
            return not self.streams

    def is_sending(self) -> bool:
        """Whether a response is being sent whose app has returned."""
        return any(stream.state is not RUNNING for stream in list(self.streams.values()))

    def channels(self) -> list[Stream]:
        """The open streams; for any thread."""
        return list(self.streams.values())

    def owes_goaway(self) -> bool:
        """Whether the client has not been told yet that the server ends."""
        return self._second_goaway_at is None and self.state is OPEN

    def _end_turn(self) -> Channel | None:
        """The owner's last step: send, wait for the next event, and return what is to run."""
        self.pump()
        if self.state is OPEN and self.core.is_ending():
            self.send_goaway()
        connection = self.connection
        with self.lock:
            self._is_in_turn = False
            ready, self.ready = self.ready, []
            if self.state is LOST and self.streams:
                return None  # the thread that ends the last one goes on
            ends = self.state is LOST or (self.state is LEAVING and not self.output.draining)
            ends = ends and not self.streams
            if not ends:
                awaited = self.awaited()
                if awaited & READ and connection.has_more_in_tls():
                    self.core.resume(connection)
                else:
                    connection.wait(awaited)
        if ends:
            connection.leave()
            return None
        for stream in ready[1:]:
            self._run_soon(stream)
        return ready[0] if ready else None

    def _run_soon(self, stream: Channel | None) -> None:
        if stream is not None:
            self.core.run_soon(lambda: stream)

    # Ends

    def end(self, stream: Stream) -> None:
        if self._forget(stream):
            self.connection.leave()

    def _forget(self, stream: Stream) -> bool:
        """Drop a stream that is over; returns whether it was the last of a lost connection."""
        with self.lock:
            number = stream.number
            del self.streams[number]
            self._sending.pop(stream, None)
            if not any(each.is_held_back for each in self.streams.values()):
                self.end_window_wait()
            error = stream.output.error
            stream.output.close()
            if self.state is LOST:
                return not self.streams and not self._is_in_turn
            if self.frames.is_open(number):
                code = ErrorCodes.CANCEL if error is not None else ErrorCodes.INTERNAL_ERROR
                if stream.output.sender.has_ended:
                    # The client need not send the rest of its request (RFC 9113 section 8.1).
                    code = ErrorCodes.NO_ERROR
                with contextlib.suppress(ProtocolError):  # the connection is about to be lost
                    self.frames.reset_stream(number, code)
            self.transmit_or_wait()
            if self.streams:
                return False
            if self.state is LEAVING:
                self.wait_for_socket()
                return False
            if not self.output.draining:
                self.output.reset()
            now = time.monotonic()
            self._deadline_of_idle = now + (
                self.core.keepalive_s() or self.core.options.head_timeout_s
            )
            self.connection.deadline = self._deadline_of_idle
            return False

    def send_goaway(self) -> None:
        """Tell the client, in two steps, to make new requests elsewhere (RFC 9113 section 6.8)."""
        now = time.monotonic()
        with self.lock:
            if self._second_goaway_at is None:
                self._second_goaway_at = now + _SECOND_GOAWAY_S
                self.cap_deadline(self._second_goaway_at)
                self.announce_end(ALL_STREAMS)
            elif self._second_goaway_at <= now:
                self._leave()

    def _leave(self) -> None:
        """Accept no new stream; the connection ends after the last one."""
        with self.lock:
            if self.state is OPEN:
                self.state = LEAVING
                self.last_stream = self.frames.highest_inbound_stream_id
                self.announce_end(self.last_stream)
