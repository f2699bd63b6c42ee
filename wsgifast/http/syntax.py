"""Grammar that several parts share."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..errors import MalformedRequest

# token of RFC 9110 5.6.2, as a regular expression: methods, field names, codings, ...
TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
# Header fields about one connection, in lower case: RFC 9110 7.6.1, RFC 9113 8.2.2, and others that
# older servers and proxies treat alike. The server sends its own, or none.
HOP_BY_HOP = frozenset(
    {
        "connection", "keep-alive", "proxy-authenticate", "proxy-authorization",
        "proxy-connection", "te", "trailer", "trailers", "transfer-encoding", "upgrade",
    }
)  # fmt: skip
# Fields for framing, routing, authentication or the content's format must not be trailers (RFC 9110
# section 6.5.1).
NO_TRAILERS = frozenset(
    {
        "authorization", "content-encoding", "content-length", "content-range", "content-type",
        "host", "te", "trailer", "transfer-encoding",
    }
)  # fmt: skip
# RFC 9110 section 7.2: uri-host [ ":" port ]. RFC 3986 section 3.2.2: a host is a name, an IPv4
# address, or another address in brackets; it may be empty.
_HOST = re.compile(
    r"(?:\[[0-9A-Za-z._~!$&'()*+,;=:-]+\]|(?:[0-9A-Za-z._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)(?::[0-9]*)?"
)


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
