"""One response: `start_response`, the body's framing, and the order in which it leaves."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType

from ..bodies.chunks import few_chunks
from ..bodies.files import Segment, SegmentedBody, read_whole
from ..errors import BodyError
from ..sockets.sendfile import SMALL_FILE_BYTES, FileSegment
from .filewrapper import FileWrapper
from .outlet import Outlet

__all__ = ["Framing", "ResponseWriter", "frame_response"]

_ExcInfo = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]

# PEP 3333: "999 Message here"; the reason may be empty (RFC 9112, 4). 1xx is no final answer.
_STATUS = re.compile(r"[2-9][0-9]{2}(?: [\t -~\x80-\xff]*)?")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t -~\x80-\xff]*")
_LENGTH = re.compile(r"[0-9]{1,18}")

# Blocks are held in a gathering send up to here: a list of large ones needs no copy and few calls.
_GATHERED_BYTES = 1 << 20


@dataclass(frozen=True)
class Framing:
    """How the end of a response's body is told (RFC 9112, 6).

    :ivar has_body: False: not one byte of a body may be sent.
    :ivar length: the Content-Length; None for no such header.
    :ivar chunked: whether the body goes out in chunks.
    :ivar keep_alive: whether the connection can go on.
    """

    has_body: bool
    length: int | None
    chunked: bool
    keep_alive: bool


def frame_response(
    status: int, declared: int | None, size: int | None, *, method: str, modern: bool
) -> Framing:
    """Decide how a response is framed.

    :param declared: the application's Content-Length, if it gave one.
    :param size: of the body in bytes, if it is known without the application's word.
    :param modern: the client speaks HTTP/1.1 and understands chunks.
    """
    if status == 204:
        return Framing(False, None, chunked=False, keep_alive=True)  # RFC 9110, 8.6: no length
    if status == 304:
        return Framing(False, declared, chunked=False, keep_alive=True)
    if status == 205:
        return Framing(False, 0, chunked=False, keep_alive=True)  # RFC 9110, 15.3.6
    length = declared if declared is not None else size
    if method == "HEAD":
        return Framing(False, length, chunked=False, keep_alive=True)
    if length is not None:
        return Framing(True, length, chunked=False, keep_alive=size is None or size >= length)
    return Framing(True, None, chunked=modern, keep_alive=modern)


class ResponseWriter:
    """Carries out one response on a connection.

    The application moves it from "no status" to "status known" (start_response); the first block
    of the body, write(), or the end of an empty body sends the head. After that nothing can be
    taken back: a failure leaves `keep_alive` False and the connection has to be closed.

    :param method: of the request.
    :param modern: whether the client speaks HTTP/1.1.
    :param may_stay: asked when the head is sent: whether the connection can go on afterwards.
    :param defaults: headers for a response that lacks them.
    :ivar status: the code of the last start_response; None before.
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
        modern: bool,
        may_stay: Callable[[], bool],
        defaults: Callable[[], Iterable[tuple[str, str]]],
    ) -> None:
        self._outlet = outlet
        self._method = method
        self._modern = modern
        self._may_stay = may_stay
        self._defaults = defaults
        self._status_line = ""
        self._headers: list[tuple[str, str]] = []
        self._declared: int | None = None
        self._framing = Framing(True, None, chunked=False, keep_alive=False)
        self.status: int | None = None
        self.head_sent = False
        self.body_bytes = 0
        self.keep_alive = False
        self.complaint: str | None = None

    def start_response(
        self,
        status: str,
        headers: list[tuple[str, str]],
        exc_info: _ExcInfo | None = None,
        /,
    ) -> Callable[[bytes], object]:
        """PEP 3333's start_response.

        :raises BodyError: for a second call without exc_info, or a malformed head.
        :raises BaseException: that of exc_info, if the head has been sent.
        """
        if exc_info:
            try:
                if self.head_sent and exc_info[1] is not None:
                    raise exc_info[1].with_traceback(exc_info[2])
            finally:
                exc_info = None  # no cycle through this frame
        elif self.status is not None:
            raise BodyError(
                "the application called start_response twice without exc_info (PEP 3333)"
            )
        declared = _checked_head(status, headers)
        # A copy: the application may go on using its list.
        self._status_line, self._headers, self._declared = status, list(headers), declared
        self.status = int(status[:3])
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
        known = _known_segments(body) if self.status is not None else None
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
            # No block to HEAD does not mean that GET would have none (RFC 9110, 8.6).
            self._send(self._head(None if self._method == "HEAD" else 0), (), b"")
        framing = self._framing
        if not framing.has_body:
            return
        if framing.chunked:
            self._outlet.send([b"0\r\n\r\n"])
        elif framing.length is not None and self.body_bytes < framing.length:
            self.keep_alive = False
            self.complaint = (
                f"the body had {self.body_bytes} bytes and Content-Length said {framing.length}"
            )

    def _send_block(self, block: bytes, size: int | None) -> None:
        head = b"" if self.head_sent else self._head(size)
        framing = self._framing
        if not framing.has_body:
            self._send(head, (), b"")
        elif framing.chunked:
            if block:  # an empty chunk would be the last one
                self._send(b"%s%x\r\n" % (head, len(block)), (block,), b"\r\n")
        else:
            if framing.length is not None:
                block = block[: self._clipped(len(block))]
            self._send(head, (block,), b"")

    def _send_segments(self, size: int, segments: Iterable[Segment]) -> None:
        """Send a body of known size: small things gathered, large files by the kernel."""
        prefix = b"" if self.head_sent else self._head(size)
        suffix = b""
        if not self._framing.has_body:
            size = 0
        elif self._framing.chunked:  # write() has begun the body
            if size:
                prefix, suffix = b"%s%x\r\n" % (prefix, size), b"\r\n"
        else:
            size = self._clipped(size)
        gathered: list[bytes] = []
        gathered_bytes = 0
        for segment in _clip(segments, size):
            if isinstance(segment, FileSegment) and segment.size > SMALL_FILE_BYTES:
                self._send(prefix, gathered, b"", more_follows=True)
                self._send_file(segment)
                prefix, gathered, gathered_bytes = b"", [], 0
                continue
            gathered.append(segment if isinstance(segment, bytes) else read_whole(segment))
            gathered_bytes += len(gathered[-1])
            if gathered_bytes >= _GATHERED_BYTES:
                self._send(prefix, gathered, b"", more_follows=True)
                prefix, gathered, gathered_bytes = b"", [], 0
        self._send(prefix, gathered, suffix)

    def _clipped(self, size: int) -> int:
        """How much of the next `size` bytes still has a place within the Content-Length."""
        length = self._framing.length
        if length is None or self.body_bytes + size <= length:
            return size
        self.complaint = f"the body is longer than its Content-Length, {length}: the rest is cut"
        return length - self.body_bytes

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

    def _head(self, size: int | None) -> bytes:
        """Settle the framing, and build the head."""
        if self.status is None:
            raise BodyError("the application sent a body without calling start_response")
        self._framing = framing = frame_response(
            self.status, self._declared, size, method=self._method, modern=self._modern
        )
        lines = [f"HTTP/1.1 {self._status_line}{'' if len(self._status_line) > 3 else ' '}"]
        stays = framing.keep_alive and self._may_stay()
        names = set()
        for name, value in self._headers:
            lowered = name.lower()
            names.add(lowered)
            if lowered == "connection":
                stays = stays and "close" not in value.lower()
            elif lowered not in ("content-length", "keep-alive"):
                lines.append(f"{name}: {value}")
        lines += [
            f"{name}: {value}" for name, value in self._defaults() if name.lower() not in names
        ]
        if framing.length is not None:
            lines.append(f"Content-Length: {framing.length}")
        if framing.chunked:
            lines.append("Transfer-Encoding: chunked")
        if not stays:
            lines.append("Connection: close")
        elif not self._modern:
            lines.append("Connection: keep-alive")
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        self.keep_alive = stays
        return head


