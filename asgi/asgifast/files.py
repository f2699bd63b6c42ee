"""Files as ASGI messages: how the files of an app and of StaticFiles are sent on any server.

An app's whole file gets ranges and preconditions here, or goes out as its compressed copy. Reads
happen on the event loop while the page cache has the bytes, else in a thread.
"""

from __future__ import annotations

import io
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from wsgifast.compression.dictionaries import client_dictionary
from wsgifast.files import ByteRange, Plan, RequestFacts
from wsgifast.files.app_files import is_made_for_one_response, plan_file_body
from wsgifast.files.compressed_copies import COPIES, MAX_FILE_BYTES, copy_key
from wsgifast.files.directory import identity_of
from wsgifast.files.plan import UNCONDITIONAL
from wsgifast.sockets import FileSegment, FileTruncated
from wsgifast.sockets.sending import BLOCK_BYTES, read_cached

from .instrumented import note_sent_as
from .loops import ended, in_thread, next_turn, running_loop
from .messages import (
    PATHSEND,
    PLANNED,
    ZEROCOPYSEND,
    Message,
    PlannedBody,
    Receive,
    RequestedPath,
    Scope,
    Send,
    declared_length,
    forward_start,
    open_for_pathsend,
    parse_pathsend,
    parse_zerocopysend,
    response_body,
    text_headers,
)

if TYPE_CHECKING:
    from .content_coding import ContentCoding

# A path that cannot be opened. With the real one, a server that does not know PLANNED would send
# the whole file in place of a part.
_NO_PATH = "/dev/null/asgifast.planned"
# From this size on the client's disconnect is listened for while a file is read and sent.
_WATCHED_FILE_BYTES = 4 * BLOCK_BYTES
# How much of a request body is stored while a file is sent. Beyond it the disconnect is not
# noticed, because to receive more would load an upload of any size into memory.
_STORED_BYTES = 64 * 1024
_STORED_MESSAGES = 64
_VALIDATORS = frozenset({b"etag", b"last-modified"})


class Received:
    """A request's receive(), which also tells the sender of a file about the client's disconnect.

    Messages that the sender receives before that are stored for the app.

    :ivar is_awaited: the app is waiting for a message. Two may not wait at once.
    """

    __slots__ = ("_receive", "_stored", "is_awaited")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._stored: Sequence[Message] = ()
        self.is_awaited = False

    async def receive(self) -> Message:
        """The receive() that the app is given."""
        if self._stored:
            message, *self._stored = self._stored
            return message
        self.is_awaited = True
        try:
            return await self._receive()
        finally:
            self.is_awaited = False

    def has_disconnected(self) -> bool:
        return bool(self._stored) and self._stored[-1]["type"] == "http.disconnect"

    async def listen_for_disconnect(self) -> None:
        """Receive until the client disconnects, or until the limit of stored bytes."""
        while (
            not self.has_disconnected()
            and len(self._stored) < _STORED_MESSAGES
            and sum(len(message.get("body", b"")) for message in self._stored) < _STORED_BYTES
        ):
            message = await self._receive()
            self._stored = (*self._stored, message)  # the app may have taken some meanwhile


