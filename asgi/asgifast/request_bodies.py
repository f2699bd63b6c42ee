"""Request bodies on their way to the app: buffered, decoded, held to a limit (RFC 9110 15.5.14).

A body whose Content-Length is within the limit is left to the server, which passes on no more. Any
other is counted. receive() raises an error for a body that is too long or cannot be decoded. The
app's response is then replaced, unless it has begun: most apps answer an error with 500.

Over HTTP/1 the connection is closed if a body has not been read. A client that goes on sending
would lose the answer at the server's close (:mod:`wsgifast.sockets.closing`), and most servers do
not wait. So the answer is not ended before the client's body is. asgifast's protocols wait
themselves.

A body that is received before the app is called occupies no task, database session or lock of the
app while its client is slow. It waits in memory, up to a limit for the whole process, and beyond it
in an unnamed temporary file. If that cannot be written, the app is called with what has come, and
receives the rest by itself: no request fails for lack of room.
"""

from __future__ import annotations

import time
from functools import partial
from typing import NamedTuple, cast

from wsgifast.checks import is_count
from wsgifast.compression.decoding import BodyLimits, RequestDecoder
from wsgifast.errors import BodyTooLarge, ConfigurationError, RequestError
from wsgifast.files.temporary import Budget, TemporaryFile
from wsgifast.http.head import parse_length, raw_headers
from wsgifast.sockets.closing import Lingering
from wsgifast.sockets.sending import BLOCK_BYTES

from .files import read_block
from .loops import in_thread, within
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

# From this size on a message is decoded in a thread.
_THREAD_BYTES = 16 * 1024
# Bodies up to this size are buffered, with ``buffer_bodies=True``: forms and photos. Larger ones
# are mostly read as streams.
_DEFAULT_BYTES = 16 * 1024 * 1024
# Of one body in memory; and of all of a process, in memory and in files.
_IN_MEMORY_BYTES = 512 * 1024
IN_MEMORY = Budget(64 * 1024 * 1024)
ON_DISK = Budget(4 * 1024 * 1024 * 1024)
# Of the file system of temporary files.
_LEFT_FREE_BYTES = 64 * 1024 * 1024
_OF_THE_CODED = (b"content-encoding", b"content-length", b"transfer-encoding")


async def send_refusal(send: Send, error: RequestError) -> None:
    """Answer a request in place of the app; its connection ends."""
    _, headers, body = error.answer()
    raw = raw_headers([*headers, ("Connection", "close")])
    await send(response_start(error.status, raw))
    await send(response_body(body))


class Declared(NamedTuple):
    """What a request's head says of its body.

    :param length: its Content-Length; None without a valid one, and for a chunked body, which has
        no other length (RFC 9112 section 6.3).
    :param may_be_there: False if there is none.
    :param coding: its Content-Encoding, or "".
    """

    length: int | None
    may_be_there: bool
    coding: str


def declared(scope: Scope) -> Declared:
    """Return what a request's head says of its body."""
    length = None
    may_be_there = scope["http_version"] not in ("1.0", "1.1")
    is_chunked = False
    codings = []
    for name, value in scope["headers"]:
        if name == b"content-length":
            may_be_there = True
            length = parse_length(value.decode("latin-1"))
        elif name == b"transfer-encoding":
            may_be_there = is_chunked = True
        elif name == b"content-encoding":
            codings.append(value)
    coding = b",".join(codings).decode("latin-1")
    return Declared(None if is_chunked else length, may_be_there, coding)


async def call_limited(
    app: ASGIApp, scope: Scope, receive: Receive, send: Send, limits: BodyLimits, buffer_bytes: int
) -> None:
    """Call an app with a request body that is within the limits, or refuse the request.

    :param buffer_bytes: a declared body of up to so many is received before the app is called.
    """
    length, may_be_there, coding = declared(scope)
    decoder = None
    try:
        limits.check_length(length)
        if limits.decodes and coding:
            decoder = limits.decoder(coding)
    except RequestError as refused:
        body = _LimitedBody(None, None, scope, receive, send)
        body.refused, body.is_unread = refused, may_be_there and length != 0
        await body.refuse()
        return
    if decoder is not None or (limits.limit_bytes is not None and length is None and may_be_there):
        body = _LimitedBody(decoder, limits.limit_bytes, scope, receive, send)
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


