"""Rules for the option `etag`: which responses get an entity tag, and how the tag is computed.

If the client has cached the body, it gets a 304 without a body. The app still makes the body, so
only the transfer is saved. Rack::ETag does the same for Ruby's apps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final

from ..compression.policy import cache_directives

#: The size of the largest body that gets a tag. Hashing 1 MiB takes about a millisecond.
MOST_BYTES: Final = 2**20
# A response with one of these headers gets no tag. The app has set a tag, or the response is for
# one client.
_EXCLUDING_HEADERS = frozenset({"etag", "set-cookie"})
_DIGEST_BYTES = 16
# Headers of the 200 that its 304 does not have (RFC 9110, section 15.4.5).
NOT_IN_304: Final = frozenset(
    {"content-encoding", "content-length", "content-range", "content-type", "transfer-encoding"}
)


def may_have_tag(code: int, size: int, headers: Iterable[tuple[str, str]]) -> bool:
    """Return whether a response gets an entity tag.

    :param code: the status code of the response.
    :param size: the size of the body in bytes.
    :param headers: the headers of the app.
    """
    if code != 200 or not 0 < size <= MOST_BYTES:
        return False
    for name, value in headers:
        lower = name.lower()
        if lower in _EXCLUDING_HEADERS:
            return False
        if lower == "cache-control" and "no-store" in cache_directives(value):
            return False
    return True


def weak_tag(blocks: Sequence[bytes] | Iterable[bytes]) -> str:
    """Return a weak entity tag of a body (RFC 9110, section 8.8.1).

    A strong tag would be wrong: another middleware may later change the bytes, for example by
    compression.
    """
    digest = blake2b(digest_size=_DIGEST_BYTES)
    for block in blocks:
        digest.update(block)
    return f'W/"{digest.hexdigest()}"'
