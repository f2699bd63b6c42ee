"""Limit, decode and buffer request bodies before the app gets them (RFC 9110 15.5.14).

If a Content-Length is within the limit, the body is within it too, because the server passes no
more bytes to the app. The bytes of any other body are counted. If a body is too long, receive()
raises an error. Most apps respond to an error with 500, so the app's response is then replaced by a
413.

A compressed body is decoded before the app is called, so that its Content-Length is the decoded
length. Without a Content-Length, Django and its REST framework assume an empty body.

Over HTTP/1, a server closes the connection if the body has not been read. If the client is still
sending, the close makes it lose the response (:mod:`wsgifast.sockets.closing`). Most servers do not
wait for the client. So the error response is not ended before the request body has arrived.
asgifast's protocols wait themselves, so this is not needed for them.

With buffering, a body is received before the app is called. While a client is slow, it occupies no
task, database session or lock of the app. The bytes are in memory, up to a limit for the whole
process. Bytes above the limit are in an unnamed temporary file. If the file cannot be written, the
app is called, and receives the remaining bytes directly. So a full disk does not fail a request. A
decoded body must fit into memory or the file. Otherwise the response is 503.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import NamedTuple, cast

from wsgifast.checks import is_count
from wsgifast.compression.decoding import BodyLimits, RequestDecoder
from wsgifast.errors import BodyTooLarge, ConfigurationError, RequestError, without_frames
from wsgifast.files.temporary import Budget, TemporaryFile, no_room
from wsgifast.http.fields import parse_length, raw_headers
from wsgifast.sockets.closing import Lingering
from wsgifast.sockets.sending import BLOCK_BYTES

from .file_blocks import read_block
from .loops import call_with_timeout, in_thread
from .messages import (
    COALESCING,
    ASGIApp,
    Message,
    RawHeaders,
    Receive,
    Scope,
    Send,
    response_body,
    response_start,
    text_headers,
)

# The most bytes of a decoded body in one message. A message consists of several pieces.
_DECODED_BYTES = 1024 * 1024
_PIECE_BYTES = 64 * 1024
# With ``buffer_bodies=True``, bodies up to this size are buffered: forms and photos. Most apps read
# larger bodies as streams.
_DEFAULT_BYTES = 16 * 1024 * 1024
# Limits for one body in memory, for all bodies of a process in memory, and for all in files.
_IN_MEMORY_BYTES = 512 * 1024
IN_MEMORY = Budget(64 * 1024 * 1024)
ON_DISK = Budget(4 * 1024 * 1024 * 1024)
# Free space that temporary files do not use.
_MIN_FREE_BYTES = 64 * 1024 * 1024
_CONTENT_HEADERS = frozenset({b"content-encoding", b"content-length", b"transfer-encoding"})


async def send_refusal(send: Send, error: RequestError) -> None:
    """Send an error response in place of the app. The server then closes the connection."""
    _, headers, body = error.response()
    raw = raw_headers([*headers, ("Connection", "close")])
    await send(response_start(error.status, raw))
    await send(response_body(body))


class Declared(NamedTuple):
    """The properties that the headers of a request declare for its body.

    :param length: the Content-Length. None if it is missing or invalid, or if the body is chunked,
        because Content-Length is then ignored (RFC 9112 section 6.3).
    :param may_have_body: whether the request may have a body.
    :param coding: the Content-Encoding, or "".
    """

    length: int | None
    may_have_body: bool
    coding: str


def declared(scope: Scope) -> Declared:
    """Return the properties that the headers of a request declare for its body."""
    length = None
    may_have_body = scope["http_version"] not in ("1.0", "1.1")
    is_chunked = False
    codings = []
    for name, value in scope["headers"]:
        if name == b"content-length":
            may_have_body = True
            length = parse_length(value.decode("latin-1"))
        elif name == b"transfer-encoding":
            may_have_body = is_chunked = True
        elif name == b"content-encoding":
            codings.append(value)
    coding = b",".join(codings).decode("latin-1")
    return Declared(None if is_chunked else length, may_have_body, coding)


async def call_limited(
    app: ASGIApp, scope: Scope, receive: Receive, send: Send, limits: BodyLimits, buffer_bytes: int
) -> None:
    """Call an app with a request body that is within the limits, or refuse the request.

    :param buffer_bytes: a body with a Content-Length of up to this is received before the app is
        called.
    """
    length, may_have_body, coding = declared(scope)
    decoder: RequestDecoder | RequestError | None = None
    try:
        limits.check_length(length)
    except RequestError as error:
        await _refuse(error, scope, receive, send, is_unread=True)
        return
    if limits.decodes and coding and may_have_body and length != 0:
        try:
            decoder = limits.decoder(coding)
        except RequestError as error:
            decoder = without_frames(error)
    if decoder is not None:
        if length is not None and isinstance(decoder, RequestError):
            await _refuse(decoder, scope, receive, send, is_unread=True)
        else:
            decoding = _Decoding(receive, decoder, limits.limit_bytes)
            await _call_decoded(app, scope, receive, send, decoding)
        return
    if limits.limit_bytes is not None and length is None and may_have_body:
        body = _LimitedBody(limits.limit_bytes, scope, receive, send)
        app = partial(body.call, app)
    if length is None or not 0 < length <= buffer_bytes:
        await app(scope, receive, send)
        return
    buffered = BufferedBody(receive)
    try:
        if await buffered.fill():
            await app(scope, buffered.receive, send)
    finally:
        await buffered.close()


async def _refuse(
    refused: RequestError, scope: Scope, receive: Receive, send: Send, *, is_unread: bool
) -> None:
    """Send an error response without calling the app."""
    body = _LimitedBody(0, scope, receive, send)
    body.refused, body.is_unread = refused, is_unread
    await body.refuse()


# Decoding


async def _call_decoded(
    app: ASGIApp, scope: Scope, receive: Receive, send: Send, decoding: _Decoding
) -> None:
    """Decode the whole body, and call an app with the decoded length in the headers."""
    body = BufferedBody(decoding.receive)
    try:
        try:
            is_complete = await body.fill(must_fit=True)
        except RequestError as error:
            decoding.refused = without_frames(error)
        if decoding.refused is not None:
            refused, is_unread = decoding.refused, decoding.is_unread
            await _refuse(refused, scope, receive, send, is_unread=is_unread)
        elif is_complete:
            if decoding.has_content:
                headers = [
                    header for header in scope["headers"] if header[0] not in _CONTENT_HEADERS
                ]
                headers.append((b"content-length", b"%d" % body.size))
                scope = {**scope, "headers": headers}
            await app(scope, body.receive, send)
    finally:
        await body.close()


class _Decoding:
    """A receive() that decodes the body, in threads. Only one task may use it at a time.

    When a body is refused, receive() returns http.disconnect. It raises no error, because the
    traceback of an error would refer to the decoder.

    :param decoder: the decoder, or the error with which any content is refused.
    :ivar refused: the error for which the body is refused, or None.
    :ivar is_unread: whether a part of the body has not been received.
    :ivar has_content: whether the body has bytes.
    """

    def __init__(
        self, receive: Receive, decoder: RequestDecoder | RequestError, limit_bytes: int | None
    ) -> None:
        self.refused: RequestError | None = None
        self.is_unread = True
        self.has_content = False
        self._receive = receive
        self._decoder: RequestDecoder | RequestError | None = decoder
        self._limit_bytes = limit_bytes
        self._received = 0
        # The remaining decoded pieces of the last message. None if there are none.
        self._pieces: Iterator[bytes] | None = None

    async def receive(self) -> Message:
        """Return a message with a part of the decoded body."""
        while self._pieces is None:
            message = await self._receive()
            if message["type"] != "http.request":
                return message
            data = message.get("body", b"")
            self.is_unread = message.get("more_body", False)
            if data:
                self.has_content = True
                self._received += len(data)
                if isinstance(self._decoder, RequestError):
                    return self._refused_by(self._decoder)
                if self._limit_bytes is not None and self._received > self._limit_bytes:
                    return self._refused_by(BodyTooLarge(self._limit_bytes))
                assert self._decoder is not None
                self._pieces = self._decoder.decode(data)
            elif not self.is_unread:
                self._pieces = iter(())
        part = await in_thread(self._next_part)
        if isinstance(part, RequestError):
            return self._refused_by(part)
        more_body = self.is_unread or self._pieces is not None
        return {"type": "http.request", "body": part, "more_body": more_body}

    def _next_part(self) -> bytes | RequestError:
        """Decode and return some bytes, or return the error for which they are refused."""
        assert self._pieces is not None
        limit = _DECODED_BYTES // _PIECE_BYTES
        try:
            parts = list(islice(self._pieces, limit))
            if len(parts) < limit:
                self._pieces = None
                if not self.is_unread and isinstance(self._decoder, RequestDecoder):
                    self._decoder.end()
        except RequestError as error:
            return without_frames(error)
        return b"".join(parts)

    def _refused_by(self, error: RequestError) -> Message:
        self.refused = error
        self._decoder = self._pieces = None
        return {"type": "http.disconnect"}


# Limits


class _LimitedBody:
    """A receive() and send() for an app that limit the length of the request body.

    :ivar refused: the error for which the body is refused, or None.
    :ivar is_unread: whether a part of the body has not been received.
    """

    def __init__(self, limit_bytes: int, scope: Scope, receive: Receive, send: Send) -> None:
        self.refused: RequestError | None = None
        self.is_unread = True
        self._has_started = False  # the app's start message has been sent
        self._has_sent_error = False
        self._limit_bytes = limit_bytes
        self._received = 0
        self._scope = scope
        self._receive = receive
        self._send = send

    async def call(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Call an app, or send the error response if the body is refused before a response."""
        self._receive = receive
        try:
            await app(scope, self.receive, self.send)
        except Exception:
            if self.refused is None or self._has_started:
                raise
        finally:
            if self._has_started:
                self.refused = None  # its traceback refers to the app's frames
        if self.refused is not None:
            await self.refuse()

    async def receive(self) -> Message:
        """Return a message.

        :raises BodyTooLarge: if the body is too long."""
        if self.refused is not None:
            raise self.refused
        message = await self._receive()
        if message["type"] == "http.request":
            self.is_unread = message.get("more_body", False)
            self._received += len(message.get("body", b""))
            if self._received > self._limit_bytes:
                self.refused = BodyTooLarge(self._limit_bytes)
                raise self.refused
        return message

    async def send(self, message: Message) -> None:
        """Send a message of the app, or the error response in place of it."""
        if self.refused is None or self._has_started:
            self._has_started = self._has_started or message["type"] == "http.response.start"
            await self._send(message)
        elif message["type"] == "http.response.start" and not self._has_sent_error:
            await self._send_error(message.get("headers", ()))

    async def refuse(self) -> None:
        """Send the error response, unless it has been sent, and discard the remaining body."""
        if not self._has_sent_error:
            await self._send_error([])
        if self._must_linger():
            lingering = Lingering(time.monotonic())
            while message := await call_with_timeout(
                lingering.deadline - time.monotonic(), self._receive
            ):
                size = len(message.get("body", b""))
                now = time.monotonic()
                if not message.get("more_body") or not lingering.should_continue(size, now):
                    break
            await self._send(response_body())
        self.refused = None  # its traceback refers to the app's frames

    async def _send_error(self, replaced: RawHeaders) -> None:
        assert self.refused is not None
        self._has_sent_error = True
        _, headers, body = self.refused.response(text_headers(replaced))
        if self.is_unread and self._is_http1():
            headers.append(("Connection", "close"))
        await self._send(response_start(self.refused.status, raw_headers(headers)))
        if self._scope["method"] == "HEAD":
            body = b""
        await self._send(response_body(body, more_body=self._must_linger()))

    def _must_linger(self) -> bool:
        is_asgifast = COALESCING in self._scope
        return self.is_unread and self._is_http1() and not is_asgifast

    def _is_http1(self) -> bool:
        return self._scope["http_version"] in ("1.0", "1.1")


