"""One WSGI response: start_response's rules, and the body's way to an output.

What may be sent is wsgifast.http's to say. The head leaves together with the first bytes, a list as
a whole in one call, a file by sendfile. Servers say how a head looks, and what becomes of the
connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import BodyError, ClientGone
from ..http.framing import LAST_CHUNK, BodyCounter, Framing, chunk, chunk_size_line
from ..http.head import ResponseHead, known_head
from ..sockets.sendfile import SMALL_FILE_BYTES, FileSegment, FileTruncated
from .files import is_in_memory, segment_of
from .second_start import check_second_start
from .segments import SegmentedBody, read_whole
from .streams import is_event_stream
from .wrappers import held_in, holds_all, iterated, known_file

if TYPE_CHECKING:
    from _typeshed import OptExcInfo

__all__ = ["Output", "ResponseWriter"]

# Below it, joining costs less than handing several buffers to the kernel.
_JOIN_BYTES = 64 * 1024


class Output(Protocol):
    """Where a response goes.

    :ivar frame: what goes around each block given to write_next; None: nothing.
    :ivar may_run_ahead: whether what a slow client does not take may be put aside.
    :raises ClientGone: (from each) if the client has gone.
    """

    frame: Callable[[bytes], bytes] | None
    may_run_ahead: bool

    def write(self, data: bytes, /) -> None: ...
    def write_more(self, block: bytes, /) -> None: ...  # others may follow at once
    def write_next(self, block: bytes, /) -> None: ...  # the same, and `frame` goes around it
    def write_all(self, buffers: Sequence[bytes], /) -> None: ...

    def write_file(self, head: bytes, fd: int, offset: int, size: int, /) -> None:
        """Send a head, which may be empty, and a run of a file.

        :raises FileTruncated: if the file ends before the run does.
        :raises OSError: if no descriptor was left; nothing was sent.
        """


class ResponseWriter:
    """The response to one request on an HTTP/1 connection.

    :param output: where it goes.
    :ivar status: of the last start_response; None before.
    :ivar headers_sent: whether the head is with the output: from then on no other answer can be
        given.
    :ivar counter: of its body's bytes.
    :ivar must_close: whatever the client wants; so it is where the app has raised, or delivered
        less than its head says.
    """

    # Until start_response is called; what is looked at before that, each has of its own.
    status_code: int = 0
    _head: ResponseHead | None = None
    _framing = Framing(True, None, False)
    counter: BodyCounter = BodyCounter(_framing)  # replaced before it counts
    _closes = True  # whatever the client wants

    def __init__(self, output: Output) -> None:
        self.status: str | None = None
        self.must_close = False
        self.headers_sent = False
        self._output = output

    # What a server says.

    def _frame(self, head: ResponseHead) -> Framing:
        """Where the response to this request ends."""
        raise NotImplementedError

    def _encoded_head(self) -> bytes:
        """The head as it is sent; see :meth:`_checked_head`."""
        raise NotImplementedError

    # The app's side.

    def start_response(
        self,
        status: str,
        headers: list[tuple[str, str]],
        exc_info: OptExcInfo | None = None,
    ) -> Callable[[bytes], object]:
        """PEP 3333's.

        :raises BodyError: for a second call without exc_info, or a malformed head.
        :raises BaseException: that of exc_info, if the head has been sent.
        :returns: the write callable.
        """
        if exc_info or self.status is not None:
            try:
                check_second_start(exc_info, sent=self.headers_sent)
            finally:
                exc_info = None
        self._head = head = known_head(status, headers)
        self.status = status
        self.status_code = head.code
        self._framing = framing = self._frame(head)
        # A length, which most have, ends it too: sooner seen.
        self._closes = head.closes or (framing.length is None and not framing.ends_itself)
        self.counter = BodyCounter(framing)
        return self.write

    def write(self, data: bytes) -> None:
        """Send a block of the body: the write callable of PEP 3333.

        :raises BodyError: once the body is longer than its Content-Length (PEP 3333, "Handling the
            Content-Length Header"): an app that writes without end would never learn otherwise that
            nothing of it is sent. What the length has room for has been sent by then.
        """
        self._write_block(data)
        if self.is_cut():
            raise BodyError(self.complaint(""))

    def _write_block(self, data: bytes) -> None:
        """Send a block, or have it sent while the app works on."""
        if self.status is None:
            if data == b"":
                return  # start_response may come as late as the first byte (PEP 3333)
            raise BodyError("the app sent a body before it called start_response")
        block = self._framed(data)
        if not block and (self.headers_sent or not data):
            return  # no head before the first byte of the body, or the end (PEP 3333)
        if not self.headers_sent:
            block = self._encoded_head() + block
            self.headers_sent = True
            self._output.frame = chunk if self._framing.chunked else None
            self._output.may_run_ahead = self._head is not None and not is_event_stream(
                self._head.headers
            )
        # Once the promised length is reached nothing can follow that would be worth waiting for.
        if self.counter.complete:
            self._output.write(block)
        else:
            self._output.write_more(block)

    # What the app returned.

    def write_body(self, body: Any, file_wrapper: type) -> None:
        """Send the body that an app returned, by the shortest way there is for it, and close it.

        :param file_wrapper: the environ's `wsgi.file_wrapper`.
        """
        kind = type(body)
        if kind is list or kind is tuple:  # which have no close()
            self.write_all(body)
            return
        try:
            if isinstance(body, file_wrapper):
                self.write_file(body, getattr(body, "filelike", None))
            elif holds_all(held := held_in(body)):
                self.write_all(list(body))
            elif isinstance(held, SegmentedBody):
                self.write_segments(held.segments)
            elif (file := known_file(held)) is not None:
                self.write_file(body, file)
            else:
                self.write_stream(iterated(body))
        finally:
            close = getattr(body, "close", None)
            if close is not None:
                close()

    def write_all(self, blocks: list[bytes] | tuple[bytes, ...]) -> None:
        """Send a whole body that exists already, with the head and what ends it."""
        if len(blocks) == 1 and not self.headers_sent:
            # The usual body: one block, of the length that its head says.
            (data,) = blocks
            counter = self.counter
            size = counter.length
            if type(data) is bytes and size == len(data) <= _JOIN_BYTES:
                head = self._encoded_head()
                self.headers_sent = True
                counter.sent = size
                self._output.write(head + data)
                return
        parts = [b"" if self.headers_sent else self._encoded_head()]
        for data in blocks:
            block = self._framed(data)
            if block:
                parts.append(block)
        parts.append(self._end())
        self.headers_sent = True
        if sum(map(len, parts)) <= _JOIN_BYTES:
            self._output.write(b"".join(parts))
        else:
            self._output.write_all(parts)

    def write_stream(self, body: Iterable[bytes]) -> None:
        """Send blocks as they come, and what ends the response.

        No more is asked for once a block has no place (PEP 3333, "Handling the Content-Length
        Header").
        """
        blocks = iter(body)
        for block in blocks:
            self._write_block(block)
            if not self.headers_sent:
                continue
            if self.counter.length is None:
                self._write_rest(blocks)
                break
            if self.counter.dropped:  # whatever follows too, and there may be no end of it
                break
        self.close()

    def _write_rest(self, blocks: Iterator[bytes]) -> None:
        """Send the blocks behind the first, of which any number may come.

        Nothing is left to decide for each of them, and there may be very many.
        """
        counter, write_next = self.counter, self._output.write_next
        for block in blocks:
            if type(block) is bytes and block:
                counter.sent += len(block)
                write_next(block)
            else:
                self._write_block(block)

    def write_file(self, body: Any, file: Any) -> None:
        """Send a file: by sendfile, from memory, or block by block.

        It may be longer than its Content-Length (PEP 3333, "Optional Platform-Specific File
        Handling").

        :param body: what yields the file's blocks.
        """
        segment = segment_of(file)
        if segment is not None:
            self.write_segments([segment])
        elif is_in_memory(file):
            self.write_all([file.read()])
        else:
            self.write_stream(body)
        if self._framing.has_body:
            self.counter.dropped = 0

    def write_segments(self, segments: Sequence[bytes | FileSegment]) -> None:
        """Send byte strings and runs of files in their order."""
        begun = self.headers_sent
        before = self._unsent_head()
        output = self._output
        for segment in segments:
            if not isinstance(segment, FileSegment):
                before += self._framed(segment)
                continue
            size = self.counter.admit(segment.size)
            if size == 0:
                continue
            fd, offset, _ = segment
            if size <= SMALL_FILE_BYTES:
                data = read_whole(FileSegment(fd, offset, size))
                before += self._in_chunk(data) if self._framing.chunked else data
                continue
            if self._framing.chunked:
                before += chunk_size_line(size)
            self.headers_sent = True
            try:
                output.write_file(before, fd, offset, size)
            except (ClientGone, FileTruncated):
                raise
            except OSError:
                self.headers_sent = begun
                self.counter.sent -= size
                raise
            begun = True
            before = b"\r\n" if self._framing.chunked else b""
        before += self._end()
        self.headers_sent = True
        if before:
            output.write_all([before])

    def close(self) -> None:
        """End the response after its last block."""
        end = self._unsent_head() + self._end()
        self.headers_sent = True
        if end:
            self._output.write(end)

    # What it was.

    def is_as_declared(self) -> bool:
        """Whether the app has delivered the body that its head says, and nothing else."""
        counter = self.counter
        length = counter.length
        return not counter.dropped and (length is None or length == counter.sent)

    def missing(self) -> int:
        """Body bytes that Content-Length has promised and the app has not delivered."""
        return self.counter.missing

    def is_cut(self) -> bool:
        """Whether the app has delivered more than Content-Length has promised."""
        return self.counter.dropped > 0 and self._framing.has_body

    def complaint(self, method: str) -> str:
        """What is wrong with the body that the app has delivered; "" for nothing.

        :param method: of the request; to HEAD an app may answer as it does to GET, and most do.
        """
        counter = self.counter
        if counter.missing:
            return f"the body has {counter.sent} bytes, and its Content-Length is {counter.length}"
        if self.is_cut():
            return f"the body is longer than its Content-Length, {counter.length}: it is cut"
        if counter.dropped and method != "HEAD":
            return f"the body is dropped: {self.status_code} has none (RFC 9110 6.4.1)"
        return ""

    # How HTTP/1 says it.

    def _end(self) -> bytes:
        """What ends the body; nothing follows it."""
        return LAST_CHUNK if self._framing.chunked else b""

    def _framed(self, data: bytes) -> bytes:
        if not isinstance(data, bytes):
            raise BodyError(
                f"the app returned a body with a {type(data).__name__} in it: yield bytes, or wrap "
                "the app with wsgifast.WSGIFast"
            )
        size = len(data)
        admitted = self.counter.admit(size)
        if admitted < size:
            data = data[:admitted]
        return self._in_chunk(data) if self._framing.chunked else data

    def _in_chunk(self, data: bytes) -> bytes:
        return chunk(data) if data else b""

    def _unsent_head(self) -> bytes:
        return b"" if self.headers_sent else self._encoded_head()

    def _checked_head(self) -> ResponseHead:
        if self._head is None:
            raise BodyError("the app returned a body without calling start_response")
        return self._head
