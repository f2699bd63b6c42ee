"""One file's facts: size, validators, type, and its encoded siblings.

What an answer needs beyond the request is computed here once and kept, so that a plain GET, a HEAD
and a 304 are each a look-up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from http import HTTPStatus
from typing import Any, NamedTuple

from .conditions import FIRST_KNOWN_SECOND, http_date, is_etag, parse_http_date
from .ranges import ByteRange, content_range
from .variants import preferred_coding

__all__ = ["NO_TEXT", "Entry", "FilePart", "Header", "Plan", "Representation", "describe"]

Header = tuple[str, str]

# Headers that speak of the body that is not sent (RFC 9110, section 8). All others stay: cookies,
# CORS, caching and security headers hold for the answer whatever its status.
_BODY_HEADERS = frozenset(
    {"content-type", "content-encoding", "content-language", "content-length", "content-range"}
)
# Of an answer without a text. RFC 9110 (section 8.3) asks for a type only where there is one,
# wsgiref.validate wherever there may be one.
NO_TEXT: tuple[Header, ...] = (
    ("Content-Type", "text/plain; charset=utf-8"),
    ("Content-Length", "0"),
)


class FilePart(NamedTuple):
    """Bytes of a representation's file: what an adapter sends by sendfile, or reads."""

    # Whatever the maker of the representation put there (a path, an open file, bytes).
    file: Any
    offset: int
    size: int


class Plan:
    """An answer, as data: sending it is the adapter's work.

    :ivar status: the code.
    :ivar headers: complete, with Content-Length where the status has one. Shared between answers:
        hand a server `list(plan.headers)`, since wsgiref and others write into it.
    :ivar segments: the body, in order; empty for HEAD and for a status without one.
    """

    __slots__ = ("__dict__", "headers", "segments", "status")

    def __init__(
        self,
        status: int,
        headers: Sequence[Header],
        segments: Sequence[bytes | FilePart] = (),
    ) -> None:
        self.status = status
        self.headers = headers
        self.segments = segments

    @property
    def status_line(self) -> str:
        """The code and its phrase, as WSGI's start_response takes them."""
        return _STATUS_LINES[self.status]

    @cached_property
    def raw_headers(self) -> list[tuple[bytes, bytes]]:
        """The headers as ASGI takes them: latin-1, names in lower case. Shared: copy to change."""
        return [
            (name.lower().encode("latin-1"), value.encode("latin-1"))
            for name, value in self.headers
        ]

    def __repr__(self) -> str:
        return f"Plan({self.status}, {list(self.headers)}, {list(self.segments)})"


class Representation:
    """A file as it is sent in one encoding (RFC 9110, section 3.2), with the headers of its 200.

    :param file: opaque here; it comes back in each :class:`FilePart`.
    :param size: bytes; the Content-Length among `headers`, if there is one, says the same.
    :param headers: of the whole 200 answer. A Content-Length is added where there is none.
    :param etag: as sent, quotes and `W/` included; default: what the headers say. One that section
        8.8.3 does not allow counts as none.
    :param modified: seconds since 1970 (UTC); default: what the Last-Modified header says.
    """

    def __init__(
        self,
        file: Any,
        size: int,
        headers: Iterable[Header],
        *,
        etag: str | None = None,
        modified: int | None = None,
    ) -> None:
        self.file = file
        self.size = size
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

    @cached_property
    def whole(self) -> Plan:
        """200 with the whole file."""
        segments = (FilePart(self.file, 0, self.size),) if self.size else ()
        return Plan(200, self.headers, segments)

    @cached_property
    def head(self) -> Plan:
        """200 with the same headers and no body (section 9.3.2)."""
        return Plan(200, self.headers)

    @cached_property
    def not_modified(self) -> Plan:
        """304, with all headers but those of the body (section 15.4.5)."""
        dropped = "last-modified" if self.etag else ""  # the tag says it better
        return Plan(304, [header for header in self._bodyless if header[0].lower() != dropped])

    @cached_property
    def precondition_failed(self) -> Plan:
        """412."""
        return Plan(412, [*self._bodyless, *NO_TEXT])

    @cached_property
    def unsatisfiable(self) -> Plan:
        """416, which tells the size (section 15.5.17)."""
        return Plan(
            416,
            [
                *self._bodyless,
                ("Content-Range", f"bytes */{self.size}"),
                *NO_TEXT,
            ],
        )

    def partial(self, part: ByteRange) -> Plan:
        """206 with one range."""
        size = part.stop - part.start
        headers = [
            *self._partial_headers,
            ("Content-Range", content_range(part, self.size)),
            ("Content-Length", str(size)),
        ]
        return Plan(206, headers, (FilePart(self.file, part.start, size),))

    @cached_property
    def _bodyless(self) -> list[Header]:
        return [header for header in self.headers if header[0].lower() not in _BODY_HEADERS]

    @cached_property
    def _partial_headers(self) -> list[Header]:
        return [header for header in self.headers if header[0].lower() != "content-length"]


class Entry:
    """A file and its encoded siblings: what one URL path stands for.

    :param identity: the file as it is.
    :param encoded: the siblings by coding in lower case, the favourite first (as a rule the
        smallest). All of them, and identity, carry `Vary: Accept-Encoding`; see :func:`describe`.
    """

    __slots__ = ("codings", "encoded", "identity")

    def __init__(
        self, identity: Representation, encoded: Mapping[str, Representation] | None = None
    ) -> None:
        self.identity = identity
        self.encoded = dict(encoded or ())
        self.codings = tuple(self.encoded)

    def select(self, accept_encoding: str | None) -> Representation:
        """Return the representation for a request's Accept-Encoding; None is a request without."""
        if accept_encoding is None or not self.codings:
            return self.identity
        coding = preferred_coding(accept_encoding, self.codings)
        return self.identity if coding is None else self.encoded[coding]


def describe(
    file: Any,
    *,
    size: int,
    mtime_ns: int,
    now: float,
    etag: str | None,
    content_type: str | None,
    coding: str | None = None,
    negotiated: bool = False,
    headers: Iterable[Header] = (),
) -> Representation:
    """Describe a file on disk, with the headers that a file server sends.

    :param file: opaque; it comes back in each :class:`FilePart`.
    :param size: bytes.
    :param mtime_ns: nanoseconds since 1970 (UTC), as stat() says; below 2 s is "not known".
    :param now: seconds since 1970 (UTC). A Last-Modified in the future is not allowed (RFC 9110,
        section 8.8.2.1): a file from there is said to be of now. Date conditions look at its own
        time all the same, so that none holds for it.
    :param etag: see `stat_etag` and `content_etag`; None sends none.
    :param content_type: None sends none.
    :param coding: the content coding of an encoded sibling, in lower case.
    :param negotiated: the file has encoded siblings, or is one.
    :param headers: more headers. One of a name that is also made here stands instead of it.
    """
    given = tuple(headers)
    names = {name.lower() for name, _ in given}
    seconds = mtime_ns // 10**9
    modified = None if seconds < FIRST_KNOWN_SECOND else seconds
    own: list[Header] = [("Content-Length", str(size)), ("Accept-Ranges", "bytes")]
    if content_type is not None and "content-type" not in names:
        own.append(("Content-Type", content_type))
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
    return Representation(file, size, (*own, *given), modified=modified)


_STATUS_LINES = {status.value: f"{status.value} {status.phrase}" for status in HTTPStatus}
_STATUS_LINES[416] = "416 Range Not Satisfiable"  # Python before 3.13 has an older RFC's phrase
