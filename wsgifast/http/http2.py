"""Translates HTTP/2 requests into HTTP/1's form (RFC 9113 section 8).

The HTTP/1 parser then parses them, so that the same rules and limits hold for both versions,
whichever parser is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import quote_from_bytes

from ..errors import MalformedRequest
from .syntax import NO_TRAILERS, TOKEN

_TOKEN = re.compile(TOKEN.encode())
# What ends a line of HTTP/1, or may be taken for its end (RFC 9110 section 5.5).
_ENDS_LINE = re.compile(rb"[\r\n\0]")
# Bytes beyond ASCII, which no URI has (RFC 3986 section 2) but some clients send, are accepted and
# percent-encoded.
_TARGET = re.compile(rb"[!-~\x80-\xff]+")
_SAFE = "".join(map(chr, range(0x21, 0x7F)))


def request_head(fields: Iterable[tuple[bytes, bytes]]) -> tuple[bytes, str]:
    """Return the head of the equivalent HTTP/1.1 request, and the `:scheme`.

    :param fields: as received: pseudo-headers first, each at most once, names in lower case.
    :raises MalformedRequest: for what HTTP/1 cannot express.
    """
    pseudo: dict[bytes, bytes] = {}
    lines = [b"", b""]
    host = b""
    for name, value in fields:
        if name.startswith(b":"):
            pseudo[name] = value
        elif name == b"host":
            host = value
        else:
            lines.append(_line(name, value))
    method = pseudo.get(b":method", b"")
    # :authority replaces Host (section 8.3.1); h2 has checked that they do not differ.
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
    return b"".join((*lines, b"\r\n")), pseudo.get(b":scheme", b"").decode("latin-1")


def trailer_lines(fields: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    """Return trailers (section 8.1) as the lines that follow a chunked body in HTTP/1.

    :raises MalformedRequest: as :func:`request_head`, and for what must not be a trailer.
    """
    fields = list(fields)
    for name, _ in fields:
        if name.decode("latin-1") in NO_TRAILERS:
            raise MalformedRequest(f"{name.decode()} must not be a trailer")
    return [_line(name, value)[:-2] for name, value in fields]


def _line(name: bytes, value: bytes) -> bytes:
    if not _TOKEN.fullmatch(name) or _ENDS_LINE.search(value):
        raise MalformedRequest("a malformed header")
    return b"%b: %b\r\n" % (name, value)
