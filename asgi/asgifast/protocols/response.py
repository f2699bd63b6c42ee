"""One response under uvicorn's protocols: the app's messages on their way to uvicorn."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from wsgifast.files import ByteRange
from wsgifast.http.fields import interim_fields

from ..coalescing import COALESCED_BYTES, SMALL_MESSAGE_BYTES, DelayedMessages
from ..messages import (
    EARLY_HINT,
    PATHSEND,
    PLANNED,
    RECORDING,
    STATUSES_WITHOUT_BODY,
    UNKNOWN_PATHSEND,
    ZEROCOPYSEND,
    Message,
    PlannedBody,
    RequestedFile,
    RequestedPath,
    SendOrder,
    copied_start,
    forward_start,
    open_for_pathsend,
    parse_pathsend,
    parse_zerocopysend,
    whole_body,
    without_framing,
)
from ..whole_responses import add_sender, send_whole, whole_sender_for
from .file_body import LARGE_BYTES, BodyOutput, FileBody

if TYPE_CHECKING:
    from ..instrumented import Request

logger = logging.getLogger("uvicorn.error")


class Response(BodyOutput):
    """The send() of one request. FileSending sets the attributes. :meth:`begin` sets the others.

    Most responses are a start message with a Content-Length and one message of bytes. The start is
    delayed, as servers delay it (ASGI, "Response Start"), and both leave in one write. ASGIFast,
    with this send(), passes both at once (:meth:`send_both`). Any other message begins the order of
    messages:

    - Small body messages are delayed until the end of the loop's turn or a little longer (see
      Held), and until any other message. In the chunked coding they become one chunk.
    - A file is a :class:`FileBody`. Its remaining bytes may be sent after the app has returned.
      So is a large body over TLS and HTTP/2.
    - uvicorn sends everything else.

    While a send() waits, for the client or for a file, the others wait after it, and no message is
    delayed.

    :ivar cycle: uvicorn's RequestResponseCycle. Its send() gets the other messages.
    :ivar start: the start message that must be sent before the next message.
    :ivar order: of the messages. None while the response is a simple one.
    :ivar body: the end of a body with remaining bytes.
    """

    # Lives as long as the slowest download, of which there may be thousands.
    __slots__ = (
        "_counts",
        "_delayed",
        "_error",
        "_is_empty",
        "body",
        "cycle",
        "end_turn",
        "order",
        "start",
    )  # fmt: skip

    _body_class: ClassVar[type[FileBody]] = FileBody
    # Over HTTP/2 uvicorn sends early hints.
    _is_http1: ClassVar[bool] = True

    start: Message | None
    order: SendOrder | None
    body: asyncio.Future[None] | None
    # None until the first message that may be delayed, and again after the last one.
    _delayed: DelayedMessages | None
    # Whether the server counts messages when they are delayed, since they have a Content-Length.
    # One that is too long is refused alone, then.
    _counts: bool
    # Whether the response may have no body, by its status. Set with the order.
    _is_empty: bool
    # uvicorn's error for delayed messages, which the next send() raises.
    _error: Exception | None

    def begin(self) -> SendOrder:
        """From now on, send messages in order, and delay the small ones."""
        self._delayed = self._error = None
        self._is_empty = False
        self.order = order = SendOrder()
        return order

    async def send(self, message: Message) -> None:
        """The send() that the app is given."""
        cycle = self.cycle
        order = self.order
        if order is None:
            start = self.start
            if start is not None:
                is_body = message["type"] == "http.response.body"
                if is_body:
                    self.start = None
                    if self.send_both(start, message):
                        return
                    whole = whole_body(message)
                    is_small = whole is not None and len(whole) < COALESCED_BYTES
                    is_empty = start.get("status") in STATUSES_WITHOUT_BODY
                    if is_small and not is_empty and not cycle.flow.write_paused:
                        await self._send_in_one_write(start, message)
                        return
                    self.start = start
                order = self.begin()
                if is_body and not cycle.flow.write_paused:
                    await self.send_start()  # which has not to wait
            elif message["type"] == "http.response.start" and not cycle.response_started:
                message, _, is_declared = copied_start(message)
                if is_declared:
                    self.start = message
                    cycle.waiting_for_100_continue = False
                    return
                order = self.begin()
            elif (
                cycle.response_started
                and not cycle.flow.write_paused
                and whole_body(message) == b""
            ):
                await cycle.send(message)  # the end of a body that was sent whole
                return
            else:
                order = self.begin()
        if order.is_taken:
            await order.wait()
        elif (
            "more_body" in message
            and message["more_body"]
            and message["type"] == "http.response.body"
            and type(body := message.get("body", b"")) is bytes
            and self._hold(body)
        ):
            return
        order.is_taken = True
        try:
            await self._send_next(message)
        finally:
            order.release()

    # Headers and body in one write

    def send_both(self, start: Message, message: Message) -> bool:
        """See :func:`~asgifast.whole_responses.send_whole`."""
        cycle = self.cycle
        if whole_sender_for(cycle.send) is None or self.start is not None or self.order is not None:
            return False
        return send_whole(cycle, start, message, cycle.transport.write_now)

    async def _send_in_one_write(self, *messages: Message) -> None:
        """Have uvicorn send messages, and flush its writes at once."""
        cycle = self.cycle
        try:
            for each in messages:
                # If it has to wait, others on the connection may write meanwhile.
                cycle.transport.flush_follows = not cycle.flow.write_paused
                await cycle.send(each)
        finally:
            cycle.transport.flush_follows = False
            cycle.transport.flush()

    # The order of messages

    def _hold(self, body: bytes) -> bool:
        """Delay a small part of the body. Return False if it has to be sent in order."""
        cycle = self.cycle
        if (
            (order := self.order) is None
            or order.is_taken
            or len(body) > SMALL_MESSAGE_BYTES
            or cycle.flow.write_paused
            or (delayed := self._delayed or self._begin_to_delay()) is None
        ):
            return False
        if delayed.to_pass_on:
            delayed.to_pass_on -= 1
            if body and not cycle.disconnected:
                cycle.transport.write_now(self.frame(body))
            return True
        if not delayed.chunks:
            cycle.transport.delay(self)
        if body and self._counts and not cycle.disconnected:
            body = self.frame(body)
        delayed.chunks.append(body)
        delayed.size += len(body)
        if delayed.size >= COALESCED_BYTES:
            self.release()
            cycle.transport.flush()
        return True

    # For ASGIFast, since send() costs more.
    offer = _hold

    def _begin_to_delay(self) -> DelayedMessages | None:
        cycle = self.cycle
        if (
            not cycle.response_started
            or cycle.response_complete
            or cycle.disconnected
            or self.body is not None
            or self._error is not None
            or self.is_bodyless()
        ):
            return None
        self._counts = self._declared() is not None
        delayed = self._delayed = DelayedMessages()
        self.end_turn = delayed.end_turn
        return delayed

    async def _send_next(self, message: Message) -> None:
        """Send a message. Later ones wait."""
        if self.body is not None:
            await self._body_sent()
        kind = message["type"]
        if kind in (PATHSEND, ZEROCOPYSEND):
            await self._send_file(message)
            return
        if kind == EARLY_HINT and self._is_http1:
            self._send_hints(message)
            return
        if self.start is not None:
            await self.send_start()
        cycle = self.cycle
        if kind == "http.response.body":
            if self._is_empty:
                message = {**message, "body": b""}
            body = message.get("body", b"")
            if type(body) is bytes and len(body) > LARGE_BYTES and self._goes_in_blocks(message):
                await self._send_large(body, bool(message.get("more_body")))
                return
            if message.get("more_body"):
                self.write_delayed()
                await cycle.send(message)
                if type(body) is not bytes:
                    cycle.transport.flush()  # its owner may change it in this very turn
                return
            delayed = self._delayed
            # A waiting send() may be cancelled. Delayed messages are not lost then.
            waits = cycle.flow.write_paused
            may_join = delayed is not None and not self._counts and not waits
            if delayed is not None and may_join and delayed.chunks and type(body) is bytes:
                message = {**message, "body": delayed.take(body)}
            self.write_delayed()
            self._delayed = None
            await self._send_in_one_write(message)
        elif kind == "http.response.start":
            await self._send_start(message)
        else:
            self.write_delayed()
            await cycle.send(message)

    # Large bodies

    def _goes_in_blocks(self, message: Message) -> bool:
        """Return whether a large body is handed over in blocks, as its client reads.

        Otherwise the transport, or zttp, would copy all of it at once. uvicorn refuses a body of
        the wrong length.
        """
        cycle = self.cycle
        if cycle.transport.can_sendfile and self._is_http1:  # not over TLS
            return False
        if not cycle.response_started or cycle.response_complete or cycle.disconnected:
            return False
        if self.is_bodyless():
            return False
        declared, size = self._declared(), len(message["body"])
        if declared is None:
            return True
        return size <= declared if message.get("more_body") else size == declared

    async def _send_large(self, data: bytes, more_body: bool) -> None:
        self.write_delayed()
        self._delayed = None
        body = self._body_class(self, -1, is_whole=not more_body)
        segments = [data]
        del data
        end = await body.send(segments)
        segments.clear()  # their iterator would refer to the bytes
        if not more_body:
            self.body = end
        elif end is not None:
            await body.sent()

    async def send_start(self) -> None:
        """Send the app's start message. It stays delayed if this is cancelled."""
        await forward_start(self, self._send_start)

    @property
    def response_started(self) -> bool:
        return bool(self.cycle.response_started)

    @property
    def flow(self) -> Any:
        """uvicorn's, for :func:`~asgifast.messages.has_to_wait`."""
        return self.cycle.flow

    async def _send_start(self, message: Message) -> None:
        cycle = self.cycle
        start, headers, _ = copied_start(message)
        is_empty = start.get("status") in STATUSES_WITHOUT_BODY and not cycle.response_started
        if is_empty:
            start["headers"] = without_framing(headers)
        await cycle.send(start)
        self._is_empty = is_empty

    def _send_hints(self, message: Message) -> None:
        """Send a 103 response (RFC 8297). Do nothing after the start message, or for HTTP/1.0.

        :raises BodyError: for a malformed link.
        """
        cycle = self.cycle
        is_late = self.start is not None or cycle.response_started or cycle.disconnected
        if is_late or cycle.scope["http_version"] != "1.1":
            return
        fields = interim_fields([(b"link", link) for link in message["links"]])
        if fields:
            lines = "".join([f"{name}: {value}\r\n" for name, value in fields])
            cycle.transport.write_now(f"HTTP/1.1 103 Early Hints\r\n{lines}\r\n".encode("latin-1"))

    def waits_for_client(self) -> bool:
        """Return whether output waits until the client reads, or the app waits for its body."""
        cycle = self.cycle
        awaits_body: bool = getattr(cycle.body, "awaited", False)
        return bool(cycle.transport.waits_for_client) or awaits_body

    async def returned(self) -> None:
        """The app has returned: send its delayed messages."""
        if self.start is not None:
            await self.send_start()
        if self.order is not None:
            self.write_delayed()

    async def failed(self) -> None:
        """The app has raised: send its delayed messages."""
        if self.order is None:
            return
        if self._delayed is not None and self._delayed.chunks:
            self.release()
            self.cycle.transport.flush()
        if self.body is not None:
            await self._body_sent()

    def write_delayed(self) -> None:
        """Write delayed messages, before any other message and when the app has returned.

        :raises Exception: uvicorn's error.
        """
        if self._delayed is not None and self._delayed.chunks:
            self.release()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def release(self) -> None:
        """Write delayed messages. The transport calls it too. The next send() raises its error."""
        data = self._delayed.take() if self._delayed is not None else b""
        if not data or self.cycle.disconnected:
            return
        try:
            framed = data if self._counts else self.frame(data)
        except Exception as error:  # noqa: BLE001 - raised by write_delayed()
            self._error = error
            self._delayed = None
            return
        self.cycle.transport.write(framed)

    # Files

    async def _send_file(self, message: Message) -> None:
        """Send a pathsend or zerocopysend message, if it may come here."""
        cycle = self.cycle
        planned: PlannedBody | None = message.get(PLANNED)
        recording: Request | None = message.get(RECORDING)
        is_path = message["type"] == PATHSEND
        is_over = cycle.response_complete or cycle.disconnected
        file = close = requested = None
        fd = size = 0
        segments: Sequence[bytes | ByteRange] = ()
        # Before the headers: if it fails, uvicorn answers with a 500.
        if planned is not None:
            fd, segments, close = planned.file.fileno(), planned.segments, planned.file.close
        elif is_over or cycle.scope["method"] == "HEAD":
            pass
        elif not is_path:
            file = parse_zerocopysend(message)
        elif self.start is not None or cycle.response_started:
            requested = parse_pathsend(message)
            fd, size = open_for_pathsend(requested.path)
            close = partial(os.close, fd)
        try:
            if self.start is not None:
                await self.send_start()
            self.write_delayed()
            self._delayed = None
            if cycle.response_complete or cycle.disconnected or not cycle.response_started:
                if recording is not None:
                    recording.ended(None)
                await cycle.send(message)  # uvicorn raises, or ignores it
            elif not is_path:
                await self._send_zero_copy(message, file)
            elif close is None:
                await self.finish()
            else:
                if self.is_bodyless():
                    segments = ()
                elif requested is not None:
                    segments = (self._range_of(requested, size),)
                body = self._body_class(self, fd, close, recording)
                close = None
                self.body = await body.send(segments)
        finally:
            if close is not None:
                close()

    def _range_of(self, requested: RequestedPath, size: int) -> ByteRange:
        """The range to send of a file of `size` bytes."""
        run = requested.byte_range(size, self._declared())
        if run.offset + run.size > size:
            logger.error(
                "%s has %d bytes where its headers say %d: it has shrunk, or %s",
                requested.path, size, run.offset + run.size, UNKNOWN_PATHSEND,
            )  # fmt: skip
        return run

    async def _send_zero_copy(self, message: Message, file: RequestedFile | None) -> None:
        """Send a part of a file, which is None if the request is a HEAD."""
        if file is not None and not self.is_bodyless():
            fd, *run = file.segment
            body = self._body_class(self, fd, is_whole=False)
            if await body.send([ByteRange(*run)]) is not None:
                await body.sent()
            elif self.cycle.flow.write_paused:
                await self.cycle.flow.drain()
            file.advance()
        if not message.get("more_body", False):
            await self.finish()

    async def _body_sent(self) -> None:
        assert self.body is not None
        body = self.body
        try:
            await asyncio.shield(body)  # the app may cancel this send()
        finally:
            if body.done():
                self.body = None

    # Framing: as over httptools and zttp, where uvicorn's cycle counts and frames the body itself.

    def is_bodyless(self) -> bool:
        """Return whether the response has no body. Body bytes of the app are then dropped."""
        return self._is_empty or bool(self.cycle.scope["method"] == "HEAD")

    def _declared(self) -> int | None:
        """The Content-Length of the sent headers."""
        cycle = self.cycle
        declared: int = cycle.expected_content_length
        return declared if cycle.chunked_encoding is False else None


add_sender(Response, Response.send, Response.send_both)
