"""Decode request bodies that arrive in pieces (RFC 9112 sections 6.2 and 7.1)."""

from __future__ import annotations

import re
import sys
from typing import Final

from ..errors import BodyTooLarge, MalformedRequest
from .fields import NO_TRAILERS, TOKEN

_TOKEN = TOKEN.encode()
_QUOTED = rb'"(?:[\t !#-\[\]-~\x80-\xff]|\\[\t -~\x80-\xff])*"'  # RFC 9110 section 5.6.4
# The most digits of a chunk's size. 16 digits suffice for any body, and every recipient can parse
# them (section 7.1).
_SIZE = rb"([0-9A-Fa-f]{1,16})"
# Section 7.1.1.
_EXTENSIONS = rb"((?:[ \t]*;[ \t]*%(token)b(?:[ \t]*=[ \t]*(?:%(token)b|%(quoted)b))?)*)" % {
    b"token": _TOKEN,
    b"quoted": _QUOTED,
}
_SIZE_LINE = re.compile(_SIZE + _EXTENSIONS)
# The bytes between the data of two chunks: the end of a chunk, and a size line without extensions.
# One match of this pattern replaces the parsing of two lines.
_USUAL_GAP = re.compile(rb"\r\n%b\r\n" % _SIZE)
_USUAL_LINE_BYTES = 18  # the longest size line that _USUAL_GAP matches
# RFC 9110 section 5.5. Folded lines are invalid (RFC 9112 section 5.2).
_TRAILER = re.compile(rb"(%b):[\t\x20-\x7e\x80-\xff]*" % _TOKEN)

# Chunk extensions are ignored. Their total size may exceed the size of the body by at most this.
_EXTENSION_BYTES = 16 * 1024

_SIZE_NEXT, _END_NEXT, _TRAILER_NEXT = "chunk size", "chunk end", "trailer"


class LengthDecoder:
    """Finds the end of a body with a Content-Length (section 6.2).

    :param length: in bytes.
    :ivar left: the number of bytes that have not arrived.
    """

    __slots__ = ("left",)

    trailers: Final = ()

    def __init__(self, length: int) -> None:
        self.left = length

    @property
    def done(self) -> bool:
        """Whether all bytes of the body have arrived."""
        return not self.left

    def decode(
        self, data: bytes, start: int = 0, *, chunks: int = sys.maxsize
    ) -> tuple[bytes, int]:
        """Return the content and the position after it. See :meth:`ChunkDecoder.decode`."""
        content = data[start : start + self.left]
        self.left -= len(content)
        return content, start + len(content)


