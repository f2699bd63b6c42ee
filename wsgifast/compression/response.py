"""Decide about the content coding of one response, for WSGI and ASGI.

A response is compressed if all of these are true:

- The client accepts a content coding.
- The response has a body, and the app has not compressed it.
- Bodies of its Content-Type usually become smaller.

Vary tells caches that the response depends on Accept-Encoding. An uncompressed response has Vary
too, if another client would get it compressed.

The compressed body differs each time, because its padding is random. So its entity tag is weak: the
tag of the app with a suffix. In the preconditions of later requests, the suffix is removed. So the
app can still send 304 and 412.

Public pages and JSON are compressed with the dictionary of Compression(dictionary=...), if the
client has it. Everybody can read the dictionary, so the length of a response reveals which parts of
the response are in it. So a response is public only if all of these are true:

- The request has neither Cookie nor Authorization.
- No server and no middleware has identified a user.
- The response has neither Set-Cookie nor a Cache-Control of private or no-store.
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
# An entity tag of the function compressed_tag().
_COMPRESSED_TAG = re.compile(
    r'(?:W/)?"(?P<checked>(?P<opaque>[\x21\x23-\x7e\x80-\xff]*)(?P<kind>[+~!])'
    rf"(?P<coding>{'|'.join([*PRECOMPRESSED_SUFFIXES, DCZ])})(?P<copy>-[0-9a-f]{{8}})?)"
    r'\.(?P<check>[0-9a-f]{8})"'
)


class Decision(NamedTuple):
    """A decision about the content coding of a response.

    :ivar coding: the content coding of the body. None to send the body uncompressed.
    :ivar content_type: the Content-Type of the app, if the body is compressed.
    :ivar vary: the request headers on which the response depends.
    :ivar is_unsure: for HEAD: whether a GET may get a compressed response. Headers of the
        uncompressed body are then removed.
    :ivar sent_tags: for a 304: maps the app's entity tags to the tags that the client has sent.
    :ivar link: the value of a Link header to add. None to add no Link.
    """

    coding: str | None
    content_type: str = ""
    vary: Sequence[str] = ("Accept-Encoding",)
    is_unsure: bool = False
    sent_tags: Mapping[str, str] = MappingProxyType({})
    link: str | None = None

    def apply(self, headers: Headers) -> Headers:
        """Return the headers to send in place of the app's headers."""
        drops_identity_headers = self.coding is not None or self.is_unsure
        changed = Headers()
        etag = None
        has_vary = False
        for header in headers:
            name = LOWER[header[0]]
            if name == "etag":
                etag = header[1]
            elif name == "vary":
                has_vary = True
            if not drops_identity_headers or name not in IDENTITY_HEADERS:
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


# The decisions for uncompressed responses that depend on Accept-Encoding. ADDS_VARY is for
# responses without a Vary of the app. Callers compare by identity.
VARIES = Decision(None)
ADDS_VARY = Decision(None)
_UNSURE = Decision(None, is_unsure=True)


class CompressionRequest(Protocol):
    """The parts of a request that decide about the content coding of its response.

    :ivar method: the method of the request, in upper case.
    :ivar accept_encoding: the value of Accept-Encoding. None or "" without the header.
    :ivar wish: the decision of the app. See :data:`.policy.Wish`.
    """

    method: str
    accept_encoding: str | None
    wish: Wish

    def header(self, name: str) -> str | None:
        """Return a header of the request by its name. None if the request does not have it."""


