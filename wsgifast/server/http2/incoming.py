"""The receiving half of an HTTP/2 connection; only its owner runs this."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from typing import Any

from h2 import events
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes

from ...errors import BodyTooLarge, ClientGone
from ...http.request_head import request_head, trailer_lines
from ..exchange import Exchange
from ..parser import Parser
from ..poller import WOULD_BLOCK
from ..request_body import Spool
from .frames import ALL_STREAMS, Flood, StreamRefused
from .outgoing import LEAVING, OPEN, Outgoing
from .stream import MOST_RECEIVED_BYTES, READY, RECEIVING, Stream, StreamedUpload

# Bytes of one receive: a TLS record (RFC 8446 section 5.1).
_RECEIVE_BYTES = 16 * 1024


class Incoming:
    """Hands received frames to their streams, and makes new ones.

    :ivar ready: streams whose apps can run.
    :ivar last_stream: the highest stream number that is accepted.
    """

    __slots__ = (
        "_floods", "_frames", "_lock", "_out", "_parser", "_streams", "last_stream", "ready",
    )  # fmt: skip

    def __init__(self, outgoing: Outgoing, parser: Parser) -> None:
        self._out = outgoing
        self._floods = outgoing.floods
        self._frames = outgoing.frames
        self._lock = outgoing.lock
        self._streams: dict[int, Stream] = outgoing.streams
        self._parser = parser
        self.ready: list[Stream] = []
        self.last_stream = ALL_STREAMS

    def may_need_disk(self) -> bool:
        """Whether the next receive may write to a temporary file."""
        return any(stream.may_need_disk() for stream in list(self._streams.values()))

    def receive(self) -> None:
        bodies = any(not stream.has_ended for stream in list(self._streams.values()))
        size = MOST_RECEIVED_BYTES if bodies else _RECEIVE_BYTES
        try:
            with self._lock:  # both directions share one TLS object
                data = self._out.connection.sock.recv(size)
        except WOULD_BLOCK:
            return
        except OSError as error:
            self._out.lose(error)
            return
        if data:
            self.take(data)
        else:
            self._out.lose(ConnectionError("the client has left"))

    def take(self, data: bytes) -> None:
        try:
            with self._lock:
                found = self._frames.take(data)
            for event in found:
                handle = _HANDLERS.get(type(event))
                if handle is not None:
                    handle(self, event)
        except ProtocolError as error:
            self._end_badly(error)
        except Flood as error:
            with self._lock:
                self._frames.refuse_more()
            self._end_badly(error)

    def _on_request(self, event: events.RequestReceived) -> None:
        number = event.stream_id
        if number > self.last_stream:
            with self._lock:
                self._frames.reset_stream(number, ErrorCodes.REFUSED_STREAM)
            self._floods.count_reset(time.monotonic())
            return
        is_head = (b":method", b"HEAD") in event.headers
        stream = Stream(self._out, number, is_head=is_head)
        with self._lock:  # another thread may be looking at all of them, for the end of one
            self._streams[number] = stream
        try:
            head, scheme = request_head(event.headers)
            ends = event.stream_ended is not None
            # Never number 1: a PROXY header or a preface cannot come before it on a stream.
            exchange = self._parser.parse_stream(
                head, self._out.connection.peer, number + 1, scheme=scheme, has_body=not ends
            )
            stream.exchange = exchange
            if ends:
                exchange.body = io.BytesIO()
                stream.has_ended = True
                self.make_ready(stream)
            elif stream.begin(exchange, self._body_of(exchange, number)):
                self.make_ready(stream)
        except Exception as error:  # noqa: BLE001 - each is answered
            stream.refuse(error)

    def _body_of(self, exchange: Exchange, number: int) -> Spool | StreamedUpload:
        """Return what receives a request's body.

        :raises BodyTooLarge: if its Content-Length is over the limit.
        """
        options = self._out.core.options
        if not options.buffer_bodies:
            return StreamedUpload(self._out, number)
        limit = options.body_limit_bytes
        if "CONTENT_LENGTH" in exchange.fields and (exchange.length or 0) > limit:
            raise BodyTooLarge(f"The request body is longer than {limit} bytes")
        # The bodies of one connection share what one body may keep in memory.
        waiting = sum(each.state in (RECEIVING, READY) for each in list(self._streams.values()))
        return Spool(options.body_memory_bytes // waiting, limit, self._out.core.bodies_on_disk)

    def _on_refused(self, event: StreamRefused) -> None:
        if event.malformed:
            core = self._out.core
            core.counters.refused[400] += 1
            peer = self._out.connection.peer
            core.log.warning("Invalid request from %s: %s", peer, event.malformed)
        self._fail(event.stream_id, "the stream has been reset")
        self._floods.count_reset(time.monotonic())

    def _fail(self, number: int, reason: str) -> None:
        stream = self._streams.get(number)
        if stream is not None:
            stream.fail(ClientGone(reason))

    def _on_data(self, event: events.DataReceived) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is None:
            self._out.acknowledge(event.flow_controlled_length, event.stream_id)
            return
        if event.data:
            self._out.uploads.count(len(event.data))
        try:
            stream.take(event.data, event.flow_controlled_length)
        except Exception as error:  # noqa: BLE001 - each is answered
            stream.refuse(error)

    def _on_trailers(self, event: events.TrailersReceived) -> None:
        stream = self._streams.get(event.stream_id)
        exchange = None if stream is None else stream.exchange
        if stream is not None and exchange is not None:
            try:
                self._parser.take_trailers(exchange.req, trailer_lines(event.headers))
            except Exception as error:  # noqa: BLE001 - each is answered
                stream.refuse(error)

    def _on_end(self, event: events.StreamEnded) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is not None and stream.end_request():
            self.make_ready(stream)

    def _on_reset(self, event: events.StreamReset) -> None:
        self._floods.count_reset(time.monotonic())
        self._fail(event.stream_id, "the stream is reset")

    def _on_window(self, event: events.WindowUpdated) -> None:
        with self._lock:
            if event.stream_id:
                stream = self._streams.get(event.stream_id)
                if stream is not None:
                    self._out.unblock(stream)
            else:
                self._out.unblock_all()

    def _on_settings(self, event: events.RemoteSettingsChanged) -> None:
        if SettingCodes.INITIAL_WINDOW_SIZE in event.changed_settings:
            with self._lock:
                self._out.unblock_all()

    def _on_goaway(self, event: events.ConnectionTerminated) -> None:
        if event.error_code:
            self._out.drop(ConnectionError("the client has ended the connection"))
        else:
            self._out.state = LEAVING if self._out.state is OPEN else self._out.state

    def make_ready(self, stream: Stream) -> None:
        stream.make_ready()
        self.ready.append(stream)

    def _end_badly(self, error: Exception) -> None:
        """A connection error (RFC 9113 section 5.4.1); h2 has made the GOAWAY frame."""
        with self._lock:
            self._out.transmit_or_wait()
        self._out.drop(error)


_HANDLERS: dict[type[events.Event], Callable[[Incoming, Any], None]] = {
    events.RequestReceived: Incoming._on_request,
    StreamRefused: Incoming._on_refused,
    events.DataReceived: Incoming._on_data,
    events.TrailersReceived: Incoming._on_trailers,
    events.StreamEnded: Incoming._on_end,
    events.StreamReset: Incoming._on_reset,
    events.WindowUpdated: Incoming._on_window,
    events.RemoteSettingsChanged: Incoming._on_settings,
    events.ConnectionTerminated: Incoming._on_goaway,
}