class FileSender:
    """Sends the body of one response, or a part of it, from a file by the best way the server has.

    The ways, in this order: asgifast's own extension (PLANNED), pathsend or zerocopysend where the
    server has them, or body messages read from the page cache. Descriptors stay the caller's.

    An app's pathsend and zerocopysend messages are sent by :meth:`send_message`. A whole file then
    answers Range and the preconditions (RFC 9110, sections 13 and 14) where the app has answered
    200.

    :param received: listens for the client's disconnect while a file is read and sent. Servers
        ignore later messages, and the remaining bytes would be read in vain.
    :param coding: of the response, if it may be compressed.
    :param ranges: ASGIFast's option, as `conditional` is.
    :ivar start: the start message, until it is sent. Ranges, or a 304, may change that of a file.
    """

    __slots__ = ("_coding", "_headers", "_options", "_received", "_scope", "_send", "start")

    _headers: Sequence[tuple[bytes, bytes]]

    def __init__(
        self, scope: Scope, received: Received, send: Send, coding: ContentCoding | None = None,
        *, ranges: bool = True, conditional: bool = True,
    ) -> None:  # fmt: skip
        self._scope = scope
        self._received = received
        self._send = send
        self._coding = coding
        self._options: dict[str, Any] = {"ranges": ranges, "conditional": conditional}
        self.start: Message | None = None

    def offers(self, name: str) -> bool:
        """Whether the server has an extension, such as http.response.pathsend."""
        if self._coding is not None and self._coding.compressor is not None:
            return False  # it is compressed, with the rest of the body
        return name in (self._scope.get("extensions") or ())

    def offers_ranges(self) -> bool:
        """Whether the server's http.response.pathsend accepts an offset and a count."""
        if not self.offers(PATHSEND):
            return False
        options = self._scope["extensions"][PATHSEND]
        return isinstance(options, Mapping) and options.get("ranges") is True

    async def send_segments(
        self, segments: Sequence[bytes | ByteRange], fd: int | None, path: str | None = None
    ) -> None:
        """Send a plan's segments as the whole body.

        :param fd: the descriptor of the file that the ranges are of.
        :param path: the same file's absolute path, if the server may open it again.
        """
        if not segments:
            await self._send(response_body())
            return
        if fd is not None and self.offers(PLANNED):
            planned = PlannedBody(io.FileIO(os.dup(fd)), segments, path)
            await self._send({"type": PATHSEND, "path": _NO_PATH, PLANNED: planned})
            return
        last = len(segments) - 1
        if path is not None and not last and not self.offers(ZEROCOPYSEND) and self.offers_ranges():
            run = segments[0]
            if isinstance(run, ByteRange):
                await self.send_path(path, run.offset, run.size)
                return
        for index, segment in enumerate(segments):
            more = index < last
            if isinstance(segment, bytes):
                await self._send(response_body(segment, more_body=more))
            elif fd is not None:
                await self.send_file(fd, segment.offset, segment.size, more_body=more)

    async def send_path(self, path: str, offset: int = 0, count: int | None = None) -> None:
        """Send a file, or a range of it, as the whole body by the server's pathsend."""
        message: Message = {"type": PATHSEND, "path": path}
        if offset:
            message["offset"] = offset
        if count is not None:
            message["count"] = count
        await self._send(message)

    async def send_file(self, fd: int, offset: int, size: int, *, more_body: bool = False) -> None:
        """Send a range of a file by the server's zerocopysend, or read it."""
        if size and self.offers(ZEROCOPYSEND):
            await self._send(
                {
                    "type": ZEROCOPYSEND,
                    "file": fd if self.offers(PLANNED) else io.FileIO(fd, closefd=False),
                    "offset": offset,
                    "count": size,
                    "more_body": more_body,
                }
            )
            return
        send, segment = self._send, FileSegment(fd, offset, size)
        received = self._received
        if size < _WATCHED_FILE_BYTES or received.is_awaited:
            await send_segment(send, segment, more_body=more_body)
            return
        listener = running_loop().create_task(received.listen_for_disconnect())
        left = received.has_disconnected
        try:
            await send_segment(send, segment, more_body=more_body, is_disconnected=left)
            if listener.done():
                await listener  # raises the error of receive()
        finally:
            await ended(listener)

    # An app's messages

    async def send_message(
        self, message: Message, start: Message | None, headers: Sequence[tuple[bytes, bytes]]
    ) -> None:
        """Send a pathsend or zerocopysend message, and the start message before it.

        :param start: the start message, or None if it has been sent. Afterwards the attribute has
            it if the file has failed before it was sent.
        :param headers: the headers of the start message.
        """
        self.start = start
        self._headers = headers
        if self._coding is not None:
            self._coding.expect_file()
        if message["type"] == ZEROCOPYSEND:
            await self._send_zero_copy(message)
        elif PLANNED in message:
            await self._send_planned(message)
        else:
            await self._send_path(parse_pathsend(message))

    async def _send_path(self, requested: RequestedPath) -> None:
        start, coding = self.start, self._coding
        if start is None or not requested.is_whole:
            await self._send_as_requested(requested)
            return
        conditions = self._conditions_to_plan(start)
        declared = declared_length(self._headers)
        may_code = coding is not None and (
            declared is None or coding.file_coding(start, declared) is not None
        )
        if conditions is None and not may_code:
            await self._send_as_requested(requested)
            return
        path = requested.path
        fd, size = open_for_pathsend(path)
        try:
            segment = FileSegment(fd, 0, size if declared is None else declared)
            if (
                may_code
                and segment.size <= size
                and await self._send_compressed_file(path, segment)
            ):
                return
            plan = None
            if conditions is not None:
                headers = text_headers(self._headers)
                plan = plan_file_body(
                    conditions, headers, _NamedFile(path), segment, **self._options
                )
            if plan is None:
                await self._send_as_requested(requested)
            else:
                await self._send_plan(start, plan, fd, path)
        finally:
            os.close(fd)

    def _conditions_to_plan(self, start: Message) -> RequestFacts | None:
        """Return the request's conditions and range, or None if they cannot change the response."""
        is_read = self._scope["method"] in ("GET", "HEAD") and start.get("status") == 200
        if not is_read or not any(self._options.values()):
            return None
        conditions = request_conditions(self._scope)
        names = {name.lower() for name, _ in self._headers}
        if conditions[2:8] == UNCONDITIONAL and b"accept-ranges" in names and names & _VALIDATORS:
            return None  # the plan would be the same
        return conditions

    async def _send_plan(
        self, start: Message, plan: Plan, fd: int | None = None, path: str | None = None
    ) -> None:
        """Send a plan in place of the app's response."""
        headers = list(plan.raw_headers)
        await self._forward_start({**start, "status": plan.status, "headers": headers})
        if path is not None and plan.status == 200 and plan.segments and self.offers(PATHSEND):
            await self.send_path(path)
        else:
            await self.send_segments(plan.segments, fd, path)

    async def _send_compressed_file(self, path: str | None, segment: FileSegment) -> bool:
        """Send a whole file compressed, from a copy or while it is read.

        Return False to send it uncompressed.
        """
        start, coding = self.start, self._coding
        assert start is not None
        assert coding is not None
        name = coding.file_coding(start, segment.size)
        if name is None or segment.size > MAX_FILE_BYTES:
            return False
        conditions = request_conditions(self._scope)
        file, headers = _NamedFile(path or ""), text_headers(start["headers"])
        may_plan = start.get("status") == 200 and conditions.method in ("GET", "HEAD")
        if may_plan and not is_made_for_one_response(file, segment.fd, coding.began_ns):
            identity = identity_of(os.fstat(segment.fd))
            copy = COPIES.cached(copy_key(identity, segment.offset, segment.size, name))
            if copy is None:
                copy = await in_thread(COPIES.get, segment, name)
            if copy is not None and copy.body is None:
                return False
            if copy is not None:
                plan = plan_file_body(
                    conditions, headers, file, segment, copy=copy, **self._options
                )
                if plan is None:
                    return False
                note_sent_as(self._scope, "copy")
                await self._send_plan(start, plan)
                return True
        if may_plan:
            requested = coding.restored_conditions(conditions)._replace(range=None)
            plan = plan_file_body(
                requested, headers, file, segment, began_ns=coding.began_ns, **self._options
            )
            if plan is not None and plan.status != 200:
                await self._send_plan(start, plan)
                return True
        coding.is_file = False
        note_sent_as(self._scope, "blocks")
        await self._forward_start()
        if conditions.method == "HEAD":
            await self._send(response_body())
        else:
            await self.send_file(*segment)
        return True

    async def _send_as_requested(self, requested: RequestedPath) -> None:
        """Send the file and the headers unchanged."""
        is_head = self._scope["method"] == "HEAD"
        if self.offers(PATHSEND) if requested.is_whole else self.offers_ranges():
            if not self.offers(PLANNED) and not is_head:
                # Other servers send the headers before they open the file.
                os.close(open_for_pathsend(requested.path)[0])
            await self._forward_start()
            await self.send_path(requested.path, requested.offset, requested.count)
            return
        if is_head:
            await self._forward_start()
            await self._send(response_body())
            return
        note_sent_as(self._scope, "blocks")
        fd, size = open_for_pathsend(requested.path)
        try:
            await self._forward_start()
            run = requested.byte_range(size, declared_length(self._headers))
            await self.send_file(fd, run.offset, run.size)
        finally:
            os.close(fd)

    async def _send_planned(self, message: Message) -> None:
        file, segments, path = message[PLANNED]
        try:
            if self._coding is not None and self.start is not None and len(segments) == 1:
                run = segments[0]
                if isinstance(run, ByteRange) and await self._send_compressed_file(
                    path, FileSegment(file.fileno(), run.offset, run.size)
                ):
                    return
            await self._forward_start()
            if self.offers(PLANNED):
                await self._send(message)
                file = None  # the receiver closes it
            else:
                await self.send_segments(segments, file.fileno(), path)
        finally:
            if file is not None:
                file.close()

    async def _send_zero_copy(self, message: Message) -> None:
        if self.offers(PLANNED):  # asgifast's own middleware or protocol
            await self._forward_start()
            await self._send(message)
            return
        more = bool(message.get("more_body", False))
        if self._scope["method"] == "HEAD":
            await self._forward_start()
            if not more:
                await self._send(response_body())
            return
        note_sent_as(self._scope, "blocks")
        file = parse_zerocopysend(message)
        await self._forward_start()
        await self.send_file(*file.segment, more_body=more)
        file.advance()

    async def _forward_start(self, planned: Message | None = None) -> None:
        await forward_start(self, self._send, planned)


