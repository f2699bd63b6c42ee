"""What ASGIFast does with an app's pathsend and zerocopysend messages."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from wsgifast.file_answers import plan_file_body
from wsgifast.sockets import FileSegment

from ..extensions import PLANNED
from ..instrumented import INSTRUMENTED
from ..messages import PATHSEND, Message, declared_length, response_body, text_headers
from ..servers import has_head
from .delivery import Delivery
from .parsing import RequestedPath, open_for_pathsend, parse_pathsend, parse_zerocopysend
from .reading import send_unsized
from .request import UNCONDITIONAL, request_facts

if TYPE_CHECKING:
    from ..middleware import ASGIFast

_VALIDATORS = frozenset({b"etag", b"last-modified"})


class _NamedFile(NamedTuple):
    """The file as plan_file_body wants it."""

    name: str


class FileMessages(Delivery):
    """A response whose body, or a part of it, may be a file.

    A file is sent by the server's extensions, or read. A whole file answers Range and the
    preconditions (RFC 9110, sections 13 and 14) where the app has answered 200.

    :ivar _start: the head while it is held: that of a file may still change.
    :ivar _headers: those of the head.
    """

    __slots__ = ("_headers", "_options", "_start")

    _options: ASGIFast
    _headers: Sequence[tuple[bytes, bytes]]
    _start: Message | None

    async def _forward_start(self, planned: Message | None = None) -> None:
        """Send the head, if it is held; if this is given up before uvicorn has it, it still is.

        :param planned: what is sent in its place.
        """
        start, self._start = self._start, None
        if start is None:
            return
        send = self._server_send
        try:
            await send(start if planned is None else planned)
        except Exception:
            raise
        except BaseException:
            if has_head(send) is False:
                self._start = start
            raise

    def _note_sent_as(self, sent_as: str) -> None:
        if INSTRUMENTED in self._scope:
            self._scope[INSTRUMENTED].sent_as = sent_as

    async def _send_path(self, message: Message) -> None:
        start = self._start
        asked = parse_pathsend(message)
        if start is None or start.get("status") != 200 or not asked.is_whole or not self._plans():
            await self._send_as_asked(asked)
            return
        facts = request_facts(self._scope)
        names = {name.lower() for name, _ in self._headers}
        if facts[2:] == UNCONDITIONAL and b"accept-ranges" in names and names & _VALIDATORS:
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
                ranges=self._options.ranges,
                conditional=self._options.conditional,
            )
            if plan is None:
                await self._send_as_asked(asked)
                return
            await self._forward_start(
                {**start, "status": plan.status, "headers": list(plan.raw_headers)}
            )
            if plan.status == 200 and plan.segments and self.offers(PATHSEND):
                await self.send_path(path)
            else:
                await self.send_segments(plan.segments, fd, path)
        finally:
            os.close(fd)

    def _plans(self) -> bool:
        wanted = self._options.ranges or self._options.conditional
        return wanted and self._scope["method"] in ("GET", "HEAD")

    async def _send_as_asked(self, asked: RequestedPath) -> None:
        """Send the file and the head unchanged."""
        if self.offers(PATHSEND) if asked.is_whole else self.offers_ranges():
            if not self.offers(PLANNED) and self._scope["method"] != "HEAD":
                # Other servers send the head before they look.
                os.close(open_for_pathsend(asked.path)[0])
            await self._forward_start()
            await self.send_path(asked.path, asked.offset, asked.count)
            return
        if self._scope["method"] == "HEAD":
            await self._forward_start()
            await self._server_send(response_body())
            return
        self._note_sent_as("blocks")
        fd, size = open_for_pathsend(asked.path)
        try:
            await self._forward_start()
            run = asked.byte_range(size, declared_length(self._headers))
            await self.send_file(fd, run.offset, run.size)
        finally:
            os.close(fd)

    async def _send_planned(self, message: Message) -> None:
        file, segments, path = message[PLANNED]
        try:
            await self._forward_start()
            if self.offers(PLANNED):
                await self._server_send(message)
                file = None  # the receiver closes it
            else:
                await self.send_segments(segments, file.fileno(), path)
        finally:
            if file is not None:
                file.close()

    async def _send_zero_copy(self, message: Message) -> None:
        if self.offers(PLANNED):  # asgifast's own middleware or protocol
            await self._forward_start()
            await self._server_send(message)
            return
        more = bool(message.get("more_body", False))
        if self._scope["method"] == "HEAD":
            await self._forward_start()
            if not more:
                await self._server_send(response_body())
            return
        self._note_sent_as("blocks")
        file = parse_zerocopysend(message)
        await self._forward_start()
        if file.segment is None:
            await send_unsized(self._server_send, file.fd, message.get("count"))
            if not more:
                await self._server_send(response_body())
            return
        await self.send_file(*file.segment, more_body=more)
        file.advance()