class ResponseCoding:
    """Decides about the content coding of the response to one request.

    Subclasses for WSGI and ASGI compress the body. It is a :class:`CompressionRequest` too.

    :param method: the method of the request.
    :param accept_encoding: the value of Accept-Encoding. None or "" without the header.
    :param wish: the decision of the app. See :data:`.policy.Wish`.
    :ivar compressor: the compressor of the body, after :meth:`begin`. None to send the body
        uncompressed.
    """

    compressor: Compressor | None = None
    # The dictionary for pages. None if it must not be used for this request.
    _pages: PagesDictionary | None = None
    # The URL path of the app.
    _mount = ""
    # The client's dictionary, if it is the dictionary for pages.
    _dictionary: ClientDictionary | None = None
    # Maps the app's entity tags to the tags of compressed bodies in If-None-Match.
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
        """Return whether requests wait for the server."""
        raise NotImplementedError

    def has_user(self) -> bool:
        """Return whether the server or middleware has identified the user of the request."""
        raise NotImplementedError

    @cached_property
    def coding(self) -> str | None:
        """The content coding that the client prefers. None for an uncompressed body."""
        accepted = self.accept_encoding
        return preferred_coding(accepted, self.compression.codings) if accepted else None

    def find_dictionary(self, mount: str) -> None:
        """Find out whether the request allows the dictionary for pages, and the client has it.

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
        """Return If-None-Match and If-Match with the tags of the app's uncompressed bodies.

        - For GET and HEAD, If-None-Match is changed only for tags of the content coding that this
          request would get. A cache must not send a body in another content coding.
        - If-Match is changed for tags of all content codings, since it is about the state of the
          resource.
        - If-Range does not change, so the app sends the whole body. A part of the uncompressed body
          does not fit to a part of a compressed body.
        - The tag of a file's compressed copy stays in the list, next to the original tag. The app
          may be a StaticFiles, which sends such tags.
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
        """Return the value of WebDAV's If header (RFC 4918, section 10.4) with the app's tags."""
        return _COMPRESSED_TAG.sub(_original, value)

    def decide(
        self, code: int, headers: Sequence[Header], size: int | None = None
    ) -> Decision | None:
        """Decide about the response. See :func:`decide`. A 304 gets the tag of the client."""
        if code == 304 and self._sent_tags and self.method in ("GET", "HEAD"):
            return VARIES._replace(sent_tags=self._sent_tags)
        return decide(self.compression, self, code, headers, size)

    def decide_page(
        self, code: int, headers: Sequence[Header], size: int | None = None
    ) -> Decision | None:
        """Decide about the response. The dictionary for pages may be used. See :func:`decide`."""
        decision = self.decide(code, headers, size)
        return decision if self._pages is None else self.refine(decision, code, headers)

    def refine(
        self, decision: Decision | None, code: int, headers: Sequence[Header]
    ) -> Decision | None:
        """Change a decision to use the dictionary for pages, if the response allows that."""
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
        """Decide about a response, and set :attr:`compressor` for a body in blocks.

        :param decision: an earlier result of :meth:`decide_page`, to save the time.
        :returns: the headers to send. They are the object `headers` if nothing changes.
        """
        self.compressor = None
        decision = decision or self.decide_page(code, headers)
        if decision is None:
            return headers
        if decision.coding is not None and self.method != "HEAD":
            self.compressor = self.compressor_for(decision, decision.coding, None)
        return decision.apply(headers)

    def compressor_for(self, decision: Decision, coding: str, size: int | None) -> Compressor:
        """Return a compressor for a body.

        :param size: the size of the body in bytes. None for a stream.
        """
        kind = decision.content_type
        return self.compression.compressor(coding, kind, size, is_behind=self.is_behind())


def decide(
    compression: Compression,
    request: CompressionRequest,
    code: int,
    headers: Sequence[Header],
    size: int | None = None,
) -> Decision | None:
    """Decide about the content coding of a response.

    :param request: the request.
    :param code: the status code of the response.
    :param headers: the headers of the app.
    :param size: the size of the body in bytes. None if it is not known, or only by Content-Length.
    :returns: None to send the response unchanged.
    """
    method, wish, accept_encoding = request.method, request.wish, request.accept_encoding
    if code == 304:
        return VARIES if method in ("GET", "HEAD") else None
    is_head = method == "HEAD"
    if (code != 200 or method != "GET") and not has_body("GET" if is_head else method, code):
        return None
    requested = wish[0] if wish else None  # None: the options decide
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
    if accept_encoding and code != 206:  # the Content-Range of a 206 is for the uncompressed body
        coding = preferred_coding(accept_encoding, compression.codings)
    if coding is None:
        return VARIES if has_vary else ADDS_VARY
    if is_head and size is None:
        # Without a body it is not known whether the body of a GET has min_bytes, or whether the
        # app would compress it.
        return _UNSURE
    return Decision(coding, content_type)


def is_private(headers: Iterable[Header]) -> bool:
    """Return whether the headers of a response say that it is for one client only."""
    headers = Headers(headers)
    controls = headers.get_all("cache-control")
    return headers.get("set-cookie") is not None or any(
        _NOT_SHARED & cache_directives(value) for value in controls
    )


def _original(match: re.Match[str]) -> str:
    """Return the app's tag. Return the whole match if its check value is wrong."""
    if suffix_check(match["checked"]) != match["check"]:
        return match[0]
    if match["kind"] == "!":
        etag = unquote(match["opaque"], encoding="latin-1")
        return etag if is_restorable(etag) else match[0]
    weak = "W/" if match["kind"] == "~" else ""
    return f'{weak}"{match["opaque"]}"'


def _with_copy(match: re.Match[str]) -> str:
    """Return the app's tag. For the tag of a file's compressed copy, return both tags as a list."""
    original = _original(match)
    return f"{original}, {match[0]}" if match["copy"] and original != match[0] else original
