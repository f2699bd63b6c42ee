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

These are states of sending; for the connection, all of them are the state STREAMS (states.py). Two
parts do the rest: Incoming (incoming.py) understands what is received, for the owner; Outgoing
(outgoing.py) sends, and is what the streams know of their connection.
"""

from __future__ import annotations

import contextlib
import socket
import time
from typing import Any

from ...errors import ClientGone
from ..channel import Channel
from ..endpoint import Core, Endpoint
from ..exchange import Exchange
from ..parser import Parser
from ..poller import READ, WRITE
from ..states import STREAMS
from .frames import ALL_STREAMS
from .incoming import Incoming
from .outgoing import LEAVING, LOST, OPEN, Outgoing
from .stream import RUNNING, Stream

# How long after the first GOAWAY new streams are accepted: the client may have sent them before.
_SECOND_GOAWAY_S = 1.0

_SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"


class HTTP2Connection(Endpoint):
    """A connection on which HTTP/2 was negotiated.

    :param before: what had its socket until then.
    :param parser: for the requests of its client.
    :ivar outgoing: the sending half, which the streams use.
    :ivar incoming: the receiving half.
    :ivar streams: those that are not over, by number.
    """

    __slots__ = (
        "_deadline_of_idle", "_is_in_turn", "_lock", "_second_goaway_at", "exchange", "incoming",
        "outgoing", "streams",
    )  # fmt: skip

    def __init__(self, core: Core, before: Endpoint, parser: Parser) -> None:
        super().__init__(core, before.sock, before.peer, before.address, STREAMS)
        self.known, self.proxy = before.known, before.proxy
        self.outgoing = outgoing = Outgoing(core, self, self._end)
        self.incoming = Incoming(outgoing, parser)
        self.output = outgoing.output
        self.exchange = None  # each stream has its own
        self.streams: dict[int, Stream] = outgoing.streams
        self._lock = outgoing.lock
        self._is_in_turn = False  # a thread owns the connection and will close it if it must
        self._deadline_of_idle = self.deadline
        self._second_goaway_at: float | None = None  # set with the first GOAWAY

    # Called by the connection's owner.

    def begin_streams(self, received: bytes, exchange: Exchange | None) -> Channel | None:
        """Start with what has been received already.

        :param exchange: the HTTP/1.1 request that asked for the upgrade, which becomes stream 1.
        """
        self._is_in_turn = True
        with self._lock:
            if exchange is not None:
                with contextlib.suppress(ClientGone):  # the owner's next event tells of it
                    self.output.write_all((_SWITCH,))
                self.outgoing.frames.begin(exchange.upgrade)
                is_head = exchange.req.method == "HEAD"
                stream = self.streams[1] = Stream(self.outgoing, 1, is_head=is_head)
                stream.exchange = exchange
                stream.has_ended = True
                self.incoming.make_ready(stream)
            else:
                self.outgoing.frames.begin()
            self.outgoing.transmit_or_wait()
        if received:
            self.incoming.take(received)
        return self._end_turn()

    def on_event(self, events: int) -> Channel | None:
        if self.state is not STREAMS:
            self._discard(events)
            return None
        self._is_in_turn = True
        if events & WRITE:
            self.outgoing.on_writable()
        if events & ~WRITE or not events:
            if self.incoming.may_need_disk() and self._core.wait_for_disk(self, self._receive):
                return None
            self.incoming.receive()
        return self._end_turn()

    def _receive(self) -> Channel | None:
        self.incoming.receive()
        return self._end_turn()

    def on_overdue(self) -> None:
        """End what is overdue: the connection, or some of its streams."""
        if self.state is not STREAMS:
            self.close()
            return
        self._is_in_turn = True
        now = time.monotonic()
        timeouts = self._core.counters.timeouts
        if self.outgoing.until_sent < now or self.outgoing.blocked_until < now:
            timeouts["send"] += 1
            self.outgoing.lose(TimeoutError("the client took no byte in time"))
        for stream in [each for each in list(self.streams.values()) if each.deadline < now]:
            stream.on_overdue()
        if not self.streams and self._deadline_of_idle < now:
            had_a_request = self.outgoing.frames.highest_inbound_stream_id
            timeouts["keepalive" if had_a_request else "head"] += 1
            self._leave()
        with self._lock:
            deadlines = [stream.deadline for stream in self.streams.values()]
            self.deadline = min(deadlines, default=self._deadline_of_idle)
            self.outgoing.cap_deadline(self.outgoing.until_sent)
            self.outgoing.cap_deadline(self.outgoing.blocked_until)
            if self._second_goaway_at is not None and self.outgoing.state is OPEN:
                self.outgoing.cap_deadline(self._second_goaway_at)
        self._run_soon(self._end_turn())

    def retry(self) -> None:
        self.retries = False
        if self.state is not STREAMS:
            self._discard(0)
            return
        self._is_in_turn = True
        self.outgoing.wait_for_socket()
        self._run_soon(self._end_turn())

    def _let_go(self) -> bool:
        with self._lock:
            self._is_in_turn = True
            if self.outgoing.state is not LOST:
                self.outgoing.drop(ClientGone("closed"))
            self._is_in_turn = False
            return not self.streams

    def hijack(self) -> socket.socket:
        raise OSError("the socket of an HTTP/2 connection cannot be taken over")

    def is_sending(self) -> bool:
        return any(stream.state is not RUNNING for stream in list(self.streams.values()))

    def channels(self) -> list[Any]:
        return [self, *list(self.streams.values())]

    def owes_goaway(self) -> bool:
        return self._second_goaway_at is None and self.outgoing.state is OPEN

    def _end_turn(self) -> Channel | None:
        """The owner's last step: send, wait for the next event, and return what is to run."""
        self.outgoing.pump()
        if self.outgoing.state is OPEN and self._core.is_ending():
            self.send_goaway()
        with self._lock:
            self._is_in_turn = False
            ready, self.incoming.ready = self.incoming.ready, []
            state = self.outgoing.state
            if state is LOST and self.streams:
                return None  # the thread that ends the last one goes on
            ends = state is LOST or (state is LEAVING and not self.output.draining)
            ends = ends and not self.streams
            if not ends:
                awaited = self.outgoing.awaited()
                if awaited & READ and self.has_more_in_tls():
                    self._core.resume(self)
                else:
                    self.wait(awaited)
        if ends:
            self.leave()
            return None
        for stream in ready[1:]:
            self._run_soon(stream)
        return ready[0] if ready else None

    def _run_soon(self, stream: Channel | None) -> None:
        if stream is not None:
            self._core.run_soon(lambda: stream)

    # Ends

    def _end(self, stream: Stream) -> None:
        if self._forget(stream):
            self.leave()

    def _forget(self, stream: Stream) -> bool:
        """Drop a stream that is over; returns whether it was the last of a lost connection."""
        with self._lock:
            self.outgoing.forget(stream)
            if self.outgoing.state is LOST:
                return not self.streams and not self._is_in_turn
            if self.streams:
                return False
            if self.outgoing.state is LEAVING:
                self.outgoing.wait_for_socket()
                return False
            if not self.output.draining:
                self.output.reset()
            now = time.monotonic()
            self._deadline_of_idle = now + (
                self._core.keepalive_s() or self._core.options.head_timeout_s
            )
            self.deadline = self._deadline_of_idle
            return False

    def send_goaway(self) -> None:
        """Tell the client, in two steps, to make new requests elsewhere (RFC 9113 section 6.8)."""
        now = time.monotonic()
        with self._lock:
            if self._second_goaway_at is None:
                self._second_goaway_at = now + _SECOND_GOAWAY_S
                self.outgoing.cap_deadline(self._second_goaway_at)
                self.outgoing.announce_end(ALL_STREAMS)
            elif self._second_goaway_at <= now:
                self._leave()

    def _leave(self) -> None:
        """Accept no new stream; the connection ends after the last one."""
        with self._lock:
            if self.outgoing.state is OPEN:
                self.outgoing.state = LEAVING
                self.incoming.last_stream = self.outgoing.frames.highest_inbound_stream_id
                self.outgoing.announce_end(self.incoming.last_stream)
