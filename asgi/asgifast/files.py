"""Send files of apps and of StaticFiles on any server.

For a whole file of an app, this module also handles Range and preconditions, or sends the
compressed copy of the file.
"""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from wsgifast.compression.dictionaries import client_dictionary
from wsgifast.files import ByteRange, Plan, RequestFacts
from wsgifast.files.app_files import is_made_for_one_response, plan_file_body
from wsgifast.files.compressed_copies import COPIES, MAX_FILE_BYTES, copy_key
from wsgifast.files.directory import identity_of
from wsgifast.files.plan import UNCONDITIONAL
from wsgifast.sockets import FileSegment
from wsgifast.sockets.sending import BLOCK_BYTES

from .file_blocks import SharedReceive, send_segment
from .instrumented import note_sent_as
from .loops import cancel_and_wait, in_thread, running_loop
from .messages import (
    PATHSEND,
    PATHSEND_ADVICE,
    ZEROCOPYSEND,
    Message,
    RequestedPath,
    Scope,
    Send,
    declared_length,
    open_for_pathsend,
    parse_pathsend,
    parse_zerocopysend,
    response_body,
    text_headers,
)

if TYPE_CHECKING:
    from .content_coding import ContentCoding
    from .protocols.queue_wire import QueueWire

logger = logging.getLogger("uvicorn.error")

# While a file of at least this size is read and sent, asgifast listens for a disconnect.
_WATCHED_FILE_BYTES = 4 * BLOCK_BYTES
_VALIDATORS = frozenset({b"etag", b"last-modified"})


