"""HTTP/2's fields in HTTP/1's words (RFC 9113 section 8): the same meaning in another frame.

A request of HTTP/2 is shown to the parser of HTTP/1 as a head of that. So every rule and limit
there is for heads holds for both, whoever wrote the parser.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import quote_from_bytes

from ..errors import MalformedRequest
from .syntax import TOKEN

__all__ = ["request_head", "trailer_lines"]

_TOKEN = re.compile(TOKEN.encode())
# What would end a line of HTTP/1, or be taken for its end by somebody (RFC 9110 section 5.5).
_ENDS_LINE = re.compile(rb"[\r\n\0]")
# A target stays as it is, but for bytes that no URI has (RFC 3986 section 2): those beyond ASCII,
# which some clients send as they are, are percent-encoded.
_TARGET = re.compile(rb"[!-~\x80-\xff]+")
_SAFE = "".join(map(chr, range(0x21, 0x7F)))


def request_head(fields: Iterable[tuple[bytes, bytes]]) -> tuple[bytes, str]:
    """Return the head of an HTTP/1.1 request that means the same, and the scheme it names.

    :param fields: as they came: pseudo-headers first, each at most once, names in lower case.
    :raises MalformedRequest: for what HTTP/1 has no words for.
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
    # The authority stands for the Host header (section 8.3.1); h2 has seen that both say the same.
    host = pseudo.get(b":authority", host)
    target = host if method == b"CONNECT" else pseudo.get(b":path", b"")
    if not _TOKEN.fullmatch(method):
        raise MalformedRequest("a method that is none")
    if not _TARGET.fullmatch(target) or (
        method != b"CONNECT" and target != b"*" and not target.startswith(b"/")
    ):
        raise MalformedRequest("a path that is none")
    if not target.isascii():
        target = quote_from_bytes(target, _SAFE).encode()
    lines[0] = b"%b %b HTTP/1.1\r\n" % (method, target)
    if host:
        lines[1] = _line(b"host", host)
    return b"".join((*lines, b"\r\n")), pseudo.get(b":scheme", b"").decode("latin-1")


def trailer_lines(fields: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    """Return trailers (section 8.1) as HTTP/1 has them behind a chunked body.

    :raises MalformedRequest: as :func:`request_head`.
    """
    return [_line(name, value)[:-2] for name, value in fields]


def _line(name: bytes, value: bytes) -> bytes:
    if not _TOKEN.fullmatch(name) or _ENDS_LINE.search(value):
        raise MalformedRequest("a header that cannot be one")
    return b"%b: %b\r\n" % (name, value)
