"""Bodies with files: a part of a file, a file to read, and byte strings with parts of files.

If a server has a `wsgi.file_wrapper` (PEP 3333), WSGIFast returns a :class:`FileSlice` in this
wrapper, and the server may use sendfile. FastWorker and wsgifast.devservers know
:class:`SegmentedBody`, and send its parts of files by sendfile. Other servers iterate over a
SegmentedBody, and get large blocks.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Protocol

from ..compression.dictionaries import client_dictionary
from ..errors import BodyTooShort
from ..files import RequestFacts
from ..http.framing import BodyCounter, Framing
from ..http.request_headers import header_key
from ..sockets.sending import (
    BLOCK_BYTES,
    TEMPORARY,
    FileSegment,
    FileTruncated,
    file_segment,
    overrides_reading,
    reads_as,
    regular_segment,
    unwrapped,
)

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

# Packages whose file wrappers follow PEP 3333 ("Optional Platform-Specific File Handling"). They
# send a file from its position, and stop at the Content-Length. The wrappers of uWSGI and bjoern
# send the whole file. The wrapper of meinheld sends all bytes after the position.
_EXACT_WRAPPERS = frozenset({"gunicorn", "mod_wsgi", "waitress", "werkzeug", "wsgifast", "wsgiref"})
# Further classes of files whose read() returns the bytes of their iteration. They are compared by
# name, so that their modules are not imported.
_OTHER_STANDARD = frozenset(
    {"_io.StringIO", "_io.TextIOWrapper"}
    | {"bz2.BZ2File", "gzip.GzipFile", "lzma.LZMAFile", "zipfile.ZipExtFile"}
)
Segment = bytes | FileSegment
# The keys of the environ for the fields of RequestFacts, in order. The fields `method` and
# `dictionary` have no key here.
_CONDITIONS = (
    "HTTP_ACCEPT_ENCODING", "HTTP_RANGE", "HTTP_IF_RANGE", "HTTP_IF_MATCH",
    "HTTP_IF_UNMODIFIED_SINCE", "HTTP_IF_NONE_MATCH", "HTTP_IF_MODIFIED_SINCE",
)  # fmt: skip


class Closeable(Protocol):
    """A file that is read by its descriptor. Only its close() is called."""

    def close(self) -> object: ...


class FileSlice:
    """A part of a regular file, as a file object for `wsgi.file_wrapper`.

    tell() and seek() use positions in the whole file. A server that uses sendfile, such as
    gunicorn, gets the start from the offset of the descriptor, and later passes it to seek(). For a
    server that reads, such as waitress and wsgiref, the file ends at the end of the slice.

    The constructor sets the offset of the descriptor to the start of the slice. read() calls
    pread(), which does not change this offset.

    :param segment: the bytes to send. The descriptor is that of `file`.
    :param file: the file to close when the slice is closed.
    :raises FileTruncated: (from read and close) if the file has become shorter than the slice. The
        server then closes the connection. Otherwise the client would wait for the missing bytes.
    """

    mode = "rb"

    def __init__(self, segment: FileSegment, file: Closeable) -> None:
        self._fd, self._start, size = segment
        self._end = self._start + size
        self._position = self._start
        self._file: Closeable | None = file
        os.lseek(self._fd, self._start, os.SEEK_SET)

    def fileno(self) -> int:
        self._check_open()
        return self._fd

    def read(self, size: int | None = -1, /) -> bytes:
        if self._file is None:
            self._check_open()
        rest = self._end - self._position
        if size is None or size < 0 or size > rest:
            size = rest
        if size <= 0:
            return b""
        data = os.pread(self._fd, size, self._position)
        if not data:
            raise FileTruncated(rest, self._end - self._start)
        self._position += len(data)
        return data

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        base = (0, self._position, self._end)[whence]
        self._position = min(max(self._start, base + offset), self._end)
        return self._position

    def rest(self) -> FileSegment:
        """Return the part that has not been read, for a server that uses sendfile."""
        self._check_open()
        return FileSegment(self._fd, self._position, self._end - self._position)

    def __iter__(self) -> Iterator[bytes]:
        return iter(lambda: self.read(BLOCK_BYTES), b"")

    @property
    def owner(self) -> Closeable | None:
        """The file to close when the slice is closed. None after the slice has been closed."""
        return self._file

    def is_whole_file(self) -> bool:
        """Return whether the slice contains the whole file."""
        return self._start == 0 and self._end == os.fstat(self._fd).st_size

    def after_close(self, call: Callable[[], object]) -> None:
        """Have close() call a function after it has closed the file."""
        if self._file is not None:
            self._file = CloseAndCall(self._file, call)

    def close(self) -> None:
        """Close the file. A second call has no effect."""
        if self._file is None:
            return
        file, self._file = self._file, None
        try:
            size = os.fstat(self._fd).st_size
        finally:
            file.close()
        if size < self._end:
            raise FileTruncated(self._end - size, self._end - self._start)

    def _check_open(self) -> None:
        if self._file is None:
            raise ValueError("this file slice is closed")


def segment_of(file: object) -> FileSegment | None:
    """Return the part of a file that sendfile can send. None if the file has to be read.

    :param file: any object. The result for a :class:`FileSlice` is its unread part.
    """
    if type(file) is FileSlice:
        return file.rest()
    return file_segment(file)


def is_standard(file: object) -> bool:
    """Return whether read() returns the bytes of a file's iteration. See :func:`inspect_file`."""
    return inspect_file(file)[0]