class ChunkDecoder:
    """Decodes the bytes of a chunked body as they arrive (section 7.1).

    The bytes may be split at any position, and the work is linear. At most one incomplete line is
    stored between two calls. Lines end with CRLF: a bare LF or CR is rejected at once (RFC 9112
    section 2.2).

    :param body_limit: the most bytes of content.
    :param line_limit: the most bytes of a size line or of one trailer, CRLF included.
    :param trailer_limit: the most bytes of the trailer section, with its empty line.
    :param trailer_fields: the most trailers.
    :ivar left: None, because the size of the whole body is unknown.
    :ivar done: whether the body and its trailers have ended.
    :ivar size: the sum of the sizes of all chunks that have begun.
    :ivar trailers: the lines of the trailer section, checked, without CRLF.
    """

    left: Final = None

    def __init__(
        self,
        *,
        body_limit: int = sys.maxsize,
        line_limit: int = 8190,
        trailer_limit: int = 64 * 1024,
        trailer_fields: int = 100,
    ) -> None:
        self._body_limit = body_limit
        self._line_limit = line_limit
        self._is_usual = line_limit >= _USUAL_LINE_BYTES
        self._trailer_bytes = trailer_limit  # bytes of the trailer section that may still arrive
        self._trailer_fields = trailer_fields
        self._extension_bytes = _EXTENSION_BYTES  # _parse_size() adds the body's size
        self._expects = _SIZE_NEXT  # the kind of the line after the chunk's data
        self._left = 0  # bytes of the chunk that have not arrived
        self._partial_line = b""  # the received part of an incomplete line
        self.done = False
        self.size = 0
        self.trailers: list[bytes] = []

    def decode(
        self, data: bytes, start: int = 0, *, chunks: int = sys.maxsize
    ) -> tuple[bytes, int]:
        """Decode received data.

        :param start: the position in `data` to start at.
        :param chunks: stop after this many chunks, so that no call takes long.
        :returns: the content, and the position in `data` where decoding stopped: at the end of
            `data`, at the end of the body, or after the last allowed chunk.
        :raises MalformedRequest: if the body is malformed.
        :raises BodyTooLarge: as soon as the sizes of the chunks exceed the limit.
        """
        content = []
        at = start
        while not self.done:
            if self._left:
                block = data[at : at + self._left]
                content.append(block)
                at += len(block)
                self._left -= len(block)
                if self._left:
                    break
            if chunks <= 0 or at == len(data):
                break
            if self._expects is _END_NEXT and not self._partial_line and self._is_usual:
                usual = _USUAL_GAP.match(data, at)
                if usual is not None:
                    at = usual.end()
                    self._begin_chunk(int(usual[1], 16))
                    chunks -= 1
                    continue
            line, at = self._line(data, at)
            if line is None:
                break
            if self._expects is _SIZE_NEXT:
                self._begin_chunk(self._parse_size(line))
                chunks -= 1
            elif self._expects is _END_NEXT:
                self._expects = _SIZE_NEXT  # _line() has checked that the line is empty
            elif line:
                self._add_trailer(line)
            else:
                self.done = True
        return b"".join(content), at

    def _line(self, data: bytes, at: int) -> tuple[bytes | None, int]:
        """Return the next line, and the position after it. The line is None if it is incomplete."""
        if self._expects is _SIZE_NEXT:
            limit = self._line_limit
        elif self._expects is _END_NEXT:
            limit = len(b"\r\n")
        else:
            limit = min(self._line_limit, self._trailer_bytes)
        limit -= len(b"\n")
        end = data.find(b"\n", at, at + limit + 1)
        line = self._partial_line + data[at : end if end >= 0 else at + limit + 1]
        if len(line) > limit:
            if self._expects is _END_NEXT:
                raise MalformedRequest("a chunk is longer than its size says")
            raise MalformedRequest(
                f"the line of a {self._expects} is longer than {limit + 1} bytes"
            )
        # A CR at the end of an incomplete line may be the start of a CRLF.
        if 0 <= line.find(b"\r") < len(line) - 1 or (end >= 0 and not line.endswith(b"\r")):
            raise MalformedRequest(f"a bare CR or LF in the line of a {self._expects}")
        if self._expects is _END_NEXT and line not in (b"", b"\r"):
            raise MalformedRequest("a chunk is longer than its size says")
        if end < 0:
            self._partial_line = line
            return None, len(data)
        self._partial_line = b""
        return line[:-1], end + 1

    def _parse_size(self, line: bytes) -> int:
        parts = _SIZE_LINE.fullmatch(line)
        if parts is None:
            raise MalformedRequest(f"{line[:100]!r} is not a chunk size")
        self._extension_bytes -= len(parts[2])
        if self._extension_bytes + self.size < 0:
            raise MalformedRequest("the chunk extensions are longer than the body")
        return int(parts[1], 16)

    def _begin_chunk(self, size: int) -> None:
        self.size += size
        if self.size > self._body_limit:
            raise BodyTooLarge(self._body_limit)
        self._left = size
        self._expects = _END_NEXT if size else _TRAILER_NEXT

    def _add_trailer(self, line: bytes) -> None:
        field = _TRAILER.fullmatch(line)
        if field is None:
            raise MalformedRequest(f"{line[:100]!r} is not a trailer")
        if field[1].decode().lower() in NO_TRAILERS:
            raise MalformedRequest(f"{field[1].decode()} must not be a trailer")
        self._trailer_bytes -= len(line) + len(b"\r\n")
        self.trailers.append(line)
        if len(self.trailers) > self._trailer_fields:
            raise MalformedRequest(f"more than {self._trailer_fields} trailers")


BodyDecoder = ChunkDecoder | LengthDecoder
