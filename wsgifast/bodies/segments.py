"""Bodies made of byte strings and runs of files.

Servers of ours recognise :class:`SegmentedBody` and send its runs of files by sendfile; any other
gets an iterable of large blocks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

from ..sockets.sendfile import BLOCK_BYTES, FileSegment, FileTruncated
from .files import Closeable, FileSlice

__all__ = [
    "Segment", "SegmentedBlocks", "SegmentedBody", "file_body", "read_segment", "read_whole",
]  # fmt: skip

Segment = bytes | FileSegment


class SegmentedBody:
    """A WSGI body made of byte strings and runs of files.

    A server that knows this class sends `segments` in order, files by sendfile, and then calls
    close(). Every other server iterates it and meets blocks of at most BLOCK_BYTES of a file.

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
    """A SegmentedBody's blocks; a framework that keeps them alone still shows what they are of.

    :ivar body: None once the first block was asked for.
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
        else:
            yield from read_segment(segment)


def read_segment(segment: FileSegment) -> Iterator[bytes]:
    """Read a run of a file by position, in blocks.

    :raises FileTruncated: if the file ends before the run does.
    """
    fd, offset, size = segment
    end = offset + size
    while offset < end:
        block = os.pread(fd, min(BLOCK_BYTES, end - offset), offset)
        if not block:
            raise FileTruncated(end - offset, size)
        offset += len(block)
        yield block


def read_whole(segment: FileSegment) -> bytes:
    """Read a short run of a file by position, in one call.

    :raises FileTruncated: if the file ends before the run does.
    """
    fd, offset, size = segment
    data = os.pread(fd, size, offset)
    if len(data) < size:
        raise FileTruncated(size - len(data), size)
    return data


def file_body(segments: Sequence[Segment], file: Closeable) -> FileSlice | SegmentedBody:
    """Return bytes and runs of one file as a body.

    :param segments: at least one of them a run of `file`.
    :param file: closed with the body.
    """
    runs = [segment for segment in segments if isinstance(segment, FileSegment)]
    if len(segments) == 1:
        return FileSlice(runs[0], file)
    # At its end a slice knows whether the file has become shorter.
    start = min(run.offset for run in runs)
    end = max(run.offset + run.size for run in runs)
    whole = FileSlice(FileSegment(runs[0].fd, start, end - start), file)
    return SegmentedBody(segments, whole.close)
