"""A request's head: check its Host, find its end as it comes in pieces, write HTTP/2's as HTTP/1.

The names of headers become keys of an environ by CGI's rule (RFC 3875 section 4.1.18).

The HTTP/1 parser then parses an HTTP/2 request (RFC 9113 section 8), too, so that the same rules
and limits hold for both versions, whichever parser is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from urllib.parse import quote_from_bytes

from ..errors import MalformedRequest
from .head import NO_TRAILERS, TOKEN

# RFC 9110 section 7.2: uri-host [ ":" port ]. RFC 3986 section 3.2.2: a host is a name, an IPv4
# address, or another address in brackets; it may be empty.
_HOST = re.compile(
    r"(?:\[[0-9A-Za-z._~!$&'()*+,;=:-]+\]|(?:[0-9A-Za-z._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)(?::[0-9]*)?"
)
# The empty line that ends a head (RFC 9112 section 2.1).
_END = b"\r\n\r\n"
# The parser looks at an incomplete head for the first time when it has this many bytes.
_FIRST_LOOK_BYTES = 4 * 1024
_TOKEN = re.compile(TOKEN.encode())
# What ends a line of HTTP/1, or may be taken for its end (RFC 9110 section 5.5).
_ENDS_LINE = re.compile(rb"[\r\n\0]")
# Bytes beyond ASCII, which no URI has (RFC 3986 section 2) but some clients send, are accepted and
# percent-encoded.
_TARGET = re.compile(rb"[!-~\x80-\xff]+")
_SAFE = "".join(map(chr, range(0x21, 0x7F)))
# The last one counts, as in gunicorn, whose parser refuses repeated ones anyway.
_SINGLE = frozenset({"CONTENT_TYPE", "CONTENT_LENGTH"})
# Clients choose the names, so the number of remembered keys is limited.
_keys: dict[str, str] = {}
_MAX_KEYS = 500


def check_host(values: Sequence[str], *, http11: bool) -> None:
    """Check a request's Host headers (RFC 9112 section 3.2).

    :param values: of all Host headers.
    :param http11: whether the request is HTTP/1.1, which needs one.
    :raises MalformedRequest: if it is missing, malformed, or not the only one.
    """
    if len(values) != 1:
        if values or http11:
            raise MalformedRequest(f"{len(values)} Host headers in place of one")
    elif not _HOST.fullmatch(values[0]):
        raise MalformedRequest("a Host header that names no host")


class HeadScanner:
    """Collects an incomplete head, and says when the parser should look at it.

    The parser starts again each time. So it is called when the head is complete, and before that
    whenever the head has doubled: that keeps the work linear in the bytes, and a head that breaks a
    rule or a limit is still refused before its end.

    :param data: what was received so far, and the parser has found to be incomplete.
    :ivar data: everything received.
    """

    __slots__ = ("_searched", "_seen", "data")

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self._searched = len(data)
        self._seen = len(data)  # bytes that the parser has looked at

    def add(self, data: bytes) -> bool:
        """Add received data.

        :returns: whether the parser should look: there is an empty line, or a bare LF, which does
            not end a line (RFC 9112 section 2.2), or the head has doubled.
        """
        whole = self.data
        at = self._searched
        whole += data
        self._searched = len(whole)
        # The empty line, or a CRLF, may have begun in the data before.
        shows = (
            whole.find(_END, max(at - len(_END) + 1, 0)) >= 0
            or whole.count(b"\n", at) != whole.count(b"\r\n", max(at - 1, 0))
            or len(whole) >= max(2 * self._seen, _FIRST_LOOK_BYTES)
        )
        if shows:
            self._seen = len(whole)
        return shows


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


def header_fields(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return headers under their environ keys; repeated ones are joined (RFC 9110 section 5.3).

    :param headers: names in upper case, and values.
    """
    fields: dict[str, str] = {}
    repeated: dict[str, list[str]] | None = None
    for name, value in headers:
        key = _keys.get(name) or _learn(name)
        if key in fields and key not in _SINGLE:
            if repeated is None:
                repeated = {}
            repeated.setdefault(key, [fields[key]]).append(value)
        else:
            fields[key] = value
    if repeated is not None:
        # Joined once at the end: joining one by one would take quadratic time.
        for key, values in repeated.items():
            fields[key] = ",".join(values)
    return fields


def header_key(name: str) -> str:
    """Return the environ key of a header.

    :param name: in upper case.
    """
    key = name.replace("-", "_")
    return key if key in _SINGLE and "_" not in name else f"HTTP_{key}"


def _learn(name: str) -> str:
    key = header_key(name)
    if len(_keys) < _MAX_KEYS:
        _keys[name] = key
    return key
