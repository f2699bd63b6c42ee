"""The decision about the content coding of one response, for WSGI and ASGI. No I/O, no clock.

A response is compressed if the client accepts a coding, if it has a body that the app has not
compressed itself, and if its Content-Type is one that shrinks. Vary tells caches that the response
depends on Accept-Encoding, also where this one is not compressed. A body that is compressed while
it is sent has other bytes each time, because its padding is random. So its entity tag is the app's
with a suffix, and weak. The suffix is removed again in the preconditions of a later request, so
that the app's own 304 and 412 still work.

Public pages and JSON are compressed by the dictionary of Compression(dictionary=...). A response is
public under these conditions. Its request has neither Cookie nor Authorization, the app has not
identified a user, and the response has no Set-Cookie and may be shared. Its length shows the parts
that it shares with the dictionary, which everybody can read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple, Protocol
from urllib.parse import unquote

from ..http.fields import parse_length
from ..http.framing import has_body
from ..http.headers import LOWER, Header, Headers
from .codings import PRECOMPRESSED_SUFFIXES, Compressor, preferred_coding
from .dictionaries import DCZ, ClientDictionary, PagesDictionary, client_dictionary, prefers_delta
from .policy import (
    IDENTITY_HEADERS,
    Compression,
    Wish,
    cache_directives,
    compressed_tag,
    is_page,
    is_restorable,
    suffix_check,
    type_to_compress,
)

_NOT_SHARED = {"private", "no-store"}
# A tag of compressed_tag().
_COMPRESSED_TAG = re.compile(
    r'(?:W/)?"(?P<checked>(?P<opaque>[\x21\x23-\x7e\x80-\xff]*)(?P<kind>[+~!])'
    rf"(?P<coding>{'|'.join([*PRECOMPRESSED_SUFFIXES, DCZ])})(?P<copy>-[0-9a-f]{{8}})?)"
    r'\.(?P<check>[0-9a-f]{8})"'
)


class Decision(NamedTuple):
    """The treatment of a response.

    :ivar coding: that the body is compressed with. None to send it as it is.
    :ivar content_type: the app's, where the body is compressed.
    :ivar vary: the headers of the request that it depends on.
    :ivar is_unsure: whether the response to GET may be compressed, so that headers of the original
        body would be wrong.
    :ivar sent_tags: for a 304: the entity tags that the client has sent, by the app's own.
    :ivar link: a Link header to add, or None.
    """

    coding: str | None
    content_type: str = ""
    vary: Sequence[str] = ("Accept-Encoding",)
    is_unsure: bool = False
    sent_tags: Mapping[str, str] = MappingProxyType({})
    link: str | None = None

    def apply(self, headers: Headers) -> Headers:
        """Return the headers to send in place of the app's."""
        drops = self.coding is not None or self.is_unsure
        changed = Headers()
        etag = None
        has_vary = False
        for header in headers:
            name = LOWER[header[0]]
            if name == "etag":
                etag = header[1]
            elif name == "vary":
                has_vary = True
            if not drops or name not in IDENTITY_HEADERS:
                changed.append(header)
        if has_vary:
            changed = changed.with_vary(self.vary)
        else:
            changed.append(("Vary", ", ".join(self.vary)))
        if self.link is not None:
            changed.append(("Link", self.link))
        if etag is not None and self.sent_tags:
            changed.set("ETag", self.sent_tags.get(etag.strip(" \t"), etag))
        if self.coding is not None:
            if etag is not None and (tag := compressed_tag(etag, self.coding)) is not None:
                changed.append(("ETag", tag))
            changed.append(("Content-Encoding", self.coding))
        return changed


# The decision for responses that are sent unchanged and depend on Accept-Encoding. And the same for
# responses without Vary in their headers.
VARIES = Decision(None)
ADDS_VARY = Decision(None)
_UNSURE = Decision(None, is_unsure=True)


class CompressionRequest(Protocol):
    """A request, as far as the coding of its response depends on it.

    :ivar method: in upper case.
    :ivar accept_encoding: the header. None or "" without one.
    :ivar wish: the app's, once it has answered.
    """

    method: str
    accept_encoding: str | None
    wish: Wish

    def header(self, name: str) -> str | None:
        """Return a header by its name. None without one."""