def inspect_file(file: Any, *, iterated: bool = True) -> tuple[bool, FileSegment | None]:
    """Return whether read() returns the bytes of a file's iteration, and the part for sendfile.

    The first result is True for Python's own classes of files. A subclass or an instance may
    override a method. Then :func:`~..sockets.sending.reads_as` decides.

    :param iterated: False for a file that is never iterated. Its iteration may then differ.
    :returns: the second result is None if sendfile cannot send the file.
    """
    kind: Any = type(file)
    if kind is FileSlice:
        return True, file.rest()
    if kind is FileReader:
        return True, None
    if not _may_be_standard(kind):
        return False, None
    inner: Any = unwrapped(file)
    if inner is file and kind in TEMPORARY:
        return False, None  # the instance overrides a method of reading
    if reads_as(inner, io.BufferedReader, io.BufferedRandom, iterated=iterated):
        is_file = reads_as(inner.raw, io.FileIO)
        return is_file, regular_segment(inner) if is_file else None
    if reads_as(inner, io.FileIO, iterated=iterated):
        return True, regular_segment(inner)
    if reads_as(inner, io.BytesIO, iterated=iterated):
        return True, None
    return _is_of_other_standard_class(type(inner)) and not overrides_reading(inner), None


@lru_cache(500)  # limited, because an app may make new classes at each request
def _may_be_standard(kind: Any) -> bool:
    if kind in TEMPORARY or _is_of_other_standard_class(kind):
        return True
    return issubclass(kind, (io.BytesIO, io.FileIO, io.BufferedReader, io.BufferedRandom))


def _is_of_other_standard_class(kind: type) -> bool:
    return f"{kind.__module__}.{kind.__qualname__}" in _OTHER_STANDARD


class FileReader:
    """An object with read(), as a file object for `wsgi.file_wrapper` and as an iterable.

    This class has no fileno(). The descriptor of a gzip or text file has other bytes than its
    read() returns.

    :param file: the object to read. Its read() may return text.
    :param size: the number of bytes to read. None to read to the end.
    :param convert: a function that converts a block to bytes.
    :param owner: the object to close when the reader is closed. By default this is the file.
    :raises BodyTooShort: (from reading) if the file ends before `size` bytes were read.
    """

    def __init__(
        self,
        file: Any,
        size: int | None,
        convert: Callable[[Any], bytes],
        owner: object = None,
    ) -> None:
        self._file = file
        self._owner = file if owner is None else owner
        self._counter = BodyCounter(Framing(True, size, chunked=False))
        self._convert = convert
        # A file that is not seekable may be a pipe or a socket. Its read() waits until it has a
        # whole block. Its read1() returns as soon as some bytes are available.
        seekable = getattr(file, "seekable", None)
        waits = callable(seekable) and not seekable() and _has_read1(file)
        self._read = file.read1 if waits else file.read

    def read(self, size: int | None = -1, /) -> bytes:
        counter = self._counter
        if counter.length is not None:
            size = counter.missing if size is None or size < 0 else min(size, counter.missing)
            if size == 0:
                return b""
        data = self._convert(self._read(-1 if size is None else size))
        if not data and counter.missing:
            raise BodyTooShort(counter.missing)
        return data[: counter.admit(len(data))]  # `size` characters of text may be more bytes

    def __iter__(self) -> Iterator[bytes]:
        return iter(lambda: self.read(BLOCK_BYTES), b"")

    @property
    def sent(self) -> int:
        """The number of bytes that have been read."""
        return self._counter.sent

    def after_close(self, call: Callable[[], object]) -> None:
        """Have close() call a function after it has closed the owner."""
        self._owner = CloseAndCall(self._owner, call)

    def close(self) -> None:
        """Close the owner. A second call has no effect."""
        owner, self._owner = self._owner, None
        close_body(owner)


def in_file_wrapper(
    file: FileSlice | FileReader, file_wrapper: Callable[..., Any] | None
) -> Iterable[bytes]:
    """Return a file in the server's `wsgi.file_wrapper`.

    :param file_wrapper: None if the server has no wrapper. Then the result is the file itself.
    """
    if file_wrapper is None:
        return file
    wrapped: Iterable[bytes] = file_wrapper(file_for_wrapper(file_wrapper, file), BLOCK_BYTES)
    return wrapped


