"""Convert the headers of an HTTP/2 request (RFC 9113 section 8.3).

Most requests are plain: all HTTP/1 parsers would parse them in the same way. :func:`plain_headers`
converts a plain request without a parser. :func:`http1_headers` writes other requests as HTTP/1.1,
and the HTTP/1 parser parses them. So the same rules and limits hold for both versions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import quote_from_bytes

from ..errors import MalformedRequest
from .fields import NO_TRAILERS, TOKEN, parse_length
from .request_headers import PLAIN_METHODS, PlainKeys

_TOKEN = re.compile(TOKEN.encode())
# CR and LF end a line of HTTP/1. Some recipients treat NUL as a line end too (RFC 9110 section
# 5.5).
_ENDS_LINE = re.compile(rb"[\r\n\0]")
# URIs are ASCII (RFC 3986 section 2), but some clients send other bytes. These bytes are accepted,
# and percent-encoded.
_TARGET = re.compile(rb"[!-~\x80-\xff]+")
_SAFE = "".join(map(chr, range(0x21, 0x7F)))
# A path without a fragment that does not start with two slashes. Every parser accepts it unchanged.
_PLAIN_TARGET = re.compile(r"/(?:[!\"$-.0-~][!\"$-~]*)?")
_PLAIN_VALUE = re.compile(r"[\t -~\x80-\xff]*")
# RFC 9113 section 8.2.2 forbids these headers. It allows TE with some values only.
_CONNECTION = frozenset({"CONNECTION", "KEEP-ALIVE", "PROXY-CONNECTION", "TE"})
_PSEUDO = frozenset({b":method", b":scheme", b":authority", b":path"})

_keys = PlainKeys(_CONNECTION, lower_case=True)

Field = tuple[bytes, bytes]


class PlainHeaders(NamedTuple):
    """Valid request headers (RFC 9113 section 8.3.1) that every HTTP/1 parser would accept.

    :ivar method: one of the usual methods.
    :ivar target: the path, with the query if there is one.
    :ivar scheme: the `:scheme`, unchanged.
    :ivar length: the Content-Length, in bytes. None without that header.
    :ivar fields: the headers by environ key. The first is Host, with the value of `:authority`.
    :ivar size: the bytes of all names and values, without pseudo-headers.
    """

    method: str
    target: str
    scheme: str
    length: int | None
    fields: dict[str, str]
    size: int


def plain_headers(received: Iterable[Field]) -> PlainHeaders | None:
    """Return the headers of a plain request. Return None for other requests.

    :param received: the decoded fields of the header block.
    """
    pseudo: dict[bytes, str] = {}
    fields: dict[str, str] = {}
    cookies: list[str] | None = None
    size = 0
    try:
        for name, value in received:
            text = value.decode("latin-1")
            if name in _PSEUDO:
                if name in pseudo or fields:
                    return None
                pseudo[name] = text
                continue
            if not fields:
                fields["HTTP_HOST"] = pseudo[b":authority"]
            key = _keys[name]
            printable = text.isascii() and text.isprintable()
            if not printable and not _PLAIN_VALUE.fullmatch(text):
                return None
            if text.strip(" \t") != text:
                return None
            size += len(name) + len(text)
            if key in fields:
                if key == "HTTP_COOKIE":
                    cookies = [fields[key]] if cookies is None else cookies
                    cookies.append(text)
                elif key != "HTTP_HOST" or text != fields[key]:
                    return None
            else:
                fields[key] = text
        method = PLAIN_METHODS[pseudo[b":method"]]
        target, scheme, host = pseudo[b":path"], pseudo[b":scheme"], pseudo[b":authority"]
    except (KeyError, UnicodeDecodeError):
        return None
    if not (host and host.isascii() and host.isprintable() and host.strip(" ") == host):
        return None
    if not (_PLAIN_TARGET.fullmatch(target) and scheme.isalpha() and scheme.isascii()):
        return None
    declared = fields.get("CONTENT_LENGTH")
    length = None if declared is None else parse_length(declared)
    if length is None and declared is not None:
        return None
    if cookies is not None:
        if not cookies[-1]:
            return None  # the joined value would end with a space
        fields["HTTP_COOKIE"] = "; ".join(cookies)
    if not fields:
        fields["HTTP_HOST"] = host
    return PlainHeaders(method, target, scheme, length, fields, size)


def http1_headers(received: Iterable[Field]) -> tuple[bytes, str]:
    """Return the headers of the equivalent HTTP/1.1 request, and the `:scheme`.

    :param received: the fields, with names in lower case. Pseudo-headers are first, each at most
        once.
    :raises MalformedRequest: for fields that HTTP/1 cannot express.
    """
    pseudo: dict[bytes, bytes] = {}
    lines = [b"", b""]
    cookies: list[bytes] = []
    host = b""
    for name, value in received:
        if name.startswith(b":"):
            pseudo[name] = value
        elif name == b"host":
            host = value
        elif name == b"cookie":
            if not cookies:
                lines.append(b"")
                cookie_at = len(lines) - 1
            cookies.append(value)
        else:
            lines.append(_line(name, value))
    method = pseudo.get(b":method", b"")
    # `:authority` replaces Host (section 8.3.1). h2 has checked that `:authority` and Host are
    # equal.
    host = pseudo.get(b":authority", host)
    target = host if method == b"CONNECT" else pseudo.get(b":path", b"")
    if b":protocol" in pseudo:
        raise MalformedRequest("an extended CONNECT, which is not offered (RFC 8441)")
    if not _TOKEN.fullmatch(method):
        raise MalformedRequest("a malformed method")
    if not _TARGET.fullmatch(target) or (
        method != b"CONNECT" and target != b"*" and not target.startswith(b"/")
    ):
        raise MalformedRequest("a malformed path")
    if not target.isascii():
        target = quote_from_bytes(target, _SAFE).encode()
    lines[0] = b"%b %b HTTP/1.1\r\n" % (method, target)
    if host:
        lines[1] = _line(b"host", host)
    if cookies:  # join the cookie fields (section 8.2.3)
        lines[cookie_at] = _line(b"cookie", b"; ".join(cookies))
    return b"".join((*lines, b"\r\n")), pseudo.get(b":scheme", b"").decode("latin-1")


def trailer_lines(fields: Iterable[Field]) -> list[bytes]:
    """Return trailers (section 8.1) as the lines that follow a chunked body in HTTP/1.

    :raises MalformedRequest: for fields that HTTP/1 cannot express, or that must not be trailers.
    """
    fields = list(fields)
    for name, _ in fields:
        if name.decode("latin-1") in NO_TRAILERS:
            raise MalformedRequest(f"{name.decode()} must not be a trailer")
    return [_line(name, value)[:-2] for name, value in fields]


class Priority(NamedTuple):
    """The priority that a client gives a response in its `priority` field (RFC 9218 section 4).

    :ivar urgency: from 0, the most urgent, to 7.
    :ivar is_incremental: whether the client can use a part of the response. If not, the server
        sends it before later responses of the same urgency.
    """

    urgency: int = 3
    is_incremental: bool = True


# The priority of a request without the field. By RFC 9218, such a request is not incremental. But
# then, for clients that do not send the field, a download would delay all responses after it.
NO_PRIORITY = Priority()


def parse_priority(value: str) -> Priority:
    """Parse a `priority` field. Unknown and malformed members are ignored (section 4)."""
    urgency, is_incremental = NO_PRIORITY.urgency, False
    for member in value.split(","):
        name, _, text = member.split(";")[0].strip(" \t").partition("=")
        if name == "u" and len(text) == 1 and text in "01234567":
            urgency = int(text)
        elif name == "i" and text in ("", "?1", "?0"):
            is_incremental = text != "?0"
    return Priority(urgency, is_incremental)


def _line(name: bytes, value: bytes) -> bytes:
    if not _TOKEN.fullmatch(name) or _ENDS_LINE.search(value):
        raise MalformedRequest("a malformed header")
    return b"%b: %b\r\n" % (name, value)
