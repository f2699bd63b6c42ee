"""One WSGI response: start_response's rules, the head, and the body's way to the output queue.

What may be sent is wsgifast.http's to say. The attributes are those that loggers and hooks read.
The head leaves together with the first bytes, a list as a whole in one call, a file by sendfile;
what the client does not take at once waits in its queue, and holds no thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ..bodies.files import is_in_memory, segment_of
from ..bodies.second_start import check_second_start
from ..bodies.segments import read_whole
from ..bodies.streams import is_event_stream
from ..errors import BodyError
from ..files import http_date
from ..http.framing import (
    LAST_CHUNK,
    BodyCounter,
    Framing,
    chunk,
    chunk_size_line,
)
from ..http.head import ResponseHead, check_field, known_head
from ..sockets.sendfile import SMALL_FILE_BYTES, FileSegment
from .output import ClientGone, OutputQueue

if TYPE_CHECKING:
    from _typeshed import OptExcInfo

__all__ = ["Response", "ResponseSettings"]

_VERSIONS = {(1, 0): "1.0", (1, 1): "1.1"}
# Below it, joining costs less than handing several buffers to the kernel.
_JOIN_BYTES = 64 * 1024


class ResponseSettings(Protocol):
    """What a worker's responses have in common.

    :ivar server_name: for the Server header.
    :ivar sends_chunks: False: who is between the server and its clients knows no chunks.
    """

    server_name: str
    sends_chunks: bool


class Response:
    """The response to one request on an HTTP/1 connection.

    :param req: the request: its method, version and should_close() count.
    :param output: where it goes.
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

    def __init__(self, req: Any, output: OutputQueue, settings: ResponseSettings) -> None:
        self.req = req
        self.cfg = settings
        self.status: str | None = None
        self.must_close = False
        # Whether the head is with the output queue: from then on no other answer can be given.
        self.headers_sent = False
        self._output = output

    # What loggers and hooks read.

    @property
    def version(self) -> str:
        return self.cfg.server_name

    @property
    def headers(self) -> list[tuple[str, str]]:
        """As they are sent, without the server's own."""
        if self._head is None:
            return []
        length = self._framing.length
        return self._head.headers + ([] if length is None else [("Content-Length", str(length))])

    @property
    def response_length(self) -> int | None:
        return self._framing.length

    @property
    def chunked(self) -> bool:
        return self._framing.chunked

    @property
    def upgrade(self) -> bool:
        return self._head is not None and self._head.upgrades

    @property
    def sent(self) -> int:
        """Body bytes handed over so far, without framing; corrected to what was sent at the end."""
        return self.counter.sent

    @sent.setter
    def sent(self, size: int) -> None:
        if self._head is not None:
            self.counter.sent = size

    def force_close(self) -> None:
        self.must_close = True

    def should_close(self) -> bool:
        return self.must_close or self._closes or bool(self.req.should_close())

    # The app's side.

    def start_response(
        self,
        status: str,
        headers: list[tuple[str, str]],
        exc_info: OptExcInfo | None = None,
    ) -> Callable[[bytes], object]:
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

    def offer(self, environ: dict[str, Any]) -> None:
        """Put into an environ what the app may ask of its response."""
        environ["wsgi.early_hints"] = self.early_hints

    def early_hints(self, headers: list[tuple[str | bytes, str | bytes]]) -> None:
        """Send a 103 response (RFC 8297); ignored once the head is sent, and for HTTP/1.0."""
        if self.headers_sent or self.req.version < (1, 1):
            return
        fields = []
        for raw_name, raw_value in headers:
            name = raw_name.decode("latin-1") if isinstance(raw_name, bytes) else raw_name
            value = raw_value.decode("latin-1") if isinstance(raw_value, bytes) else raw_value
            fields.append(check_field(name, value))
        self._send_hints(fields)

    def write(self, data: bytes) -> None:
        """Send a block of the body, or have it sent while the app works on (PEP 3333)."""
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
        """Send blocks as they come, and what ends the response."""
        blocks = iter(body)
        for block in blocks:
            self.write(block)
            if self.headers_sent and self.counter.length is None:
                self._write_rest(blocks)
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
                self.write(block)

    def write_file(self, body: Any, file: Any) -> None:
        """Send a file: by sendfile, from memory, or block by block.

        :param body: what yields the file's blocks.
        """
        segment = segment_of(file)
        if segment is not None:
            self.write_segments([segment])
        elif is_in_memory(file):
            self.write_all([file.read()])
        else:
            self.write_stream(body)

    def write_segments(self, segments: Sequence[bytes | FileSegment]) -> None:
        """Send byte strings and runs of files in their order."""
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
            try:
                output.write_file(before, fd, offset, size)
            except ClientGone:
                raise
            except OSError:
                self.counter.sent -= size  # no descriptor was left for it: nothing was queued
                raise
            self.headers_sent = True
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

    def is_as_declared(self) -> bool:
        """Whether the app has delivered the body that its head says, and nothing else."""
        counter = self.counter
        length = counter.length
        return not counter.dropped and (length is None or length == counter.sent)

    def missing(self) -> int:
        """Body bytes that Content-Length has promised and the app has not delivered."""
        return self.counter.missing

    def has_no_place_for_a_body(self) -> bool:
        """Whether all of the body was dropped, if there was any."""
        return not self._framing.has_body

    # How HTTP/1 says it.

    def _frame(self, head: ResponseHead) -> Framing:
        req = self.req
        # Only a body of unknown length asks for them.
        chunks = head.content_length is None and req.version > (1, 0) and self.cfg.sends_chunks
        return head.frame(req.method, chunks=chunks)

    def _send_hints(self, fields: list[tuple[str, str]]) -> None:
        lines = "".join([f"{name}: {value}\r\n" for name, value in fields])
        self._output.write(f"HTTP/1.1 103 Early Hints\r\n{lines}\r\n".encode("latin-1"))

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

    def _encoded_head(self) -> bytes:
        head = self._checked_head()
        if head.upgrades:
            connection = "upgrade"
        elif self.should_close():
            connection = "close"
        else:
            connection = "keep-alive"
        version = self.req.version
        http_version = _VERSIONS.get(version) or f"{version[0]}.{version[1]}"
        server_name = None if head.has_server else self.cfg.server_name
        own = clock.own_lines(server_name, connection, dates=not head.has_date)
        return head.encode(http_version, self._framing, own)

    def _checked_head(self) -> ResponseHead:
        if self._head is None:
            raise BodyError("the app returned a body without calling start_response")
        return self._head


