"""One WSGI response in wsgifast's own servers: start_response(), and the body's way to an output.

The framing is decided by wsgifast.http. The headers are sent with the first bytes of the body, a
list in one call, a file by sendfile. Subclasses encode the headers and decide about the connection.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Protocol

from ..errors import BodyError, ClientGone
from ..http.fields import ResponseStart, known_start
from ..http.framing import LAST_CHUNK, BodyCounter, Framing, chunk, chunk_size_line
from ..sockets.sending import SMALL_FILE_BYTES, FileSegment, FileTruncated
from .access_log import COMPRESSED_BYTES
from .chunks import is_event_stream
from .classify import classify
from .content_coding import ContentCoding
from .files import is_in_memory, read_whole, segment_of

# Up to this size, joining costs less than passing several buffers to the kernel.
_JOIN_BYTES = 64 * 1024
# A block is compressed under the lock of its output, in pieces of this size.
_COMPRESSED_BYTES = 16 * 1024
# If a response may have no body, the app's blocks are dropped for this many seconds after the
# first block. Then write() raises ClientGone.
_DROPS_S = 10.0

# The framing of a response before start_response. It is no class attribute of ResponseWriter:
# CPython reads an attribute slowly if the class has an object of a Python class under that name.
NOT_STARTED = Framing(True, None, False)


class Output(Protocol):
    """Where a response is sent.

    :raises ClientGone: (from every method) if the client has gone.
    """

    def write(self, data: bytes, /) -> None: ...
    def write_buffers(self, buffers: Sequence[bytes], /) -> None: ...
    def begin_stream(
        self,
        data: bytes,
        /,
        *,
        frame: Callable[[bytes], bytes] | None,
        may_run_ahead: bool,
        compresses: bool = False,
    ) -> Callable[[bytes], object]:
        """Send the beginning of a stream.

        :param frame: frames each further block. None if they are sent as they are.
        :param compresses: whether `frame` compresses, too.
        :param may_run_ahead: whether output may be buffered for a slow client while the app goes
            on.
        :returns: a function that sends a further block, perhaps delayed to join it with the next.
        """

    def end_stream(self, end: Callable[[], bytes], /) -> None:
        """Send the end of a stream. `end` is called once all its blocks have been framed."""

    def write_file(self, headers: bytes, fd: int, offset: int, size: int, /) -> None:
        """Send headers, which may be empty, and a part of a file.

        :raises FileTruncated: if the file ends early.
        :raises OSError: if the process has no descriptor left. Nothing was sent.
        """


class ResponseWriter(BodyCounter):
    """The response to one request. It counts its body, and limits it to its Content-Length.

    gunicorn's hooks and loggers may set any attribute on it.

    :ivar status: of the last start_response. None before.
    :ivar headers_sent: whether the output has the headers, so that they cannot be replaced.
    :ivar must_close: the connection cannot go on: the app has raised, or its body is too short.
    :ivar sends_file: whether the output reads from a file of the app, perhaps for long.
    :ivar closes: whether the connection has to end after this response, as its headers say.
    """

    # The values until start_response is called.
    status_code = 0
    _start: ResponseStart | None = None
    _method: str  # of the request
    _chunks: bool  # whether the client understands chunks
    closes = True
    sends_file = False
    _coding: ContentCoding | None = None  # of a stream that is compressed here
    _write_next: Callable[[bytes], object]  # set by the beginning of a stream
    _dropped_since = math.inf  # when the first block was dropped; monotonic

    def __init__(self, output: Output) -> None:
        super().__init__(NOT_STARTED)
        self.status: str | None = None
        self.must_close = False
        self.headers_sent = False
        self._output = output
        self._framing = NOT_STARTED

    # For subclasses.

    def _encoded_headers(self) -> bytes:
        """Return the headers as they are sent. See :meth:`_checked_start`."""
        raise NotImplementedError

    def _end_body(self, close: Callable[[], object]) -> None:
        """Call the body's close(), after the body has been sent or sending it has failed."""
        close()

    # For the app. Its arguments are checked here.

    def start_response(
        self, status: Any, headers: Any, exc_info: Any = None
    ) -> Callable[[bytes], object]:
        """PEP 3333's.

        :param status: str.
        :param headers: a list of tuples of two str.
        :param exc_info: that of an exception, if the app starts again.
        :raises BodyError: for a second call without exc_info, or malformed headers.
        :raises BaseException: that of exc_info, if the headers have been sent.
        :returns: the write callable.
        """
        if exc_info or self.status is not None:
            try:
                check_second_start(exc_info, sent=self.headers_sent)
            finally:
                exc_info = None
        self._start = start = known_start(status, headers)
        self.status = status
        self.status_code = start.code
        self._framing = framing = start.frame(self._method, chunks=self._chunks)
        # Content-Length first: most responses have one, and the property costs more.
        self.closes = start.closes or (framing.length is None and not framing.ends_itself)
        self._has_body = has_body = framing.has_body  # BodyCounter's __init__, inlined
        self.length = framing.length if has_body else 0
        self.sent = self.dropped = 0
        return self.write

    def write(self, data: Any) -> None:
        """Send a block of the body: the write callable of PEP 3333.

        :raises BodyError: once the body is longer than its Content-Length (PEP 3333, "Handling the
            Content-Length Header"): otherwise an endless writer would not notice that
            nothing is sent. The part within the length has been sent by then.
        :raises ClientGone: if the client has left. If the response may have no body, such as one to
            HEAD, blocks are dropped for some seconds, and then raise it, too.
        """
        coding = self._coding
        if coding is not None and coding.compressor is not None:
            self._write_compressed_block(data, coding)
            return
        self._write_block(data)
        if self.is_cut:
            raise BodyError(self.complaint("", self.status_code))

    def _write_block(self, data: Any) -> None:
        """Send a block, perhaps later, while the app goes on."""
        if self.status is None:
            if data == b"":
                return  # start_response may be called as late as for the first byte (PEP 3333)
            raise BodyError("the app sent a body before it called start_response")
        block = self._admitted(data)
        if not self.headers_sent:
            if data:  # headers are sent with the first byte of the body, or at its end (PEP 3333)
                self._begin_stream(block, chunk if self._framing.chunked else None)
        elif block:
            # At the Content-Length nothing follows: do not wait for more.
            write = self._output.write if self.complete else self._write_next
            write(block)
        elif data:  # dropped: no send can fail, so only the time limit stops an endless writer
            now = time.monotonic()
            self._dropped_since = min(self._dropped_since, now)
            if now - self._dropped_since >= _DROPS_S:
                raise ClientGone("the response has no body: the client has had all of it for long")

    def _begin_stream(
        self, block: bytes, frame: Callable[[bytes], bytes] | None, *, compresses: bool = False
    ) -> None:
        """Send the headers, and the first block, which may be empty."""
        start = self._checked_start()
        begin = self._encoded_headers() + (frame(block) if frame and block else block)
        self.headers_sent = True
        self._write_next = self._output.begin_stream(
            begin,
            frame=frame,
            may_run_ahead=not is_event_stream(start.headers),
            compresses=compresses,
        )

    # For the object that the app returned.

    def write_body(self, body: Any, file_wrapper: type) -> None:
        """Send the body that an app returned in the cheapest way for its type, and end it.

        :param file_wrapper: the environ's `wsgi.file_wrapper`.
        """
        kind = type(body)
        if kind is list or kind is tuple:  # which have no close()
            self.write_all(body)
            return
        try:
            if kind is file_wrapper:
                file = getattr(body, "filelike", None)
                self.write_file(file, segment_of(file), body)
            else:
                classify(body).send_to(self)
        finally:
            close = getattr(body, "close", None)
            if close is not None:
                self._end_body(close)

    def write_all(self, blocks: list[Any] | tuple[Any, ...]) -> None:
        """Send a body in memory, together with the headers and the end of the response."""
        if len(blocks) == 1 and not self.headers_sent:
            # Most bodies: one block, as long as the Content-Length.
            (data,) = blocks
            size = self.length
            if type(data) is bytes and size == len(data) <= _JOIN_BYTES:
                headers = self._encoded_headers()
                self.headers_sent = True
                self.sent = size
                self._output.write(headers + data)
                return
        begun = self.headers_sent
        parts = [b"" if begun else self._encoded_headers()]
        for data in blocks:
            block = self._framed(data)
            if block:
                parts.append(block)
        parts.append(self._end())
        self.headers_sent = True
        if sum(map(len, parts)) > _JOIN_BYTES:
            self._output.write_buffers(parts)
        else:
            self._output.write(b"".join(parts))

    def write_stream(self, body: Iterable[Any]) -> None:
        """Send blocks as they come, and end the response.

        Iteration stops at the first block beyond the Content-Length (PEP 3333, "Handling the
        Content-Length Header").
        """
        blocks = iter(body)
        for block in blocks:
            self._write_block(block)
            if not self.headers_sent:
                continue
            if self.length is None:
                self._write_rest(blocks)
                break
            if self.dropped:  # the stream may be endless
                break
        self.close()

    def write_compressed(self, blocks: Iterator[bytes], coding: ContentCoding) -> None:
        """Send a stream that is compressed, with one flush for the blocks that are sent together.

        They are compressed where they are framed, under the output's lock, a little at a time.
        """
        coding.is_done_by_server = True
        self._coding = coding
        for block in blocks:
            if coding.compressor is None:  # the headers have been decided by now
                self._coding = None
                self.write_stream(chain((block,), blocks))
                return
            self._write_compressed_block(block, coding)
        if coding.compressor is None:
            self.close()
            return
        headers = self._unsent_headers()
        is_chunked = self._framing.chunked
        self.headers_sent = True
        self._output.end_stream(
            lambda: headers + (chunk(coding.end()) + LAST_CHUNK if is_chunked else coding.end())
        )
        self.sent = coding.environ[COMPRESSED_BYTES]

    def _write_compressed_block(self, block: bytes, coding: ContentCoding) -> None:
        if not block:
            return
        try:
            if self.headers_sent:
                for at in range(0, len(block), _COMPRESSED_BYTES):
                    self._write_next(block[at : at + _COMPRESSED_BYTES])
            else:
                frame: Callable[[bytes], bytes] = coding.flushed_block
                if self._framing.chunked:
                    frame = lambda data: chunk(coding.flushed_block(data))  # noqa: E731
                self._begin_stream(block, frame, compresses=True)
        finally:  # for the log, where the client leaves
            self.sent = coding.environ[COMPRESSED_BYTES]

    def _write_rest(self, blocks: Iterator[Any]) -> None:
        """Send all but the first block of a body without a Content-Length, at the least cost."""
        write_next = self._write_next
        for block in blocks:
            if type(block) is bytes and block:
                self.sent += len(block)
                write_next(block)
            else:
                self._write_block(block)

    def write_file(self, file: Any, segment: FileSegment | None, body: Iterable[Any]) -> None:
        """Send a file: by sendfile, from memory, or block by block.

        It may be longer than the Content-Length, at which sending stops (PEP 3333, "Optional
        Platform-Specific File Handling").

        :param segment: the part of it that sendfile can send. None if it has to be read.
        :param body: yields the file's blocks.
        """
        if segment is not None:
            self.write_segments([segment])
        elif is_in_memory(file):
            self.write_all([file.read()])
        else:
            self.write_stream(body)
        if self._framing.has_body:
            self.dropped = 0

    def write_unsuited(self, body: Any, advice: str) -> None:
        """Send an object that should not be a body as its iteration gives it."""
        self.write_stream(body)

    def write_segments(self, segments: Sequence[bytes | FileSegment]) -> None:
        """Send byte strings and parts of files in their order."""
        begun = self.headers_sent
        before = self._unsent_headers()
        output = self._output
        for segment in segments:
            if not isinstance(segment, FileSegment):
                before += self._framed(segment)
                continue
            size = self.admit(segment.size)
            if size == 0:
                continue
            fd, offset, _ = segment
            if size <= SMALL_FILE_BYTES:
                data = read_whole(FileSegment(fd, offset, size))
                before += chunk(data) if self._framing.chunked else data
                continue
            if self._framing.chunked:
                before += chunk_size_line(size)
            self.headers_sent = self.sends_file = True
            try:
                output.write_file(before, fd, offset, size)
            except (ClientGone, FileTruncated):
                raise
            except OSError:
                self.headers_sent = begun
                self.sent -= size
                raise
            begun = True
            before = b"\r\n" if self._framing.chunked else b""
        before += self._end()
        self.headers_sent = True
        if not before:
            return
        if begun or len(before) > _JOIN_BYTES:
            output.write_buffers([before])
        else:
            output.write(before)

    def close(self) -> None:
        """End the response."""
        end = self._unsent_headers() + self._end()
        self.headers_sent = True
        if end:
            self._output.write(end)

    # HTTP/1's framing.

    def _end(self) -> bytes:
        """Return the bytes after the body."""
        return LAST_CHUNK if self._framing.chunked else b""

    def _framed(self, data: Any) -> bytes:
        data = self._admitted(data)
        return chunk(data) if data and self._framing.chunked else data

    def _admitted(self, data: Any) -> bytes:
        """Return the part of some bytes of the body that is sent."""
        if not isinstance(data, bytes):
            raise not_bytes(data)
        # A subclass may have another idea of its length.
        block = data if type(data) is bytes else bytes(memoryview(data))
        size = len(block)
        admitted = self.admit(size)
        return block if admitted == size else block[:admitted]

    def _unsent_headers(self) -> bytes:
        return b"" if self.headers_sent else self._encoded_headers()

    def _checked_start(self) -> ResponseStart:
        if self._start is None:
            raise BodyError("the app returned a body without calling start_response")
        return self._start


def not_bytes(block: object) -> BodyError:
    return BodyError(
        f"the app returned a body with a {type(block).__name__} in it: yield bytes, or wrap "
        "the app with wsgifast.WSGIFast"
    )


def check_second_start(exc_info: Any, *, sent: bool, app: str = "the app") -> None:
    """Check a call of start_response that is not the first, or has exc_info.

    The caller deletes its own exc_info afterwards: its frame and the traceback refer to each other.

    :param sent: whether the headers have been sent, so that they cannot be replaced.
    :param app: its name, for the message.
    :raises BodyError: without exc_info.
    :raises BaseException: that of exc_info, if the headers have been sent.
    """
    try:
        if not exc_info:
            raise BodyError(f"{app} called start_response twice without exc_info (PEP 3333)")
        if sent:
            raise exc_info[1].with_traceback(exc_info[2])
    finally:
        exc_info = None
