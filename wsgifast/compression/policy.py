"""What of an app's responses is compressed, and what becomes of their headers. No I/O, no clock.

A response is compressed if the client accepts a coding, if it has a body that the app has not coded
itself, and if its Content-Type is one that shrinks. Vary says to caches that the answer depends
on Accept-Encoding, also where this one is not compressed. What is coded on the fly differs in its
bytes each time, since its padding does: its entity tag is the app's with a suffix, and weak. The
suffix is taken off again in the preconditions of a later request, so that the app's own 304 and 412
keep working.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from ..checks import check_switches, is_count, list_of_text, shown
from ..errors import ConfigurationError
from ..http.framing import has_body, list_members
from ..http.head import TOKEN, header_value, parse_length
from .codings import (
    DEFAULT_LEVELS,
    LEVELS,
    SIBLING_SUFFIXES,
    Compressor,
    Counted,
    checked_codings,
    compressor,
    preferred_coding,
)
from .dictionaries import DCZ, PagesDictionary

Header = tuple[str, str]

# The key of the environ, or of an ASGI scope, that has the request's :data:`Wish`.
WISH = "wsgifast.compression"
# What an app wants of one response: [True] or [False]; empty where it leaves that to the options. A
# list, which middleware that copies the environ or the scope passes on.
Wish = list[bool]
# The key of the environ under which FastWorker has a function: whether its threads are behind with
# their work. Then levels are halved, so that what compression takes is not what others wait for.
IS_BEHIND = "wsgifast.is_behind"

# A body of this size fits into the first packet with its head, which no client gets any sooner.
_DEFAULT_MIN_BYTES = 1000
_EVENT_STREAM = "text/event-stream"
# Types that shrink, beside text/* and what ends in a suffix below (RFC 6839).
_TYPES = frozenset(
    {
        "application/csv", "application/ecmascript", "application/graphql",
        "application/javascript", "application/json", "application/json-seq", "application/json5",
        "application/jsonl", "application/n-triples", "application/ndjson",
        "application/openmetrics-text", "application/postscript", "application/rtf",
        "application/sql", "application/toml", "application/trig", "application/vnd.ms-fontobject",
        "application/wasm", "application/x-font-opentype", "application/x-font-otf",
        "application/x-font-truetype", "application/x-font-ttf", "application/x-javascript",
        "application/x-json", "application/x-jsonlines", "application/x-ndjson", "application/x-sh",
        "application/x-yaml", "application/xml", "application/xml-dtd", "application/yaml",
        "font/collection", "font/opentype", "font/otf", "font/ttf", "image/bmp",
        "image/vnd.microsoft.icon", "image/x-icon", "model/obj",
    }
)  # fmt: skip
_SUFFIXES = ("+json", "+xml", "+text", "+yaml")
# gRPC compresses by itself, and frames its messages by their lengths.
_NEVER = ("application/grpc",)
# Pages and data: an attacker may have them repeat what a secret begins with.
_PAGES = re.compile(r"(?:text/|application/)(?:html|xhtml\+xml|json|x-json|[^;]*\+json)")

# Headers that describe the bytes of the uncoded body, or offer ranges of it.
_OF_THE_UNCODED = frozenset(
    {"content-length", "content-md5", "digest", "content-digest", "repr-digest", "accept-ranges"}
)
# Lengths of the names that matter, so that most headers are passed over by a comparison of numbers.
DECISIVE_LENGTHS = frozenset(
    map(len, ["content-type", "content-encoding", "cache-control", "vary"])
)
_MOST_TYPES = 256
_VARIES: tuple[Header, ...] = (("Vary", "Accept-Encoding"),)

_MEDIA_TYPE = re.compile(rf"[ \t]*({TOKEN}/{TOKEN})")

# The suffix of a coded tag: + behind a strong tag of the app's, ~ behind a weak one. The strong tag
# of a file's coded copy has a checksum of that copy, too.
_CODED_TAG = re.compile(
    r'(?:W/)?"(?P<opaque>[\x21\x23-\x7e\x80-\xff]*)(?P<kind>[+~])'
    rf'(?P<coding>{"|".join([*SIBLING_SUFFIXES, DCZ])})(?P<copy>-[0-9a-f]{{8}})?"'
)
_TAG = re.compile(r'(?P<weak>W/)?"(?P<opaque>[\x21\x23-\x7e\x80-\xff]*)"')


class Compression:
    """What is compressed, and how; one object for all responses of an app.

    :param codings: those to use, the first one where a client prefers several equally; by default
        zstd, br and gzip, as far as their packages are installed (``wsgifast[compress]``).
    :param levels: of what is compressed while the client waits, by coding; by default zstd 3, br 4
        and gzip 4.
    :param min_bytes: the size from which a body is compressed, where it is known.
    :param content_types: further types, such as ``application/vnd.mapbox-vector-tile``.
    :param event_streams: also compress text/event-stream, with a flush for each event.
    :param padding: add up to 100 random bytes to each compressed page and JSON answer, so that its
        length says less of a secret in it (BREACH; SECURITY.md).
    :param dictionary: the path of a file of ``wsgifast compress --train``, by which pages and JSON
        are compressed for clients that have fetched it (RFC 9842). Never an answer to a request
        with cookies or Authorization, nor one with Set-Cookie, ``private`` or ``no-store``.
    :raises ConfigurationError: for an option that has an invalid value.
    """

    def __init__(
        self,
        *,
        codings: Sequence[str] | None = None,
        levels: Mapping[str, int] | None = None,
        min_bytes: int = _DEFAULT_MIN_BYTES,
        content_types: Collection[str] = (),
        event_streams: bool = False,
        padding: bool = True,
        dictionary: str | os.PathLike[str] | None = None,
    ) -> None:
        check_switches(event_streams=event_streams, padding=padding)
        if not is_count(min_bytes):
            raise ConfigurationError(
                f"min_bytes is a number of bytes from 0 on, not {shown(min_bytes)}"
            )
        self.codings = tuple(checked_codings(codings))
        if not self.codings:
            raise ConfigurationError("codings=[]: name one, such as 'gzip'")
        self.levels = _checked_levels(levels)
        self.min_bytes = min_bytes
        self.padding = padding
        self.dictionary = None if dictionary is None else PagesDictionary(dictionary)
        self.shrinks = _Shrinks(_checked_types(content_types), event_streams)

    def compressor(
        self, coding: str, content_type: str, size: int | None, *, is_behind: bool = False
    ) -> Compressor:
        """Return the compressor for a response's body.

        :param size: in bytes; None for a stream.
        :param is_behind: with its work, is the server; see :data:`IS_BEHIND`.
        """
        level = self.levels["zstd" if coding == DCZ else coding]
        if is_behind:
            level = max(level // 2, min(level, 1))
        padding = self.padding and is_page(content_type)
        if coding == DCZ and self.dictionary is not None:
            made = self.dictionary.compressor(level, size, padding=padding)
        else:
            made = compressor(coding, level=level, size=size, padding=padding)
        return Counted(coding, made)


class _Shrinks(dict[str, bool]):
    """Whether bodies of a Content-Type shrink, remembered for the usual ones."""

    def __init__(self, further: frozenset[str], event_streams: bool) -> None:
        self._further = further
        self._event_streams = event_streams

    def __missing__(self, content_type: str) -> bool:
        match = _MEDIA_TYPE.match(content_type)
        kind = match[1].lower() if match else ""
        if kind == _EVENT_STREAM:
            shrinks = self._event_streams
        elif kind in self._further:
            shrinks = True
        elif kind.startswith(_NEVER):
            shrinks = False
        else:
            shrinks = kind.startswith("text/") or kind in _TYPES or kind.endswith(_SUFFIXES)
        if len(self) < _MOST_TYPES:
            self[content_type] = shrinks
        return shrinks


def compression_for(compress: object) -> Compression | None:
    """Return what an option `compress` asks for.

    :param compress: True, False, or a :class:`Compression`.
    :raises ConfigurationError: for anything else.
    """
    if isinstance(compress, Compression):
        return compress
    check_switches(compress=compress)
    return Compression() if compress else None


def compress_response(request: object, compress: bool) -> None:
    """Decide whether the response to a request is compressed; for views and middleware.

    Without compression around the app it has no effect. A client that accepts no coding gets the
    response as it is.

    :param request: Flask's, Django's, Starlette's or FastAPI's, a WSGI environ, or an ASGI scope.
    :param compress: False to leave the response as it is, such as a page with a secret beside what
        a client has sent; True to compress it whatever its Content-Type and size.
    """
    if not isinstance(request, Mapping):
        # Django's has META on both sides, and under ASGI the scope, too.
        names = ("scope", "environ", "META")
        found = (getattr(request, name, None) for name in names)
        request = next((each for each in found if isinstance(each, Mapping)), {})
    wish = request.get(WISH)
    if isinstance(wish, list):
        wish[:] = [compress]


def app_preconditions(
    if_none_match: str | None, if_match: str | None, codings: Collection[str | None]
) -> tuple[str | None, str | None, Mapping[str, str]]:
    """Return If-None-Match and If-Match with the app's own tags in place of those made of them.

    If-None-Match is changed only for tags of the coding that this request would get: a cache that
    has a copy in another coding must not be asked to send that one. If-Match asks whether the app's
    own state is the one that the client has seen, in whatever coding. If-Range stays as it is: a
    part of the app's body does not fit a part of a coded one, so the app has to send all of it.
    The tag of a file's copy stays beside the original: the app may be a StaticFiles with such tags.

    :param codings: those that the answer may have.
    :returns: also the coded tags of the request's If-None-Match, by what they became.
    """
    sent: dict[str, str] = {}

    def restored(match: re.Match[str]) -> str:
        tag = _original(match)
        sent[tag] = match[0]
        return _with_copy(match)

    if if_none_match is not None:
        if_none_match = _CODED_TAG.sub(
            lambda match: restored(match) if match["coding"] in codings else match[0], if_none_match
        )
    if if_match is not None:
        if_match = _CODED_TAG.sub(_with_copy, if_match)
    return if_none_match, if_match, sent


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


def decide(
    compression: Compression,
    *,
    method: str,
    coding: str | None,
    code: int,
    headers: Sequence[Header],
    size: int | None = None,
    asked: bool | None = None,
    sent_tags: Mapping[str, str] | None = None,
) -> Decision | None:
    """Decide about a response.

    :param method: of the request.
    :param coding: that the client prefers; None for none.
    :param code: of the response's status.
    :param headers: the app's.
    :param size: of the body in bytes, where it is known without a Content-Length.
    :param asked: by the app, with :func:`compress_response`; None if it leaves that to the options.
    :param sent_tags: of :func:`app_preconditions`.
    :returns: None to send it as it is.
    """
    if code == 304:
        return _not_modified(method, headers, sent_tags or {})
    # Most responses are this one.
    if (code != 200 or method != "GET") and not (
        has_body(method, code) or (method == "HEAD" and has_body("GET", code))
    ):
        return None
    content_type, _ = _of_head(headers)
    if content_type is None:
        return None
    if not (compression.shrinks[content_type] if asked is None else asked):
        return None
    if code == 206:
        coding = None  # the app has answered Range for the uncoded body
    elif not asked:
        length = size
        if length is None:
            length = parse_length((header_value(headers, "content-length") or "").strip(" \t"))
        if length is not None and length < compression.min_bytes:
            return None
    if coding is None:
        return Decision(with_vary(headers), None, content_type)
    if size is None and method == "HEAD":
        # Not known without the body: whether GET's is long enough, or has a coding of the app's.
        kept = [h for h in headers if h[0].lower() not in ("etag", *_OF_THE_UNCODED)]
        return Decision(with_vary(kept), None, content_type)
    coded = []
    for name, value in headers:
        lower = name.lower()
        if lower == "etag":
            if _TAG.fullmatch(value.strip(" \t")):
                coded.append(("ETag", coded_tag(value, coding)))
        elif lower not in _OF_THE_UNCODED:
            coded.append((name, value))
    return Decision([*with_vary(coded), ("Content-Encoding", coding)], coding, content_type)


def left_uncoded(
    compression: Compression,
    method: str,
    code: int,
    headers: Sequence[Header],
    size: int,
    accept_encoding: str | None,
) -> tuple[Header, ...] | None:
    """Return what a head lacks whose whole body is sent as it is; None if :func:`decide` decides.

    It gives the answer of :func:`decide` for most responses that are not compressed, at less cost,
    where the app leaves that to the options.

    :param headers: at least those with names of the lengths in :data:`DECISIVE_LENGTHS`.
    :param size: of the body.
    :param accept_encoding: of the request; None, as "", for none.
    """
    if method == "HEAD" or code == 206 or code == 304:
        return None
    if size < compression.min_bytes:
        return ()
    if (code != 200 or method != "GET") and not has_body(method, code):
        return ()
    content_type, has_vary = _of_head(headers)
    if content_type is None or not compression.shrinks[content_type]:
        return ()
    if accept_encoding and preferred_coding(accept_encoding, compression.codings) is not None:
        return None
    return None if has_vary else _VARIES


def _of_head(headers: Sequence[Header]) -> tuple[str | None, bool]:
    """Return the Content-Type, None if the body must not be coded; and whether there is a Vary."""
    content_type = None
    has_vary = False
    for name, value in headers:
        if name == "Content-Type":  # as most write it
            content_type = value
        elif len(name) in DECISIVE_LENGTHS:
            match name.lower():
                case "content-type":
                    content_type = value
                case "vary":
                    has_vary = True
                case "content-encoding":
                    return None, has_vary
                case "cache-control" if "no-transform" in cache_directives(value):
                    return None, has_vary
    return content_type, has_vary


def cache_directives(cache_control: str) -> set[str]:
    """Return the names of a Cache-Control's directives (RFC 9111, section 5.2), in lower case."""
    members = cache_control.lower().replace(";", ",").split(",")
    return {member.partition("=")[0].strip(" \t") for member in members}


