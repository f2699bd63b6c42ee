"""The responses with a file: its Range and preconditions, its coding, and who sends it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from ..files.app_files import FrontServer, is_made_for_one_answer, plan_file_body
from ..files.coded_copies import COPIES, MAX_FILE_BYTES
from ..http.headers import Headers
from ..sockets.sending import FileSegment
from .access_log import SENT_AS
from .classify import closes_no_more_than
from .content_coding import ContentCoding
from .files import (
    FileReader,
    FileSlice,
    SegmentedBody,
    corrects_length,
    file_body,
    in_file_wrapper,
    known_size,
    request_facts,
    segment_of,
    size_left,
)
from .held_head import HeldHead
from .streams import ClosedWith


class FileResponses(NamedTuple):
    """Sends the files that an app returns; see :class:`wsgifast.WSGIFast` for the options."""

    ranges: bool
    conditional: bool
    front_server: FrontServer | None

    def send(self, head: HeldHead, file: Any, owner: Any) -> Iterable[bytes]:
        """Send a file from its position: by its descriptor, or by reading it.

        :param owner: closed when the file has been sent.
        """
        if head.forwarded and not head.no_body:
            # write() was used. The server counts what was written towards the Content-Length; its
            # sendfile may not, so the rest is sent in blocks too.
            head.environ[SENT_AS] = "blocks"
            size = None if head.length is None else head.counter().missing
            rest = FileReader(file, size, head.convert, owner)
            return rest if head.coding is None else ClosedWith(head.coding.flushed(rest), rest)
        segment = segment_of(file)
        if head.length is not None and corrects_length(owner):
            size = size_left(file)
            if size and size < head.length:
                head.correct_length(size)
        if segment is None or (head.length is not None and head.length > segment.size):
            in_memory = known_size(file)
            if head.length is None:
                head.set_length(in_memory)
            reader = FileReader(file, head.length, head.convert, owner)
            if head.coding is not None:
                # One that is too short fails behind its head, as it does uncompressed.
                is_all_there = in_memory is not None and in_memory >= (head.length or 0)
                size = head.length if is_all_there else None
                return _send_coded(head, head.coding, reader, size)
            if head.no_body:
                return send_nothing(head, owner)
            return _wrap(head, reader)
        if head.length is not None:
            segment = segment._replace(size=head.length)
        answer = self._answer(head, file, segment, owner)
        if answer is not None:
            return answer
        if head.length is None:
            head.set_length(segment.size)
        if head.no_body:
            return send_nothing(head, owner)
        return _wrap(head, FileSlice(segment, owner))

    def _answer(
        self, head: HeldHead, file: Any, segment: FileSegment, owner: Any
    ) -> Iterable[bytes] | None:
        """Compress a file, and apply Range and preconditions to a 200; None to send it as it is."""
        facts = request_facts(head.environ)
        may_plan = head.code == 200 and facts.method in ("GET", "HEAD")
        # A slice is an answer already: of an inner StaticFiles or WSGIFast, or of an app that has
        # applied Range by itself.
        is_answer = type(file) is FileSlice
        if (
            self.front_server is not None
            and may_plan
            and not is_answer
            and not is_made_for_one_answer(file, segment.fd, head.began_ns)
            and closes_no_more_than(owner, file)
        ):
            headers = self.front_server.hand_over(head.headers, file, segment)
            if headers is not None:
                head.headers = headers
                return send_nothing(head, owner, "accel")
        options: dict[str, Any] = {"ranges": self.ranges, "conditional": self.conditional}
        began_ns = head.began_ns
        coding = head.coding
        name = None if coding is None else _file_coding(head, coding, segment)
        copy = plan = None
        if name is not None and may_plan and not is_made_for_one_answer(file, segment.fd, began_ns):
            copy = COPIES.get(segment, name)
        if coding is not None and name is not None and copy is not None and copy.body is not None:
            asked = facts._replace(if_none_match=coding.if_none_match, if_match=coding.if_match)
            plan = plan_file_body(asked, head.headers, file, segment, copy=copy, **options)
            if plan is not None and plan.segments:
                coding.note(name, segment.size, sum(map(len, plan.segments)))
        elif may_plan and not is_answer and (self.ranges or self.conditional):
            plan = plan_file_body(facts, head.headers, file, segment, began_ns=began_ns, **options)
        is_body_left = plan is None or plan.status in (200, 206, 416)
        if coding is not None and name is not None and copy is None and is_body_left:
            if head.length is None:
                head.set_length(segment.size)
            return _send_coded(head, coding, FileSlice(segment, owner), segment.size)
        if plan is None:
            return None
        if plan.status != 200:  # the app's own phrase stays
            head.status = plan.status_line
            head.code = plan.status
        head.headers = Headers(plan.headers)
        if coding is not None and plan.status == 304:
            head.headers = coding.begin(304, head.headers)
        parts = plan.segments_of(segment.fd, segment.offset)
        if not parts:
            return send_nothing(head, owner)
        if isinstance(parts[0], bytes) and len(parts) == 1:
            head.forward()
            head.environ[SENT_AS] = "copy"
            return ClosedWith(parts, owner)  # type: ignore[arg-type]  # the copy is in memory
        body = file_body(parts, owner)
        if isinstance(body, SegmentedBody):
            return pass_on(head, body)
        return _wrap(head, body)


def send_nothing(head: HeldHead, body: Any, sent_as: str = "no-body") -> Iterable[bytes]:
    """Send the head alone, and close the app's body."""
    if not head.forwarded:  # write() does that
        head.forward()
    head.environ[SENT_AS] = sent_as
    # With one empty chunk servers send the head without adding a Content-Length.
    return ClosedWith((b"",), body)


def pass_on(head: HeldHead, body: Any) -> Iterable[bytes]:
    """Pass on a body that the server recognises."""
    if head.no_body:
        return send_nothing(head, body)
    if not head.forwarded:
        head.forward()
    head.environ[SENT_AS] = "segments" if type(body) is SegmentedBody else "file"
    passed: Iterable[bytes] = body
    return passed


def _file_coding(head: HeldHead, coding: ContentCoding, segment: FileSegment) -> str | None:
    """Return the coding to send a file in; None to send it as it is."""
    decision = coding.decide(head.code, head.headers, segment.size)
    if decision is None:
        return None
    if decision.coding is None:
        head.headers = decision.headers
    else:
        head.headers = head.headers.with_vary()
    return decision.coding if segment.size <= MAX_FILE_BYTES else None


def _send_coded(
    head: HeldHead, coding: ContentCoding, reader: FileSlice | FileReader, size: int | None
) -> Iterable[bytes]:
    """Send what has to be read compressed, if its head allows it.

    :param size: None for what may have to be waited for.
    """
    blocks: Iterable[bytes] = reader
    if size is not None:
        blocks = head.compress_whole(head.decide_whole(size), reader, size)
    else:
        head.headers = coding.begin(head.code, head.headers)
        if coding.compressor is not None:
            blocks = coding.flushed(reader)
    if head.no_body:
        return send_nothing(head, reader)
    if blocks is reader:
        return _wrap(head, reader)
    head.forward()
    head.environ[SENT_AS] = "blocks"
    return ClosedWith(blocks, reader)


def _wrap(head: HeldHead, reader: FileSlice | FileReader) -> Iterable[bytes]:
    """Put a file into the server's own wrapper, if it has one."""
    head.forward()
    wrapper = head.environ.get("wsgi.file_wrapper")
    head.environ[SENT_AS] = "blocks" if wrapper is None else "file"
    return in_file_wrapper(reader, wrapper)
