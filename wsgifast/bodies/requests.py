"""Request bodies before the app reads them: decoded and limited (RFC 9110 15.5.14).

If the Content-Length is within the limit, the server limits the reads of the app to that length.
The app reads any other body through a :class:`LimitedInput`. Most apps respond with 500 if a read
fails. So 413 replaces the app's response to a body that is too large, unless its headers have been
sent.

The server closes the connection, or discards unread bytes. PEP 3333 forbids apps to set headers of
the connection.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from ..compression.decoding import BodyLimits, RequestDecoder
from ..errors import BodyTooLarge, MalformedRequest, RequestError
from ..files.temporary import Budget, Spool, no_room
from ..http.fields import parse_length
from .body import ClosedWith
from .start_response import AppResponse, Respond
from .stream import ConvertedStream

if TYPE_CHECKING:
    from _typeshed import OptExcInfo
    from _typeshed.wsgi import WSGIEnvironment

_READ_BYTES = 64 * 1024
# A larger decoded body is written to a temporary file. The second value limits the bytes of all
# these files together.
_DECODED_IN_MEMORY_BYTES = 1024 * 1024
_ON_DISK = Budget(4 * 1024 * 1024 * 1024)


def limit_request(environ: WSGIEnvironment, limits: BodyLimits) -> LimitedInput | None:
    """Decode a request's body, or limit it.

    The body is decoded before the app is called, since most frameworks read CONTENT_LENGTH bytes.

    :returns: the input that counts the bytes which the app reads. None if no count is needed.
    :raises RequestError: if the request must be refused.
    """
    length = parse_length(environ.get("CONTENT_LENGTH") or "")
    limits.check_length(length)
    coding = environ.get("HTTP_CONTENT_ENCODING") if limits.decodes else None
    # Transfer-Encoding overrides Content-Length (RFC 9112 section 6.3). An HTTP/1 request without
    # either header has no body. A WebSocket may need the server's own `wsgi.input`.
    is_chunked = "HTTP_TRANSFER_ENCODING" in environ
    is_counted = limits.limit_bytes is not None and (
        is_chunked or (length is None and "HTTP_UPGRADE" not in environ)
    )
    if coding is None and not is_counted:
        return None
    source: Any = environ["wsgi.input"]
    limited = None
    if is_counted:
        source = limited = LimitedInput(source, cast(int, limits.limit_bytes))
        environ["wsgi.input"] = limited
    if length is None:
        is_ended = environ.get("wsgi.input_terminated") and "HTTP_UPGRADE" not in environ
        length = -1 if is_ended else 0
    if coding is None or not length:
        return limited
    try:
        decoder = limits.decoder(coding)
    except RequestError:
        if length > 0 or source.read(1):
            raise
        return limited  # the body is empty, so its Content-Encoding does not matter
    if decoder is None:
        return limited
    decoded = _decoded(source.read, length, decoder)
    environ["CONTENT_LENGTH"] = str(decoded.size)
    environ["wsgi.input"] = decoded.open()
    environ["wsgi.input_terminated"] = True
    for name in ("HTTP_CONTENT_ENCODING", "HTTP_TRANSFER_ENCODING", "HTTP_CONTENT_LENGTH"):
        environ.pop(name, None)
    return None


def _decoded(read: Callable[[int], bytes], missing: int, decoder: RequestDecoder) -> Spool:
    """Decode a request body, and return the decoded bytes.

    :param missing: the number of encoded bytes to read. A negative number means all bytes.
    :raises RequestError: if the body is malformed or too large, or the disk has no room for it.
    """
    spool = Spool(_DECODED_IN_MEMORY_BYTES, sys.maxsize, _ON_DISK)
    try:
        while missing:
            block = read(_READ_BYTES if missing < 0 else min(_READ_BYTES, missing))
            if not block and missing > 0:
                raise MalformedRequest(f"The body ended {missing} bytes before its Content-Length")
            if not block:
                break
            missing -= len(block) if missing > 0 else 0
            for piece in decoder.decode(block):
                _write(spool, piece)
        decoder.end()
    except BaseException:
        spool.close()
        raise
    return spool


def _write(spool: Spool, piece: bytes) -> None:
    try:
        spool.write(piece)
    except RequestError:
        raise
    except OSError as error:
        raise no_room(error) from error


class LimitedInput(io.IOBase):
    """A `wsgi.input` that may be read up to a limit.

    IOBase implements iteration and readlines() by calls of readline().

    :param stream: the server's `wsgi.input`.
    :param limit_bytes: the most bytes that may be read.
    :ivar error: the error of the first read beyond the limit. None before such a read.
    """

    def __init__(self, stream: Any, limit_bytes: int) -> None:
        self.error: BodyTooLarge | None = None
        self._stream = stream
        self.limit_bytes = self._left = limit_bytes

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        """:raises BodyTooLarge: if more bytes than the limit have arrived."""
        if size is not None and size >= 0:
            return self._counted(self._stream.read, size)
        blocks = iter(lambda: self._counted(self._stream.read, _READ_BYTES), b"")
        return b"".join(blocks)

    def readline(self, size: int | None = -1, /) -> bytes:
        """:raises BodyTooLarge: if more bytes than the limit have arrived."""
        if size is None or size < 0:
            size = sys.maxsize
        return self._counted(self._stream.readline, size)

    def _counted(self, read: Callable[[int], bytes], size: int) -> bytes:
        if self.error is None:
            data = read(min(size, self._left + 1))
            self._left -= len(data)
            if self._left >= 0:
                return data
            self.error = BodyTooLarge(self.limit_bytes)
        raise BodyTooLarge(self.limit_bytes)  # a new error, so that the first one keeps no frames


def within_limits(
    limits: BodyLimits, refuse: Callable[..., Iterable[bytes]], respond: Respond
) -> Respond:
    """Return a stage that calls the app with request bodies that are within the limits.

    :param refuse: responds to a refused request in place of the app. It is called with the response
        and an error. If the app's headers have been forwarded, it also gets exc_info.
    """

    def call(response: AppResponse) -> Iterable[bytes]:
        try:
            limited = limit_request(response.environ, limits)
        except RequestError as error:
            return refuse(response, error)
        if limited is None:
            return respond(response)
        return _respond_counted(respond, response, limited, partial(refuse, response))

    return call


def _respond_counted(
    respond: Respond,
    response: AppResponse,
    limited: LimitedInput,
    refuse: Callable[..., Iterable[bytes]],
) -> Iterable[bytes]:
    """Call the app, and replace its response if the app has read beyond the limit."""
    server_start, has_started = response.server_start, False

    def start(
        status: str, headers: list[tuple[str, str]], exc_info: OptExcInfo | None = None, /
    ) -> Callable[[bytes], object]:
        nonlocal has_started
        if limited.error is not None and not has_started:
            exc_info = None  # it refers to this frame
            raise BodyTooLarge(limited.limit_bytes)
        has_started = True
        if exc_info is None:
            return server_start(status, headers)
        return server_start(status, headers, exc_info)

    response.server_start = start
    try:
        body = respond(response)
    except Exception:
        if limited.error is None or has_started:  # the app may have called write()
            raise
        response.server_start = server_start
        return refuse(limited.error)
    if type(body) is not ConvertedStream:
        return body

    def iterated() -> Iterator[bytes]:
        has_sent = False
        try:
            for block in body:
                has_sent = has_sent or block != b""
                yield block
            return
        except Exception:
            if limited.error is None or has_sent:
                raise
            response.server_start = server_start
            page = refuse(limited.error, sys.exc_info() if has_started else None)
        yield from page

    return ClosedWith(iterated(), body)
