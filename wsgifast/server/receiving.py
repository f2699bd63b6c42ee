"""Turns the bytes of one connection into requests; sans I/O.

Nothing here waits, has a socket or knows a thread, and no byte is scanned twice. A request is a
head, which the parser takes apart, and a body, which a collector takes unless the app reads it from
the socket. What follows it is kept for the next request.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import Any, Final

from ..errors import BodyTooLarge, RequestError
from ..http.chunked import BodyDecoder, ChunkDecoder, LengthDecoder
from ..http.request_head import HeadScanner
from .exchange import Exchange
from .limits import BODY_BYTES_PER_S, Budget, time_left_s
from .options import Options
from .parser import NeedMoreData, Parser
from .request_body import BodyCollector, Spool

# Bytes of one receive of a head: more than any usual head, so that pipelined requests need fewer
# calls, and never less than a TLS record (RFC 8446 section 5.1): no event would announce the rest.
_HEAD_BYTES = 16 * 1024
_END_OF_HEAD = b"\r\n\r\n"

# The next step, as :meth:`Receiver.take` returns it.
MORE: Final = "receive more, or call take() again if has_more_to_do()"
ASKED: Final = "the same, and the client waits for 100 Continue"
COMPLETE: Final = "run the request; it has no body if the app is to read that from the socket"
HTTP2: Final = "the connection speaks HTTP/2 from here on; a request may have asked for the upgrade"


class Receiver:
    """Parses what one connection receives.

    :param peer: the client's address as accept() returned it.
    :param disk: counts bodies in temporary files.
    :ivar exchange: the request being received, or the last one; None in the middle of a head.
    :ivar rest: bytes received and not parsed yet.
    :ivar wanted: how many bytes the next receive may return.
    """

    __slots__ = (
        "_body", "_disk", "_number", "_options", "_peer", "_scanner", "exchange", "parser", "rest",
        "wanted",
    )  # fmt: skip

    def __init__(self, parser: Parser, peer: Any, options: Options, disk: Budget) -> None:
        self.exchange: Exchange | None = None
        self.rest = b""
        self.wanted = _HEAD_BYTES
        self.parser = parser
        self._peer = peer
        self._options = options
        self._disk = disk
        self._number = 0  # of the request on its connection
        self._scanner: HeadScanner | None = None  # of an incomplete head
        self._body: BodyCollector | None = None  # being received

    @property
    def is_first(self) -> bool:
        """Whether no request has come on the connection yet."""
        return not self._number

    def has_more_to_do(self) -> bool:
        """Whether :meth:`take` can go on without receiving anything."""
        return bool(self.rest) if self._body is None else self._body.has_more_to_do

    def may_need_disk(self) -> bool:
        """Whether the next receive may write to a temporary file."""
        body = self._body
        return body is not None and body.spool.may_need_disk(self.wanted)

    def take(self, data: bytes) -> str:
        """Parse what was received; b"" to go on with what is left.

        :returns: the next step.
        :raises Exception: for a request that is malformed or refused. RequestError carries its own
            answer; the parser's owner knows how to answer its other errors.
        """
        if self._body is not None:
            return self._take_body(self._body, data)
        if self.rest:
            data, self.rest = self.rest + data, b""
        scanner = self._scanner
        if scanner is None:
            if data.endswith(_END_OF_HEAD) or _END_OF_HEAD in data:
                return self._parse(data)
            scanner = self._scanner = HeadScanner()
        parser = self.parser
        looks = scanner.add(data) or len(scanner.data) <= parser.eager_bytes
        if looks or len(scanner.data) > parser.head_limit_bytes:
            return self._parse(bytes(scanner.data))
        return MORE

    def deadline(self, now: float) -> float | None:
        """When the client must have sent more of the body; None within a head.

        :param now: monotonic; something was received just now.
        """
        if self._body is None or self.exchange is None:
            return None
        waited_s = now - self.exchange.started
        return now + time_left_s(
            self._options.body_timeout_s, BODY_BYTES_PER_S, self._body.received, waited_s
        )

    def decoder(self, length: int | None) -> BodyDecoder:
        """Return a decoder for a body.

        :param length: bytes; None for a chunked one.
        """
        if length is not None:
            return LengthDecoder(length)
        options = self._options
        return ChunkDecoder(
            body_limit=options.body_limit_bytes if options.buffer_bodies else sys.maxsize,
            line_limit=options.trailer_line_bytes,
            trailer_fields=options.trailer_fields,
        )

    def take_trailers(self, lines: Sequence[bytes]) -> None:
        """Hand the trailers of a chunked body to the parser."""
        if self.exchange is not None:
            self.parser.take_trailers(self.exchange.req, lines)

    def close(self) -> None:
        """Drop an incomplete request."""
        self.exchange = None
        self.wanted = _HEAD_BYTES
        self._scanner = None
        if self._body is not None:
            self._body.spool.close()
            self._body = None

    def _parse(self, data: bytes) -> str:
        try:
            exchange = self.parser.parse(data, self._peer, self._number + 1)
        except NeedMoreData:
            if len(data) > self.parser.head_limit_bytes:
                raise RequestError(431, "The request's head is too large") from None
            if self._scanner is None:
                self._scanner = HeadScanner(data)
            return MORE
        self._scanner = None
        if exchange is None:
            self.rest = data
            return HTTP2
        self._number += 1
        self.exchange = exchange
        if exchange.length == 0:
            self.rest = exchange.rest
            exchange.body = io.BytesIO()
            return COMPLETE if exchange.upgrade is None else HTTP2
        if not self._options.buffer_bodies and exchange.upgrade is None:
            return COMPLETE
        return self._begin_body(exchange)

    def _begin_body(self, exchange: Exchange) -> str:
        options = self._options
        length = exchange.length
        if length is not None and length > options.body_limit_bytes:
            raise BodyTooLarge(f"The request body is longer than {options.body_limit_bytes} bytes")
        spool = Spool(options.body_memory_bytes, options.body_limit_bytes, self._disk)
        self._body = body = BodyCollector(self.decoder(length), spool)
        step = self._take_body(body, exchange.rest)
        return ASKED if step is MORE and exchange.expects_continue else step

    def _take_body(self, body: BodyCollector, data: bytes) -> str:
        if data or body.has_more_to_do:
            body.take(data)
        if not body.decoder.done:
            self.wanted = body.wanted
            return MORE
        exchange = self.exchange
        assert exchange is not None
        self.take_trailers(body.decoder.trailers)
        self.rest = body.rest
        if exchange.length is None:
            exchange.declare_length(body.spool.size)
        exchange.body = body.spool.open()
        self.wanted = _HEAD_BYTES
        self._body = None
        return COMPLETE if exchange.upgrade is None else HTTP2