def file_for_wrapper(file_wrapper: object, file: Any) -> Any:
    """Return the file object to put into a server's `wsgi.file_wrapper`.

    This is usually `file`. If `file` is a part of a file, a server outside _EXACT_WRAPPERS could
    send too many bytes. It gets a :class:`FileReader`, which hides the descriptor.
    """
    if type(file) is not FileSlice or file_wrapper is None:
        return file
    module = getattr(file_wrapper, "__module__", None) or ""
    if module.partition(".")[0] in _EXACT_WRAPPERS or file.is_whole_file():
        return file
    return FileReader(file, None, bytes)


def close_body(body: object) -> None:
    """Call the close() of a body or a file, if it has one (PEP 3333)."""
    close = getattr(body, "close", None)
    if callable(close):
        close()


class CloseAndCall:
    """An object whose close() closes a body or a file, and then calls a function."""

    def __init__(self, body: object, call: Callable[[], object]) -> None:
        self._body = body
        self._call = call

    def close(self) -> None:
        try:
            close_body(self._body)
        finally:
            self._call()


def _has_read1(file: object) -> bool:
    """Return whether a file has a read1() other than io.BufferedIOBase's, which only raises."""
    own = getattr(type(file), "read1", None)
    return callable(getattr(file, "read1", None)) and own is not io.BufferedIOBase.read1


def is_in_memory(file: object) -> bool:
    """Return whether all unread bytes of a file are in memory, so that read() never waits."""
    return known_size(file._file if type(file) is FileReader else file) is not None


def known_size(file: object) -> int | None:
    """Return the number of unread bytes of a file in memory. None if the file is not in memory."""
    memory = unwrapped(file)
    if isinstance(memory, io.BytesIO) and reads_as(memory, io.BytesIO, iterated=False):
        return max(0, memory.getbuffer().nbytes - memory.tell())
    return None


def corrects_length(wrapper: object) -> bool:
    """Return whether a server's file wrapper lowers a Content-Length that is too large.

    waitress does this for files that can seek. It then sends the whole file.
    """
    return type(wrapper).__module__ == "waitress.buffers"


def remaining_size(file: Any) -> int | None:
    """Return the number of bytes after a file's position. None if the file cannot seek."""
    seekable = getattr(file, "seekable", None)
    if not callable(seekable) or not seekable():
        return None
    position = file.tell()
    size: int = file.seek(0, os.SEEK_END) - position
    file.seek(position)
    return size


def header_of(environ: WSGIEnvironment, name: str) -> str | None:
    """Return a header of the request by its name. None if the request does not have it."""
    value: str | None = environ.get(header_key(name.upper()))
    return value


def file_request_from(environ: WSGIEnvironment) -> RequestFacts:
    """Return the values of a request that decide about a response with a file."""
    get = environ.get
    available = get("HTTP_AVAILABLE_DICTIONARY")
    dictionary = None
    if available is not None:
        dictionary = client_dictionary(available, partial(header_of, environ))
    # This is RequestFacts(...) without the call of a Python function.
    return tuple.__new__(
        RequestFacts, (get("REQUEST_METHOD", "GET"), *map(get, _CONDITIONS), dictionary)
    )


class SegmentedBody:
    """A WSGI body of byte strings and parts of files.

    A server that knows this class sends the segments in order, and those of files by sendfile. Then
    it calls close(). Other servers iterate over the body. The iterator reads files in blocks of at
    most BLOCK_BYTES.

    :param segments: the byte strings and parts of files, in order.
    :param close: a function that is called once, by the first close().
    :raises FileTruncated: (during iteration) if a file is shorter than its segment.
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
    """The iterator of a SegmentedBody.

    Some frameworks call iter(body), and return only this iterator to the server. Then
    :func:`~.wrappers.unwrapped_body` finds the SegmentedBody.

    :ivar body: the SegmentedBody. None after the first block has been requested.
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
    """Read a short part of a file by one pread().

    :raises FileTruncated: if the file ends before the end of the segment.
    """
    fd, offset, size = segment
    data = os.pread(fd, size, offset)
    if len(data) < size:
        raise FileTruncated(size - len(data), size)
    return data


def file_body(segments: Sequence[Segment], file: Closeable) -> FileSlice | SegmentedBody:
    """Return a body of byte strings and parts of one file.

    :param segments: the byte strings and parts. There is at least one part of `file`.
    :param file: the file to close when the body is closed.
    """
    parts = [segment for segment in segments if isinstance(segment, FileSegment)]
    if len(segments) == 1:
        return FileSlice(parts[0], file)
    # The close() of a slice of all parts raises FileTruncated if the file has become shorter.
    start = min(part.offset for part in parts)
    end = max(part.offset + part.size for part in parts)
    whole = FileSlice(FileSegment(parts[0].fd, start, end - start), file)
    return SegmentedBody(segments, whole.close)
