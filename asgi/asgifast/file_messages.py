"""What ASGIFast does with an app's pathsend and zerocopysend messages."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from wsgifast.files import ByteRange
from wsgifast.files.app_files import is_made_for_one_answer, plan_coded_file, plan_file_body
from wsgifast.files.coded_copies import COPIES, MAX_FILE_BYTES
from wsgifast.files.directory import identity_of
from wsgifast.files.plan import UNCONDITIONAL
from wsgifast.sockets import FileSegment

from .content_coding import ContentCoding
from .files import (
    FileSender,
    Received,
    RequestedPath,
    open_for_pathsend,
    parse_pathsend,
    parse_zerocopysend,
    request_facts,
    send_unsized,
)
from .instrumented import note_sent_as
from .loops import in_thread
from .messages import (
    PATHSEND,
    PLANNED,
    ZEROCOPYSEND,
    Message,
    Scope,
    Send,
    declared_length,
    forward_start,
    response_body,
    text_headers,
)

_VALIDATORS = frozenset({b"etag", b"last-modified"})


class _NamedFile(NamedTuple):
    """The file as plan_file_body wants it."""

    name: str


class FileMessages:
    """Sends what an app sends as pathsend and zerocopysend messages of one response.

    A file is sent by the server's extensions, or read. A whole file answers Range and the
    preconditions (RFC 9110, sections 13 and 14) where the app has answered 200.

    :param coding: of the response, if it may be compressed.
    :param ranges: ASGIFast's option, as `conditional` is.
    :ivar start: the head, if it has not been sent: that of a file may still change.
    """

    __slots__ = (
        "_coding", "_conditional", "_headers", "_ranges", "_scope", "_send", "_sender", "start",
    )  # fmt: skip

    start: Message | None

    def __init__(
        self, scope: Scope, received: Received, send: Send, coding: ContentCoding | None,
        *, ranges: bool, conditional: bool,
    ) -> None:  # fmt: skip
        self._sender = FileSender(scope, received, send, coding)
        self._scope = scope
        self._send = send
        self._coding = coding
        self._ranges = ranges
        self._conditional = conditional
        self.start = None

    async def send(
        self, message: Message, start: Message | None, headers: Sequence[tuple[bytes, bytes]]
    ) -> None:
        """Send a message, and the head before it.

        :param start: the head; None if it has been sent. Afterwards the attribute has it if the
            message has failed and the head has not been sent.
        :param headers: those of the head.
        """
        self.start = start
        self._headers = headers
        if message["type"] == ZEROCOPYSEND:
            await self._send_zero_copy(message)
        elif PLANNED in message:
            await self._send_planned(message)
        else:
            await self._send_path(message)

    async def _forward_start(self, planned: Message | None = None) -> None:
        await forward_start(self, self._send, planned)

    async def _send_path(self, message: Message) -> None:
        asked = parse_pathsend(message)
        start, coding = self.start, self._coding
        if (
            coding is not None
            and start is not None
            and asked.is_whole
            and coding.file_coding(start) is not None
        ):
            fd, size = open_for_pathsend(asked.path)
            try:
                declared = declared_length(self._headers)
                segment = FileSegment(fd, 0, size if declared is None else declared)
                is_all_there = declared is None or declared <= size
                if is_all_there and await self._send_coded_file(coding, asked.path, segment):
                    return
            finally:
                os.close(fd)
        if start is None or start.get("status") != 200 or not asked.is_whole or not self._plans():
            await self._send_as_asked(asked)
            return
        facts = request_facts(self._scope)
        names = {name.lower() for name, _ in self._headers}
        if facts[2:8] == UNCONDITIONAL and b"accept-ranges" in names and names & _VALIDATORS:
            await self._send_as_asked(asked)  # the plan would be the same
            return
        path = asked.path
        fd, size = open_for_pathsend(path)
        try:
            declared = declared_length(self._headers)
            plan = plan_file_body(
                facts,
                text_headers(self._headers),
                _NamedFile(path),
                FileSegment(fd, 0, size if declared is None else declared),
                ranges=self._ranges,
                conditional=self._conditional,
            )
            if plan is None:
                await self._send_as_asked(asked)
                return
            await self._forward_start(
                {**start, "status": plan.status, "headers": list(plan.raw_headers)}
            )
            if plan.status == 200 and plan.segments and self._sender.offers(PATHSEND):
                await self._sender.send_path(path)
            else:
                await self._sender.send_segments(plan.segments, fd, path)
        finally:
            os.close(fd)

    async def _send_coded_file(
        self, coding: ContentCoding, path: str | None, segment: FileSegment
    ) -> bool:
        """Send a whole file compressed, from a copy or as it is read; False to send it as it is."""
        start = self.start
        assert start is not None
        name = coding.file_coding(start, segment.size)
        if name is None or segment.size > MAX_FILE_BYTES:
            return False
        facts = request_facts(self._scope)
        file, headers = _NamedFile(path or ""), text_headers(start["headers"])
        may_plan = start.get("status") == 200 and facts.method in ("GET", "HEAD")
        options = {"ranges": self._ranges, "conditional": self._conditional}
        if may_plan and not is_made_for_one_answer(file, segment.fd, coding.began_ns):
            identity = identity_of(os.fstat(segment.fd))
            copy = COPIES.kept(identity, segment.offset, segment.size, name)
            if copy is None:
                copy = await in_thread(COPIES.get, segment, name)
            if copy is not None and copy.body is None:
                return False
            if copy is not None:
                plan = plan_coded_file(facts, headers, file, segment, copy, name, **options)
                if plan is None:
                    return False
                note_sent_as(self._scope, "copy")
                await self._forward_start(
                    {**start, "status": plan.status, "headers": list(plan.raw_headers)}
                )
                await self._sender.send_segments(plan.segments, None)
                return True
        if may_plan:
            asked = coding.restored_facts(facts)._replace(range=None)
            plan = plan_file_body(
                asked, headers, file, segment, began_ns=coding.began_ns, **options
            )
            if plan is not None and plan.status != 200:
                await self._forward_start(
                    {**start, "status": plan.status, "headers": list(plan.raw_headers)}
                )
                await self._sender.send_segments(plan.segments, None)
                return True
        coding.leave_file(leaves=False)
        note_sent_as(self._scope, "blocks")
        await self._forward_start()
        if facts.method == "HEAD":
            await self._send(response_body())
        else:
            await self._sender.send_file(*segment)
        return True

    def _plans(self) -> bool:
        wanted = self._ranges or self._conditional
        return wanted and self._scope["method"] in ("GET", "HEAD")

    async def _send_as_asked(self, asked: RequestedPath) -> None:
        """Send the file and the head unchanged."""
        if self._sender.offers(PATHSEND) if asked.is_whole else self._sender.offers_ranges():
            if not self._sender.offers(PLANNED) and self._scope["method"] != "HEAD":
                # Other servers send the head before they look.
                os.close(open_for_pathsend(asked.path)[0])
            await self._forward_start()
            await self._sender.send_path(asked.path, asked.offset, asked.count)
            return
        if self._scope["method"] == "HEAD":
            await self._forward_start()
            await self._send(response_body())
            return
        note_sent_as(self._scope, "blocks")
        fd, size = open_for_pathsend(asked.path)
        try:
            await self._forward_start()
            run = asked.byte_range(size, declared_length(self._headers))
            await self._sender.send_file(fd, run.offset, run.size)
        finally:
            os.close(fd)

    async def _send_planned(self, message: Message) -> None:
        file, segments, path = message[PLANNED]
        try:
            if self._coding is not None and self.start is not None and len(segments) == 1:
                run = segments[0]
                if isinstance(run, ByteRange) and await self._send_coded_file(
                    self._coding, path, FileSegment(file.fileno(), run.offset, run.size)
                ):
                    return
            await self._forward_start()
            if self._sender.offers(PLANNED):
                await self._send(message)
                file = None  # the receiver closes it
            else:
                await self._sender.send_segments(segments, file.fileno(), path)
        finally:
            if file is not None:
                file.close()

    async def _send_zero_copy(self, message: Message) -> None:
        if self._sender.offers(PLANNED):  # asgifast's own middleware or protocol
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
        if file.segment is None:
            await send_unsized(self._send, file.fd, message.get("count"))
            if not more:
                await self._send(response_body())
            return
        await self._sender.send_file(*file.segment, more_body=more)
        file.advance()
