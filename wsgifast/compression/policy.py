"""The options of compression, and its rules for content types, cache directives and entity tags."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from urllib.parse import quote

from ..checks import check_switches, is_count, list_of_text
from ..errors import ConfigurationError
from ..http.fields import CODING_HEADERS, TOKEN
from ..http.headers import Header, Headers
from .codings import (
    COMPRESSORS,
    DEFAULT_LEVELS,
    LEVELS,
    Compressor,
    Counted,
    checked_codings,
)
from .dictionaries import DCZ, PagesDictionary

# The key of the request's :data:`Wish` in a WSGI environ or ASGI scope.
WISH = "wsgifast.compression"
# The app's decision about one response: [True] to compress it, [False] not to. If the list is
# empty, the options decide. Middleware may copy the environ or the scope: the copy contains the
# same list.
Wish = list[bool]
# The key of FastWorker's function in the environ. It returns whether requests wait for a thread.
# Levels are then halved, so that these requests wait less.
IS_BEHIND = "wsgifast.is_behind"

# A smaller body fits into one packet with its headers. Compression does not deliver it sooner.
_DEFAULT_MIN_BYTES = 1000
_EVENT_STREAM = "text/event-stream"
# The content types that are compressed, in addition to text/* and to types with the suffixes below
# (RFC 6839).
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
# gRPC compresses each message, and sends it with its length.
_NEVER = ("application/grpc",)
# The content types that get padding: pages and JSON. An attacker may be able to make such a
# response contain a guess of a secret. A right guess makes the compressed response shorter.
_PAGES = re.compile(r"(?:text/|application/)(?:html|xhtml\+xml|json|x-json|[^;]*\+json)")

# Headers that are wrong for a compressed body: they describe the bytes of the uncompressed body.
IDENTITY_HEADERS = frozenset(
    {"content-length", "content-md5", "digest", "content-digest", "repr-digest", "accept-ranges"}
    | {"etag"}
)
# The lengths of the header names that :func:`type_to_compress` looks for. Most other names have
# another length, so they are skipped without a comparison of strings.
_DECISIVE_LENGTHS = frozenset(map(len, ["content-type", *CODING_HEADERS]))
_MOST_TYPES = 256

_MEDIA_TYPE = re.compile(rf"[ \t]*({TOKEN}/{TOKEN})")

# RFC 9110, section 5.5, without leading or trailing white space.
_FIELD_VALUE = re.compile(r"[\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?")
_TAG = re.compile(r'(?P<weak>W/)?"(?P<opaque>[\x21\x23-\x7e\x80-\xff]*)"')


class Compression:
    """Options of compression, for all responses of an app.

    :param codings: the content codings to use. If a client prefers several equally, the first one
        is used. None: zstd, br and gzip, if their packages are installed (``wsgifast[compress]``).
    :param levels: maps content codings to compression levels. None: zstd 3, br 4 and gzip 4.
    :param min_bytes: compress bodies from this size on. Bodies of unknown size are also compressed.
    :param content_types: further types, such as ``application/vnd.mapbox-vector-tile``.
    :param event_streams: also compress text/event-stream, with a flush after each event.
    :param padding: add up to 100 random bytes to each compressed page and JSON response. Its length
        then reveals less about a secret in the response (BREACH, see SECURITY.md).
    :param dictionary: the path of a dictionary that ``wsgifast compress --train`` has made. Pages
        and JSON are compressed with it for clients that have downloaded it (RFC 9842). It is not
        used for requests with cookies or Authorization, nor for responses with Set-Cookie,
        ``private`` or ``no-store``.
    :raises ConfigurationError: if an option has an invalid value.
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
                f"min_bytes is a number of bytes, 0 or more, not {min_bytes!r}"
            )
        self.codings = tuple(checked_codings(codings))
        if not self.codings:
            raise ConfigurationError("codings=[] is empty: name a content coding, such as 'gzip'")
        self.levels = _checked_levels(levels)
        self.min_bytes = min_bytes
        self.padding = padding
        self.dictionary = None if dictionary is None else PagesDictionary(dictionary)
        self.shrinks = _Shrinks(_checked_types(content_types), event_streams)
        if self.dictionary is not None:
            # Digest the dictionary now: at high levels that would block an event loop too long.
            for level in {self.levels["zstd"], _halved(self.levels["zstd"])}:
                self.dictionary.compressor(level, 0, padding=False)

    def compressor(
        self, coding: str, content_type: str, size: int | None, *, is_behind: bool = False
    ) -> Compressor:
        """Return a compressor for the body of a response.

        :param size: the size of the body in bytes. None for a stream.
        :param is_behind: whether requests wait, so that the level is halved. See
            :data:`IS_BEHIND`.
        """
        level = self.levels["zstd" if coding == DCZ else coding]
        if is_behind:
            level = _halved(level)
        padding = self.padding and is_page(content_type)
        if coding == DCZ and self.dictionary is not None:
            made = self.dictionary.compressor(level, size, padding=padding)
        else:
            made = COMPRESSORS[coding](level, size, padding)
        return Counted(coding, made)


