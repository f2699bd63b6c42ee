"""A response on a stream: the semantics of HTTP/1 in HTTP/2's frames (RFC 9113 section 8).

The output of a stream is an OutputQueue with another sender. An HTTP/1 connection's sender sends
until the socket is full. A stream's sender makes frames for the connection's own output queue. It
does so until that queue cannot send all of them, or until a flow-control window of the stream or of
the connection is used up (RFC 9113 section 5.2). All output runs with the connection's lock.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, cast

from h2.exceptions import ProtocolError

from ...errors import BodyError, ClientGone
from ...http.fields import raw_headers, trailer_fields
from ...sockets.sending import BLOCK_BYTES, FileSegment, FileTruncated, view_cached
from ..backlog import Backlog
from ..output import OutputQueue
from ..response import Response, ResponseSettings, header_lines
from ..sending import Owner, Sender, Turn

if TYPE_CHECKING:
    from .multiplexer import Multiplexer

# The minimum size of a read from a disk.
_MIN_READ_BYTES = 4096

Fields = list[tuple[bytes, bytes]]


class HTTP2Response(Response):
    """A :class:`~..response.Response` whose `output` is a :class:`StreamOutput`."""

    def __init__(self, req: Any, output: OutputQueue, settings: ResponseSettings) -> None:
        super().__init__(req, output, settings)
        self._chunks = False
        self._stream = cast(StreamOutput, output)
        self._trailers: Fields = []

    def offer(self, environ: dict[str, Any]) -> None:
        super().offer(environ)
        environ["HTTP_VERSION"] = "2"
        environ["gunicorn.http2.send_trailers"] = self.send_trailers

    def send_trailers(self, trailers: Iterable[Any]) -> None:
        """Set the trailers to send after the body.

        :param trailers: pairs of str or bytes. Fields that must not be trailers are left out.
        :raises BodyError: if a trailer is malformed.
        """
        self._trailers = encoded_headers(trailer_fields(trailers))

    def should_close(self) -> bool:
        return self.must_close  # an HTTP/2 request has no Connection header

    def write_body(self, body: Any, file_wrapper: type) -> None:
        super().write_body(body, file_wrapper)
        if not self.missing:  # an incomplete response is reset instead
            self._stream.end(self.sent, self._trailers)

    def write_all(self, blocks: list[Any] | tuple[Any, ...]) -> None:
        try:
            size = self.sent + sum(map(len, blocks))
        except TypeError:
            pass  # the base class raises an error that names the wrong block
        else:
            length = self.length
            if not self._trailers and (length is None or length <= size):
                # The last DATA frame then has the END_STREAM flag.
                self._stream.stream_sender.ends_after = size if length is None else length
        super().write_all(blocks)

    def _send_hints(self, fields: list[tuple[str, str]]) -> None:
        self._stream.send_interim([(b":status", b"103"), *encoded_headers(fields)])

    def _encoded_headers(self) -> bytes:
        start = self._checked_start()
        if start.code == 101:
            raise BodyError(f"the status is {start.status!r}, which HTTP/2 does not have")
        fields = encoded_headers(start.headers)
        server_name = self.cfg.server_name
        if server_name is not None and not start.has_server:
            fields.append((b"server", server_name.encode("latin-1")))
        if not start.has_date:
            fields.append((b"date", header_lines.date().encode()))
        if self._framing.length is not None:
            fields.append((b"content-length", b"%d" % self._framing.length))
        sender = self._stream.stream_sender
        sender.headers = [(b":status", b"%d" % start.code), *fields]
        if not (self._framing.has_body or self._trailers):
            sender.ends_after = 0  # so that the client need not wait until the app returns
        return b""


def encoded_headers(headers: Iterable[tuple[str, str]]) -> Fields:
    """Encode headers with lower-case names, without Upgrade (RFC 9113 sections 8.2, 8.2.2)."""
    return [field for field in raw_headers(headers) if field[0] != b"upgrade"]


class StreamSender(Sender):
    """Makes the frames of one stream.

    :param number: the number of the stream.
    :ivar headers: the response headers. None after they were sent with the first bytes.
    :ivar has_headers: whether the headers were sent.
    :ivar trailers: the trailers to send after the body.
    :ivar ends_after: the size of the whole body, or None if it is not known yet. An empty queue
        does not mean the end: the writer may be writing further bytes to a temporary file.
    :ivar sent: the number of framed body bytes.
    :ivar has_sent_end: whether END_STREAM was sent.
    """

    __slots__ = (
        "_mux", "_number", "ends_after", "has_headers", "has_sent_end", "headers", "sent",
        "trailers",
    )  # fmt: skip

    def __init__(self, mux: Multiplexer, number: int) -> None:
        self._mux = mux
        self._number = number
        self._wait = None  # most streams never wait for their windows
        self.headers: Fields | None = None
        self.has_headers = False
        self.trailers: Fields = []
        self.ends_after: int | None = None
        self.sent = 0
        self.has_sent_end = False
        self.free_bytes = math.inf  # the connection's own sender limits the socket's buffer

    def prepare_socket(self) -> None:
        """Do nothing: a stream has no socket."""

    def send(self, data: bytes | memoryview) -> int:
        """Send as many bytes as the windows and the connection's queue accept now."""
        mux = self._mux
        self._send_headers()
        size = len(data)
        if size:
            # A window may be negative (RFC 9113 section 6.9.2).
            room = 0 if mux.output.is_waiting else max(0, self._window_bytes())
            size = min(size, room, mux.quantum)
        self._send_data(data[:size], wanted=len(data))
        self._transmit()
        return size

    def take_turn(self, backlog: Backlog, *, after_event: bool = False) -> Turn:
        mux = self._mux
        if self._wait is not None:
            self._wait.end()
        left = mux.quantum
        try:
            self._send_headers()
            while (first := backlog.first) is not None:
                room = 0 if mux.output.is_waiting else min(left, self._window_bytes())
                if room <= 0:
                    return Turn.FULL
                wanted = backlog.size
                data: bytes | memoryview
                if isinstance(first, FileSegment):
                    offset = first.offset + backlog.file_sent
                    size = min(room, first.size - backlog.file_sent, BLOCK_BYTES)
                    read = view_cached(first.fd, offset, size)
                    if read is None:
                        return Turn.DISK
                    if not read:
                        raise FileTruncated(first.size - backlog.file_sent, first.size)
                    data = read
                    backlog.advance_file(len(data), by_kernel=False)
                else:
                    data = _gather(backlog, room)
                left -= len(data)
                self._send_data(data, wanted=wanted)
            self._send_data(b"", wanted=0)
            return Turn.DONE
        finally:
            if not mux.is_pumping:
                self._transmit()

    def send_interim(self, headers: Fields) -> None:
        self._mux.check(self._number)
        self._frame_headers(headers)
        self._mux.transmit()

    def is_blocked(self) -> bool:
        """Return whether the window of the stream or of the connection is used up."""
        return self._window_bytes() <= 0

    def wait_until(self, *, no_memory: bool) -> float:
        if self._mux.frames.stream_window(self._number) > 0:
            return math.inf  # it waits for the connection's window, which has its own deadline
        if self._wait is None:
            self._wait = self._mux.rules.new_wait()
        return self._wait.begin()

    def step_from_disk(self, backlog: Backlog, segment: FileSegment) -> int | bytes:
        # The bytes wait in memory. So this reads no more than the windows accept.
        limit = min(max(self._window_bytes(), _MIN_READ_BYTES), BLOCK_BYTES)
        size = min(segment.size - backlog.file_sent, limit)
        data = os.pread(segment.fd, size, segment.offset + backlog.file_sent)
        if not data:
            raise FileTruncated(segment.size - backlog.file_sent, segment.size)
        return data

    def record_file(self, backlog: Backlog, done: int | bytes) -> None:
        if isinstance(done, bytes):
            backlog.insert_read(done)

    def _window_bytes(self) -> int:
        frames = self._mux.frames
        return min(frames.outbound_flow_control_window, frames.stream_window(self._number))

    def _transmit(self) -> None:
        if self.has_sent_end:
            self._mux.transmit_end()
        else:
            self._mux.transmit()

    def _send_headers(self) -> None:
        if self.has_sent_end:
            return  # the response is complete, even if the client has closed the stream since
        self._mux.check(self._number)
        if self.headers is not None:
            headers, self.headers = self.headers, None
            self.has_headers = True
            self._frame_headers(headers)

    def _frame_headers(self, headers: Fields, *, ends: bool = False) -> None:
        try:
            self._mux.frames.send_headers_frame(self._number, headers, end_stream=ends)
        except ProtocolError as error:  # the client has caused a connection error
            raise ClientGone(str(error)) from error

    def _send_data(self, data: bytes | memoryview, *, wanted: int) -> None:
        """Frame a part of the body, which may be empty. The last part has the END_STREAM flag.

        :param wanted: the number of bytes to send. The windows may have allowed only a part of
            them.
        """
        size = len(data)
        self.sent += size
        ends = self.sent == self.ends_after and not self.has_sent_end
        ends_here = ends and not self.trailers
        if size or ends_here:
            try:
                frames = self._mux.frames.send_body(self._number, data, end_stream=ends_here)
            except ProtocolError as error:  # the client has caused a connection error
                raise ClientGone(str(error)) from error
            # Whether a window has cut the last frame.
            is_cut = size < wanted and self._window_bytes() <= 0
            self._mux.floods.earn_windows(size, frames=frames - is_cut)
        if ends and self.trailers:
            self._frame_headers(self.trailers, ends=True)
        self.has_sent_end = self.has_sent_end or ends
        if self._wait is not None:
            self._wait.moved += size


