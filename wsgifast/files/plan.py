"""What to answer: a request's facts and a file's in; status, headers and segments out.

The order is RFC 9110's (section 13.2.2): preconditions, then Range, then the whole file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from http import HTTPStatus
from typing import NamedTuple

from ..sockets.sendfile import FileSegment
from .conditions import (
    FIRST_KNOWN_SECOND,
    evaluate,
    http_date,
    if_range_holds,
    is_etag,
    parse_http_date,
)
from .ranges import ByteRange, content_range, multipart_heads, new_boundary, parse_range

__all__ = ["NO_TEXT", "Header", "Plan", "Representation", "RequestFacts", "describe"]

Header = tuple[str, str]

# Headers that speak of the body that is not sent (RFC 9110, section 8). All others stay: cookies,
# CORS, caching and security headers hold for the answer whatever its status.
_OF_THE_BODY = frozenset(
    {"content-type", "content-encoding", "content-language", "content-length", "content-range"}
    | {"content-md5", "content-digest"}
)
# Headers that speak of the representation, in an answer that does not stand for it. With a lifetime
# of their own, a cache would keep a 412 or 416 for that long (RFC 9111, section 3); validators name
# the selected representation (RFC 9110, section 8.8), which an error is not.
_OF_THE_FILE = frozenset(
    {"etag", "last-modified", "cache-control", "expires", "cdn-cache-control", "surrogate-control"}
    | {"content-disposition", "content-location"}
)
# What a 206 says of its part alone: these were computed over the whole.
_OF_THE_WHOLE = frozenset({"content-length", "content-md5", "content-digest"})
# Of an answer without a text. RFC 9110 (section 8.3) asks for a type only where there is one,
# wsgiref.validate wherever there may be one.
NO_TEXT: tuple[Header, ...] = (
    ("Content-Type", "text/plain; charset=utf-8"),
    ("Content-Length", "0"),
)

_STATUS_LINES = {status.value: f"{status.value} {status.phrase}" for status in HTTPStatus}
_STATUS_LINES[416] = "416 Range Not Satisfiable"  # Python before 3.13 has an older RFC's phrase


class RequestFacts(NamedTuple):
    """What of a request decides how a file is answered: its method and eight headers' values.

    None stands for a header that was not sent. The values need not be well formed.
    """

    method: str = "GET"
    accept_encoding: str | None = None
    range: str | None = None
    if_range: str | None = None
    if_match: str | None = None
    if_unmodified_since: str | None = None
    if_none_match: str | None = None
    if_modified_since: str | None = None


# What most requests have behind their method and their Accept-Encoding.
_NOTHING_ELSE = (None,) * 6


class Plan:
    """An answer, as data: sending it is the adapter's work.

    :ivar status: the code.
    :ivar status_line: the code and its phrase, as WSGI's start_response takes them.
    :ivar headers: complete, with Content-Length where the status has one. Shared between answers:
        hand a server `list(plan.headers)`, since wsgiref and others write into it.
    :ivar segments: the body, in order: bytes, and runs of the representation's file. Empty for HEAD
        and for a status without a body.
    """

    def __init__(
        self,
        status: int,
        headers: Sequence[Header],
        segments: Sequence[bytes | ByteRange] = (),
    ) -> None:
        self.status = status
        self.status_line = _STATUS_LINES[status]
        self.headers = headers
        self.segments = segments

    @cached_property
    def raw_headers(self) -> list[tuple[bytes, bytes]]:
        """The headers as ASGI takes them: latin-1, names in lower case. Shared: copy to change."""
        return [
            (name.lower().encode("latin-1"), value.encode("latin-1"))
            for name, value in self.headers
        ]

    def segments_of(self, fd: int, start: int = 0) -> list[bytes | FileSegment]:
        """The body, its runs as runs of an open file.

        :param start: where in the file the representation begins, in bytes.
        """
        return [
            segment
            if isinstance(segment, bytes)
            else FileSegment(fd, start + segment.offset, segment.size)
            for segment in self.segments
        ]

    def __repr__(self) -> str:
        return f"Plan({self.status}, {list(self.headers)}, {list(self.segments)})"


class Representation:
    """A file as it is sent in one encoding (RFC 9110, section 3.2), with the headers of its 200.

    Answers that depend on nothing else in the request are made once and kept.

    :param size: bytes; the Content-Length among `headers`, if there is one, says the same.
    :param headers: of the whole 200 answer. A Content-Length is added where there is none.
    :param etag: as sent, quotes and `W/` included; default: what the headers say. One that section
        8.8.3 does not allow counts as none.
    :param modified: seconds since 1970 (UTC); default: what the Last-Modified header says.
    :param body: the bytes, if they are at hand: plans then hold bytes and no runs of a file.
    """

    def __init__(
        self,
        size: int,
        headers: Iterable[Header],
        *,
        etag: str | None = None,
        modified: int | None = None,
        body: bytes | None = None,
    ) -> None:
        self.size = size
        self.body = body
        self.headers: tuple[Header, ...] = tuple(headers)
        self.content_type: str | None = None
        self.content_encoding: str | None = None
        has_length = False
        for name, value in self.headers:
            match name.lower():
                case "content-length":
                    has_length = True
                case "content-type":
                    self.content_type = value
                case "content-encoding":
                    self.content_encoding = value
                case "etag" if etag is None:
                    etag = value.strip(" \t")
                case "last-modified" if modified is None:
                    modified = parse_http_date(value)
        if not has_length:
            self.headers += (("Content-Length", str(size)),)
        self.etag = etag if etag is not None and is_etag(etag) else None
        self.modified = modified

    def plan(self, facts: RequestFacts, *, boundary: Callable[[], str] = new_boundary) -> Plan:
        """Plan the answer to a GET or HEAD; other methods are the caller's to refuse.

        :param boundary: makes the boundary between the parts of a multi-range answer.
        """
        if facts[2:] == _NOTHING_ELSE:
            return self._head if facts.method == "HEAD" else self._whole
        method, _, range_, if_range, match, unmodified_since, none_match, modified_since = facts
        if not (match is unmodified_since is none_match is modified_since is None):
            status = evaluate(
                method,
                self.etag,
                self.modified,
                match,
                unmodified_since,
                none_match,
                modified_since,
            )
            if status == 304:
                return self._not_modified
            if status == 412:
                return self._precondition_failed
        # Section 14.2: Range is defined for GET alone.
        if range_ is None or method != "GET":
            return self._head if method == "HEAD" else self._whole
        if if_range is not None and not if_range_holds(if_range, self.etag, self.modified):
            return self._whole
        ranges = parse_range(range_, self.size)
        if ranges is None:
            return self._whole
        if not ranges:
            return self._unsatisfiable
        if len(ranges) == 1:
            return self._partial(ranges[0])
        if self.content_encoding is not None:
            # Its Content-Encoding would be taken for the multipart body's own.
            return self._whole
        return self._multipart(ranges, boundary())

    @cached_property
    def _whole(self) -> Plan:
        """200 with the whole file."""
        return Plan(200, self.headers, [self._run(ByteRange(0, self.size))] if self.size else ())

    @cached_property
    def _head(self) -> Plan:
        """200 with the same headers and no body (section 9.3.2)."""
        return Plan(200, self.headers)

    @cached_property
    def _not_modified(self) -> Plan:
        """304, with all headers but those of the body (section 15.4.5)."""
        dropped = _OF_THE_BODY | {"last-modified"} if self.etag else _OF_THE_BODY
        return Plan(304, self._headers_without(dropped))  # the tag says more than the date

    @cached_property
    def _precondition_failed(self) -> Plan:
        """412."""
        return Plan(412, [*self._headers_without(_OF_THE_BODY | _OF_THE_FILE), *NO_TEXT])

    @cached_property
    def _unsatisfiable(self) -> Plan:
        """416, which tells the size (section 15.5.17)."""
        kept = self._headers_without(_OF_THE_BODY | _OF_THE_FILE)
        return Plan(416, [*kept, ("Content-Range", f"bytes */{self.size}"), *NO_TEXT])

    def _partial(self, part: ByteRange) -> Plan:
        """206 with one range."""
        headers = [
            *self._partial_headers,
            ("Content-Range", content_range(part, self.size)),
            ("Content-Length", str(part.size)),
        ]
        return Plan(206, headers, [self._run(part)])

    @cached_property
    def _partial_headers(self) -> list[Header]:
        return self._headers_without(_OF_THE_WHOLE)

    def _multipart(self, ranges: list[ByteRange], boundary: str) -> Plan:
        """206 with several ranges (section 15.3.7.2)."""
        heads = multipart_heads(ranges, self.size, self.content_type, boundary)
        segments: list[bytes | ByteRange] = []
        for head, part in zip(heads, ranges, strict=False):
            segments += head, self._run(part)
        segments.append(heads[-1])
        length = sum(map(len, heads)) + sum(part.size for part in ranges)
        headers = [
            *self._headers_without(_OF_THE_WHOLE | {"content-type"}),
            ("Content-Type", f"multipart/byteranges; boundary={boundary}"),
            ("Content-Length", str(length)),
        ]
        return Plan(206, headers, segments)

    def _run(self, part: ByteRange) -> bytes | ByteRange:
        return part if self.body is None else self.body[part.offset : part.offset + part.size]

    def _headers_without(self, names: frozenset[str]) -> list[Header]:
        return [header for header in self.headers if header[0].lower() not in names]


def describe(
    *,
    size: int,
    mtime_ns: int,
    now: float,
    etag: str | None,
    coding: str | None = None,
    negotiated: bool = False,
    headers: Iterable[Header] = (),
    body: bytes | None = None,
) -> Representation:
    """Describe a file on disk, with the headers that a file server sends.

    :param size: bytes.
    :param mtime_ns: nanoseconds since 1970 (UTC), as stat() says; below 2 s is "not known".
    :param now: seconds since 1970 (UTC). A Last-Modified in the future is not allowed (RFC 9110,
        section 8.8.2.1): a file from there is said to be of now. Date conditions look at its own
        time all the same, so that none holds for it.
    :param etag: see `stat_etag` and `content_etag`; None sends none.
    :param coding: the content coding of an encoded sibling, in lower case.
    :param negotiated: the file has encoded siblings, or is one.
    :param headers: more headers, Content-Type among them. One of a name that is also made here
        stands instead of it.
    :param body: the bytes, if they are at hand.
    """
    given = tuple(headers)
    names = {name.lower() for name, _ in given}
    seconds = mtime_ns // 10**9
    modified = None if seconds < FIRST_KNOWN_SECOND else seconds
    own: list[Header] = [("Content-Length", str(size)), ("Accept-Ranges", "bytes")]
    if coding is not None:
        own.append(("Content-Encoding", coding))
    if modified is not None and "last-modified" not in names:
        own.append(("Last-Modified", http_date(min(modified, int(now)))))
    if etag is not None and "etag" not in names:
        own.append(("ETag", etag))
    if negotiated:
        own.append(("Vary", "Accept-Encoding"))
    if "last-modified" in names:
        modified = None  # theirs counts
    return Representation(size, (*own, *given), modified=modified, body=body)
