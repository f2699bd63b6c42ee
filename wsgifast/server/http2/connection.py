"""An HTTP/2 connection: it passes received frames to its streams, which take turns to send.

Theory of operation
-------------------
The *owner* of the connection is the thread that has claimed it (endpoint.py). Only the owner
receives and creates streams. Between the owner's turns, the connection waits for events, even while
apps of its streams run. Four kinds of threads send: the owner, app threads, the monitor and disk
threads. All of them use the connection's one lock, which also protects h2's state and the output
queue. So frames are sent in the order in which they were made, as HPACK requires. A thread that has
the lock never waits for a client.

    open --error, or the client disconnects--> lost --no app runs--> closed
         --GOAWAY for all streams, then for new ones--> going away --no stream is left--> closed

A *lost* connection waits for no event. The thread that ends its last stream closes it.

These are states of the multiplexer (multiplexer.py), which the streams use to send. The state of
the connection itself is always STREAMS (endpoint.py).
"""

from __future__ import annotations

import io
import math
import socket
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from h2 import events
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes

from ...errors import BodyTooLarge, ClientGone
from ...files.temporary import Reservation, Spool
from ...http.stream_headers import Field, PlainHeaders, plain_headers, trailer_lines
from ..application import Application
from ..channel import Channel
from ..endpoint import RECEIVING, STREAMS, Endpoint, Registry
from ..monitor import TICK_S
from ..output import OutputQueue
from ..output_rules import OutputRules
from ..poller import READ, WOULD_BLOCK, WRITE
from ..receiving import Exchange, Parser
from .floods import Flood
from .frames import ALL_STREAMS, PlainRequest, PriorityUpdate, StreamRefused
from .multiplexer import GOING_AWAY, LOST, OPEN, Multiplexer
from .stream import MAX_RECEIVED_BYTES, READY, Stream, StreamedUpload

# A client with more unsent bytes does not read its responses. So no more requests are received.
_MAX_UNSENT_BYTES = 128 * 1024
# The size of one receive: a TLS record (RFC 8446 section 5.1).
_RECEIVE_BYTES = 16 * 1024
# New streams are accepted for this time after the first GOAWAY. The client may have sent them
# before it received the GOAWAY.
_SECOND_GOAWAY_S = 1.0


