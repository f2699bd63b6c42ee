"""Plan the response to a request for a file, without I/O.

A plan consists of the status, the headers and the segments of the body. A segment is bytes, or a
range of the file. Preconditions are evaluated before Range (RFC 9110, section 13.2.2). Section
numbers without an RFC refer to RFC 9110.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from typing import NamedTuple

from ..compression.dictionaries import ClientDictionary
from ..errors import reason_phrase
from ..http.fields import raw_headers
from ..http.headers import Header, Headers
from ..sockets.sending import FileSegment
from .conditions import (
    FIRST_KNOWN_SECOND,
    evaluate,
    http_date,
    if_range_holds,
    is_etag,
    parse_http_date,
)
from .ranges import ByteRange, content_range, multipart_headers, new_boundary, parse_range

# Headers about the content (section 8). A response without the content must not have them. Cookies,
# CORS, caching and security headers apply to any status.
_CONTENT_HEADERS = frozenset(
    {"content-type", "content-encoding", "content-language", "content-length", "content-range"}
    | {"content-md5", "content-digest"}
)
# Headers about the representation, which an error must not have. With the file's Cache-Control, a
# cache would store a 412 or 416 for as long as the file (RFC 9111, section 3). Validators belong to
# the selected representation (section 8.8), and an error page is not that representation.
_REPRESENTATION_HEADERS = frozenset(
    {"etag", "last-modified", "cache-control", "expires", "cdn-cache-control", "surrogate-control"}
    | {"content-disposition", "content-location"}
)
# Headers that a 404 page must not have: it is not a representation of the missing file.
_REMOVED_FROM_404 = _REPRESENTATION_HEADERS | {"accept-ranges"}
# Headers that are computed from the whole content, so a 206 must not have them.
_WHOLE_CONTENT_HEADERS = frozenset({"content-length", "content-md5", "content-digest"})
# The headers of a response with an empty body. RFC 9110 (section 8.3) does not require this
# Content-Type. wsgiref.validate requires it for every status that may have content.
NO_TEXT: tuple[Header, ...] = (
    ("Content-Type", "text/plain; charset=utf-8"),
    ("Content-Length", "0"),
)

_STATUS_LINES = {status.value: f"{status.value} {reason_phrase(status)}" for status in HTTPStatus}


class RequestFacts(NamedTuple):
    """The method and headers of a request on which the response with a file depends.

    None means that the request does not have the header. The values may be malformed, except
    `dictionary`.
    """

    method: str = "GET"
    accept_encoding: str | None = None
    range: str | None = None
    if_range: str | None = None
    if_match: str | None = None
    if_unmodified_since: str | None = None
    if_none_match: str | None = None
    if_modified_since: str | None = None
    dictionary: ClientDictionary | None = None


# The six fields from `range` to `if_modified_since`, as in most requests.
UNCONDITIONAL = (None,) * 6


@dataclass(eq=False)
class Plan:
    """A response as data. An adapter for WSGI or ASGI sends it.

    :ivar status: the status code.
    :ivar status_line: the code and its reason phrase, for WSGI's start_response.
    :ivar headers: all headers, with Content-Length if the status allows it. Several responses share
        this sequence. Pass `list(plan.headers)` to a server, since wsgiref and others change it.
    :ivar segments: the body in order: bytes, and ranges of the representation's file. Empty for
        HEAD and for a status without a body.
    """

    status: int
    headers: Sequence[Header]
    segments: Sequence[bytes | ByteRange] = ()

    def __post_init__(self) -> None:
        self.status_line = _STATUS_LINES[self.status]

    @cached_property
    def raw_headers(self) -> list[tuple[bytes, bytes]]:
        """The headers for ASGI: names in lower case, latin-1. Do not change this list: copy it."""
        return raw_headers(self.headers)

    @property
    def is_in_memory(self) -> bool:
        """Return whether all segments are bytes."""
        return ByteRange not in map(type, self.segments)

    def segments_of(self, fd: int, start: int = 0) -> list[bytes | FileSegment]:
        """Return the segments, with each range as a segment of an open file.

        :param fd: the descriptor of the file.
        :param start: the offset in the file at which the representation begins.
        """
        return [
            segment
            if isinstance(segment, bytes)
            else FileSegment(fd, start + segment.offset, segment.size)
            for segment in self.segments
        ]

    def as_missing(self) -> Plan:
        """Return a plan with the status 404 and the body of this plan, which is a 404 page."""
        return Plan(404, Headers(self.headers).without(_REMOVED_FROM_404), self.segments)


class Representation:
    """A file in one content coding (section 3.2), and the headers of its response with 200.

    Plans are cached if they do not depend on the value of a Range header.

    If the ETag of `headers` is malformed (section 8.8.3), it cannot be compared. Requests with
    If-Match or If-None-Match then get the whole file, and If-Range works only with dates.

    :param size: the size in bytes. A Content-Length in `headers` has to be the same.
    :param headers: the headers of the 200. Content-Length is added if it is missing.
    :param etag: the tag with quotes and any `W/`. The default is the ETag of `headers`.
    :param modified: seconds since 1970 (UTC). The default is the Last-Modified of `headers`.
    :param body: the bytes, if they are in memory. Plans then have bytes in place of ranges.
    :param ranges: whether ranges may be requested. False for a file that changes at each read.
    """

    def __init__(
        self,
        size: int,
        headers: Iterable[Header],
        *,
        etag: str | None = None,
        modified: int | None = None,
        body: bytes | None = None,
        ranges: bool = True,
    ) -> None:
        self.size = size
        self.body = body
        self._has_ranges = ranges
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
        self._is_comparable = etag is None or is_etag(etag)
        self.etag = etag if self._is_comparable else None
        self.modified = modified

    def plan(self, conditions: RequestFacts, *, boundary: Callable[[], str] = new_boundary) -> Plan:
        """Return the plan of the response to a GET or HEAD. The caller rejects other methods.

        :param boundary: a function that returns the boundary of a multipart response.
        """
        if conditions[2:8] == UNCONDITIONAL:
            return self._head if conditions.method == "HEAD" else self._whole
        method, _, range_, if_range, match, unmodified_since, none_match, modified_since, _ = (
            conditions
        )
        if not (match is unmodified_since is none_match is modified_since is None):
            if not self._is_comparable and not (match is none_match is None):
                return self._head if method == "HEAD" else self._whole
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
        # Section 14.2: Range is defined only for GET.
        if range_ is None or method != "GET" or not self._has_ranges:
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
            # Content-Encoding would apply to the whole multipart body, and not to its parts.
            return self._whole
        return self._multipart(ranges, boundary())

    @cached_property
    def _whole(self) -> Plan:
        """200 with the whole file."""
        segments = [self._segment(ByteRange(0, self.size))] if self.size else ()
        return Plan(200, self.headers, segments)

    @cached_property
    def _head(self) -> Plan:
        """200 for HEAD, with the headers of GET (section 9.3.2)."""
        return Plan(200, self.headers)

    @cached_property
    def _not_modified(self) -> Plan:
        """304 without the headers about the content (section 15.4.5)."""
        # With an ETag, a 304 needs no Last-Modified.
        removed = _CONTENT_HEADERS | {"last-modified"} if self.etag else _CONTENT_HEADERS
        return Plan(304, self._headers_without(removed))

    @cached_property
    def _precondition_failed(self) -> Plan:
        """412 without the headers of the file."""
        remaining = self._headers_without(_CONTENT_HEADERS | _REPRESENTATION_HEADERS)
        return Plan(412, [*remaining, *NO_TEXT])

    @cached_property
    def _unsatisfiable(self) -> Plan:
        """416 with the size of the file (section 15.5.17)."""
        remaining = self._headers_without(_CONTENT_HEADERS | _REPRESENTATION_HEADERS)
        return Plan(416, [*remaining, ("Content-Range", f"bytes */{self.size}"), *NO_TEXT])

    def _partial(self, part: ByteRange) -> Plan:
        """206 with one range."""
        headers = [
            *self._partial_headers,
            ("Content-Range", content_range(part, self.size)),
            ("Content-Length", str(part.size)),
        ]
        return Plan(206, headers, [self._segment(part)])

    @cached_property
    def _partial_headers(self) -> list[Header]:
        return self._headers_without(_WHOLE_CONTENT_HEADERS)

    def _multipart(self, ranges: list[ByteRange], boundary: str) -> Plan:
        """206 with several ranges (section 15.3.7.2)."""
        part_headers = multipart_headers(ranges, self.size, self.content_type, boundary)
        segments: list[bytes | ByteRange] = []
        for text, part in zip(part_headers, ranges, strict=False):
            segments += text, self._segment(part)
        segments.append(part_headers[-1])
        length = sum(map(len, part_headers)) + sum(part.size for part in ranges)
        headers = [
            *self._headers_without(_WHOLE_CONTENT_HEADERS | {"content-type"}),
            ("Content-Type", f"multipart/byteranges; boundary={boundary}"),
            ("Content-Length", str(length)),
        ]
        return Plan(206, headers, segments)

    def _segment(self, part: ByteRange) -> bytes | ByteRange:
        return part if self.body is None else self.body[part.offset : part.offset + part.size]

    def _headers_without(self, names: frozenset[str]) -> list[Header]:
        return Headers(self.headers).without(names)


def describe(
    *,
    size: int,
    mtime_ns: int,
    now: float,
    etag: str | None,
    coding: str | None = None,
    vary: str | None = None,
    headers: Iterable[Header] = (),
    body: bytes | None = None,
    ranges: bool = True,
) -> Representation:
    """Return the representation of a file on disk, with the headers of a file server.

    If the file's time is in the future, Last-Modified is the current time (section 8.8.2.1). But
    preconditions use the file's time. So a date that a client has received never matches, and the
    client gets the whole file again.

    :param size: the size in bytes.
    :param mtime_ns: st_mtime_ns: nanoseconds since 1970 (UTC). A time in the first two seconds of
        1970 means that the time is unknown.
    :param now: the current time, in seconds since 1970 (UTC).
    :param etag: see `stat_etag` and `content_etag`. None for no ETag header.
    :param coding: the content coding of a precompressed file, in lower case.
    :param vary: the value of Vary: the request headers on which the content coding depends.
    :param headers: further headers, such as Content-Type. An ETag or Last-Modified among them
        replaces the one of the file.
    :param body: the bytes, if they are in memory.
    :param ranges: whether ranges may be requested.
    """
    further = tuple(headers)
    names = Headers(further).names()
    seconds = mtime_ns // 10**9
    modified = None if seconds < FIRST_KNOWN_SECOND else seconds
    computed: list[Header] = [("Content-Length", str(size))]
    if ranges:
        computed.append(("Accept-Ranges", "bytes"))
    if coding is not None:
        computed.append(("Content-Encoding", coding))
    if modified is not None and "last-modified" not in names:
        computed.append(("Last-Modified", http_date(min(modified, int(now)))))
    if etag is not None and "etag" not in names:
        computed.append(("ETag", etag))
    if vary is not None:
        computed.append(("Vary", vary))
    if "last-modified" in names:
        modified = None  # Representation parses the header
    return Representation(size, (*computed, *further), modified=modified, body=body, ranges=ranges)