class StreamOutput(OutputQueue):
    """The output of one stream.

    :ivar stream_sender: the same object as `sender`, with its exact type.
    """

    __slots__ = ("stream_sender",)

    def __init__(self, mux: Multiplexer, owner: Owner, number: int) -> None:
        self.stream_sender = StreamSender(mux, number)
        super().__init__(self.stream_sender, owner, mux.rules, mux.lock)

    def send_interim(self, headers: Fields) -> None:
        """Send the headers of an interim response (RFC 9110 section 15.2).

        :raises ClientGone: if the client has disconnected.
        """
        with self.lock:
            self._check()
            self._or_fail(lambda: self.stream_sender.send_interim(headers))

    def close(self) -> None:
        """Drop all output. The stream and its output then form no cycle, and are freed at once."""
        super().close()
        self.owner = _no_owner

    def lose(self, limit: int) -> int:
        """Count at most `limit` framed bytes as dropped. Return their number."""
        size = min(limit, self.stream_sender.sent)
        self._dropped += size
        return size

    def end(self, size: int, trailers: Fields | None = None) -> None:
        """Send END_STREAM after the last byte, because the whole response was written.

        :param size: the size of the body in bytes.
        :raises ClientGone: if the client has disconnected.
        """
        sender = self.stream_sender
        with self.lock:
            self._check()
            if sender.has_sent_end:
                return
            sender.trailers = trailers or []
            sender.ends_after = size
            if not (self.bytes_queued or self.is_waiting or (self.delayed and self.delayed.blocks)):
                self._or_fail(lambda: sender.send(b""))
                return
        self.write_buffers(())  # sends the delayed blocks

    def _or_fail(self, send: Callable[[], object]) -> None:
        try:
            send()
        except OSError as error:
            self._fail(error)
            raise ClientGone(str(error)) from error


class _NoOwner(Owner):
    """The owner of a closed output."""

    __slots__ = ()

    def wait_to_send(self, deadline: float, *, no_memory: bool) -> None:
        """Do nothing: no output is left."""

    def resume_sending(self) -> None:
        """Do nothing: the stream is over."""


_no_owner = _NoOwner()


def _gather(backlog: Backlog, room: int) -> bytes | memoryview:
    """Remove at most `room` bytes from the front of a backlog, and return them."""
    parts: list[memoryview] = []
    remaining: list[memoryview] = []
    for buffer in backlog.buffers()[0]:
        part = buffer[:room]
        parts.append(part)
        room -= len(part)
        if len(part) < len(buffer):
            remaining.append(buffer[len(part) :])
        if not room:
            break
    backlog.replace_buffers(len(parts), remaining)
    return parts[0] if len(parts) == 1 else b"".join(parts)