class FileSender:
    """Sends the body of one response, or a part of it, from a file, as fast as the server can.

    A FileSender uses the output queue of asgifast's protocols if possible. Otherwise it uses the
    server's zerocopysend or pathsend. If the server has neither, it sends blocks of the file as
    body messages. The caller closes descriptors.

    For an app's pathsend and zerocopysend messages, use :meth:`send_message`. If the app sends a
    whole file with status 200, Range and the preconditions are handled (RFC 9110, sections 13 and
    14).

    :param shared_receive: listens for the client's disconnect while a file is read and sent. After
        a disconnect, servers ignore messages, so the remaining bytes are not read. None if this
        FileSender reads no file.
    :param coding: the content coding of the response, if it may be compressed.
    :param queue: the wire of asgifast's protocols. None if middleware or another server receives
        the messages.
    :param ranges: ASGIFast's option of this name, like `conditional`.
    """

    __slots__ = (
        "_coding", "_direct_queue", "_forward_start", "_headers", "_options", "_scope", "_send",
        "_shared_receive", "_start",
    )  # fmt: skip

    _start: Message | None
    _headers: Sequence[tuple[bytes, bytes]]
    _forward_start: Callable[..., Awaitable[None]]

    def __init__(
        self, scope: Scope, shared_receive: SharedReceive | None, send: Send,
        coding: ContentCoding | None = None, *, queue: QueueWire | None = None,
        ranges: bool = True, conditional: bool = True,
    ) -> None:  # fmt: skip
        self._scope = scope
        self._shared_receive = shared_receive
        self._send = send
        self._coding = coding
        # If the response is compressed, the file is not sent by this queue.
        self._direct_queue = queue
        self._options: dict[str, Any] = {"ranges": ranges, "conditional": conditional}

    @property
    def _queue(self) -> QueueWire | None:
        if self._coding is not None and self._coding.compressor is not None:
            return None
        return self._direct_queue

    def offers(self, name: str) -> bool:
        """Return whether an extension of the server, such as pathsend, sends files."""
        if self._direct_queue is not None:
            return False
        if self._coding is not None and self._coding.compressor is not None:
            return False  # the response is compressed
        return name in (self._scope.get("extensions") or ())

    def path_may_have(self, option: str) -> bool:
        """Return whether the server's pathsend has an option: "ranges" or "files"."""
        if not self.offers(PATHSEND):
            return False
        options = self._scope["extensions"][PATHSEND]
        return isinstance(options, Mapping) and options.get(option) is True

    async def send_segments(
        self, segments: Sequence[bytes | ByteRange], fd: int | None, path: str | None = None
    ) -> None:
        """Send the segments of a plan as the whole body.

        :param fd: the descriptor of the file to which the ranges refer.
        :param path: the absolute path of that file, if the server may open it again.
        """
        if not segments:
            await self._send(response_body())
            return
        if fd is not None and self.path_may_have("files"):
            file = io.FileIO(os.dup(fd))
            path = path or f"/dev/fd/{file.fileno()}"
            await self._send({"type": PATHSEND, "path": path, "file": file, "parts": segments})
            return
        last = len(segments) - 1
        if path is not None and not last and not self.offers(ZEROCOPYSEND):
            byte_range = segments[0]
            if isinstance(byte_range, ByteRange) and self.path_may_have("ranges"):
                await self.send_path(path, byte_range.offset, byte_range.size)
                return
        for index, segment in enumerate(segments):
            more = index < last
            if isinstance(segment, bytes):
                await self._send(response_body(segment, more_body=more))
            elif fd is not None:
                await self.send_file(fd, segment.offset, segment.size, more_body=more)

    async def send_path(self, path: str, offset: int = 0, count: int | None = None) -> None:
        """Send a file, or a range of it, as the whole body, through the server's pathsend."""
        message: Message = {"type": PATHSEND, "path": path}
        if offset:
            message["offset"] = offset
        if count is not None:
            message["count"] = count
        await self._send(message)

    async def send_file(self, fd: int, offset: int, size: int, *, more_body: bool = False) -> None:
        """Send a range of a file: by the queue, by the server's zerocopysend, or in blocks."""
        queue = self._queue
        if queue is not None:
            own = fd if more_body else os.dup(fd)  # the caller closes `fd` soon
            await queue.send_file(own, ByteRange(offset, size), more_body=more_body)
            return
        if size and self.offers(ZEROCOPYSEND):
            await self._send(
                {
                    "type": ZEROCOPYSEND,
                    "file": io.FileIO(fd, closefd=False),
                    "offset": offset,
                    "count": size,
                    "more_body": more_body,
                }
            )
            return
        send, segment = self._send, FileSegment(fd, offset, size)
        shared_receive = self._shared_receive
        if size < _WATCHED_FILE_BYTES or shared_receive is None or shared_receive.is_awaited:
            await send_segment(send, segment, more_body=more_body)
            return
        listener = running_loop().create_task(shared_receive.listen_for_disconnect())
        is_disconnected = shared_receive.has_disconnected
        try:
            await send_segment(send, segment, more_body=more_body, is_disconnected=is_disconnected)
            if listener.done():
                await listener  # raises an error of receive()
        finally:
            await cancel_and_wait(listener)

    # Messages of an app

    async def send_message(
        self,
        message: Message,
        start: Message | None,
        headers: Sequence[tuple[bytes, bytes]],
        forward_start: Callable[..., Awaitable[None]],
    ) -> None:
        """Send the file of a pathsend or zerocopysend message, and first the start message.

        :param start: the start message, or None if it has been sent.
        :param headers: the headers of the start message.
        :param forward_start: sends the start message, or its argument `planned` instead, such as a
            206 or a 304.
        """
        self._start = start
        self._headers = headers
        self._forward_start = forward_start
        if self._direct_queue is not None and self._direct_queue.has_ended():
            if "parts" in message:
                message["file"].close()
            await self._send(message)  # the server raises an error, or ignores the message
            return
        if self._coding is not None:
            self._coding.expect_file()
        if message["type"] == ZEROCOPYSEND:
            await self._send_zero_copy(message)
        elif "parts" in message:
            await self._send_open_file(message)
        else:
            await self._send_path(parse_pathsend(message))

    async def _send_path(self, requested: RequestedPath) -> None:
        start, coding = self._start, self._coding
        if start is None or not requested.is_whole:
            await self._send_as_requested(requested)
            return
        file_request = self._file_request_to_plan(start)
        if file_request is None and coding is None:
            await self._send_as_requested(requested)
            return
        declared = declared_length(self._headers)
        may_compress = coding is not None and (
            declared is None or coding.file_coding(start, declared) is not None
        )
        if file_request is None and not may_compress:
            await self._send_as_requested(requested)
            return
        path = requested.path
        fd, size = open_for_pathsend(path)
        try:
            segment = FileSegment(fd, 0, size if declared is None else declared)
            if may_compress and await self._send_compressed_file(path, segment):
                return
            plan = None
            if file_request is not None:
                headers = text_headers(self._headers)
                plan = plan_file_body(
                    file_request, headers, _NamedFile(path), segment, **self._options
                )
            if plan is None:
                await self._send_as_requested(requested)
            else:
                await self._send_plan(start, plan, fd, path)
        finally:
            os.close(fd)

    def _file_request_to_plan(self, start: Message) -> RequestFacts | None:
        """Return the request's conditions and Range, or None if they cannot change the response."""
        may_plan = self._scope["method"] in ("GET", "HEAD") and start.get("status") == 200
        if not may_plan or not any(self._options.values()):
            return None
        file_request = file_request_from(self._scope)
        names = {name.lower() for name, _ in self._headers}
        if file_request[2:8] == UNCONDITIONAL and b"accept-ranges" in names and names & _VALIDATORS:
            return None  # the plan would equal the app's response
        return file_request

    async def _send_plan(
        self, start: Message, plan: Plan, fd: int | None = None, path: str | None = None
    ) -> None:
        """Send a plan in place of the app's status, headers and body."""
        headers = list(plan.raw_headers)
        await self._forward_start(planned={**start, "status": plan.status, "headers": headers})
        if path is not None and plan.status == 200 and plan.segments and self.offers(PATHSEND):
            await self.send_path(path)
        else:
            await self.send_segments(plan.segments, fd, path)

    async def _send_compressed_file(self, path: str, segment: FileSegment) -> bool:
        """Send a whole file compressed: its compressed copy, or blocks that are compressed now.

        Return False if the file must be sent uncompressed.
        """
        start, coding = self._start, self._coding
        assert start is not None
        assert coding is not None
        name = coding.file_coding(start, segment.size)
        if name is None or segment.size > MAX_FILE_BYTES:
            return False
        stat_result = os.fstat(segment.fd)
        if segment.offset + segment.size > stat_result.st_size:
            return False
        file_request = file_request_from(self._scope)
        file, headers = _NamedFile(path), text_headers(start["headers"])
        may_plan = start.get("status") == 200 and file_request.method in ("GET", "HEAD")
        if may_plan and not is_made_for_one_response(file, segment.fd, coding.began_ns):
            identity = identity_of(stat_result)
            copy = COPIES.cached(copy_key(identity, segment.offset, segment.size, name))
            if copy is None:
                copy = await in_thread(COPIES.get, segment, name)
            if copy is not None and copy.body is None:
                return False
            if copy is not None:
                plan = plan_file_body(
                    file_request, headers, file, segment, copy=copy, **self._options
                )
                if plan is None:
                    return False
                note_sent_as(self._scope, "copy")
                await self._send_plan(start, plan)
                return True
        if may_plan:
            requested = coding.file_request_for_app(file_request)._replace(range=None)
            plan = plan_file_body(
                requested, headers, file, segment, began_ns=coding.began_ns, **self._options
            )
            if plan is not None and plan.status != 200:
                await self._send_plan(start, plan)
                return True
        coding.is_file = False
        note_sent_as(self._scope, "blocks")
        await self._forward_start()
        if file_request.method == "HEAD":
            await self._send(response_body())
        else:
            await self.send_file(*segment)
        return True

    async def _send_as_requested(self, requested: RequestedPath) -> None:
        """Send the file and the headers unchanged."""
        is_head = self._scope["method"] == "HEAD"
        if self.offers(PATHSEND) if requested.is_whole else self.path_may_have("ranges"):
            if not is_head:
                # Raise an error now. Other servers send the headers before they open the file.
                os.close(open_for_pathsend(requested.path)[0])
            await self._forward_start()
            await self.send_path(requested.path, requested.offset, requested.count)
            return
        if is_head:
            await self._forward_start()
            await self._send(response_body())
            return
        fd, size = open_for_pathsend(requested.path)
        try:
            await self._forward_start()
            queue = self._queue
            if queue is None:
                declared = declared_length(self._headers)
            else:
                declared = queue.declared() if queue.has_started() else None
            byte_range = requested.byte_range(size, declared)
            if queue is not None:
                if byte_range.offset + byte_range.size > size:
                    _log_shrunk(requested.path, size, byte_range)
                own, fd = fd, -1
                await queue.send_file(own, byte_range)
                return
            note_sent_as(self._scope, "blocks")
            await self.send_file(fd, byte_range.offset, byte_range.size)
        finally:
            if fd != -1:
                os.close(fd)

    async def _send_open_file(self, message: Message) -> None:
        with message["file"] as file:
            fd, parts = file.fileno(), message["parts"]
            if self._coding is not None and self._start is not None and len(parts) == 1:
                part = parts[0]
                if isinstance(part, ByteRange) and await self._send_compressed_file(
                    message["path"], FileSegment(fd, *part)
                ):
                    return
            await self._forward_start()
            await self.send_segments(parts, fd)

    async def _send_zero_copy(self, message: Message) -> None:
        if self.path_may_have("files"):  # by an outer ASGIFast or its server
            await self._forward_start()
            await self._send(message)
            return
        more = bool(message.get("more_body", False))
        if self._scope["method"] == "HEAD":
            await self._forward_start()
            if not more:
                await self._send(response_body())
            return
        if self._queue is None:
            note_sent_as(self._scope, "blocks")
        file = parse_zerocopysend(message)
        await self._forward_start()
        await self.send_file(*file.segment, more_body=more)
        file.advance()


def _log_shrunk(path: str, size: int, byte_range: ByteRange) -> None:
    logger.error(
        "%s has %d bytes, but its headers declare %d. The file has shrunk, or %s",
        path, size, byte_range.offset + byte_range.size, PATHSEND_ADVICE,
    )  # fmt: skip


class _NamedFile(NamedTuple):
    """An object with the name of the file, for :func:`plan_file_body`."""

    name: str


_FIELDS = {
    name.replace("_", "-").encode(): name
    for name in RequestFacts._fields
    if name not in ("method", "dictionary")
} | {b"available-dictionary": "dictionary"}


def file_request_from(scope: Scope) -> RequestFacts:
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
        # Joined once, because repeated concatenation takes quadratic time.
        found[field] = ", ".join(values)
    available = found.pop("dictionary", None)
    if available is None:
        return RequestFacts(scope["method"], **found)
    headers: dict[bytes, bytes] = dict(scope["headers"])

    def header(name: str) -> str | None:
        value = headers.get(name.lower().encode())
        return None if value is None else value.decode("latin-1")

    return RequestFacts(scope["method"], **found, dictionary=client_dictionary(available, header))