def _halved(level: int) -> int:
    return max(level // 2, min(level, 1))


class _Shrinks(dict[str, bool]):
    """Maps values of Content-Type to whether such bodies are compressed.

    The values are computed on demand. At most _MOST_TYPES of them are cached.
    """

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
    """Return the compression for the value of an option `compress`.

    :param compress: True, False, or a :class:`Compression`.
    :raises ConfigurationError: for any other value.
    """
    if isinstance(compress, Compression):
        return compress
    check_switches(compress=compress)
    return Compression() if compress else None


def compress_response(request: object, compress: bool) -> None:
    """Decide in a view or a middleware whether the response to a request is compressed.

    This function has no effect if the server or middleware around the app does not compress
    responses. A client that accepts no content coding gets an uncompressed response.

    :param request: a request of Flask, Django, Starlette or FastAPI, a WSGI environ, or an ASGI
        scope.
    :param compress: False to send the response uncompressed, such as a page with a secret and text
        from the client. True to compress it with any Content-Type and size.
    """
    if not isinstance(request, Mapping):
        # Django's request has META under WSGI and ASGI. Under ASGI it also has `scope`, which comes
        # first here.
        names = ("scope", "environ", "META")
        found = (getattr(request, name, None) for name in names)
        request = next((each for each in found if isinstance(each, Mapping)), {})
    wish = request.get(WISH)
    if isinstance(wish, list):
        wish[:] = [compress]


def type_to_compress(headers: Iterable[Header]) -> tuple[str | None, bool]:
    """Return the Content-Type, and whether the headers contain Vary.

    The type is None if there is no Content-Type, or if the headers forbid a content coding.
    """
    content_type = None
    has_vary = False
    for name, value in headers:
        if name == "Content-Type":  # the usual spelling
            content_type = value
        elif len(name) in _DECISIVE_LENGTHS:
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


def is_stale_at_once(headers: Iterable[Header]) -> bool:
    """Return whether Cache-Control requires caches to revalidate a response before each reuse."""
    for value in Headers(headers).get_all("cache-control"):
        for member in value.lower().replace(";", ",").split(","):
            directive, _, argument = member.partition("=")
            match directive.strip(" \t"):
                case "no-cache" | "no-store":
                    return True
                # RFC 9111, section 4.2.1: a response with a malformed max-age is stale.
                case "max-age" if not argument.strip(' \t"').lstrip("0").isdecimal():
                    return True
    return False


@lru_cache(_MOST_TYPES)
def is_page(content_type: str) -> bool:
    """Return whether a Content-Type is that of an HTML page or of JSON."""
    return _PAGES.match(content_type.strip(" \t").lower()) is not None


def compressed_tag(etag: str, coding: str, checksum: int | None = None) -> str | None:
    """Return the entity tag of a compressed body. None if the original tag cannot be used.

    The tag consists of the original tag and a suffix. The suffix begins with "+" for a strong
    original tag, with "~" for a weak one, and with "!" for a malformed one (RFC 9110, section
    8.8.3), which is percent-encoded. The content coding and a check value of the suffix follow. The
    check value distinguishes these tags from tags of the app.

    :param etag: the entity tag of the uncompressed body.
    :param checksum: the CRC-32 of a file's compressed copy. A copy never changes, so its tag is
        strong if the original tag is strong. The checksum is part of the tag, since another
        compressor makes other bytes. None for a body that is compressed for one response.
    """
    etag = etag.strip(" \t")
    match = _TAG.fullmatch(etag)
    if match is None:
        if checksum is not None or not is_restorable(etag):
            return None
        return _weak(f"{quote(etag, encoding='latin-1')}!{coding}")
    if match["weak"] or checksum is None:
        return _weak(f"{match['opaque']}{'~' if match['weak'] else '+'}{coding}")
    tag = f"{match['opaque']}+{coding}-{checksum:08x}"
    return f'"{tag}.{suffix_check(tag)}"'


def is_restorable(etag: str) -> bool:
    """Return whether a malformed tag is a valid header value, so that it can be restored."""
    return _FIELD_VALUE.fullmatch(etag) is not None


def suffix_check(tag: str) -> str:
    """Return the check value for the other parts of a compressed body's tag."""
    return f"{zlib.crc32(b'wsgifast' + tag.encode('latin-1')):08x}"


def _weak(tag: str) -> str:
    return f'W/"{tag}.{suffix_check(tag)}"'


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
                f"the level of {coding} is a number from {allowed[0]} to {allowed[-1]}, "
                f"not {level!r}"
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