class _NamedFile(NamedTuple):
    """The file as plan_file_body wants it."""

    name: str


_FIELDS = {
    name.replace("_", "-").encode(): name
    for name in RequestFacts._fields
    if name not in ("method", "dictionary")
} | {b"available-dictionary": "dictionary"}


def request_conditions(scope: Scope) -> RequestFacts:
    """Return the method, Range, preconditions and dictionary of an http scope.

    Headers of the same name are joined (RFC 9110, section 5.3).
    """
    found: dict[str, Any] = {}
    repeated: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        field = _FIELDS.get(name)
        if field is not None:
            text = value.decode("latin-1")
            if field in found:
                repeated.setdefault(field, [found[field]]).append(text)
            else:
                found[field] = text
    for field, values in repeated.items():
        found[field] = ", ".join(values)  # once: one by one would take quadratic time
    available = found.pop("dictionary", None)
    if available is None:
        return RequestFacts(scope["method"], **found)
    headers: dict[bytes, bytes] = dict(scope["headers"])

    def header(name: str) -> str | None:
        value = headers.get(name.lower().encode())
        return None if value is None else value.decode("latin-1")

    return RequestFacts(scope["method"], **found, dictionary=client_dictionary(available, header))


async def read_block(fd: int, offset: int, size: int) -> bytes:
    """Read up to `size` bytes, at most BLOCK_BYTES. Return b"" only at the end of the file."""
    block = read_cached(fd, offset, size)
    if block is None:
        block = await in_thread(os.pread, fd, size, offset)
    return block


async def send_segment(
    send: Send,
    segment: FileSegment,
    *,
    more_body: bool,
    is_disconnected: Callable[[], bool] | None = None,
    room: Callable[[], Awaitable[int]] | None = None,
) -> None:
    """Send a range of an open file as body messages.

    :param more_body: of the last message. It is True in all others.
    :param is_disconnected: called before each block. If it returns True, nothing more is sent.
    :param room: returns the most bytes of the next block, once the client has room for them.
    :raises FileTruncated: if the file ends early. The response is then shorter than declared.
    """
    fd, offset, size = segment
    end = offset + size
    while offset < end:
        if is_disconnected is not None and is_disconnected():
            return
        most = BLOCK_BYTES if room is None else min(await room(), BLOCK_BYTES)
        block = await read_block(fd, offset, min(most, end - offset))
        if not block:
            raise FileTruncated(end - offset, size)
        offset += len(block)
        await send(response_body(block, more_body=more_body or offset < end))
        if offset < end:
            # Neither the read nor the server's send() need have suspended: let other requests run,
            # and the disconnect be noticed.
            await next_turn()
    if size == 0 and not more_body:
        await send(response_body())
