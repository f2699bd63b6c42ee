"""The wire of asgifast's uvicorn protocols: uvicorn's cycle, with the output queue."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from wsgifast.files import ByteRange
from wsgifast.http.fields import interim_fields
from wsgifast.http.framing import chunk, chunk_size_line
from wsgifast.sockets import FileSegment
from wsgifast.sockets.sending import read_cached

from ..access_line import note_cut_off
from ..loops import BackgroundTask, wait_until_done
from ..messages import (
    COALESCED_BYTES,
    EARLY_HINT,
    PATHSEND,
    STATUSES_WITHOUT_BODY,
    ZEROCOPYSEND,
    Message,
    copied_start,
    response_body,
    without_framing,
)
from ..whole_responses import send_whole, whole_sender_for
from ..wire import DelayedOutput, Wire

if TYPE_CHECKING:
    from ..instrumented import Request

# A file of up to this size is read, and sent in one write with the headers. For larger files, the
# additional system calls of sendfile cost less than the copy.
SMALL_FILE_BYTES = 64 * 1024
# Bodies longer than this are sent in blocks, if the transport would otherwise copy all of the
# bytes. For shorter bodies, blocks would save no memory over TLS.
LARGE_BYTES = 512 * 1024


class QueueWire(Wire):
    """Sends a response through uvicorn's cycle. See :class:`~asgifast.wire.Wire`.

    Most messages are sent by uvicorn. The exceptions are:

    - The headers and the body of a small response are sent in one write.
    - Delayed small parts of a body are framed here, and written into the output queue.
    - A :class:`FileBody` sends a file, and a large body over TLS or HTTP/2. Its remaining bytes may
      be sent after the app has returned.

    FileSending sets the attributes.

    :ivar cycle: uvicorn's RequestResponseCycle.
    :ivar body_sent: a future that is done when the remaining bytes of a body are sent. Later
        messages wait for it. None if no bytes remain.
    :ivar recording: the record of the request, if the next file must report its end to it. Or None.
    """

    # Slots, because each download has this object, and thousands may be slow.
    __slots__ = ("body_sent", "cycle", "forbids_body", "recording")

    is_queue = True
    _body_class: ClassVar[type[FileBody]]
    # With HTTP/2, uvicorn sends early hints itself.
    _is_http1: ClassVar[bool] = True

    body_sent: asyncio.Future[None] | None
    recording: Request | None
    # Whether the status forbids a body.
    forbids_body: bool

    async def send(self, message: Message) -> None:
        if self.body_sent is not None:
            await self.wait_until_sent()
        kind = message["type"]
        if kind == "http.response.body":
            if self.forbids_body:
                message = {**message, "body": b""}
            body = message.get("body", b"")
            if type(body) is bytes and len(body) > LARGE_BYTES and self._needs_blocks(message):
                await self._send_large(body, bool(message.get("more_body")))
            elif message.get("more_body"):
                await self.cycle.send(message)
            else:
                await self._send_in_one_write(message)
        elif kind == "http.response.start":
            await self._send_start(message)
        elif kind == EARLY_HINT and self._is_http1:
            self._send_hints(message)
        else:
            await self.cycle.send(message)

    def send_at_once(self, start: Message, message: Message) -> bool:
        cycle = self.cycle
        if whole_sender_for(cycle.send) is None:
            return False
        return send_whole(cycle, start, message, cycle.transport.write_now)

    async def send_both(self, start: Message, message: Message) -> None:
        if len(message.get("body", b"")) < COALESCED_BYTES:
            await self._send_in_one_write(start, message)
        else:
            await super().send_both(start, message)

    async def _send_in_one_write(self, *messages: Message) -> None:
        """Have uvicorn send messages, and flush its writes together."""
        cycle = self.cycle
        try:
            for each in messages:
                # While send() waits, other responses of the connection may write.
                cycle.transport.flush_follows = not cycle.flow.write_paused
                await cycle.send(each)
        finally:
            cycle.transport.flush_follows = False
            cycle.transport.flush()

    async def _send_start(self, message: Message) -> None:
        cycle = self.cycle
        start, headers, _ = copied_start(message)
        forbids_body = start.get("status") in STATUSES_WITHOUT_BODY and not cycle.response_started
        if forbids_body:
            start["headers"] = without_framing(headers)
        await cycle.send(start)
        self.forbids_body = forbids_body

    def _send_hints(self, message: Message) -> None:
        """Send a 103 response (RFC 8297). Do nothing after the start message, or for HTTP/1.0.

        :raises BodyError: for a malformed link.
        """
        cycle = self.cycle
        is_late = cycle.response_started or cycle.disconnected
        if is_late or cycle.scope["http_version"] != "1.1":
            return
        fields = interim_fields([(b"link", link) for link in message["links"]])
        if fields:
            lines = "".join([f"{name}: {value}\r\n" for name, value in fields])
            cycle.transport.write_now(f"HTTP/1.1 103 Early Hints\r\n{lines}\r\n".encode("latin-1"))

    def has_started(self) -> bool:
        return bool(self.cycle.response_started)

    def has_to_wait(self) -> bool:
        return bool(self.cycle.flow.write_paused)

    def waits_for_client(self) -> bool:
        """Return whether output waits for the client, or the app waits for the request body."""
        cycle = self.cycle
        awaits_body: bool = getattr(cycle.body, "awaited", False)
        return bool(cycle.transport.waits_for_client) or awaits_body

    # Small parts of a body

    def can_write_body(self) -> bool:
        cycle = self.cycle
        return (
            self.body_sent is None
            and cycle.response_started
            and not cycle.response_complete
            and not cycle.flow.write_paused
            and not cycle.disconnected
        )

    def delay(self, output: DelayedOutput) -> None:
        self.cycle.transport.delay(output)

    def write(self, pop_body: Callable[[], bytes]) -> BackgroundTask | None:
        """Write the bytes. If this fails, return a future with the error."""
        body = pop_body()
        if body and not self.cycle.disconnected:
            try:
                self.cycle.transport.write(self.frame(body))
            except Exception as error:  # noqa: BLE001 - the next send() raises it
                future = asyncio.get_running_loop().create_future()
                future.set_exception(error)
                return future
        return None

    def write_body_now(self, body: bytes) -> bool:
        if body:
            self.cycle.transport.write_now(self.frame(body))
        return True

    # Large bodies

    def _needs_blocks(self, message: Message) -> bool:
        """Return whether a large body is written in blocks, as its client reads.

        Otherwise the transport or zttp would copy the whole body at once. A body with a wrong
        length is passed to uvicorn's send(), which raises an error.
        """
        cycle = self.cycle
        if cycle.transport.can_sendfile and self._is_http1:  # no TLS: no copy is made
            return False
        if not cycle.response_started or self.has_ended() or self.has_no_body():
            return False
        declared, size = self.declared(), len(message["body"])
        if declared is None:
            return True
        return size <= declared if message.get("more_body") else size == declared

    async def _send_large(self, data: bytes, more_body: bool) -> None:
        body = self._body_class(self, -1, is_last=not more_body)
        body_sent = await body.send(data)
        if not more_body:
            self.body_sent = body_sent
        elif body_sent is not None:
            await body.wait_until_sent()

    # Files

    def has_ended(self) -> bool:
        return bool(self.cycle.response_complete or self.cycle.disconnected)

    async def send_file(self, fd: int, part: ByteRange, *, more_body: bool = False) -> None:
        """Send a part of a body that is a range of a file.

        :param fd: the descriptor of the file. With the last part, it is closed, perhaps after this
            returns. An earlier part is sent when this returns.
        :param more_body: whether more parts of the body follow.
        """
        recording, cycle, body = self.recording, self.cycle, None
        if not more_body:
            self.recording = None
        try:
            await self.wait_until_sent()
            if self.has_ended() or not cycle.response_started:
                if recording is not None:
                    recording.file_ended(part.size)
                # uvicorn raises an error, or ignores the message
                await cycle.send({"type": ZEROCOPYSEND if more_body else PATHSEND})
                return
            if self.has_no_body():
                part = ByteRange(0, 0)
            body = self._body_class(self, fd, recording, is_last=not more_body)
            body_sent = await body.send(part)
        finally:
            if body is None and not more_body:
                os.close(fd)
        if not more_body:
            self.body_sent = body_sent
            return
        if body_sent is not None:
            await body.wait_until_sent()
        elif cycle.flow.write_paused:
            await cycle.flow.drain()

    async def wait_until_sent(self) -> None:
        """Wait until the remaining bytes of a body are sent."""
        body = self.body_sent
        if body is None:
            return
        try:
            await asyncio.shield(body)  # the app may cancel this send()
        finally:
            if body.done():
                self.body_sent = None

    # The framing and the end of a body. These methods are for httptools and zttp, with which
    # uvicorn's cycle counts the bytes and adds the chunked framing.

    def declared(self) -> int | None:
        """Return the remaining bytes of the Content-Length, or None for a chunked body."""
        cycle = self.cycle
        declared: int = cycle.expected_content_length
        return declared if cycle.chunked_encoding is False else None

    def has_no_body(self) -> bool:
        """Return whether the response has no body. The app's body bytes are then dropped."""
        return self.forbids_body or bool(self.cycle.scope["method"] == "HEAD")

    async def finish(self, data: bytes = b"") -> None:
        """Send the end of the body."""
        await self.cycle.send(response_body(data))
        self.cycle.transport.flush()

    def cut_off(self, error: BaseException | None = None) -> None:
        """Close the connection, and have uvicorn ignore later messages of the app.

        Otherwise, later bytes would look to the client like the missing bytes of the body.

        :param error: the reason. A ConnectionError means that the client has disconnected.
        """
        if not isinstance(error, ConnectionError):
            note_cut_off(self.cycle)
        self.cycle.transport.close()
        self.cycle.disconnected = True

    def frame(self, data: bytes) -> bytes:
        """Count body bytes in uvicorn's cycle. Return the bytes with their framing."""
        if self.cycle.chunked_encoding:
            return chunk(data)
        count(self.cycle, len(data))
        return data

    def framing_for(self, size: int) -> tuple[bytes, bytes]:
        """Count body bytes in uvicorn's cycle. Return the framing before and after them."""
        if self.cycle.chunked_encoding:
            return chunk_size_line(size), b"\r\n"
        count(self.cycle, size)
        return b"", b""