def is_page(content_type: str) -> bool:
    """Whether this is the type of pages, or of JSON."""
    return _PAGES.match(content_type.strip(" \t").lower()) is not None


def recoded_tag(tag: str, coding: str) -> str:
    """Return the tag of what is coded on the fly in another coding."""
    return _CODED_TAG.sub(rf'W/"\g<opaque>\g<kind>{coding}"', tag)


def coded_tag(etag: str, coding: str) -> str:
    """Return the entity tag of what is coded on the fly."""
    match = _TAG.fullmatch(etag.strip(" \t"))
    if match is None:
        return etag
    return f'W/"{match["opaque"]}{"~" if match["weak"] else "+"}{coding}"'


def coded_copy_tag(etag: str, coding: str, checksum: int) -> str:
    """Return the strong entity tag of a coded copy of a file, which stays the same.

    :param etag: the file's own, strong.
    :param checksum: of the copy, 32 bits: another compressor makes other bytes.
    """
    return f'{etag[:-1]}+{coding}-{checksum:08x}"'


def uncoded_headers_dropped(headers: Iterable[Header]) -> list[Header]:
    """Return headers without those that describe the bytes of the uncoded body."""
    return [header for header in headers if header[0].lower() not in _OF_THE_UNCODED]


def with_vary(headers: Iterable[Header], on: Sequence[str] = ("Accept-Encoding",)) -> list[Header]:
    """Return headers that say that the answer depends on some of the request's (RFC 9110, 12.5.5).

    :param on: those that are named.
    """
    result = list(headers)
    at = None
    for index, (name, value) in enumerate(result):
        if len(name) == 4 and name.lower() == "vary":
            members = list_members(value)
            if "*" in members:
                return result
            on = [each for each in on if each.lower() not in members]
            at = index
    if not on:
        return result
    if at is None or not result[at][1].strip(" \t,"):
        result.append(("Vary", ", ".join(on)))
    else:
        name, value = result[at]
        result[at] = name, ", ".join([value, *on])
    return result


