"""A WSGI response of wsgifast's own servers: start_response(), and sending the body to an output.

wsgifast.http decides about the framing. The headers are sent with the first bytes of the body. A
list is sent in one call, and a file by sendfile. Subclasses encode the headers, and decide whether
the connection stays open.
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
    """Sends the bytes of a response to the client.

    :raises ClientGone: (from every method) if the client has disconnected.
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

        :param data: the headers and the first block.
        :param frame: a function that frames each further block. None to send blocks unchanged.
        :param compresses: whether `frame` compresses, too.
        :param may_run_ahead: whether blocks may be buffered for a slow client while the app makes
            further blocks.
        :returns: a function that sends a further block. It may delay the block, to join it with the
            next one.
        """

    def end_stream(self, end: Callable[[], bytes], /) -> None:
        """Send the end of a stream.

        :param end: a function that returns the last bytes. It is called after all blocks of the
            stream have been framed.
        """

    def write_file(self, headers: bytes, fd: int, offset: int, size: int, /) -> None:
        """Send headers, which may be empty, and a part of a file.

        :raises FileTruncated: if the file ends early.
        :raises OSError: if the process has no descriptor left. Nothing was sent.
        """


class ResponseWriter(BodyCounter):
    """The response to one request. It counts the bytes of the body, and drops surplus bytes.

    gunicorn's hooks and loggers may set any attribute on it.

    :ivar status: the status of the last start_response. None before the first call.
    :ivar headers_sent: whether the headers were passed to the output, so that they are final.
    :ivar must_close: whether the connection has to close because the app has raised, or its body is
        too short.
    :ivar sends_file: whether the output may still read from a file of the app.
    :ivar closes: whether the headers require that the connection closes after this response.
    """

    # The values until start_response is called.
    status_code = 0
    _start: ResponseStart | None = None
    _method: str  # the method of the request
    _chunks: bool  # whether the client understands chunks
    closes = True
    sends_file = False
    _coding: ContentCoding | None = None  # the coding of a stream that the writer compresses
    _write_next: Callable[[bytes], object]  # set by _begin_stream()
    _dropped_since = math.inf  # the time of the first dropped block, by time.monotonic()

    def __init__(self, output: Output) -> None:
        super().__init__(NOT_STARTED)
        self.status: str | None = None
        self.must_close = False
        self.headers_sent = False
        self._output = output
        self._framing = NOT_STARTED

    # For subclasses.

    def _encoded_headers(self) -> bytes:
        """Return the encoded headers.

        :raises BodyError: if the app has not called start_response.
        """
        raise NotImplementedError

    def _end_body(self, close: Callable[[], object]) -> None:
        """Call the close() of the body. The body has been sent, or sending has failed."""
        close()

    # For the app. Its arguments are checked here.

    def start_response(
        self, status: Any, headers: Any, exc_info: Any = None
    ) -> Callable[[bytes], object]:
        """The start_response() of PEP 3333.

        :param status: a str such as "200 OK".
        :param headers: a list of tuples of two str.
        :param exc_info: the result of sys.exc_info(), if the app replaces its headers.
        :raises BodyError: for a second call without exc_info, or for malformed headers.
        :raises BaseException: the error in exc_info, if the headers have been sent.
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
        # The Content-Length is tested first, because a property costs more. Most responses have a
        # Content-Length.
        self.closes = start.closes or (framing.length is None and not framing.has_known_end)
        self._has_body = has_body = framing.has_body  # BodyCounter's __init__, inlined
        self.length = framing.length if has_body else 0
        self.sent = self.dropped = 0
        return self.write

    def write(self, data: Any) -> None:
        """Send a block of the body. This is the write callable of PEP 3333.

        :raises BodyError: if the body is longer than its Content-Length (PEP 3333, "Handling the
            Content-Length Header"). The bytes up to this length have been sent. Without the error,
            an app with an endless loop would not stop.
        :raises ClientGone: if the client has disconnected. If the response must not have a body,
            for example to HEAD, write() drops the blocks. It raises this error after _DROPS_S.
        """
        coding = self._coding
        if coding is not None and coding.compressor is not None:
            self._write_compressed_block(data, coding)
            return
        self._write_block(data)
        if self.is_cut:
            raise BodyError(self.complaint("", self.status_code))

    def _write_block(self, data: Any) -> None:
        """Send a block, or queue it to be sent while the app continues."""
        if self.status is None:
            if data == b"":
                return  # an app may delay start_response until its first byte (PEP 3333)
            raise BodyError("the app sent a body before it called start_response")
        block = self._admitted(data)
        if not self.headers_sent:
            if data:  # headers are sent with the first byte of the body, or at its end (PEP 3333)
                self._begin_stream(block, chunk if self._framing.chunked else None)
        elif block:
            # The last block must not wait for a next block.
            write = self._output.write if self.complete else self._write_next
            write(block)
        elif data:  # nothing is sent, so only the time limit can stop an app with an endless loop
            now = time.monotonic()
            self._dropped_since = min(self._dropped_since, now)
            if now - self._dropped_since >= _DROPS_S:
                raise ClientGone(
                    f"the app still sends bytes {_DROPS_S:g} s after the end of its response"
                )

    def _begin_stream(
        self, block: bytes, frame: Callable[[bytes], bytes] | None, *, compresses: bool = False
    ) -> None:
        """Send the headers and the first block, which may be empty."""
        start = self._checked_start()
        begin = self._encoded_headers() + (frame(block) if frame and block else block)
        self.headers_sent = True
        self._write_next = self._output.begin_stream(
            begin,
            frame=frame,
            may_run_ahead=not is_event_stream(start.headers),
            compresses=compresses,
        )

    # For the object that the app has returned.

    def write_body(self, body: Any, file_wrapper: type) -> None:
        """Send the body that an app has returned in the fastest way for its type.

        The body ends the response. Its close() is passed to :meth:`_end_body`.

        :param file_wrapper: the value of `wsgi.file_wrapper` in the environ.
        """
        kind = type(body)
        if kind is list or kind is tuple:  # these types have no close()
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
        """Send the headers and a body in memory together, and end the response."""
        if len(blocks) == 1 and not self.headers_sent:
            # This case is the most common: one block whose size is the Content-Length.
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
        """Send the blocks of an iterable one by one, and end the response.

        The iteration stops at the first block beyond the Content-Length (PEP 3333, "Handling the
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
            if self.dropped:  # stop, because the stream may be endless
                break
        self.close()

    def write_compressed(self, blocks: Iterator[bytes], coding: ContentCoding) -> None:
        """Send a compressed stream. Blocks that are sent together share one flush.

        The output compresses and frames the blocks under its lock, in small pieces.
        """
        coding.is_done_by_server = True
        self._coding = coding
        for block in blocks:
            if coding.compressor is None:  # the headers are known now, and exclude compression
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
        finally:  # the access log shows this size also if the client has disconnected
            self.sent = coding.environ[COMPRESSED_BYTES]

    def _write_rest(self, blocks: Iterator[Any]) -> None:
        """Send the blocks after the first one of a body without a Content-Length."""
        write_next = self._write_next
        for block in blocks:
            if type(block) is bytes and block:
                self.sent += len(block)
                write_next(block)
            else:
                self._write_block(block)

    def write_file(self, file: Any, segment: FileSegment | None, body: Iterable[Any]) -> None:
        """Send a file by sendfile, from memory, or block by block.

        The file may be longer than the Content-Length. Its bytes after the Content-Length are not
        sent (PEP 3333, "Optional Platform-Specific File Handling").

        :param segment: the part of the file that sendfile can send. None if it has to be read.
        :param body: an iterable of the blocks of the file.
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
        """Send an invalid body by iterating over it. Subclasses may raise an error.

        :param advice: the object to return in its place, for an error message.
        """
        self.write_stream(body)

    def write_segments(self, segments: Sequence[bytes | FileSegment]) -> None:
        """Send byte strings and parts of files in order."""
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
        """Return the bytes of a block that do not exceed the Content-Length."""
        if not isinstance(data, bytes):
            raise not_bytes(data)
        # A subclass of bytes may override __len__().
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
    """Check a second call of start_response, or a call with exc_info.

    The caller then deletes its own exc_info. Otherwise its frame and the traceback would refer to
    each other.

    :param sent: whether the headers have been sent, so that they are final.
    :param app: the name of the app for the message.
    :raises BodyError: if the call has no exc_info.
    :raises BaseException: the error in exc_info, if the headers have been sent.
    """
    try:
        if not exc_info:
            raise BodyError(f"{app} called start_response twice without exc_info (PEP 3333)")
        if sent:
            raise exc_info[1].with_traceback(exc_info[2])
    finally:
        exc_info = None