class _LimitedBody:
    """The receive() and send() of an app whose request's body is decoded or counted.

    :ivar refused: why the body is refused.
    :ivar is_unread: a part of the body has not been received.
    """

    def __init__(
        self,
        decoder: RequestDecoder | None,
        limit_bytes: int | None,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        self.refused: RequestError | None = None
        self.is_unread = True
        self._decoder = decoder
        self._has_started = False  # the app's head has been sent
        self._has_answered = False
        self._limit_bytes = limit_bytes
        self._received = 0
        self._scope = scope
        self._receive = receive
        self._send = send

    async def call(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Call an app, and answer in its place if the body is refused before its head is sent."""
        self._receive = receive
        if self._decoder is not None:
            kept = [header for header in scope["headers"] if header[0] not in _OF_THE_CODED]
            scope = {**scope, "headers": kept}
        try:
            await app(scope, self.receive, self.send)
        except Exception:
            if self.refused is None or self._has_started:
                raise
        if self.refused is not None and not self._has_started:
            await self.refuse()

    async def receive(self) -> Message:
        """:raises RequestError: for a body that is refused."""
        if self.refused is not None:
            raise self.refused
        message = await self._receive()
        if message["type"] != "http.request":
            return message
        data = message.get("body", b"")
        self.is_unread = message.get("more_body", False)
        self._received += len(data)
        try:
            if self._limit_bytes is not None and self._received > self._limit_bytes:
                raise BodyTooLarge(self._limit_bytes)
            if self._decoder is None:
                return message
            if len(data) < _THREAD_BYTES:
                body = self._decoded(self._decoder, data)
            else:
                body = await in_thread(self._decoded, self._decoder, data)
            if not self.is_unread:
                self._decoder.end()
        except RequestError as refused:
            self.refused = refused
            raise
        return {**message, "body": body}

    async def send(self, message: Message) -> None:
        """Send what the app sends, or the refusal in place of it."""
        if self.refused is None or self._has_started:
            self._has_started = self._has_started or message["type"] == "http.response.start"
            await self._send(message)
        elif message["type"] == "http.response.start" and not self._has_answered:
            await self._answer(message.get("headers", ()))

    async def refuse(self) -> None:
        """Answer in place of the app, if :meth:`send` has not, and discard what still comes."""
        if not self._has_answered:
            await self._answer([])
        if self._lingers():
            lingering = Lingering(time.monotonic())
            while message := await within(lingering.deadline - time.monotonic(), self._receive):
                size = len(message.get("body", b""))
                if not message.get("more_body") or not lingering.goes_on(size, time.monotonic()):
                    break
            await self._send(response_body())
        self.refused = None  # its traceback keeps what received it

    async def _answer(self, replaced: RawHeaders) -> None:
        assert self.refused is not None
        self._has_answered = True
        _, headers, body = self.refused.answer(text_headers(replaced))
        if self.is_unread and self._is_http1():
            headers.append(("Connection", "close"))
        await self._send(response_start(self.refused.status, raw_headers(headers)))
        if self._scope["method"] == "HEAD":
            body = b""
        await self._send(response_body(body, more_body=self._lingers()))

    def _lingers(self) -> bool:
        ours = COALESCING in (self._scope.get("extensions") or ())
        return self.is_unread and self._is_http1() and not ours

    def _is_http1(self) -> bool:
        return self._scope["http_version"] in ("1.0", "1.1")

    @staticmethod
    def _decoded(decoder: RequestDecoder, data: bytes) -> bytes:
        return b"".join(decoder.decode(data))


# Buffered


def buffer_bytes(buffer_bodies: object) -> int:
    """Return what an option `buffer_bodies` asks for: the largest body; 0 for none.

    :raises ConfigurationError: if it is neither True nor False nor a number of bytes.
    """
    if isinstance(buffer_bodies, bool):
        return _DEFAULT_BYTES if buffer_bodies else 0
    if not is_count(buffer_bodies, least=1):
        raise ConfigurationError(
            f"buffer_bodies={buffer_bodies!r}: True, False, or the most bytes of a body"
        )
    return cast(int, buffer_bodies)


class BufferedBody:
    """The body of one request: received by :meth:`fill`, and then again by the app.

    The file has the body's beginning, and the memory what came after it.

    :param receive: the server's.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._file: TemporaryFile | None = None
        self._written = self._read = 0  # bytes of the file
        self._memory = bytearray()
        # What came in one message, or there was no room for.
        self._rest: bytes | None = None
        self._is_complete = False

    async def fill(self) -> bool:
        """Receive the body, or as much of it as there is room for.

        :returns: False if the client has disconnected.
        """
        while True:
            message = await self._receive()
            if message["type"] != "http.request":
                return False
            data = message.get("body", b"")
            self._is_complete = not message.get("more_body", False)
            is_whole = self._is_complete and not self._memory and self._file is None
            if is_whole or not await self._keep(data):
                self._rest = data
                return True
            if self._is_complete:
                return True

    async def receive(self) -> Message:
        """The receive() that the app is given."""
        at = self._read
        if self._file is not None and at < self._written:
            size = min(BLOCK_BYTES, self._written - at)
            self._read += size  # at once: two tasks may receive
            block = await read_block(self._file.fileno(), at, size)
            if len(block) < size:
                raise OSError(f"a buffered request body ends after {at + len(block)} bytes")
            return self._message(block)
        if self._memory or self._rest is not None:
            block = bytes(self._memory) + (self._rest or b"")
            self._rest = None
            self._drop_memory()
            return self._message(block)
        return await self._receive()

    async def close(self) -> None:
        """Drop what the app has not received."""
        self._drop_memory()
        file, self._file = self._file, None
        if file is not None:
            try:
                await in_thread(file.close)  # to free a large file takes milliseconds
            finally:
                if not file.closed:  # trio starts no thread for a task that is cancelled
                    file.close()

    def _message(self, block: bytes) -> Message:
        is_last = self._read == self._written and not self._memory and self._rest is None
        more_body = not (self._is_complete and is_last)
        return {"type": "http.request", "body": block, "more_body": more_body}

    async def _keep(self, data: bytes) -> bool:
        """Append what was received; False, and nothing appended, if there is no room."""
        size = len(data)
        if len(self._memory) + size <= _IN_MEMORY_BYTES and IN_MEMORY.take(size):
            self._memory += data
            return True
        try:
            await in_thread(self._write, data)
        except OSError:
            return False
        self._drop_memory()
        return True

    def _write(self, data: bytes) -> None:
        """Write what is in memory, and then this."""
        if self._file is None:
            self._file = TemporaryFile(ON_DISK, left_free_bytes=_LEFT_FREE_BYTES)
        self._written += self._file.append(self._memory + data).size

    def _drop_memory(self) -> None:
        IN_MEMORY.count(-len(self._memory))
        self._memory = bytearray()
