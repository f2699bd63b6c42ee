"""Handle request headers: check Host, collect headers that arrive in pieces, make environ keys.

The environ key of a header follows the rule of CGI (RFC 3875 section 4.1.18).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ..errors import MalformedRequest

# RFC 9110 section 7.2: uri-host [ ":" port ]. RFC 3986 section 3.2.2: a host is a name, an IPv4
# address, or another address in brackets. The host may be empty.
_HOST = re.compile(
    r"(?:\[[0-9A-Za-z._~!$&'()*+,;=:-]+\]|(?:[0-9A-Za-z._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)(?::[0-9]*)?"
)
# The empty line that ends the headers (RFC 9112 section 2.1).
_END = b"\r\n\r\n"
# The parser examines incomplete headers again only when at least this many bytes have arrived.
_FIRST_LOOK_BYTES = 4 * 1024
# If one of these is repeated, the last value is used, like in gunicorn. gunicorn's own parser
# rejects such a request.
_SINGLE = frozenset({"CONTENT_TYPE", "CONTENT_LENGTH"})
# The methods of plain requests (RFC 9110 section 9.1, RFC 5789).
PLAIN_METHODS = {
    name: name for name in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")
}
# A request is plain if all parsers parse it in the same way. A request with one of these headers is
# not plain, because gunicorn acts on them.
_NOT_PLAIN = frozenset({"EXPECT", "TRANSFER-ENCODING", "UPGRADE"})
# A cache of environ keys by header name. Clients choose the names, so the size is limited.
_keys: dict[str, str] = {}
_MAX_KEYS = 500


def check_host(values: Sequence[str], *, http11: bool) -> None:
    """Check a request's Host headers (RFC 9112 section 3.2).

    :param values: the values of all Host headers.
    :param http11: whether the request is HTTP/1.1, which requires Host.
    :raises MalformedRequest: if Host is missing, malformed or repeated.
    """
    if len(values) != 1:
        if values or http11:
            raise MalformedRequest(f"{len(values)} Host headers in place of one")
    elif not _HOST.fullmatch(values[0]):
        raise MalformedRequest("a malformed Host header")


class HeaderScanner:
    """Collects incomplete headers, and decides when the parser should examine them.

    The parser starts at the first byte each time. So it is called only when the headers are
    complete, or when their number of bytes has doubled. This makes the work linear, and incomplete
    headers that break a rule or a limit are still rejected.

    :param data: the received bytes, which the parser has found to be incomplete.
    :ivar data: all received bytes.
    """

    __slots__ = ("_parsed_bytes", "_searched", "data")

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self._searched = len(data)
        self._parsed_bytes = len(data)  # bytes that the parser has examined

    def add(self, data: bytes) -> bool:
        """Add received data.

        :returns: whether the parser should examine the bytes now. This is so after an empty line,
            after a bare LF (an invalid line end, RFC 9112 section 2.2), and if the number of bytes
            has doubled.
        """
        received = self.data
        at = self._searched
        received += data
        self._searched = len(received)
        # The empty line, or a CRLF, may have begun in earlier data.
        should_parse = (
            received.find(_END, max(at - len(_END) + 1, 0)) >= 0
            or received.count(b"\n", at) != received.count(b"\r\n", max(at - 1, 0))
            or len(received) >= max(2 * self._parsed_bytes, _FIRST_LOOK_BYTES)
        )
        if should_parse:
            self._parsed_bytes = len(received)
        return should_parse


def header_fields(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return headers by environ key. Repeated headers are joined (RFC 9110 section 5.3).

    :param headers: names in upper case, and values.
    """
    fields: dict[str, str] = {}
    repeated: dict[str, list[str]] | None = None
    for name, value in headers:
        key = _keys.get(name) or _cached_key(name)
        if key in fields and key not in _SINGLE:
            if repeated is None:
                repeated = {}
            repeated.setdefault(key, [fields[key]]).append(value)
        else:
            fields[key] = value
    if repeated is not None:
        # The values are joined only here: joining them one by one would take quadratic time.
        for key, values in repeated.items():
            fields[key] = ",".join(values)
    return fields


def header_key(name: str) -> str:
    """Return the environ key of a header.

    :param name: in upper case.
    """
    key = name.replace("-", "_")
    return key if key in _SINGLE and "_" not in name else f"HTTP_{key}"


def _cached_key(name: str) -> str:
    key = header_key(name)
    if len(_keys) < _MAX_KEYS:
        _keys[name] = key
    return key


class PlainKeys(dict[bytes, str]):
    """Maps header names of plain requests to environ keys. Raises KeyError for other names.

    :param not_plain: more names that make a request not plain, in upper case.
    :param lower_case: whether a name must be in lower case, as in HTTP/2.
    """

    def __init__(
        self, not_plain: frozenset[str] = frozenset(), *, lower_case: bool = False
    ) -> None:
        super().__init__()
        self._not_plain = _NOT_PLAIN | not_plain
        self._lower_case = lower_case

    def __missing__(self, name: bytes) -> str:
        upper = name.decode("ascii").upper()
        if upper in self._not_plain or not upper.replace("-", "").isalnum():
            raise KeyError(name)
        if self._lower_case and name != name.lower():
            raise KeyError(name)
        key = header_key(upper)
        if len(self) < _MAX_KEYS:
            self[name] = key
        return key