class ResponseCoding:
    """The coding of the response to one request. Each half compresses the body in its own way.

    It is a :class:`CompressionRequest` too.

    :param method: of the request.
    :param accept_encoding: of the request. None or "" without one.
    :param wish: the app's.
    :ivar compressor: of the body, once the headers have been decided. None if it is sent unchanged.
    """

    compressor: Compressor | None = None
    # The dictionary of pages, if this may be the request for one of them, the URL path of the app,
    # and the client's dictionary, or None if it is not this one.
    _pages: PagesDictionary | None = None
    _mount = ""
    _dictionary: ClientDictionary | None = None
    # The tags of compressed bodies in the request's If-None-Match, by the app's own tags.
    _sent_tags: Mapping[str, str] = MappingProxyType({})

    def __init__(
        self, compression: Compression, method: str, accept_encoding: str | None, wish: Wish
    ) -> None:
        self.compression = compression
        self.method = method
        self.accept_encoding = accept_encoding
        self.wish = wish

    def header(self, name: str) -> str | None:
        """Return a header of the request by its name. None without one."""
        return None

    def is_behind(self) -> bool:
        """Whether the server is behind with its work."""
        raise NotImplementedError

    def has_user(self) -> bool:
        """Whether the server, or middleware, knows who sends the request."""
        raise NotImplementedError

    @cached_property
    def coding(self) -> str | None:
        """The content coding that the client prefers, or None."""
        accepted = self.accept_encoding
        return preferred_coding(accepted, self.compression.codings) if accepted else None

    def find_dictionary(self, mount: str) -> None:
        """Look for the dictionary of pages, if this may be the request for one of them.

        :param mount: the URL path of the app.
        """
        dictionary = self.compression.dictionary
        if dictionary is None or self.method not in ("GET", "HEAD"):
            return
        header = self.header
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
        """Return If-None-Match and If-Match with the app's own tags in place of ours.

        In a GET, If-None-Match is changed only for tags of the coding that this request would get,
        because a cache with another coding must not send that one. If-Match asks whether
        the app's own state is the one that the client has seen, in any coding. If-Range does not
        change. A part of the app's body does not fit a part of a compressed one, so the app has to
        send all of it. The tag of a file's copy stays beside the original, because the app may be a
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
            if_none_match = _COMPRESSED_TAG.sub(restored, if_none_match)
        if if_match is not None:
            if_match = _COMPRESSED_TAG.sub(_with_copy, if_match)
        return if_none_match, if_match

    @staticmethod
    def app_if(value: str) -> str:
        """Return WebDAV's If header (RFC 4918, section 10.4) with the app's own tags."""
        return _COMPRESSED_TAG.sub(_original, value)

    def decide(
        self, code: int, headers: Sequence[Header], size: int | None = None
    ) -> Decision | None:
        """See :func:`decide`. A 304 gets the tag that the client has sent."""
        if code == 304 and self._sent_tags and self.method in ("GET", "HEAD"):
            return VARIES._replace(sent_tags=self._sent_tags)
        return decide(self.compression, self, code, headers, size)

    def decide_page(
        self, code: int, headers: Sequence[Header], size: int | None = None
    ) -> Decision | None:
        """Decide about a body that is compressed while it is sent, by the pages' dictionary too."""
        decision = self.decide(code, headers, size)
        return decision if self._pages is None else self.refine(decision, code, headers)

    def refine(
        self, decision: Decision | None, code: int, headers: Sequence[Header]
    ) -> Decision | None:
        """Return a decision that uses the dictionary of pages, if it applies."""
        pages = self._pages
        if decision is None or pages is None:
            return decision
        on_dictionary = decision._replace(vary=(*decision.vary, "Available-Dictionary"))
        if code == 304:
            return on_dictionary
        is_compressed_page = decision.coding is not None and is_page(decision.content_type)
        if not is_compressed_page or code != 200 or is_private(headers) or self.has_user():
            return decision
        allowed = Headers(headers).get("access-control-allow-origin")
        if self._dictionary is not None and self._dictionary.may_be_used(allowed):
            return on_dictionary._replace(coding=DCZ)
        if "html" in decision.content_type.lower():
            return on_dictionary._replace(link=pages.link(self._mount))
        return on_dictionary

    def begin(self, code: int, headers: Headers, decision: Decision | None = None) -> Headers:
        """Decide about a response with a body that is compressed block by block.

        :param decision: if it has been made before.
        :returns: the headers to send. `headers` itself to send the body unchanged.
        """
        self.compressor = None
        decision = decision or self.decide_page(code, headers)
        if decision is None:
            return headers
        if decision.coding is not None and self.method != "HEAD":
            self.compressor = self.compressor_for(decision, decision.coding, None)
        return decision.apply(headers)

    def compressor_for(self, decision: Decision, coding: str, size: int | None) -> Compressor:
        """Make the compressor for a body of `size` bytes. None for a stream."""
        kind = decision.content_type
        return self.compression.compressor(coding, kind, size, is_behind=self.is_behind())


def decide(
    compression: Compression,
    request: CompressionRequest,
    code: int,
    headers: Sequence[Header],
    size: int | None = None,
) -> Decision | None:
    """Decide about a response.

    :param code: of its status.
    :param headers: the app's.
    :param size: of the body in bytes, where it is known without a Content-Length.
    :returns: None to send it as it is.
    """
    method, wish, accept_encoding = request.method, request.wish, request.accept_encoding
    if code == 304:
        return VARIES if method in ("GET", "HEAD") else None
    is_head = method == "HEAD"
    if (code != 200 or method != "GET") and not has_body("GET" if is_head else method, code):
        return None
    requested = wish[0] if wish else None  # None leaves it to the options
    has_least_size = code != 206 and not requested
    if has_least_size and size is not None and size < compression.min_bytes:
        return None
    content_type, has_vary = type_to_compress(headers)
    if content_type is None:
        return None
    if not (compression.shrinks[content_type] if requested is None else requested):
        return None
    if has_least_size and size is None:
        length = parse_length((Headers(headers).get("content-length") or "").strip(" \t"))
        if length is not None and length < compression.min_bytes:
            return None
    coding = None
    if accept_encoding and code != 206:  # the app has answered Range for the original body
        coding = preferred_coding(accept_encoding, compression.codings)
    if coding is None:
        return VARIES if has_vary else ADDS_VARY
    if is_head and size is None:
        # Not known without the body: whether GET's is long enough, or has a coding of the app's.
        return _UNSURE
    return Decision(coding, content_type)


def is_private(headers: Iterable[Header]) -> bool:
    """Whether a response is, by its headers, for one client alone."""
    headers = Headers(headers)
    controls = headers.get_all("cache-control")
    return headers.get("set-cookie") is not None or any(
        _NOT_SHARED & cache_directives(value) for value in controls
    )


def _original(match: re.Match[str]) -> str:
    """The app's tag. The whole match if it is not one of :func:`compressed_tag`."""
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