# Buffering


def buffer_bytes(buffer_bodies: object) -> int:
    """Return the size of the largest body to buffer for the option `buffer_bodies`, or 0.

    :raises ConfigurationError: if the option is neither a bool nor a number of bytes.
    """
    if isinstance(buffer_bodies, bool):
        return _DEFAULT_BYTES if buffer_bodies else 0
    if not is_count(buffer_bodies, least=1):
        raise ConfigurationError(
            f"buffer_bodies={buffer_bodies!r}: expected True, False or a number of bytes"
        )
    return cast(int, buffer_bodies)


class BufferedBody:
    """Buffers the body of one request. :meth:`fill` receives it, and :meth:`receive` returns it.

    The beginning of the body is in a file, if there is one. The bytes after it are in memory.

    :param receive: the server's receive().
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._file: TemporaryFile | None = None
        self._written = self._read = 0  # bytes of the file
        self._memory = bytearray()
        # The last received bytes, if they were neither added to the memory nor to the file.
        self._unbuffered: bytes | None = None
        self._is_complete = False

    @property
    def size(self) -> int:
        """The number of bytes that have been received and not yet passed to the app."""
        return self._written - self._read + len(self._memory) + len(self._unbuffered or b"")

    async def fill(self, *, must_fit: bool = False) -> bool:
        """Receive the body, or its beginning if memory and disk have no room for all of it.

        :param must_fit: whether a body without room is an error.
        :returns: False if the client has disconnected.
        :raises RequestError: if `must_fit` is True and there is no room.
        """
        while True:
            message = await self._receive()
            if message["type"] != "http.request":
                return False
            data = message.get("body", b"")
            self._is_complete = not message.get("more_body", False)
            is_whole = self._is_complete and not self._memory and self._file is None
            disk_error = None if is_whole else await self._append(data)
            if disk_error is not None and must_fit:
                raise no_room(disk_error)
            if is_whole or disk_error is not None:
                self._unbuffered = data
                return True
            if self._is_complete:
                return True

    async def receive(self) -> Message:
        """Return the next message. The app gets this method as its receive()."""
        offset = self._read
        if self._file is not None and offset < self._written:
            size = min(BLOCK_BYTES, self._written - offset)
            self._read += size  # before the await, as two tasks may receive
            block = await read_block(self._file.fileno(), offset, size)
            if len(block) < size:
                raise OSError(f"a buffered request body ends after {offset + len(block)} bytes")
            return self._message(block)
        if self._memory or self._unbuffered is not None:
            block = bytes(self._memory) + (self._unbuffered or b"")
            self._unbuffered = None
            self._drop_memory()
            return self._message(block)
        return await self._receive()

    async def close(self) -> None:
        """Discard the bytes that the app has not received."""
        self._drop_memory()
        file, self._file = self._file, None
        if file is not None:
            try:
                await in_thread(file.close)  # freeing a large file takes milliseconds
            finally:
                if not file.closed:  # for a cancelled task, trio starts no thread
                    file.close()

    def _message(self, block: bytes) -> Message:
        is_last = self._read == self._written and not self._memory and self._unbuffered is None
        more_body = not (self._is_complete and is_last)
        return {"type": "http.request", "body": block, "more_body": more_body}

    async def _append(self, data: bytes) -> OSError | None:
        """Append received bytes. If there is no room, append nothing and return the error."""
        size = len(data)
        if len(self._memory) + size <= _IN_MEMORY_BYTES and IN_MEMORY.reserve(size):
            self._memory += data
            return None
        try:
            await in_thread(self._write, data)
        except OSError as error:
            return without_frames(error)
        self._drop_memory()
        return None

    def _write(self, data: bytes) -> None:
        """Append the bytes in memory to the file, and then these bytes."""
        if self._file is None:
            self._file = TemporaryFile(ON_DISK, min_free_bytes=_MIN_FREE_BYTES)
        self._written += self._file.append(self._memory + data).size

    def _drop_memory(self) -> None:
        IN_MEMORY.count(-len(self._memory))
        self._memory = bytearray()
