"""Parse the bytes of one connection into requests, without I/O.

This module has no socket, no thread and no waits. It scans each byte only once. The parser parses
the headers of a request. A BodyCollector collects the body, unless the app reads the body from the
socket. Bytes after the body are stored for the next request.

An :class:`Exchange` is a request and its response, for all parts of the server. The parsers in
wsgifast/workers implement :class:`Parser`.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Any, Final, Protocol

from ..bodies.access_log import queue_seconds
from ..errors import BodyTooLarge, HeadersTooLarge, RequestError
from ..files.temporary import Reservation, Spool
from ..http.chunked import BodyDecoder, ChunkDecoder, LengthDecoder
from ..http.request_headers import HeaderScanner
from ..http.stream_headers import Field, PlainHeaders
from ..server_options import MIN_BYTES_PER_S
from ..sockets.client_limits import remaining_wait_s
from .shared import Shared

# The maximum number of bytes of one receive of headers. It is larger than usual headers, so that
# pipelined requests need fewer calls. It must not be smaller than a TLS record (RFC 8446 section
# 5.1), because no event would report the remaining bytes of the record.
_HEADER_BYTES = 16 * 1024
_END_OF_HEADERS = b"\r\n\r\n"
# The maximum number of bytes of one receive of a body. For a chunked body, it is first
# _FIRST_CHUNKS_BYTES, and later at least _MIN_CHUNKS_BYTES.
_RECEIVE_BYTES = 256 * 1024
_FIRST_CHUNKS_BYTES = 4 * 1024
_MIN_CHUNKS_BYTES = 1024
# The maximum number of chunks decoded in one turn, which takes much less than a millisecond.
_CHUNKS_PER_TURN = 500
# Headers up to this size are accepted even if no memory is left. So other clients are still served
# if many clients send long headers slowly.
_SMALL_HEADER_BYTES = 4 * 1024
# Transfer codings that do not change the decoded content of a body.
_ONLY_FRAMING = {"chunked", "identity", ""}

# The results of :meth:`Receiver.feed`, which are the next steps.
MORE: Final = "receive more, or call feed() again if has_more_to_do()"
WANTS_CONTINUE: Final = "like MORE, but first send 100 Continue, for which the client waits"
COMPLETE: Final = "run the request. The app may have to read the body from the socket"
HTTP2: Final = "continue with HTTP/2"


class Exchange:
    """A request and its response. The parser makes this object from complete headers.

    :ivar req: the parser's request, for the environ, hooks and loggers.
    :ivar length: Content-Length in bytes, or None for a chunked body (RFC 9112 section 6).
    :ivar unparsed: bytes received after the headers.
    :ivar fields: the headers with their environ keys.
    :ivar script_name: SCRIPT_NAME from a trusted proxy, or None.
    :ivar expects_continue: whether the client waits for "100 Continue" (RFC 9110 section 10.1.1).
    :ivar proxy: environ keys from a PROXY header before the connection's first request.
    :ivar resp: the response, or None until it is made.
    :ivar environ: the environ, or None until the app is called.
    :ivar body: `wsgi.input`, or None until it is made.
    :ivar streamed: the raw stream of `body`, if the app reads from the socket. Its `failure` is the
        reason why the body cannot be read to its end.
    :ivar context: the app's context, for log lines that another thread writes. None if no other
        thread writes them.
    :ivar schedule_close: makes the pool call the body's close() soon. None unless the close() was
        postponed, because the output still read the body's file.
    :ivar response_is_complete: whether the app has returned, and has written the whole response.
    :ivar is_timed_out: whether the deadline passed before the response was complete.
    :ivar replaced_by: the response that the client got at the deadline instead of the app's.
    :ivar started: the time at which this object was made. All times are monotonic. A time is 0.0 if
        it does not apply.
    :ivar queued: the time at which the complete request began to wait for a thread.
    :ivar begun: the time at which the app was called. Only set for the access log.
    :ivar answered: the time at which the app had finished. Only set for the access log.
    """

    __slots__ = (
        "answered", "begun", "body", "context", "environ", "expects_continue", "fields",
        "is_timed_out", "length", "proxy", "queued", "replaced_by", "req", "resp",
        "response_is_complete", "schedule_close", "script_name", "started", "streamed", "unparsed",
    )  # fmt: skip

    def __init__(
        self,
        req: Any,
        length: int | None,
        unparsed: bytes,
        fields: dict[str, str],
        script_name: str | None = None,
        expects_continue: bool = False,
        proxy: dict[str, Any] | None = None,
    ) -> None:
        self.req = req
        self.length = length
        self.unparsed = unparsed
        self.fields = fields
        self.script_name = script_name
        self.expects_continue = expects_continue
        self.proxy = proxy
        self.resp: Any = None
        self.environ: dict[str, Any] | None = None
        self.body: Any = None
        self.streamed: Any = None
        self.schedule_close: Callable[[], object] | None = None
        self.context: Context | None = None
        self.response_is_complete = self.is_timed_out = False
        self.replaced_by: Any = None
        self.started = time.monotonic()
        self.queued = self.begun = self.answered = 0.0

    def declare_length(self, size: int) -> None:
        """Set CONTENT_LENGTH for a complete body whose request did not declare its length.

        Apps rely on CONTENT_LENGTH (PEP 3333). Django, for example, regards a body without
        CONTENT_LENGTH as empty. The algorithm of RFC 9112 section 7.1.3 also sets the length after
        decoding chunks. If the body has another transfer coding, the length of its content is
        unknown.
        """
        codings = self.fields.get("HTTP_TRANSFER_ENCODING", "").lower().split(",")
        if {coding.strip(" \t") for coding in codings} <= _ONLY_FRAMING:
            self.fields.pop("HTTP_TRANSFER_ENCODING", None)
            self.fields.setdefault("CONTENT_LENGTH", str(size))

    def waited_in_proxy_s(self) -> float | None:
        """Return how long the request waited before it arrived, by X-Request-Start, or None.

        Only the header of a trusted proxy counts, because other peers may send false times.
        """
        start = self.fields.get("HTTP_X_REQUEST_START")
        if start is None or not self.req.cfg.trusts(self.req.peer_addr):
            return None
        return queue_seconds(start, time.time() - (time.monotonic() - self.started))

    def waited_s(self) -> float:
        """Return how long the request has waited for its app, in a trusted proxy and here."""
        waited_s = time.monotonic() - self.queued if self.queued else 0.0
        return waited_s + (self.waited_in_proxy_s() or 0.0)


class NeedMoreData(Exception):
    """Raised if the headers are incomplete."""


class Parser(Protocol):
    """Parses the requests of all connections. It has no state between calls, and never waits.

    :ivar eager_bytes: up to this number of bytes, :meth:`parse` is called even if no empty line was
        received. In some protocols, no empty line ends the headers.
    :ivar head_limit_bytes: the maximum size of request line and headers.
    """

    eager_bytes: int
    head_limit_bytes: int

    def parse(self, data: bytes, peer: Any, number: int) -> Exchange | None:
        """Parse the request line and headers at the start of some data.

        :param peer: the client's address as returned by accept().
        :param number: the number of the request on its connection, from 1.
        :returns: None for HTTP/2's connection preface (RFC 9113 section 3.4).
        :raises NeedMoreData: if the headers are incomplete.
        :raises Exception: if the headers are malformed. The server responds with the error.
        """

    def parse_stream(
        self, received: Sequence[Field], plain: PlainHeaders | None, peer: Any, number: int
    ) -> Exchange:
        """Make a request from the headers of an HTTP/2 stream.

        :param received: the fields as decoded by HPACK.
        :param plain: the same headers, if they are plain, or None.
        :param number: the number of the stream.
        :raises Exception: see :meth:`parse`.
        """

    def add_trailers(self, req: Any, lines: Sequence[bytes]) -> None:
        """Add trailers, whose syntax was checked, to a request of this parser.

        :raises Exception: see :meth:`parse`.
        """


class Receiver:
    """Receives the requests of one connection.

    :param peer: the client's address as returned by accept().
    :param shared: the server's shared data. Its budgets count bodies in temporary files and in
        memory. They also count long headers until the request is complete.
    :ivar exchange: the current or the last request. None while headers are incomplete.
    :ivar number: the number of requests so far.
    :ivar unparsed: received bytes that have not been parsed.
    :ivar receive_limit: the maximum number of bytes for the next receive.
    """

    __slots__ = (
        "_body", "_header_memory", "_peer", "_scanner", "_shared", "exchange", "number", "parser",
        "receive_limit", "unparsed",
    )  # fmt: skip

    def __init__(self, parser: Parser, peer: Any, shared: Shared) -> None:
        self.exchange: Exchange | None = None
        self.unparsed = b""
        self.receive_limit = _HEADER_BYTES
        self.parser = parser
        self._peer = peer
        self._shared = shared
        self._header_memory = Reservation(shared.input_memory)
        self.number = 0
        self._scanner: HeaderScanner | None = None  # for incomplete headers
        self._body: BodyCollector | None = None  # for an incomplete body

    def has_more_to_do(self) -> bool:
        """Return whether :meth:`feed` can continue with bytes that have been received."""
        return bool(self.unparsed) if self._body is None else self._body.has_more_to_do

    def may_need_disk(self) -> bool:
        """Return whether the next receive may write to a temporary file."""
        body = self._body
        return body is not None and body.spool.may_need_disk(self.receive_limit)

    def feed(self, data: bytes) -> str:
        """Parse received bytes. With b"", continue with bytes that have not been parsed.

        :returns: the next step.
        :raises Exception: for a request that is malformed or refused. A RequestError contains its
            response. The worker responds to other errors.
        """
        if self._body is not None:
            return self._feed_body(self._body, data)
        if self.unparsed:
            data, self.unparsed = self.unparsed + data, b""
        scanner = self._scanner
        if scanner is None:
            if data.endswith(_END_OF_HEADERS) or _END_OF_HEADERS in data:
                return self._parse(data)
            scanner = self._scanner = HeaderScanner()
        parser = self.parser
        should_parse = scanner.add(data) or len(scanner.data) <= parser.eager_bytes
        if should_parse or len(scanner.data) > parser.head_limit_bytes:
            return self._parse(bytes(scanner.data))
        self._reserve_headers(len(scanner.data))
        return MORE

    def deadline(self, now: float) -> float:
        """Return the time until which the client must send more of the body.

        :param now: the monotonic time. Bytes have just been received.
        """
        body = self._body
        assert body is not None
        waited_s = now - body.exchange.started
        return now + remaining_wait_s(
            self._shared.options.body_timeout_s, MIN_BYTES_PER_S, body.received, waited_s
        )

    def decoder(self, length: int | None) -> BodyDecoder:
        """Return a decoder for a body.

        :param length: the number of bytes, or None for a chunked body.
        """
        if length is not None:
            return LengthDecoder(length)
        options = self._shared.options
        return ChunkDecoder(
            body_limit=options.body_limit_bytes if options.buffer_bodies else sys.maxsize,
            line_limit=options.trailer_line_bytes,
            trailer_fields=options.max_fields,
        )

    def add_trailers(self, lines: Sequence[bytes]) -> None:
        """Pass the trailers of a chunked body to the parser."""
        if self.exchange is not None:
            self.parser.add_trailers(self.exchange.req, lines)

    def close(self) -> None:
        """Drop an incomplete request."""
        self.exchange = None
        self.receive_limit = _HEADER_BYTES
        self._scanner = None
        self._header_memory.release()
        if self._body is not None:
            self._body.spool.close()
            self._body = None

    def _reserve_headers(self, size: int) -> None:
        """Reserve memory for the headers of an incomplete request.

        :raises RequestError: if no memory is left.
        """
        if size > _SMALL_HEADER_BYTES and not self._header_memory.grow_to(size):
            raise RequestError(503, "There is no memory left for the request's headers")

    def _parse(self, data: bytes) -> str:
        parser = self.parser
        number = self.number + 1
        try:
            exchange = parser.parse(data, self._peer, number)
        except NeedMoreData:
            if len(data) > parser.head_limit_bytes:
                raise HeadersTooLarge(parser.head_limit_bytes) from None
            if self._scanner is None:
                self._scanner = HeaderScanner(data)
            self._reserve_headers(len(data))
            return MORE
        if self._scanner is not None:  # the headers arrived in several parts
            self._scanner = None
            self._header_memory.release()
        if exchange is None:
            self.unparsed = data
            return HTTP2
        self.number = number
        self.exchange = exchange
        limit = parser.head_limit_bytes
        if len(data) > limit and len(data) - len(exchange.unparsed) > limit:
            raise HeadersTooLarge(limit)
        if exchange.length == 0:
            self.unparsed = exchange.unparsed
            exchange.body = io.BytesIO()
            return COMPLETE
        if not self._shared.options.buffer_bodies:
            return COMPLETE
        return self._begin_body(exchange, len(data) - len(exchange.unparsed))

    def _begin_body(self, exchange: Exchange, header_bytes: int) -> str:
        options = self._shared.options
        length = exchange.length
        if length is not None and length > options.body_limit_bytes:
            raise BodyTooLarge(options.body_limit_bytes)
        disk, memory = self._shared.bodies_on_disk, self._shared.input_memory
        spool = Spool(options.body_memory_bytes, options.body_limit_bytes, disk, memory)
        self._body = body = BodyCollector(exchange, self.decoder(length), spool)
        data, exchange.unparsed = exchange.unparsed, b""
        step = self._feed_body(body, data)
        if step is MORE:
            # Memory for the received headers and for the parsed headers.
            self._reserve_headers(2 * header_bytes)
        return WANTS_CONTINUE if step is MORE and exchange.expects_continue else step

    def _feed_body(self, body: BodyCollector, data: bytes) -> str:
        if data or body.has_more_to_do:
            body.feed(data)
        if not body.decoder.done:
            self.receive_limit = body.receive_limit
            return MORE
        exchange = body.exchange
        self.add_trailers(body.decoder.trailers)
        self.unparsed = body.unparsed
        if exchange.length is None:
            exchange.declare_length(body.spool.size)
        exchange.body = body.spool.open()
        self.receive_limit = _HEADER_BYTES
        self._body = None
        self._header_memory.release()
        return COMPLETE


class BodyCollector:
    """Collects the body of a request while it is received.

    Many small chunks take longer to decode than to receive. So one turn decodes a limited number of
    chunks, and the next receive is limited to the number of bytes that one turn has decoded.

    :ivar received: the number of bytes received so far, including the framing.
    :ivar receive_limit: the maximum number of bytes for the next receive.
    :ivar has_more_to_do: whether to call :meth:`feed` without data before receiving more.
    :ivar unparsed: bytes that were received after the body.
    """

    def __init__(self, exchange: Exchange, decoder: BodyDecoder, spool: Spool) -> None:
        self.exchange = exchange
        self.spool = spool
        self.decoder = decoder
        self.received = 0
        self.receive_limit = min(decoder.left or _FIRST_CHUNKS_BYTES, _RECEIVE_BYTES)
        self.has_more_to_do = False
        self.unparsed = b""
        self._data = b""  # the last received bytes, which are decoded up to `_at`
        self._at = 0

    def feed(self, data: bytes) -> None:
        """Add received bytes. With b"", continue with bytes that have not been decoded.

        :raises RequestError: if the body is malformed, or no memory or disk is left for it.
        :raises OSError: if the temporary file cannot be written.
        """
        if data:
            self.received += len(data)
            self._data, self._at = data, 0
        data, start = self._data, self._at
        decoder = self.decoder
        content, at = decoder.decode(data, start, chunks=_CHUNKS_PER_TURN)
        if content:
            self.spool.write(content)
        self.has_more_to_do = at < len(data) and not decoder.done
        if self.has_more_to_do:
            self._at = at
            self.receive_limit = max(at - start, _MIN_CHUNKS_BYTES)
            return
        self.receive_limit = min(decoder.left or self.receive_limit * 4, _RECEIVE_BYTES)
        self._data = b""
        self.unparsed = data[at:]
