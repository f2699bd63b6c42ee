"""The response headers that depend on the name of a file: Content-Type, Cache-Control and CORS.

The options `mimetypes`, `immutable` and `add_headers` change them.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from mimetypes import MimeTypes
from wsgiref.headers import Headers

from ..compression.dictionaries import is_surely_hashed, use_as_dictionary
from ..compression.policy import Compression, is_stale_at_once
from ..errors import ConfigurationError
from ..http.headers import Header

# A function that changes headers: (headers, absolute path of the file, URL path).
AddHeaders = Callable[[Headers, str, str], None]
# A function that returns whether a file never changes: (absolute path of the file, URL path).
ImmutableTest = Callable[[str, str], bool]

# One year, which was the maximum of RFC 2616 (section 14.21).
_IMMUTABLE_AGE_S = 365 * 24 * 60 * 60

# Types that Python does not know, or that differ between Python 3.11 and 3.15. The system's
# mime.types is not read, so that the same file has the same type on each host.
_TYPES = {
    ".3gp": "video/3gpp",
    ".7z": "application/x-7z-compressed",
    ".atom": "application/atom+xml",
    ".avif": "image/avif",
    ".cjs": "text/javascript",
    ".docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    ".eot": "application/vnd.ms-fontobject",
    ".flac": "audio/flac",
    ".ico": "image/x-icon",
    ".jar": "application/java-archive",
    ".js": "text/javascript",
    ".jsonld": "application/ld+json",
    ".jxl": "image/jxl",
    ".kml": "application/vnd.google-earth.kml+xml",
    ".kmz": "application/vnd.google-earth.kmz",
    ".m4a": "audio/mp4",
    ".m4v": "video/x-m4v",
    ".map": "application/json",
    ".md": "text/markdown",
    ".mid": "audio/midi",
    ".mjs": "text/javascript",
    ".odp": "application/vnd.oasis.opendocument.presentation",
    ".ods": "application/vnd.oasis.opendocument.spreadsheet",
    ".odt": "application/vnd.oasis.opendocument.text",
    ".ogg": "audio/ogg",
    ".otf": "font/otf",
    ".pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    ".rar": "application/vnd.rar",
    ".rss": "application/rss+xml",
    ".rtf": "application/rtf",
    ".svgz": "image/svg+xml",
    ".ts": "video/mp2t",
    ".ttf": "font/ttf",
    ".webp": "image/webp",
    ".woff": "font/woff",
    ".woff2": "font/woff2",
    ".xhtml": "application/xhtml+xml",
    ".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    ".zst": "application/zstd",
    "apple-app-site-association": "application/json",
}
# Files with this extension are always compressed by gzip. Browsers show them only with a
# Content-Encoding, which the registration of image/svg+xml requires.
_COMPRESSED_EXTENSION = ".svgz"
# Other compressed files get the type of their compression: archive.tar.gz is application/gzip. With
# a Content-Encoding, a browser would save them decompressed.
_ENCODED_TYPES = {
    "gzip": "application/gzip",
    "bzip2": "application/x-bzip2",
    "xz": "application/x-xz",
    "compress": "application/x-compress",
}
_UNKNOWN_TYPE = "application/octet-stream"
# Without this header, scripts of other origins can read only a few response headers (Fetch,
# "CORS-safelisted response-header name"). PDF.js requests parts only if it can read these headers.
_EXPOSED: Header = (
    "Access-Control-Expose-Headers",
    "Accept-Ranges, Content-Encoding, Content-Length, Content-Range, ETag",
)
_EXTENSION_OR_NAME = re.compile(r"[^/\0]+")
_TYPE = re.compile(r"[!#$&^_.+\w-]+/[!#$&^_.+\w-]+(?:[ \t]*;.*)?", re.ASCII)
_CHARSET = re.compile(r"[!#$%&'*+^`{}~\w.-]+", re.ASCII)


@dataclass(kw_only=True)
class HeaderRules:
    """Makes the headers of a file. See :mod:`wsgifast.files.site_options` for the other options.

    :ivar dictionaries: a function that returns whether files of a content type are sent as deltas
        to earlier releases (RFC 9842). None to send no deltas.
    :raises ConfigurationError: if an option has an invalid value.
    """

    max_age: int | None
    immutable: ImmutableTest | str | re.Pattern[str] | None
    mimetypes: Mapping[str, str] | None
    charset: str | None
    add_headers: AddHeaders | None
    allow_all_origins: bool
    dictionaries: Compression | None = None

    def __post_init__(self) -> None:
        self._is_immutable = _immutable_test(self.immutable)
        if self._is_immutable is None and self.dictionaries is not None:
            self._is_immutable = lambda path, url: is_surely_hashed(url.rpartition("/")[2])
        self._types = _checked_types(self.mimetypes)
        self._python_types = MimeTypes()

    def headers(self, path: str, url: str, mount: str = "") -> list[Header]:
        """Return the headers of a file that depend only on its name.

        :param path: the absolute path of the file.
        :param url: the URL path below the mount point.
        :param mount: the URL path of the mount point.
        """
        content_type = self.content_type(path)
        headers: list[Header] = [("Content-Type", content_type)]
        is_compressed = _extension(path) == _COMPRESSED_EXTENSION
        # The option `mimetypes` may define another type for the extension.
        if is_compressed and content_type == _TYPES[_COMPRESSED_EXTENSION]:
            headers.append(("Content-Encoding", "gzip"))
        if self._is_immutable is not None and self._is_immutable(path, url):
            headers.append(("Cache-Control", f"max-age={_IMMUTABLE_AGE_S}, public, immutable"))
            dictionaries = None if is_compressed else self.dictionaries
            if dictionaries is not None and dictionaries.shrinks[content_type]:
                offer = use_as_dictionary(mount.rstrip("/") + url)
                headers += [] if offer is None else [("Use-As-Dictionary", offer)]
        elif self.max_age is not None:
            headers.append(("Cache-Control", f"max-age={self.max_age}, public"))
        if self.allow_all_origins:
            headers += ("Access-Control-Allow-Origin", "*"), _EXPOSED
        if self.add_headers is not None:
            changed = Headers(headers)
            self.add_headers(changed, path, url)
            if "Access-Control-Allow-Origin" in changed and not self.allow_all_origins:
                changed.setdefault(*_EXPOSED)
            if "Use-As-Dictionary" in changed and is_stale_at_once(changed.items()):
                # A client uses a dictionary only while it is fresh (RFC 9842, section 2.1.3).
                del changed["Use-As-Dictionary"]
            headers = changed.items()
        return headers

    def content_type(self, path: str) -> str:
        """Return the Content-Type of a file, by its name or extension."""
        name = path.rpartition("/")[2]
        extension = _extension(path)
        found = self._types.get(name) or self._types.get(extension)
        if found is None:
            guessed, encoding = self._python_types.guess_type(f"x{extension}")
            found = _ENCODED_TYPES.get(encoding or "", guessed or _UNKNOWN_TYPE)
        if self.charset is not None and found.startswith("text/") and ";" not in found:
            return f"{found}; charset={self.charset}"
        return found


def _extension(path: str) -> str:
    return posixpath.splitext(path)[1].lower()


def _immutable_test(rule: ImmutableTest | str | re.Pattern[str] | None) -> ImmutableTest | None:
    if rule is None:
        return None
    if callable(rule):
        return rule
    try:
        pattern = re.compile(rule)
        pattern.search("")  # raises TypeError for a bytes pattern
    except (re.error, TypeError) as error:
        raise ConfigurationError(
            f"immutable={rule!r}: must be a regular expression for URL paths, or a function of "
            f"(path, url) ({error})"
        ) from error
    return lambda path, url: pattern.search(url) is not None


def _checked_types(given: Mapping[str, str] | None) -> dict[str, str]:
    types = dict(_TYPES)
    if given is not None and not isinstance(given, Mapping):
        raise ConfigurationError(
            f"mimetypes={given!r}: must be a mapping such as {{'.js': 'text/x'}}"
        )
    for name, content_type in (given or {}).items():
        if not _matches(_EXTENSION_OR_NAME, name) or not _matches(_TYPE, content_type):
            raise ConfigurationError(
                f"mimetypes has {name!r}: {content_type!r}: give an extension such as '.js' or a "
                "file's whole name, and a type such as 'text/javascript'"
            )
        types[name.lower() if name.startswith(".") else name] = content_type
    return types


def _matches(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None
