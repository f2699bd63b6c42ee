"""The body of a response from an open file, under uvicorn's protocols."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from wsgifast.files import ByteRange
from wsgifast.http.framing import chunk, chunk_size_line
from wsgifast.sockets import FileSegment
from wsgifast.sockets.sending import read_cached

from ..loops import over
from ..messages import response_body
from .output import DelayedOutput

if TYPE_CHECKING:
    from ..instrumented import Request

# A file up to this size is read, and leaves in one write with the headers. For a larger one
# sendfile's own system calls cost less than the copy that they save.
SMALL_FILE_BYTES = 64 * 1024
# Longer bytes are sent block by block, where the output would copy all of them. For fewer bytes a
# transport over TLS has no less memory then.
LARGE_BYTES = 512 * 1024


class BodyOutput(DelayedOutput):
    """The framing and the end of a body, over httptools and zttp.

    There uvicorn's RequestResponseCycle counts and frames the body itself.

    :ivar cycle: uvicorn's. Its send() gets whole messages.
    """

    __slots__ = ()

    cycle: Any

    async def finish(self, data: bytes = b"") -> None:
        """Send the end of the body."""
        await self.cycle.send(response_body(data))
        self.cycle.transport.flush()

    def cut_off(self) -> None:
        """Close the connection, and have uvicorn ignore later messages of the app.

        The client would take them for the missing bytes, or for the end of the body.
        """
        self.cycle.transport.close()
        self.cycle.disconnected = True

    def frame(self, data: bytes) -> bytes:
        """Have the server count body bytes. Return them in their framing."""
        if self.cycle.chunked_encoding:
            return chunk(data)
        count(self.cycle, len(data))
        return data

    def frame_for(self, size: int) -> tuple[bytes, bytes]:
        """Have the server count body bytes. Return the framing before and after them."""
        if self.cycle.chunked_encoding:
            return chunk_size_line(size), b"\r\n"
        count(self.cycle, size)
        return b"", b""


def count(cycle: Any, size: int) -> None:
    """Count body bytes of a response with a Content-Length."""
    if size > cycle.expected_content_length:
        raise RuntimeError("Response content longer than Content-Length")
    cycle.expected_content_length -= size


class FileBody:
    """A body of bytes, and ranges of one open file, or a part of such a body.

    As much as the socket accepts is sent at once, so that the app can end and free its memory long
    before the client has the last byte. The output queue sends the remaining bytes.

    :param response: has the framing, and sends the body's end.
    :param close: called once, when the file is no longer needed.
    :param recording: records the body's end.
    :param is_whole: the body's end is sent behind it.
    :ivar end: done when the remaining bytes are sent. It has the error. None if there are none.
    """

    # Lives as long as the slowest download, of which there may be thousands.
    __slots__ = (
        "_after", "_close", "_fd", "_is_whole", "_recording", "_response", "_segments", "_unsent",
        "end",
    )  # fmt: skip

    def __init__(
        self,
        response: BodyOutput,
        fd: int,
        close: Callable[[], object] | None = None,
        recording: Request | None = None,
        *,
        is_whole: bool = True,
    ) -> None:
        self._response = response
        self._fd = fd
        self._close = close
        self._recording = recording
        self._is_whole = is_whole
        # The next parts of the body.
        self._segments: Iterator[bytes | ByteRange] = iter(())
        # The framing behind the range that is being sent, and the bytes of it that were not sent.
        self._after = b""
        self._unsent = 0
        self.end: asyncio.Future[None] | None = None

    async def send(self, segments: Sequence[bytes | ByteRange]) -> asyncio.Future[None] | None:
        """Send as much as the socket accepts now. Return the end, if bytes remain."""
        self._segments = iter(segments)
        is_one = self._is_whole and len(segments) == 1
        data = self._read_small(segments[0]) if is_one else None
        try:
            if data is not None:
                next(self._segments)
                await self._response.finish(data)
            elif await self._begin():
                if self._is_whole:
                    await self._response.finish()
            elif self._recording is not None:
                self._recording.is_handed_over = True
        except ConnectionError:
            self._response.cut_off()  # uvicorn ignores later messages, too
        except OSError:
            self._response.cut_off()
            raise
        finally:
            if self.end is None:
                self._close_file()
        return self.end

    async def sent(self) -> None:
        """Wait for the end. If the caller is cancelled, the file is not used any more."""
        assert self.end is not None
        try:
            await asyncio.shield(self.end)
        except asyncio.CancelledError:
            self._response.cut_off()
            await over(self.end)
            raise

    async def _begin(self) -> bool:
        """Return whether all is sent. If not, `end` is set."""
        if self._write_segments():
            return True
        self.end = asyncio.get_running_loop().create_future()
        return False

    def _write_segments(self) -> bool:
        """Write segments, up to a range that takes long. Return whether all were sent."""
        response = self._response
        queue = response.cycle.transport
        queue.write(self._after)
        for segment in self._segments:
            small = self._read_small(segment)
            if small is not None:
                if small:  # an empty chunk would end the body
                    queue.write(response.frame(small))
                continue
            self._unsent = _size_of(segment)
            before, self._after = response.frame_for(self._unsent)
            queue.write(before)
            if not (
                queue.write_bytes(segment, self._on_sent, self._is_whole)
                if isinstance(segment, bytes)
                else queue.write_file(FileSegment(self._fd, *segment), self._on_sent)
            ):
                return False
            queue.write(self._after)
            self._unsent = 0
        return True

    def _on_sent(self, unsent: int, error: Exception | None) -> None:
        """Go on behind a range: called by the queue."""
        self._unsent = unsent
        is_whole = self._is_whole
        if error is None:
            try:
                if not self._write_segments():
                    return
            except Exception as failure:  # noqa: BLE001 - raised by who awaits the end
                error = failure
        self._close_file()
        end = self.end
        assert end is not None
        if error is not None:
            self._response.cut_off()
            is_whole = False
        if end.done():  # cancelled
            return
        if error is not None and not isinstance(error, ConnectionError):
            end.set_exception(error)
        elif is_whole:
            asyncio.get_running_loop().create_task(self._finish(end))
        else:
            end.set_result(None)

    async def _finish(self, end: asyncio.Future[None]) -> None:
        error = None
        try:
            await self._response.finish()
        except Exception as failure:  # noqa: BLE001 - as above
            error = failure
        if not end.done():
            end.set_exception(error) if error is not None else end.set_result(None)

    def _read_small(self, segment: bytes | ByteRange) -> bytes | None:
        """A small segment's bytes, if all of them are in memory or the page cache."""
        if isinstance(segment, bytes):
            return segment if len(segment) <= LARGE_BYTES else None
        if segment.size > SMALL_FILE_BYTES:
            return None
        if not segment.size:
            return b""
        data = read_cached(self._fd, segment.offset, segment.size)
        return None if data is None or len(data) < segment.size else data

    def _close_file(self) -> None:
        close, self._close = self._close, None
        if close is not None:
            close()
            if self._recording is not None:
                self._recording.ended(self._unsent + sum(map(_size_of, self._segments)))


def _size_of(segment: bytes | ByteRange) -> int:
    return len(segment) if isinstance(segment, bytes) else segment.size