def count(cycle: Any, size: int) -> None:
    """Count body bytes of a response with a Content-Length.

    :raises RuntimeError: if they exceed the Content-Length, with uvicorn's message."""
    if size > cycle.expected_content_length:
        raise RuntimeError("Response content longer than Content-Length")
    cycle.expected_content_length -= size


class FileBody:
    """Sends a part of a body: bytes, or a range of a file.

    :meth:`send` sends as many bytes as the socket accepts. The output queue sends the remaining
    bytes later. So the app can return, and free its memory, long before the client has the last
    byte.

    :param wire: frames the bytes, and sends the end of the body.
    :param fd: the descriptor of the file, or -1. It is closed with the last part.
    :param recording: the recorded request. Its file_ended() gets the number of unsent bytes.
    :param is_last: whether this is the last part, so that the end of the body is sent after it.
    :ivar body_sent: a future that is done when the remaining bytes are sent. It gets an error if
        they cannot be sent. None if no bytes remain.
    """

    # Slots, because each download has this object, and thousands may be slow.
    __slots__ = (
        "_fd", "_framing_after", "_is_last", "_recording", "_unsent", "_wire", "body_sent",
    )  # fmt: skip

    def __init__(
        self, wire: QueueWire, fd: int, recording: Request | None = None, *, is_last: bool
    ) -> None:
        self._wire = wire
        self._fd = fd
        self._recording = recording
        self._is_last = is_last
        # The framing after the part, and the number of its unsent bytes.
        self._framing_after = b""
        self._unsent = 0
        self.body_sent: asyncio.Future[None] | None = None

    async def send(self, part: bytes | ByteRange) -> asyncio.Future[None] | None:
        """Send as much as the socket accepts now. Return `body_sent`."""
        small = self._read_small(part) if self._is_last else None
        try:
            if small is not None:
                await self._wire.finish(small)
            elif await self._begin(part):
                if self._is_last:
                    await self._wire.finish()
            elif self._recording is not None:
                self._recording.is_sent_later = self._is_last
        except ConnectionError as error:
            self._wire.cut_off(error)  # uvicorn ignores later messages, too
        except OSError as error:
            self._wire.cut_off(error)
            raise
        finally:
            if self.body_sent is None:
                self._end_file()
        return self.body_sent

    async def wait_until_sent(self) -> None:
        """Wait until all bytes are sent.

        If the caller is cancelled, cut off the body and wait for the end of its file.
        """
        assert self.body_sent is not None
        try:
            await asyncio.shield(self.body_sent)
        except asyncio.CancelledError:
            self._wire.cut_off()
            await wait_until_done(self.body_sent)
            raise

    async def _begin(self, part: bytes | ByteRange) -> bool:
        """Begin to send a part. Return whether all of it is sent. If not, set `body_sent`."""
        wire = self._wire
        queue = wire.cycle.transport
        small = None if self._is_last else self._read_small(part)
        if small is not None:
            if small:  # an empty chunk would end the body
                queue.write(wire.frame(small))
            return True
        self._unsent = size_of(part)
        before, self._framing_after = wire.framing_for(self._unsent)
        queue.write(before)
        if (
            queue.write_bytes(part, self._on_sent, self._is_last)
            if isinstance(part, bytes)
            else queue.write_file(FileSegment(self._fd, *part), self._on_sent)
        ):
            queue.write(self._framing_after)
            self._unsent = 0
            return True
        self.body_sent = asyncio.get_running_loop().create_future()
        return False

    def _on_sent(self, unsent: int, error: Exception | None) -> None:
        """End the part. The output queue calls this."""
        self._unsent = unsent
        if error is None:
            self._wire.cycle.transport.write(self._framing_after)
        else:
            self._wire.cut_off(error)
        self._end_file()
        body_sent = self.body_sent
        assert body_sent is not None
        if body_sent.done():  # cancelled
            return
        if error is not None and not isinstance(error, ConnectionError):
            body_sent.set_exception(error)
        elif error is None and self._is_last:
            asyncio.get_running_loop().create_task(self._finish(body_sent))
        else:
            body_sent.set_result(None)

    async def _finish(self, body_sent: asyncio.Future[None]) -> None:
        error = None
        try:
            await self._wire.finish()
        except Exception as failure:  # noqa: BLE001 - raised where `body_sent` is awaited
            error = failure
        if not body_sent.done():
            body_sent.set_exception(error) if error is not None else body_sent.set_result(None)

    def _read_small(self, part: bytes | ByteRange) -> bytes | None:
        """Return the bytes of a small part if they are in memory or cached, or None."""
        if isinstance(part, bytes):
            return part if len(part) <= LARGE_BYTES else None
        if part.size > SMALL_FILE_BYTES:
            return None
        if not part.size:
            return b""
        data = read_cached(self._fd, part.offset, part.size)
        return None if data is None or len(data) < part.size else data

    def _end_file(self) -> None:
        if self._is_last and self._fd != -1:
            os.close(self._fd)
        if self._recording is not None and (self._is_last or self._unsent):
            self._recording.file_ended(self._unsent)


def size_of(part: bytes | ByteRange) -> int:
    return len(part) if isinstance(part, bytes) else part.size


QueueWire._body_class = FileBody