def _not_modified(
    method: str, headers: Sequence[Header], sent_tags: Mapping[str, str]
) -> Decision | None:
    """A 304 with the tag that the client has sent."""
    if method not in ("GET", "HEAD"):
        return None
    changed = [
        (name, sent_tags.get(value.strip(" \t"), value) if name.lower() == "etag" else value)
        for name, value in headers
    ]
    return Decision(with_vary(changed), None, "")


def _original(match: re.Match[str]) -> str:
    weak = "W/" if match["kind"] == "~" else ""
    return f'{weak}"{match["opaque"]}"'


def _with_copy(match: re.Match[str]) -> str:
    """The original of a tag, and the tag itself if it is that of a copy."""
    return f"{_original(match)}, {match[0]}" if match["copy"] else _original(match)


def _checked_levels(levels: Mapping[str, int] | None) -> dict[str, int]:
    checked = dict(DEFAULT_LEVELS)
    for coding, level in (levels or {}).items():
        allowed = LEVELS.get(coding)
        if allowed is None:
            raise ConfigurationError(
                f"levels has {coding!r}, which is not a known coding: {', '.join(LEVELS)}"
            )
        if not is_count(level) or level not in allowed:
            raise ConfigurationError(
                f"{coding}'s level is a number from {allowed[0]} to {allowed[-1]}, "
                f"not {shown(level)}"
            )
        checked[coding] = level
    return checked


def _checked_types(content_types: object) -> frozenset[str]:
    names = list_of_text(content_types)
    if names is None:
        raise ConfigurationError(
            f"content_types={content_types!r}: a list of types, such as ['text/plain']"
        )
    for kind in names:
        if not _MEDIA_TYPE.fullmatch(kind):
            raise ConfigurationError(
                f"content_types has {kind!r}, which is not a type such as 'text/plain'"
            )
    return frozenset(kind.strip().lower() for kind in names)
