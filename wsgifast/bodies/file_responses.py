"""Responses of an app with a file: Range, preconditions, compression, and the front server.

:class:`FileResponses` calls its steps in order. The first step that returns an iterable decides the
response. If every step returns None, the file is sent unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..compression.response import Decision
from ..files.app_files import (
    FrontServer,
    describe_file_body,
    is_made_for_one_response,
    plan_file_body,
)
from ..files.compressed_copies import COPIES, MAX_FILE_BYTES
from ..files.plan import UNCONDITIONAL, Plan
from ..http.headers import Headers
from ..sockets.sending import FileSegment
from .access_log import SENT_AS
from .body import ClosedWith, File, Segments
from .files import (
    FileReader,
    FileSlice,
    SegmentedBody,
    corrects_length,
    file_body,
    file_request_from,
    in_file_wrapper,
    known_size,
    remaining_size,
)
from .start_response import AppResponse
from .wrappers import closes_no_more_than


class _Request:
    """A response with a file that sendfile can send.

    :ivar owner: the object to close after the file has been sent.
    :ivar may_plan: whether the app has responded to GET or HEAD with 200. Only such a response may
        be changed by Range and the preconditions.
    :ivar is_part: whether the app has already chosen a part of the file. The app may be a
        StaticFiles or a WSGIFast, or may apply Range.
    :ivar decision: the decision about compression. None to send the file uncompressed.
    :ivar coding: the content coding of the response. None to send the file uncompressed.
    """

    def __init__(self, response: AppResponse, file: Any, segment: FileSegment, owner: Any) -> None:
        self.response = response
        self.file = file
        self.segment = segment
        self.owner = owner
        self.file_request = file_request = file_request_from(response.environ)
        self.may_plan = response.code == 200 and file_request.method in ("GET", "HEAD")
        self.is_part = type(file) is FileSlice
        self.decision: Decision | None = None
        self.coding: str | None = None

    def is_single_use(self) -> bool:
        """Return whether the file was made for this response."""
        return is_made_for_one_response(self.file, self.segment.fd, self.response.began_ns)


class FileResponses:
    """Sends the files that an app returns. See :class:`wsgifast.WSGIFast` for the options.

    :ivar steps: functions that are called in order for each response with a file.
    """

    def __init__(
        self, *, ranges: bool, conditional: bool, front_server: FrontServer | None
    ) -> None:
        self._options: dict[str, Any] = {"ranges": ranges, "conditional": conditional}
        self._front_server = front_server
        self.steps: list[Callable[[_Request], Iterable[bytes] | None]] = [self._copy]
        if front_server is not None:
            self.steps.insert(0, self._by_front_server)
        if ranges or conditional:
            self.steps.append(self._conditional)
        self.steps.append(self._compressed)

    def send(self, response: AppResponse, body: File) -> Iterable[bytes]:
        """Return the iterable that sends a file from its current position to its end."""
        file, owner, segment = body.content, body.to_close, body.segment
        if response.forwarded and not response.no_body:
            # The app has called write(). The server counts the written bytes, but may ignore them
            # when it sends a file. So the file is sent in blocks, up to the Content-Length.
            response.environ[SENT_AS] = "blocks"
            size = None if response.length is None else response.counter().missing
            rest = FileReader(file, size, response.convert, owner)
            return (
                rest if response.coding is None else ClosedWith(response.coding.flushed(rest), rest)
            )
        if segment is None or (response.length is not None and response.length > segment.size):
            if response.length is not None and corrects_length(owner):
                size = remaining_size(file)
                if size and size < response.length:
                    response.correct_length(size)
            if segment is None or (response.length is not None and response.length > segment.size):
                return _send_read(response, body)
        if response.length is not None:
            segment = segment._replace(size=response.length)
        request = _Request(response, file, segment, owner)
        for step in self.steps:
            blocks = step(request)
            if blocks is not None:
                return blocks
        body.segment = segment
        if response.length is None:
            response.set_length(body.length)
        if response.no_body:
            return send_nothing(response, owner)
        return body.for_server(_forwarded(response, body.sent_as))

    def _by_front_server(self, request: _Request) -> Iterable[bytes] | None:
        """Add the header that makes the front server send the file, if it may send it."""
        response, file, owner = request.response, request.file, request.owner
        assert self._front_server is not None
        if (
            not request.may_plan
            or request.is_part
            or request.is_single_use()
            or not closes_no_more_than(owner, file)
        ):
            return None
        headers = self._front_server.delegate(response.headers, file, request.segment)
        if headers is None:
            return None
        response.headers = headers
        return send_nothing(response, owner, "accel")

    def _copy(self, request: _Request) -> Iterable[bytes] | None:
        """Decide about compression. Send the compressed copy of the file if one is cached."""
        response, segment = request.response, request.segment
        request.decision = decision = response.decide_whole(segment.size, pages=False)
        if decision is None:
            return None
        headers = response.headers
        if decision.coding is None:
            response.headers = decision.apply(headers)
            return None
        response.headers = headers = headers.with_vary()
        if segment.size > MAX_FILE_BYTES:
            return None
        request.coding = decision.coding
        if not request.may_plan or request.is_single_use():
            return None
        copy = COPIES.get(segment, decision.coding)
        if copy is None:
            return None
        request.coding = None
        if copy.body is None:
            return None
        coding = response.coding
        assert coding is not None
        file_request = request.file_request._replace(
            if_none_match=coding.if_none_match, if_match=coding.if_match
        )
        plan = plan_file_body(
            file_request, headers, request.file, segment, copy=copy, **self._options
        )
        if plan is None:
            return None
        if plan.segments:
            coding.note(decision.coding, segment.size, sum(map(len, plan.segments)))
        return _send_plan(request, plan)

    def _conditional(self, request: _Request) -> Iterable[bytes] | None:
        """Apply Range and the preconditions. Add an ETag and Accept-Ranges to a 200."""
        if not request.may_plan or request.is_part:
            return None
        response = request.response
        headers = response.headers
        described = describe_file_body(
            request.file_request,
            headers,
            request.file,
            request.segment,
            began_ns=response.began_ns,
            **self._options,
        )
        if described is None:
            return None
        if described.file_request[2:8] != UNCONDITIONAL:
            plan = described.plan()
            # A body that is compressed while it is sent has no ranges.
            if plan.status in (304, 412) or (plan.status != 200 and request.coding is None):
                return _send_plan(request, plan)
        if request.coding is None:
            headers[:] = described.headers
        return None

    def _compressed(self, request: _Request) -> Iterable[bytes] | None:
        """Compress the file while it is sent."""
        if request.coding is None:
            return None
        response, size = request.response, request.segment.size
        assert response.coding is not None
        decision = response.coding.refine(request.decision, response.code, response.headers)
        if response.length is None:
            response.set_length(size)
        reader = FileSlice(request.segment, request.owner)
        return _send_compressed(response, reader, size, decision)


def send_nothing(response: AppResponse, body: Any, sent_as: str = "no-body") -> Iterable[bytes]:
    """Send only the headers. The server then closes the app's body."""
    response.environ[SENT_AS] = sent_as
    if not response.forwarded:  # write() does that
        response.forward()
    # With one empty chunk, servers send the headers without adding a Content-Length.
    return ClosedWith((b"",), body)


