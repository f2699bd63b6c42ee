"""One response: `start_response`, and the order in which head and body leave."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from ..bodies.chunks import few_chunks
from ..bodies.second_start import check_second_start
from ..bodies.segments import Segment, SegmentedBody, read_whole
from ..errors import BodyError
from ..http import (
    LAST_CHUNK,
    BodyCounter,
    Framing,
    ResponseHead,
    chunk_size_line,
    frame_response,
)
from ..sockets.sendfile import SMALL_FILE_BYTES, FileSegment
from .filewrapper import FileWrapper
from .outlet import Outlet

if TYPE_CHECKING:
    from _typeshed import OptExcInfo

__all__ = ["ResponseWriter"]

# Blocks are held in a gathering send up to here: a list of large ones needs no copy and few calls.
_GATHERED_BYTES = 1 << 20


class ResponseWriter:
    """Carries out one response on a connection.

    The application moves it from "no status" to "status known" (start_response); the first block
    of the body, write(), or the end of an empty body sends the head. After that nothing can be
    taken back: a failure leaves `keep_alive` False and the connection has to be closed.

    :param method: of the request.
    :param http11: whether the client speaks HTTP/1.1.
    :param may_stay: asked when the head is sent: whether the connection can go on afterwards.
    :param defaults: headers for a response that lacks them.
    :ivar head_sent: whether the status can no longer be changed.
    :ivar body_bytes: of the body, without framing, that have left.
    :ivar keep_alive: whether the connection can go on, as far as the response goes.
    :ivar complaint: what the application did wrong although the response was sent.
    """

    def __init__(
        self,
        outlet: Outlet,
        *,
        method: str,
        http11: bool,
        may_stay: Callable[[], bool],
        defaults: Callable[[], Iterable[tuple[str, str]]],
    ) -> None:
        self._outlet = outlet
        self._method = method
        self._http11 = http11
        self._may_stay = may_stay
        self._defaults = defaults
        self._head: ResponseHead | None = None
        self._framing = Framing(True, None, chunked=False)
        self._counter = BodyCounter(self._framing)
        self.head_sent = False
        self.body_bytes = 0
        self.keep_alive = False
        self.complaint: str | None = None

    @property
    def status(self) -> int | None:
        """The code of the last start_response; None before."""
        return None if self._head is None else self._head.code

    def start_response(
        self,
        status: str,
        headers: list[tuple[str, str]],
        exc_info: OptExcInfo | None = None,
        /,
    ) -> Callable[[bytes], object]:
        """PEP 3333's start_response.

        :raises BodyError: for a second call without exc_info, or a malformed head.
        :raises BaseException: that of exc_info, if the head has been sent.
        """
        if exc_info or self._head is not None:
            try:
                check_second_start(exc_info, sent=self.head_sent)
            finally:
                exc_info = None
        self._head = ResponseHead(status, headers)
        return self.write

    def write(self, data: bytes) -> None:
        """Send a block of the body now, and before the first one the head.

        :raises BodyError: for data that is not bytes, or too many of them.
        :raises ClientGone: if the client takes no more.
        """
        self._send_block(_checked(data), None)
        if self.complaint:
            raise BodyError(self.complaint)

    def send_body(self, body: Iterable[bytes]) -> None:
        """Send what the application returned; see :meth:`finish`.

        :raises BodyError: if it is not an iterable of bytes.
        :raises ClientGone: if the client takes no more.
        :raises FileTruncated: if a file ends before its promised length.
        :raises Exception: whatever the application's iterable raises.
        """
        known = None if self._head is None else _known_segments(body)
        if known is not None:
            self._send_segments(*known)
            return
        if isinstance(body, (str, bytes, bytearray, memoryview)):
            raise BodyError(
                f"the application returned a bare {type(body).__name__}: return [data] instead"
            )
        if not isinstance(body, Iterable):
            raise BodyError(
                f"the application returned {type(body).__name__}: return a list of bytes instead"
            )
        # PEP 3333: what says that it has one block has told its Content-Length with it.
        is_single = _length_of(body) == 1
        for block in body:
            if not _checked(block):
                continue  # nothing to send, and no reason to send the head either
            self._send_block(block, len(block) if is_single else None)
            if self.complaint or not self._framing.has_body:
                break

    def finish(self) -> None:
        """End the response after its body.

        :raises BodyError: if start_response was never called.
        :raises ClientGone: if the client takes no more.
        """
        if not self.head_sent:
            self._send(self._begin(0), (), b"")
        if self._framing.chunked:
            self._outlet.send([LAST_CHUNK])
        elif self._counter.missing:
            self.keep_alive = False
            self.complaint = (
                f"the body had {self.body_bytes} bytes and Content-Length said "
                f"{self._framing.length}"
            )

    def _send_block(self, block: bytes, size: int | None) -> None:
        prefix, suffix = b"" if self.head_sent else self._begin(size), b""
        block = block[: self._admit(len(block))]
        if self._framing.chunked and block:  # an empty chunk would be the last one
            prefix, suffix = prefix + chunk_size_line(len(block)), b"\r\n"
        self._send(prefix, (block,), suffix)

    def _send_segments(self, size: int, segments: Iterable[Segment]) -> None:
        """Send a body of known size: small things gathered, large files by the kernel."""
        prefix, suffix = b"" if self.head_sent else self._begin(size), b""
        if self._framing.chunked and size:  # write() has begun the body
            prefix, suffix = prefix + chunk_size_line(size), b"\r\n"
        gathered: list[bytes] = []
        gathered_bytes = 0
        for segment in segments:
            if isinstance(segment, FileSegment):
                segment = segment._replace(size=self._admit(segment.size))
                if segment.size > SMALL_FILE_BYTES:
                    self._send(prefix, gathered, b"", more_follows=True)
                    self._send_file(segment)
                    prefix, gathered, gathered_bytes = b"", [], 0
                    continue
                block = read_whole(segment)
            else:
                block = segment[: self._admit(len(segment))]
            gathered.append(block)
            gathered_bytes += len(block)
            if gathered_bytes >= _GATHERED_BYTES:
                self._send(prefix, gathered, b"", more_follows=True)
                prefix, gathered, gathered_bytes = b"", [], 0
        self._send(prefix, gathered, suffix)

    def _admit(self, size: int) -> int:
        """How much of the next `size` bytes is sent; complain of more than was promised."""
        admitted = self._counter.admit(size)
        if admitted < size and self._framing.has_body:
            length = self._framing.length
            self.complaint = f"the body is longer than its Content-Length, {length}: it is cut"
        return admitted

    def _send(
        self, prefix: bytes, payload: Sequence[bytes], suffix: bytes, *, more_follows: bool = False
    ) -> None:
        """Send framing and payload as one, and count the payload of it that left."""
        buffers = [buffer for buffer in (prefix, *payload, suffix) if buffer]
        if not buffers:
            return
        before = self._outlet.sent
        size = sum(map(len, payload))
        self.head_sent = True
        try:
            self._outlet.send(buffers, more_follows=more_follows)
        except BaseException:
            self.keep_alive = False
            raise
        finally:
            left = self._outlet.sent - before - len(prefix)
            self.body_bytes += min(max(0, left), size)

    def _send_file(self, segment: FileSegment) -> None:
        before = self._outlet.sent
        try:
            self._outlet.send_file(segment)
        except BaseException:
            self.keep_alive = False
            raise
        finally:
            self.body_bytes += self._outlet.sent - before

    def _begin(self, size: int | None) -> bytes:
        """Settle the framing, and build the head.

        :param size: of the whole body in bytes, if it is known.
        """
        head = self._head
        if head is None:
            raise BodyError("the application sent a body without calling start_response")
        framing = frame_response(
            self._method, head.code, head.content_length, size=size, chunks=self._http11
        )
        self._framing = framing
        self._counter = BodyCounter(framing)
        is_whole = size is None or framing.length is None or size >= framing.length
        self.keep_alive = (
            framing.ends_itself
            and (is_whole or not framing.has_body)
            and not (head.closes or head.code == 101)
            and self._may_stay()
        )
        names = {name.lower() for name, _ in head.headers}
        own = [(name, value) for name, value in self._defaults() if name.lower() not in names]
        if head.upgrades:
            own.append(("Connection", "upgrade"))
        elif not self.keep_alive:
            own.append(("Connection", "close"))
        elif not self._http11:
            own.append(("Connection", "keep-alive"))
        return head.encode("1.1", framing, "".join([f"{name}: {value}\r\n" for name, value in own]))


def _known_segments(body: object) -> tuple[int, Iterable[Segment]] | None:
    """The body's size and segments, if all of it exists already; None if it has to be iterated."""
    if type(body) is FileWrapper:
        segment = body.segment()
        return None if segment is None else (segment.size, [segment])
    if isinstance(body, SegmentedBody):
        sizes = (s.size if isinstance(s, FileSegment) else len(s) for s in body.segments)
        return sum(sizes), body.segments
    if type(body) is list or type(body) is tuple:
        chunks, size = few_chunks(body, _checked)
        return size, chunks
    return None


def _checked(block: object) -> bytes:
    if isinstance(block, bytes):
        return block
    raise BodyError(f"the body has a {type(block).__name__} in it: yield bytes")


def _length_of(body: object) -> int | None:
    try:
        return len(body)  # type: ignore[arg-type]
    except (TypeError, AttributeError, NotImplementedError):
        return None
