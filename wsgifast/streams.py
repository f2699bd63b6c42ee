"""The server's view of the iterables that apps return: converted, counted, closed once."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from . import body as bodies
from .delivery import BodyTooShort
from .errors import BodyError

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse

__all__ = ["Exchange", "NoBody", "SizedStream", "Stream", "close_body"]

logger = logging.getLogger("wsgifast")


class Exchange(Protocol):
    """What a stream asks of the request it belongs to.

    Looked at again for each chunk: a lazy app calls start_response from inside its iterator, and
    may call write() between two chunks.

    :ivar status: None until the app has called start_response.
    :ivar declared: its Content-Length; None without one.
    :ivar no_body: whether the response ends at its head.
    :ivar written: body bytes that have gone to the server.
    """

    status: str | None
    declared: int | None
    no_body: bool
    written: int
    server_start: StartResponse

    @property
    def app_name(self) -> str: ...
    def convert(self, chunk: object) -> bytes: ...
    def route_stream(self) -> bool:
        """Note the route, as far as the head is known; return whether chunks are coalesced."""

    def not_started(self) -> BodyError: ...


class Stream:
    """The server's view of an app's iterable: each chunk as it comes, converted and counted."""

    def __init__(self, exchange: Exchange, body: Iterable[Any], *, coalesce: bool = False) -> None:
        self._exchange = exchange
        self._body = body
        self._coalesce = coalesce
        self._closed = False

    def __iter__(self) -> Iterator[bytes]:
        return self._gathered() if self._coalesce else self._chunks()

    def _gathered(self) -> Iterator[bytes]:
        chunks = self._chunks()
        for chunk in chunks:
            yield chunk
            break  # a lazy app has called start_response by now
        if self._exchange.route_stream():
            chunks = bodies.coalesced(chunks, time.monotonic)
        yield from chunks

    def _chunks(self) -> Iterator[bytes]:
        exchange = self._exchange
        convert = exchange.convert
        chunks = iter(self._body)
        # A lazy app calls start_response at the first chunk, and any app may replace the head (with
        # exc_info) until the first byte is out: up to there HEAD runs what GET runs.
        for chunk in chunks:
            if exchange.status is None:
                raise self._never_started()
            chunk = convert(chunk)
            if chunk:
                break
            yield b""
        else:
            if exchange.status is None:
                raise self._never_started()
            if exchange.no_body:
                yield b""  # see NoBody
            self._check_complete()
            return
        if exchange.no_body:
            yield b""
            return
        if exchange.declared is not None:
            yield from self._counted(chunk, chunks, exchange.declared)
            return
        yield chunk
        for chunk in chunks:
            yield chunk if type(chunk) is bytes else convert(chunk)

    def _counted(self, chunk: bytes, chunks: Iterator[Any], declared: int) -> Iterator[bytes]:
        """Pass chunks up to the Content-Length: never a byte more, an error for fewer."""
        exchange = self._exchange
        while True:
            if exchange.written + len(chunk) > declared:
                logger.error(
                    "%s returned more than its Content-Length of %d bytes; the rest is dropped",
                    exchange.app_name,
                    declared,
                )
                chunk = chunk[: declared - exchange.written]
                exchange.written = declared
                yield chunk
                return
            exchange.written += len(chunk)
            yield chunk
            try:
                chunk = exchange.convert(next(chunks))
            except StopIteration:
                break
        self._check_complete()

    def _never_started(self) -> BodyError:
        # cheroot sends whatever head it has when an iterable fails: without one, it sends nothing.
        headers = [("Content-Type", "text/plain"), ("Content-Length", "0")]
        self._exchange.server_start("500 Internal Server Error", headers)
        return self._exchange.not_started()

    def _check_complete(self) -> None:
        exchange = self._exchange
        if exchange.no_body or exchange.declared is None:
            return
        if exchange.written < exchange.declared:
            raise BodyTooShort(exchange.declared - exchange.written)

    def close(self) -> None:
        """Close the app's own iterable, once."""
        if not self._closed:
            self._closed = True
            close_body(self._body)


class SizedStream(Stream):
    """A stream that knows how many chunks it has: a server may set Content-Length if it is one."""

    def __init__(self, exchange: Exchange, body: Iterable[Any], length: int) -> None:
        super().__init__(exchange, body)
        self._length = length

    def __len__(self) -> int:
        return self._length


class NoBody:
    """No body bytes: one empty chunk makes servers send the head without inventing a length.

    :param body: the app's own iterable; closed, and not iterated.
    """

    def __init__(self, body: Iterable[Any] = ()) -> None:
        self._body: object = body

    def __iter__(self) -> Iterator[bytes]:
        return iter((b"",))

    def close(self) -> None:
        """Close the app's own iterable, once."""
        body, self._body = self._body, None
        close_body(body)


def close_body(body: object) -> None:
    """Call the close() of what an app returned, if it has one (PEP 3333)."""
    close = getattr(body, "close", None)
    if callable(close):
        close()
