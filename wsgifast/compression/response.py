"""What is decided about the coding of one response, for WSGI and ASGI. No I/O, no clock.

A response is compressed if the client accepts a coding, if it has a body that the app has not coded
itself, and if its Content-Type is one that shrinks. Vary says to caches that the answer depends
on Accept-Encoding, also where this one is not compressed. What is coded on the fly differs in its
bytes each time, since its padding does: its entity tag is the app's with a suffix, and weak. The
suffix is taken off again in the preconditions of a later request, so that the app's own 304 and 412
keep working.

Public pages and JSON are compressed by the dictionary of Compression(dictionary=...). An answer is
public if its request has neither Cookie nor Authorization, if nobody has found out the user, and if
it has no Set-Cookie and may be shared. Its length shows what it has in common with the dictionary,
which everybody can read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import unquote

from ..http.framing import has_body
from ..http.head import header_value, parse_length
from .codings import SIBLING_SUFFIXES, Compressor, preferred_coding
from .dictionaries import DCZ, ClientDictionary, PagesDictionary, client_dictionary, prefers_delta
from .policy import (
    OF_THE_UNCODED,
    Compression,
    Header,
    Wish,
    cache_directives,
    coded_tag,
    is_page,
    is_restorable,
    kind_of_head,
    suffix_check,
    uncoded_headers_dropped,
    with_vary,
)

_NOT_SHARED = {"private", "no-store"}
# A tag of coded_tag().
_CODED_TAG = re.compile(
    r'(?:W/)?"(?P<checked>(?P<opaque>[\x21\x23-\x7e\x80-\xff]*)(?P<kind>[+~!])'
    rf"(?P<coding>{'|'.join([*SIBLING_SUFFIXES, DCZ])})(?P<copy>-[0-9a-f]{{8}})?)"
    r'\.(?P<check>[0-9a-f]{8})"'
)


class Decision(NamedTuple):
    """What is done with a response.

    :ivar headers: to send in place of the app's.
    :ivar coding: that the body is compressed with; None to send it as it is.
    :ivar content_type: the app's.
    :ivar vary: the headers of the request that it depends on.
    """

    headers: list[Header]
    coding: str | None
    content_type: str
    vary: Sequence[str] = ("Accept-Encoding",)


class ResponseCoding:
    """The coding of the response to one request; each half compresses the body in its own way.

    :param method: of the request.
    :param accept_encoding: of the request; None, as "", for none.
    :param wish: the app's.
    :ivar compressor: of the body, once the head has been decided; None if it is sent as it is.
    """

    compressor: Compressor | None = None
    # The dictionary of pages, if this may be the request for one of them; the URL path of the app;
    # and what the client has, None if it is not this dictionary.
    _pages: PagesDictionary | None = None
    _mount = ""
    _dictionary: ClientDictionary | None = None
    # The coded tags of the request's If-None-Match, by what they became.
    _sent_tags: Mapping[str, str] = MappingProxyType({})

    def __init__(
        self, compression: Compression, method: str, accept_encoding: str | None, wish: Wish
    ) -> None:
        self.compression = compression
        self.method = method
        self.accept_encoding = accept_encoding
        self.wish = wish

    def is_behind(self) -> bool:
        """Whether the server is behind with its work."""
        raise NotImplementedError

    def has_user(self) -> bool:
        """Whether the server, or middleware, knows who sends the request."""
        raise NotImplementedError

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
        self._pages, self._mount = dictionary, mount
        available = header("Available-Dictionary")
        if available is not None and prefers_delta(header("Accept-Encoding")):
            has = client_dictionary(available, header)
            if has is not None and has.digest == dictionary.digest:
                self._dictionary = has

    def app_preconditions(
        self, if_none_match: str | None, if_match: str | None
    ) -> tuple[str | None, str | None]:
        """Return If-None-Match and If-Match with the app's own tags in place of those made of them.

        In a GET, If-None-Match is changed only for tags of the coding that this request would get:
        a cache that has another coding must not be asked to send that one. If-Match asks whether
        the app's own state is the one that the client has seen, in whatever coding. If-Range stays
        as it is: a part of the app's body does not fit a part of a coded one, so the app has to
        send all of it. The tag of a file's copy stays beside the original: the app may be a
        StaticFiles with such tags.
        """
        codings = (self.coding,) if self._dictionary is None else (self.coding, DCZ)
        self._sent_tags = sent = {}

        is_read = self.method in ("GET", "HEAD")

        def restored(match: re.Match[str]) -> str:
            if is_read and match["coding"] not in codings:
                return match[0]
            original = _original(match)
            if original != match[0]:
                sent[original] = match[0]
            return _with_copy(match)

        if if_none_match is not None:
            if_none_match = _CODED_TAG.sub(restored, if_none_match)
        if if_match is not None:
            if_match = _CODED_TAG.sub(_with_copy, if_match)
        return if_none_match, if_match

    @staticmethod
    def app_if(value: str) -> str:
        """Return WebDAV's If header (RFC 4918, section 10.4) with the app's own tags."""
        return _CODED_TAG.sub(_original, value)

    def decide(self, code: int, headers: list[Header], size: int | None = None) -> Decision | None:
        """Decide about a response.

        :param code: of its status.
        :param headers: the app's.
        :param size: of the body in bytes, where it is known without a Content-Length.
        :returns: None to send it as it is.
        """
        method = self.method
        if code == 304:
            return self._not_modified(headers)
        if not has_body("GET" if method == "HEAD" else method, code):
            return None
        content_type, _ = kind_of_head(headers)
        if content_type is None:
            return None
        asked = self.wish[0] if self.wish else None  # None leaves it to the options
        if not (self.compression.shrinks[content_type] if asked is None else asked):
            return None
        # The app has answered Range for the uncoded body.
        coding = None if code == 206 else self.coding
        if code != 206 and not asked:
            length = size
            if length is None:
                declared = header_value(headers, "content-length") or ""
                length = parse_length(declared.strip(" \t"))
            if length is not None and length < self.compression.min_bytes:
                return None
        if coding is None:
            return Decision(with_vary(headers), None, content_type)
        if size is None and method == "HEAD":
            # Not known without the body: whether GET's is long enough, or has a coding of the
            # app's.
            kept = uncoded_headers_dropped(headers)
            return Decision(with_vary(kept), None, content_type)
        return Decision(_coded(headers, coding), coding, content_type)

    def decide_page(
        self, code: int, headers: list[Header], size: int | None = None
    ) -> Decision | None:
        """Decide about what is compressed while it is sent, by the dictionary of pages, too."""
        decision = self.decide(code, headers, size)
        pages = self._pages
        if decision is None or pages is None:
            return decision
        changed = decision.headers
        if code == 304:
            return _on_dictionary(decision, changed)
        is_coded_page = decision.coding is not None and is_page(decision.content_type)
        if not is_coded_page or code != 200 or is_private(changed) or self.has_user():
            return decision
        allowed = header_value(changed, "access-control-allow-origin")
        if self._dictionary is None or not self._dictionary.may_be_used(allowed):
            if "html" in decision.content_type.lower():
                changed = [*changed, ("Link", pages.link(self._mount))]
            return _on_dictionary(decision, changed)
        return _on_dictionary(decision, _coded(headers, DCZ))._replace(coding=DCZ)

    def begin(self, code: int, headers: list[Header]) -> list[Header]:
        """Decide about a response whose body is compressed block by block.

        :returns: the headers to send; `headers` itself to send it as it is.
        """
        self.compressor = None
        decision = self.decide_page(code, headers)
        if decision is None:
            return headers
        if decision.coding is not None and self.method != "HEAD":
            self.compressor = self.compressor_for(decision, decision.coding, None)
        return decision.headers

    def compressor_for(self, decision: Decision, coding: str, size: int | None) -> Compressor:
        """Make the compressor for a body of `size` bytes; None for a stream."""
        kind = decision.content_type
        return self.compression.compressor(coding, kind, size, is_behind=self.is_behind())

    def _not_modified(self, headers: list[Header]) -> Decision | None:
        """A 304 with the tag that the client has sent."""
        if self.method not in ("GET", "HEAD"):
            return None
        tags = self._sent_tags
        changed = [
            (name, tags.get(value.strip(" \t"), value) if name.lower() == "etag" else value)
            for name, value in headers
        ]
        return Decision(with_vary(changed), None, "")


def _coded(headers: list[Header], coding: str) -> list[Header]:
    """Return the headers of a body in a coding."""
    coded = []
    for name, value in headers:
        lower = name.lower()
        if lower == "etag":
            tag = coded_tag(value, coding)
            if tag is not None:
                coded.append(("ETag", tag))
        elif lower not in OF_THE_UNCODED:
            coded.append((name, value))
    return [*with_vary(coded), ("Content-Encoding", coding)]


def is_private(headers: Iterable[Header]) -> bool:
    """Whether a response is, by its headers, for one client alone."""
    return any(
        name.lower() == "set-cookie"
        or (name.lower() == "cache-control" and _NOT_SHARED & cache_directives(value))
        for name, value in headers
    )


def _on_dictionary(decision: Decision, headers: list[Header]) -> Decision:
    on = (*decision.vary, "Available-Dictionary")
    return decision._replace(headers=with_vary(headers, on), vary=on)


def _original(match: re.Match[str]) -> str:
    """The app's tag; the whole match if it is not one of :func:`coded_tag`."""
    if suffix_check(match["checked"]) != match["check"]:
        return match[0]
    if match["kind"] == "!":
        etag = unquote(match["opaque"], encoding="latin-1")
        return etag if is_restorable(etag) else match[0]
    weak = "W/" if match["kind"] == "~" else ""
    return f'{weak}"{match["opaque"]}"'


def _with_copy(match: re.Match[str]) -> str:
    """The original of a tag, and the tag itself if it is that of a copy."""
    original = _original(match)
    return f"{original}, {match[0]}" if match["copy"] and original != match[0] else original
