"""What every request must bring along, whoever has parsed it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..errors import MalformedRequest

__all__ = ["check_host"]

# RFC 9110 section 7.2: uri-host [ ":" port ], and RFC 3986 section 3.2.2 for what a host is: a name
# or an IPv4 address, or another address in brackets. It may be empty.
_HOST = re.compile(
    r"(?:\[[0-9A-Za-z._~!$&'()*+,;=:-]+\]|(?:[0-9A-Za-z._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)(?::[0-9]*)?"
)


def check_host(values: Sequence[str], *, http11: bool) -> None:
    """Check a request's Host headers (RFC 9112 section 3.2).

    :param values: of all of them.
    :param http11: the request is of HTTP/1.1; older ones need none.
    :raises MalformedRequest: for more than one, none, or one that names no host.
    """
    if len(values) != 1:
        if values or http11:
            raise MalformedRequest(f"{len(values)} Host headers in place of one")
    elif not _HOST.fullmatch(values[0]):
        raise MalformedRequest("a Host header that names no host")