def _send_plan(request: _Request, plan: Plan) -> Iterable[bytes]:
    """Send the planned response in place of the app's response."""
    response = request.response
    if plan.status != 200:  # a 200 keeps the app's reason phrase
        response.status = plan.status_line
        response.code = plan.status
    response.headers = Headers(plan.headers)
    if response.coding is not None and plan.status == 304:
        decision = response.coding.decide_page(304, response.headers)
        if decision is not None:
            response.headers = decision.apply(response.headers)
    parts = plan.segments_of(request.segment.fd, request.segment.offset)
    if not parts:
        return send_nothing(response, request.owner)
    if isinstance(parts[0], bytes) and len(parts) == 1:
        response.environ[SENT_AS] = "copy"
        response.forward()
        return ClosedWith(parts, request.owner)  # type: ignore[arg-type]  # the copy is in memory
    body = file_body(parts, request.owner)
    if isinstance(body, SegmentedBody):
        response.environ[SENT_AS] = Segments.sent_as
        response.forward()
        return body
    return in_file_wrapper(body, _forwarded(response))


def _send_read(response: AppResponse, body: File) -> Iterable[bytes]:
    """Send a file that has to be read, because sendfile cannot send it."""
    file, owner = body.content, body.to_close
    in_memory = known_size(file)
    if response.length is None:
        response.set_length(in_memory)
    reader = FileReader(file, response.length, response.convert, owner)
    if response.compression is not None:
        # If the file is shorter than its Content-Length, it must not be compressed as a whole:
        # reading would fail before the headers are sent.
        is_complete = in_memory is not None and in_memory >= (response.length or 0)
        if is_complete and response.length is not None:
            return _send_compressed(
                response, reader, response.length, response.decide_whole(response.length)
            )
        return _send_compressed(response, reader, None, None)
    if response.no_body:
        return send_nothing(response, owner)
    return in_file_wrapper(reader, _forwarded(response, body.sent_as))


def _send_compressed(
    response: AppResponse,
    reader: FileSlice | FileReader,
    size: int | None,
    decision: Decision | None,
) -> Iterable[bytes]:
    """Send a file that is read, compressed if its headers allow that.

    :param size: the size of the file in bytes. None if the file is not in memory, or if it is
        shorter than its Content-Length. This function decides about compression then.
    :param decision: the decision about compression. It is ignored if `size` is None.
    """
    blocks: Iterable[bytes] = reader
    if size is not None:
        if decision is not None:
            blocks = response.compress_whole(decision, reader, size)
    else:
        coding = response.coding
        assert coding is not None
        response.headers = coding.begin(response.code, response.headers)
        if coding.compressor is not None:
            blocks = coding.flushed(reader)
    if response.no_body:
        return send_nothing(response, reader)
    if blocks is reader:
        return in_file_wrapper(reader, _forwarded(response))
    response.environ[SENT_AS] = "blocks"
    response.forward()
    return ClosedWith(blocks, reader)


def _forwarded(response: AppResponse, sent_as: str = File.sent_as) -> Callable[..., Any] | None:
    """Forward the headers of a file. Return the server's `wsgi.file_wrapper`, or None."""
    wrapper: Callable[..., Any] | None = response.environ.get("wsgi.file_wrapper")
    response.environ[SENT_AS] = "blocks" if wrapper is None else sent_as
    response.forward()
    return wrapper
