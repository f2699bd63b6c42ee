"""Which responses are compressed, and how: options, types, Vary and entity tags.

No I/O, no clock.
"""

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

# The key of the environ, or of an ASGI scope, that has the request's :data:`Wish`.
WISH = "wsgifast.compression"
# An app's wish for one response: [True] or [False]. Empty where it leaves that to the options. A
# list, which middleware that copies the environ or the scope passes on.
Wish = list[bool]
# The key of the environ under which FastWorker has a function that returns whether its threads are
# behind with their work. Then levels are halved, so that others do not wait for compression.
IS_BEHIND = "wsgifast.is_behind"

# A body of this size fits into the first packet with its headers. No client gets it any sooner.
_DEFAULT_MIN_BYTES = 1000
_EVENT_STREAM = "text/event-stream"
# Types that shrink, beside text/* and types with a suffix below (RFC 6839).
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
# Pages and data: an attacker may have them repeat the begin of a secret.
_PAGES = re.compile(r"(?:text/|application/)(?:html|xhtml\+xml|json|x-json|[^;]*\+json)")

# Headers that describe the bytes of the original body, offer ranges of it, or tag it.
IDENTITY_HEADERS = frozenset(
    {"content-length", "content-md5", "digest", "content-digest", "repr-digest", "accept-ranges"}
    | {"etag"}
)
# Lengths of the names that matter, so that most headers are passed over by a comparison of numbers.
_DECISIVE_LENGTHS = frozenset(map(len, ["content-type", *CODING_HEADERS]))
_MOST_TYPES = 256

_MEDIA_TYPE = re.compile(rf"[ \t]*({TOKEN}/{TOKEN})")

# RFC 9110, section 5.5, without blanks at the ends.
_FIELD_VALUE = re.compile(r"[\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?")
_TAG = re.compile(r'(?P<weak>W/)?"(?P<opaque>[\x21\x23-\x7e\x80-\xff]*)"')


class Compression:
    """Options of compression, for all responses of an app.

    :param codings: the content codings to use. If a client prefers several equally, the first one
        wins. None: zstd, br and gzip, if their packages are installed (``wsgifast[compress]``).
    :param levels: levels by content coding, for responses that a client waits for. None: zstd 3,
        br 4 and gzip 4.
    :param min_bytes: compress bodies from this size on. Bodies of unknown size are compressed, too.
    :param content_types: further types, such as ``application/vnd.mapbox-vector-tile``.
    :param event_streams: also compress text/event-stream, with a flush for each event.
    :param padding: add up to 100 random bytes to each compressed page and JSON response, so that
        its length reveals less of a secret in it (BREACH, see SECURITY.md).
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
            raise ConfigurationError(f"min_bytes is a number of bytes from 0 on, not {min_bytes!r}")
        self.codings = tuple(checked_codings(codings))
        if not self.codings:
            raise ConfigurationError("codings=[]: name one, such as 'gzip'")
        self.levels = _checked_levels(levels)
        self.min_bytes = min_bytes
        self.padding = padding
        self.dictionary = None if dictionary is None else PagesDictionary(dictionary)
        self.shrinks = _Shrinks(_checked_types(content_types), event_streams)
        if self.dictionary is not None:
            # Digested now: at high levels it takes longer than an event loop may stand still.
            for level in {self.levels["zstd"], _halved(self.levels["zstd"])}:
                self.dictionary.compressor(level, 0, padding=False)

    def compressor(
        self, coding: str, content_type: str, size: int | None, *, is_behind: bool = False
    ) -> Compressor:
        """Return the compressor for a response's body.

        :param size: in bytes. None for a stream.
        :param is_behind: with its work, is the server. See :data:`IS_BEHIND`.
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
    """Return the compression of an option `compress`.

    :param compress: True, False, or a :class:`Compression`.
    :raises ConfigurationError: for anything else.
    """
    if isinstance(compress, Compression):
        return compress
    check_switches(compress=compress)
    return Compression() if compress else None


def compress_response(request: object, compress: bool) -> None:
    """Decide in a view or a middleware whether the response to a request is compressed.

    It has no effect without compression around the app. A client that accepts no content coding
    gets an uncompressed response.

    :param request: Flask's, Django's, Starlette's or FastAPI's, a WSGI environ, or an ASGI scope.
    :param compress: False: do not compress the response, such as a page with a secret and text from
        the client. True: compress it whatever its Content-Type and size.
    """
    if not isinstance(request, Mapping):
        # Django's has META on both sides, and under ASGI the scope, too.
        names = ("scope", "environ", "META")
        found = (getattr(request, name, None) for name in names)
        request = next((each for each in found if isinstance(each, Mapping)), {})
    wish = request.get(WISH)
    if isinstance(wish, list):
        wish[:] = [compress]


def type_to_compress(headers: Iterable[Header]) -> tuple[str | None, bool]:
    """Return the Content-Type, and whether there is a Vary.

    The type is None if the headers forbid a content coding.
    """
    content_type = None
    has_vary = False
    for name, value in headers:
        if name == "Content-Type":  # as most write it
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
    """Whether the Cache-Control of a response forbids caches to send it again without asking."""
    for value in Headers(headers).get_all("cache-control"):
        for member in value.lower().replace(";", ",").split(","):
            directive, _, argument = member.partition("=")
            match directive.strip(" \t"):
                case "no-cache" | "no-store":
                    return True
                # RFC 9111, section 4.2.1: a malformed age counts as none.
                case "max-age" if not argument.strip(' \t"').lstrip("0").isdecimal():
                    return True
    return False


@lru_cache(_MOST_TYPES)
def is_page(content_type: str) -> bool:
    """Whether this is the type of pages, or of JSON."""
    return _PAGES.match(content_type.strip(" \t").lower()) is not None


def compressed_tag(etag: str, coding: str, checksum: int | None = None) -> str | None:
    """Return the entity tag of a compressed body. None if the uncompressed one's is malformed.

    It has a suffix: + after a strong tag, ~ after a weak one, the coding and a checksum, so that no
    tag of an app is taken for one. A tag that RFC 9110, section 8.8.3, does not allow is
    percent-encoded before a "!".

    :param checksum: of a file's compressed copy, 32 bits, because another compressor makes other
        bytes. The copy stays the same, so that its tag is strong, if the file's is. None for bodies
        that are compressed while they are sent.
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
    """Whether a tag can be a header's value."""
    return _FIELD_VALUE.fullmatch(etag) is not None


def suffix_check(tag: str) -> str:
    """Return the checksum for the other parts of a compressed body's tag."""
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
                f"{coding}'s level is a number from {allowed[0]} to {allowed[-1]}, not {level!r}"
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
