"""What is decided about the coding of one response, for WSGI and ASGI. No I/O, no clock.

Public pages and JSON are compressed by the dictionary of Compression(dictionary=...). An answer is
public if its request has neither Cookie nor Authorization, and it has no Set-Cookie and may be
shared. What it has in common with the dictionary, which everybody can read, shows in its length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

from ..http.head import header_value
from .codings import Compressor, preferred_coding
from .dictionaries import (
    DCZ,
    ClientDictionary,
    PagesDictionary,
    client_dictionary,
    prefers_delta,
)
from .policy import (
    Compression,
    Decision,
    Header,
    Wish,
    app_preconditions,
    cache_directives,
    decide,
    is_page,
    recoded_tag,
    with_vary,
)

_NOT_SHARED = {"private", "no-store"}


class ResponseCoding:
    """The coding of the response to one request; each half compresses the body in its own way.

    :param method: of the request.
    :param accept_encoding: of the request; None, as "", for none.
    :param wish: the app's.
    :ivar compressor: of the body, once the head has been decided; None if it is sent as it is.
    """

    compressor: Compressor | None = None
    _pages: PagesClient | None = None
    _sent_tags: Mapping[str, str] = MappingProxyType({})

    def __init__(
        self, compression: Compression, method: str, accept_encoding: str | None, wish: Wish
    ) -> None:
        self.compression = compression
        self.method = method
        self.accept_encoding = accept_encoding
        self.wish = wish

    @property
    def asked(self) -> bool | None:
        """What the app wants; None where it leaves that to the options."""
        return self.wish[0] if self.wish else None

    @cached_property
    def coding(self) -> str | None:
        """The coding that the client prefers; None for none."""
        accepted = self.accept_encoding
        return preferred_coding(accepted, self.compression.codings) if accepted else None

    def find_dictionary(self, mount: str, header: Callable[[str], str | None]) -> None:
        """Look for the dictionary of pages, if this may be the request for one of them.

        :param mount: the URL path of the app.
        :param header: returns a header of the request by its name.
        """
        dictionary = self.compression.dictionary
        if dictionary is None or self.method not in ("GET", "HEAD"):
            return
        if header("Cookie") is not None or header("Authorization") is not None:
            return
        available = header("Available-Dictionary")
        has = None
        if available is not None and prefers_delta(header("Accept-Encoding")):
            has = client_dictionary(available, header)
            if has is not None and has.digest != dictionary.digest:
                has = None
        self._pages = PagesClient(dictionary, mount, has)

    def app_preconditions(
        self, if_none_match: str | None, if_match: str | None
    ) -> tuple[str | None, str | None]:
        """Return the request's preconditions as the app is to see them, with its own tags."""
        has_dictionary = self._pages is not None and self._pages.has is not None
        codings = (self.coding, DCZ) if has_dictionary else (self.coding,)
        *restored, self._sent_tags = app_preconditions(if_none_match, if_match, codings)
        return restored[0], restored[1]

    def decide(self, code: int, headers: list[Header], size: int | None = None) -> Decision | None:
        """Decide about a response; see :func:`~wsgifast.compression.policy.decide`."""
        return decide(
            self.compression,
            method=self.method,
            coding=self.coding,
            code=code,
            headers=headers,
            size=size,
            asked=self.asked,
            sent_tags=self._sent_tags,
        )

    def decide_page(
        self, code: int, headers: list[Header], size: int | None = None
    ) -> Decision | None:
        """Decide about what is compressed while it is sent, by the dictionary of pages, too."""
        decision = self.decide(code, headers, size)
        if decision is None or self._pages is None:
            return decision
        return self._pages.decided(decision, code)


def is_private(headers: Iterable[Header]) -> bool:
    """Whether a response is, by its headers, for one client alone."""
    return any(
        name.lower() == "set-cookie"
        or (name.lower() == "cache-control" and _NOT_SHARED & cache_directives(value))
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


def _on_dictionary(decision: Decision, headers: list[Header]) -> Decision:
    on = (*decision.vary, "Available-Dictionary")
    return decision._replace(headers=with_vary(headers, on), vary=on)
