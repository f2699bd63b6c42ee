"""Entity tags for responses of an app: which ones get a tag, and how it is made.

As Rack::ETag does for Ruby's apps: a client that has the same bytes already gets 304 in place of
them. The app runs as before, so only the transfer is saved.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final

from ..compression.policy import cache_directives

#: Larger bodies are left alone: hashing 1 MiB takes about a millisecond.
MOST_BYTES: Final = 2**20
# A response that has one of them is left alone: it has a tag already, or is for one client.
_LEFT_ALONE = frozenset({"etag", "set-cookie"})
_DIGEST_BYTES = 16
# Headers that a 304 lacks and its 200 has (RFC 9110, section 15.4.5).
NOT_IN_304: Final = frozenset(
    {"content-encoding", "content-length", "content-range", "content-type", "transfer-encoding"}
)


def may_have_tag(code: int, size: int, headers: Iterable[tuple[str, str]]) -> bool:
    """Return whether a response gets an entity tag.

    :param code: of its status.
    :param size: of its body, in bytes.
    :param headers: the app's.
    """
    if code != 200 or not 0 < size <= MOST_BYTES:
        return False
    for name, value in headers:
        lower = name.lower()
        if lower in _LEFT_ALONE:
            return False
        if lower == "cache-control" and "no-store" in cache_directives(value):
            return False
    return True


def weak_tag(blocks: Sequence[bytes] | Iterable[bytes]) -> str:
    """Return a weak entity tag of a body (RFC 9110, section 8.8.1).

    It is weak, since other middleware may still change the bytes without changing their meaning.
    """
    digest = blake2b(digest_size=_DIGEST_BYTES)
    for block in blocks:
        digest.update(block)
    return f'W/"{digest.hexdigest()}"'
