"""Bodies made of byte strings and parts of files.

FastWorker and wsgifast.devservers recognise :class:`SegmentedBody` and send the parts of files by
sendfile; for any other server it is an iterable of large blocks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

from ..sockets.sending import BLOCK_BYTES, FileSegment, FileTruncated
from .files import Closeable, FileSlice

Segment = bytes | FileSegment


class SegmentedBody:
    """A WSGI body made of byte strings and parts of files.

    A server that knows this class sends `segments` in order, those of files by sendfile, and then
    calls close(). For any other server it is an iterable, which reads files in blocks of at most
    BLOCK_BYTES.

    :param segments: in the order in which they are sent.
    :param close: called once, when the server is done with the body.
    :raises FileTruncated: (while iterated) if a file is shorter than its segment.
    """

    def __init__(self, segments: Sequence[Segment], close: Callable[[], object]) -> None:
        self.segments = segments
        self._close: Callable[[], object] | None = close

    def __iter__(self) -> Iterator[bytes]:
        return SegmentedBlocks(self)

    def close(self) -> None:
        close, self._close = self._close, None
        if close is not None:
            close()


class SegmentedBlocks:
    """The iterator of a SegmentedBody, which leads to the body where a framework keeps iter() only.

    :ivar body: None once the first block has been requested.
    """

    def __init__(self, body: SegmentedBody) -> None:
        self.body: SegmentedBody | None = body
        self._blocks = _blocks_of(body.segments)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        self.body = None
        return next(self._blocks)


def _blocks_of(segments: Sequence[Segment]) -> Iterator[bytes]:
    for segment in segments:
        if isinstance(segment, bytes):
            yield segment
            continue
        fd, offset, size = segment
        end = offset + size
        while offset < end:
            block = os.pread(fd, min(BLOCK_BYTES, end - offset), offset)
            if not block:
                raise FileTruncated(end - offset, size)
            offset += len(block)
            yield block


def read_whole(segment: FileSegment) -> bytes:
    """Read a short part of a file in one pread().

    :raises FileTruncated: if the file ends before the segment does.
    """
    fd, offset, size = segment
    data = os.pread(fd, size, offset)
    if len(data) < size:
        raise FileTruncated(size - len(data), size)
    return data


def file_body(segments: Sequence[Segment], file: Closeable) -> FileSlice | SegmentedBody:
    """Return bytes and parts of one file as a body.

    :param segments: at least one of them is a part of `file`.
    :param file: closed with the body.
    """
    parts = [segment for segment in segments if isinstance(segment, FileSegment)]
    if len(segments) == 1:
        return FileSlice(parts[0], file)
    # A slice of all of them, since its close() raises if the file has become shorter.
    start = min(part.offset for part in parts)
    end = max(part.offset + part.size for part in parts)
    whole = FileSlice(FileSegment(parts[0].fd, start, end - start), file)
    return SegmentedBody(segments, whole.close)