class _Clock:
    """What changes every second: the Date header (RFC 9110 section 6.6.1), and what stands by it.

    What holds for a second is kept in one attribute: threads that come in between two of them see
    the one or the other.
    """

    def __init__(self) -> None:
        self._now: tuple[int, str, dict[tuple[str | None, str, bool], str]] = (0, "", {})

    def now(self) -> str:
        return self._look(time.time())[1]

    def own_lines(self, server_name: str | None, connection: str, *, dates: bool) -> str:
        """The server's own header lines; the same object throughout a second.

        :param server_name: None: the app has said it.
        :param dates: whether Date is among them.
        """
        now = self._now
        seconds = time.time()
        if not 0 <= seconds - now[0] < 1:
            now = self._look(seconds)
        _, date, made = now
        key = server_name, connection, dates
        lines = made.get(key)
        if lines is None:
            lines = f"Connection: {connection}\r\n"
            if dates:
                lines = f"Date: {date}\r\n{lines}"
            if server_name is not None:
                lines = f"Server: {server_name}\r\n{lines}"
            lines = made.setdefault(key, lines)
        return lines

    def _look(self, seconds: float) -> tuple[int, str, dict[tuple[str | None, str, bool], str]]:
        second = int(seconds)
        now = self._now
        if second != now[0]:
            self._now = now = second, http_date(second), {}
        return now


clock = _Clock()