class HTTP2Connection(Endpoint):
    """A connection on which HTTP/2 was negotiated.

    :param before: the connection that owned the socket before.
    :param parser: the parser for the client's requests.
    :ivar mux: sends for the streams.
    :ivar streams: the streams that are not over, by number.
    """

    __slots__ = (
        "_floods", "_frames", "_header_memory", "_idle_deadline", "_is_in_turn", "_last_stream",
        "_lock", "_parser", "_ready", "_second_goaway_at", "_until_sent", "_wants_write", "mux",
        "streams",
    )  # fmt: skip

    def __init__(
        self,
        registry: Registry,
        application: Application,
        rules: OutputRules,
        before: Endpoint,
        parser: Parser,
    ) -> None:
        super().__init__(registry, before.sock, before.peer, before.address, STREAMS)
        self.proxy = before.proxy
        self.mux = mux = Multiplexer(self, application, rules)
        self.output = mux.output
        self.streams: dict[int, Stream] = mux.streams
        self._floods = mux.floods
        self._frames = mux.frames
        self._header_memory = Reservation(self.shared.input_memory)  # for incomplete headers
        self._lock = mux.lock
        self._parser = parser
        self._ready: list[Stream] = []  # streams whose apps can run
        self._last_stream = ALL_STREAMS  # the highest number of an accepted stream
        self._is_in_turn = False  # whether an owner is in a turn, and will close a lost connection
        self._idle_deadline = self.deadline
        self._wants_write = False  # whether the output queue waits for the socket
        self._until_sent = math.inf  # the monotonic deadline of this wait
        self._second_goaway_at: float | None = None  # set by the first GOAWAY

    # The connection's owner calls these methods.

    def begin_streams(self, received: bytes) -> Channel | None:
        """Begin HTTP/2 with the bytes that have been received."""
        self._is_in_turn = True
        with self._lock:
            self._frames.begin()
            self.mux.try_to_transmit()
        if received:
            self._handle(received)
        return self._end_turn()

    def on_event(self, events: int) -> Channel | None:
        if self.state is not STREAMS:
            self._discard(events)
            return None
        self._is_in_turn = True
        if events & WRITE:
            self._on_writable()
        if events & ~WRITE or not events:
            # A stream may write its body to a temporary file.
            may_need_disk = any(each.may_need_disk() for each in list(self.streams.values()))
            if may_need_disk and self.registry.wait_for_disk(self, self._receive):
                return None
            return self._receive()
        return self._end_turn()

    def on_overdue(self) -> None:
        """End the connection or its streams if they are overdue."""
        if self.state is not STREAMS:
            self.close()
            return
        self._is_in_turn = True
        now = time.monotonic()
        timeouts = self.shared.counters.timeouts
        if self._until_sent < now or self.mux.blocked_until < now:
            timeouts["send"] += 1
            self.mux.lose(TimeoutError("the client took no byte in time"))
        for stream in [each for each in list(self.streams.values()) if each.deadline < now]:
            stream.on_overdue()
        if not self.streams and self._idle_deadline < now:
            timeouts["keepalive" if self._frames.highest_inbound_stream_id else "head"] += 1
            self._go_away()
        with self._lock:
            deadlines = [stream.deadline for stream in self.streams.values()]
            self.deadline = min(deadlines, default=self._idle_deadline)
            self.cap_deadline(self._until_sent)
            self.cap_deadline(self.mux.blocked_until)
            if self._second_goaway_at is not None and self.mux.state is OPEN:
                self.cap_deadline(self._second_goaway_at)
        ready = self._end_turn()
        if ready is not None:
            self.registry.defer(lambda: ready)

    def end_memory_wait(self) -> None:
        self.waits_for_memory = False
        if self.state is STREAMS:
            self._wait_for_socket()

    def _drop_requests(self) -> bool:
        self._header_memory.release()
        with self._lock:
            self._is_in_turn = True
            if self.mux.state is not LOST:
                self.mux.drop(ClientGone("closed"))
            self._is_in_turn = False
            return not self.streams

    def hijack(self) -> socket.socket:
        raise OSError("the socket of an HTTP/2 connection cannot be taken over")

    def outputs(self) -> list[tuple[OutputQueue, Exchange | None]]:
        streams = list(self.streams.values())
        return [(self.output, None), *[(each.output, each.exchange) for each in streams]]

    def needs_goaway(self) -> bool:
        return self._second_goaway_at is None and self.mux.state is OPEN

    def _end_turn(self) -> Channel | None:
        """End the owner's turn: send, wait for the next event, and return a stream to run."""
        self.mux.pump()
        if self.shared.is_draining:
            self.send_goaway()
        with self._lock:
            self._is_in_turn = False
            ready, self._ready = deque(self._ready), []
            state = self.mux.state
            if state is LOST and self.streams:
                return None  # the thread that ends the last stream closes the connection
            ends = state is LOST or (state is GOING_AWAY and not self.output.is_waiting)
            ends = ends and not self.streams
            if not ends:
                awaited = self._awaited()
                if awaited & READ and self.has_more_in_tls():
                    self.registry.resume(self)
                else:
                    self.wait(awaited)
        if ends:
            self.linger()
            return None
        return self._next_ready(ready, time.monotonic() + TICK_S) if ready else None

    def _next_ready(self, ready: deque[Stream], until: float) -> Channel:
        """Return the next stream whose app can run. Other threads get the other streams.

        :param until: a monotonic time. Until then the streams run one after the other, so that
            their responses can be sent together. Afterwards, other connections are served in
            between.
        """
        stream = ready.popleft()
        if ready:
            push = self.registry.push_first if time.monotonic() < until else self.registry.defer
            push(partial(self._next_ready, ready, until))
        return stream

    # Receiving frames for streams.

    def _on_writable(self) -> None:
        with self._lock:
            if self._wants_write:
                self._wants_write = False
                self._until_sent = math.inf
                self.output.on_writable()

    def _receive(self) -> Channel | None:
        """Receive once, and end the turn."""
        bodies = any(not stream.request_is_complete for stream in list(self.streams.values()))
        size = MAX_RECEIVED_BYTES if bodies else _RECEIVE_BYTES
        try:
            with self._lock:  # receiving and sending use the same TLS object
                data = self.sock.recv(size)
        except WOULD_BLOCK:
            pass
        except OSError as error:
            self.mux.lose(error)
        else:
            if data:
                self._handle(data)
            else:
                self.mux.lose(ConnectionError("the client has left"))
        return self._end_turn()

    def _handle(self, data: bytes) -> None:
        if self.shared.is_draining:
            self.send_goaway()  # before the response, so that clients see it in time
        try:
            with self._lock:
                found = self._frames.receive(data)
            self._reserve_headers(self._frames.unfinished_header_bytes())
            for event in found:
                handle = _HANDLERS.get(type(event))
                if handle is not None:
                    handle(self, event)
        except ProtocolError as error:
            self._end_with_error(error)
        except Flood as error:
            with self._lock:
                self._frames.end_flood()
            self._end_with_error(error)

    def _reserve_headers(self, size: int) -> None:
        """Reserve memory for an incomplete header block, which the client may never complete.

        :raises Flood: if no memory is left.
        """
        if not size:
            self._header_memory.release()
        elif not self._header_memory.grow_to(size):
            raise Flood("there is no memory left for the headers")

    def _on_plain_request(self, event: PlainRequest) -> None:
        self._accept_stream(event.stream_id, event.headers, event.plain, ends=event.ends)

    def _on_request(self, event: events.RequestReceived) -> None:
        headers: Any = event.headers  # of bytes
        ends = event.stream_ended is not None
        self._accept_stream(event.stream_id, headers, plain_headers(headers), ends=ends)

    def _accept_stream(
        self, number: int, received: list[Field], plain: PlainHeaders | None, *, ends: bool
    ) -> None:
        if number > self._last_stream:
            with self._lock:
                self._frames.reset_stream(number, ErrorCodes.REFUSED_STREAM)
            self._floods.count("resets", time.monotonic())
            return
        is_head = plain.method == "HEAD" if plain else (b":method", b"HEAD") in received
        stream = Stream(self.mux, number, is_head=is_head)
        with self._lock:  # another thread may be iterating over the streams
            self.streams[number] = stream
        try:
            exchange = self._parser.parse_stream(received, plain, self.peer, number)
            stream.exchange = exchange
            stream.priority = self.mux.first_priority(number, exchange.fields.get("HTTP_PRIORITY"))
            if ends:
                exchange.body = io.BytesIO()
                stream.request_is_complete = True
                paths = self.mux.application.probes.paths
                if paths and exchange.req.path in paths and stream.answer_probe():
                    return
                self._make_ready(stream)
            elif stream.begin(exchange, self._body_of(exchange, number)):
                self._make_ready(stream)
        except Exception as error:  # noqa: BLE001 - refuse() responds to any error
            stream.refuse(error)

    def _body_of(self, exchange: Exchange, number: int) -> Spool | StreamedUpload:
        """Return a receiver for a request's body.

        :raises BodyTooLarge: if its Content-Length exceeds the limit.
        """
        options = self.shared.options
        if not options.buffer_bodies:
            return StreamedUpload(self.mux, number)
        limit = options.body_limit_bytes
        if "CONTENT_LENGTH" in exchange.fields and (exchange.length or 0) > limit:
            raise BodyTooLarge(limit)
        # All bodies of a connection together may use as much memory as one body.
        waiting = sum(each.state in (RECEIVING, READY) for each in list(self.streams.values()))
        memory_bytes = options.body_memory_bytes // waiting
        return Spool(memory_bytes, limit, self.shared.bodies_on_disk, self.shared.input_memory)

    def _on_refused(self, event: StreamRefused) -> None:
        if event.malformed:
            self.shared.counters.refused[400] += 1
            self.shared.log.warning("Invalid request from %s: %s", self.peer, event.malformed)
        self._fail(event.stream_id, "the server has reset the stream")
        self._floods.count("resets", time.monotonic())

    def _fail(self, number: int, reason: str) -> None:
        stream = self.streams.get(number)
        if stream is not None:
            stream.fail(ClientGone(reason))

    def _on_data(self, event: events.DataReceived) -> None:
        stream = self.streams.get(event.stream_id)
        if stream is None:
            self.mux.acknowledge(event.flow_controlled_length, event.stream_id)
            return
        if event.data:
            self.mux.uploads.count(len(event.data))
        try:
            stream.receive(event.data, event.flow_controlled_length)
        except Exception as error:  # noqa: BLE001 - refuse() responds to any error
            stream.refuse(error)

    def _on_trailers(self, event: events.TrailersReceived) -> None:
        stream = self.streams.get(event.stream_id)
        exchange = None if stream is None else stream.exchange
        if stream is not None and exchange is not None:
            try:
                self._parser.add_trailers(exchange.req, trailer_lines(event.headers))
            except Exception as error:  # noqa: BLE001 - refuse() responds to any error
                stream.refuse(error)

    def _on_end(self, event: events.StreamEnded) -> None:
        stream = self.streams.get(event.stream_id)
        if stream is not None and stream.end_request():
            self._make_ready(stream)

    def _on_reset(self, event: events.StreamReset) -> None:
        self._floods.count("resets", time.monotonic())
        self._fail(event.stream_id, "the client has reset the stream")

    def _on_window(self, event: events.WindowUpdated) -> None:
        with self._lock:
            if event.stream_id:
                stream = self.streams.get(event.stream_id)
                if stream is not None:
                    self.mux.unblock(stream)
            else:
                self.mux.unblock_all()

    def _on_settings(self, event: events.RemoteSettingsChanged) -> None:
        if SettingCodes.INITIAL_WINDOW_SIZE in event.changed_settings:
            with self._lock:
                self.mux.unblock_all()

    def _on_goaway(self, event: events.ConnectionTerminated) -> None:
        if event.error_code:
            self.mux.drop(ConnectionError("the client has ended the connection"))
        else:
            self.mux.state = GOING_AWAY if self.mux.state is OPEN else self.mux.state

    def _on_priority(self, event: PriorityUpdate) -> None:
        with self._lock:
            self.mux.prioritize(event.stream_id, event.value)

    def _make_ready(self, stream: Stream) -> None:
        stream.make_ready()
        self._ready.append(stream)

    def _end_with_error(self, error: Exception) -> None:
        """Handle a connection error (RFC 9113 section 5.4.1). h2 has made the GOAWAY frame."""
        with self._lock:
            self.mux.try_to_transmit()
        self.mux.drop(error)

    # Waiting for the client. Any thread may call these methods.

    def wait_to_send(self, deadline: float, *, no_memory: bool) -> None:
        """Wait until the client accepts more. The connection may have any owner, or no owner."""
        self._until_sent = deadline
        self.cap_deadline(deadline)
        if no_memory:
            self.waits_for_memory = True
        else:
            self._wait_for_socket()

    def _wait_for_socket(self) -> None:
        """Make the poller report the socket when it is writable."""
        with self._lock:
            self._wants_write = True
            self.registry.change(self, self._awaited())

    def _awaited(self) -> int:
        """Return the events to wait for."""
        is_full = self.output.is_waiting and self.output.bytes_queued > _MAX_UNSENT_BYTES
        return (0 if is_full else READ) | (WRITE if self._wants_write else 0)

    def cap_deadline(self, deadline: float) -> None:
        """Make the sweep check the connection at this deadline at the latest."""
        self.deadline = min(self.deadline, deadline)

    # The end of streams and of the connection.

    def remove_stream(self, stream: Stream) -> None:
        if self._drop_stream(stream):
            self.linger()

    def _drop_stream(self, stream: Stream) -> bool:
        """Drop a finished stream. Return whether it was the last stream of a lost connection."""
        with self._lock:
            self.mux.forget(stream)
            if self.mux.state is LOST:
                return not self.streams and not self._is_in_turn
            if self.streams:
                return False
            if self.mux.state is GOING_AWAY:
                self._wait_for_socket()
                return False
            if not self.output.is_waiting:
                self.output.reset()
            idle_s = self.shared.keepalive_s or self.shared.options.head_timeout_s
            self.deadline = self._idle_deadline = time.monotonic() + idle_s
            return False

    def send_goaway(self) -> None:
        """Make the client send new requests on other connections (RFC 9113 section 6.8).

        Two calls are necessary. The first call announces the end, and the second call ends it.
        """
        now = time.monotonic()
        with self._lock:
            if self.mux.state is not OPEN:
                return
            if self._second_goaway_at is None:
                self._second_goaway_at = now + _SECOND_GOAWAY_S
                self.cap_deadline(self._second_goaway_at)
                self.mux.send_goaway(ALL_STREAMS)
            elif self._second_goaway_at <= now:
                self._go_away()

    def _go_away(self) -> None:
        """Accept no more streams. The connection ends after its last stream."""
        with self._lock:
            if self.mux.state is OPEN:
                self.mux.state = GOING_AWAY
                self._last_stream = self._frames.highest_inbound_stream_id
                self.mux.send_goaway(self._last_stream)


_HANDLERS: dict[type[events.Event], Callable[[HTTP2Connection, Any], None]] = {
    events.RequestReceived: HTTP2Connection._on_request,
    PlainRequest: HTTP2Connection._on_plain_request,
    StreamRefused: HTTP2Connection._on_refused,
    events.DataReceived: HTTP2Connection._on_data,
    events.TrailersReceived: HTTP2Connection._on_trailers,
    events.StreamEnded: HTTP2Connection._on_end,
    events.StreamReset: HTTP2Connection._on_reset,
    events.WindowUpdated: HTTP2Connection._on_window,
    events.RemoteSettingsChanged: HTTP2Connection._on_settings,
    PriorityUpdate: HTTP2Connection._on_priority,
    events.ConnectionTerminated: HTTP2Connection._on_goaway,
}
