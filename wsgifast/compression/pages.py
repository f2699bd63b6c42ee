"""Public pages and JSON, compressed by the dictionary of Compression(dictionary=...). No I/O.

An answer is public if its request has neither Cookie nor Authorization, and it has no Set-Cookie
and may be shared. What it has in common with the dictionary, which everybody can read, shows in its
length.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ..http.head import header_value
from .dictionaries import (
    DCZ,
    ClientDictionary,
    PagesDictionary,
    client_dictionary,
    prefers_delta,
)
from .policy import Compression, Decision, Header, is_page, recoded_tag, with_vary

_NOT_SHARED = re.compile(r"(?:\A|[,;])[ \t]*(?:private|no-store)[ \t]*(?:\Z|[,;=])", re.IGNORECASE)


def is_private(headers: Iterable[Header]) -> bool:
    """Whether a response is, by its headers, for one client alone."""
    return any(
        name.lower() == "set-cookie"
        or (name.lower() == "cache-control" and _NOT_SHARED.search(value) is not None)
        for name, value in headers
    )


class PagesClient(NamedTuple):
    """A client that the dictionary of pages is for.

    :ivar mount: the URL path of the app.
    :ivar has: what it has; None if it is not this dictionary.
    """

    dictionary: PagesDictionary
    mount: str
    has: ClientDictionary | None

    def decided(self, decision: Decision, code: int) -> Decision:
        """Return what is done with a response, of which `decision` is without the dictionary."""
        if code == 304:
            return _on_dictionary(decision, decision.headers)
        if decision.coding is None or code != 200 or not is_page(decision.content_type):
            return decision
        headers = decision.headers
        if is_private(headers):
            return decision
        allowed = header_value(headers, "access-control-allow-origin")
        if self.has is None or not self.has.may_be_used(allowed):
            if "html" in decision.content_type.lower():
                headers = [*headers, ("Link", self.dictionary.link(self.mount))]
            return _on_dictionary(decision, headers)
        changed = [
            ("Content-Encoding", DCZ)
            if name == "Content-Encoding"
            else (name, recoded_tag(value, DCZ))
            if name == "ETag"
            else (name, value)
            for name, value in headers
        ]
        return _on_dictionary(decision, changed)._replace(coding=DCZ)


def pages_client(
    compression: Compression, method: str, mount: str, header: Callable[[str], str | None]
) -> PagesClient | None:
    """Return the client that sends a request, if its pages may be compressed by the dictionary.

    :param header: returns a header of the request by its name.
    """
    dictionary = compression.dictionary
    if dictionary is None or method not in ("GET", "HEAD"):
        return None
    if header("Cookie") is not None or header("Authorization") is not None:
        return None
    available = header("Available-Dictionary")
    has = None
    if available is not None and prefers_delta(header("Accept-Encoding")):
        has = client_dictionary(available, header)
        if has is not None and has.digest != dictionary.digest:
            has = None
    return PagesClient(dictionary, mount, has)


def _on_dictionary(decision: Decision, headers: list[Header]) -> Decision:
    on = (*decision.vary, "Available-Dictionary")
    return decision._replace(headers=with_vary(headers, on), vary=on)