def _checked_head(status: object, headers: object) -> int | None:
    """Check what start_response was given; return the Content-Length in it."""
    if not isinstance(status, str) or not _STATUS.fullmatch(status):
        raise BodyError(f"the status is {status!r}; give a str such as '200 OK'")
    if not isinstance(headers, list):
        raise BodyError(f"the headers are a {type(headers).__name__}; give a list")
    declared: int | None = None
    for item in headers:
        try:
            name, value = item
            well_formed = bool(_NAME.fullmatch(name) and _VALUE.fullmatch(value))
        except (TypeError, ValueError):
            well_formed = False
        if not well_formed:
            raise BodyError(
                f"a header is {item!r}; give a tuple of two str without control characters"
            )
        lowered = name.lower()
        if lowered == "transfer-encoding":
            raise BodyError("Transfer-Encoding is the server's own: leave it out (PEP 3333)")
        if lowered == "content-length":
            if not _LENGTH.fullmatch(value) or declared not in (None, int(value)):
                raise BodyError(f"Content-Length is {value!r}; give one number of bytes")
            declared = int(value)
    return declared


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


def _clip(segments: Iterable[Segment], size: int) -> Iterator[Segment]:
    """The first `size` bytes of some segments."""
    for segment in segments:
        if size <= 0:
            return
        if isinstance(segment, FileSegment):
            segment = segment._replace(size=min(size, segment.size))
            size -= segment.size
        else:
            segment = segment[:size]
            size -= len(segment)
        yield segment


def _length_of(body: object) -> int | None:
    try:
        return len(body)  # type: ignore[arg-type]
    except (TypeError, AttributeError, NotImplementedError):
        return None
