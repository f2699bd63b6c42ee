"""Compression Dictionary Transport (RFC 9842): compress a response with an earlier response.

The earlier response is the dictionary. Its header Use-As-Dictionary has a pattern of URLs. When the
client requests such a URL, it sends the SHA-256 of the dictionary in Available-Dictionary. The
response may then have the content coding "dcz", which is zstd with this dictionary.

Section numbers without an RFC number refer to RFC 9842.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Iterable
from functools import cached_property
from hashlib import sha256
from importlib import import_module
from typing import Any, NamedTuple
from urllib.parse import quote

from ..errors import ConfigurationError
from .codings import (
    MAX_ZSTD_WINDOW_LOG,
    PRECOMPRESSED_SUFFIXES,
    ZSTD_MODULE,
    Compressor,
    Zstd,
    checked_codings,
    preferred_coding,
)

DCZ = "dcz"
# The Vary of responses that may be sent in dcz (section 6.2).
VARY = "Accept-Encoding, Available-Dictionary"
# The content codings in the server's order of preference.
_CODINGS = (DCZ, *PRECOMPRESSED_SUFFIXES)

# The start of a body in dcz: a skippable zstd frame. The dictionary's SHA-256 follows (section 5).
_MAGIC = b"\x5e\x2a\x4d\x18\x20\x00\x00\x00"
DIGEST_BYTES = 32
HEADER_BYTES = len(_MAGIC) + DIGEST_BYTES
# The name of a delta file consists of the name of its original, a part of the dictionary's SHA-256,
# and this suffix.
DELTA_SUFFIX = ".dcz"
# The number of hexadecimal digits of a SHA-256 in file names and URLs.
_NAME_DIGITS = 16
# Clients support windows of 8 MB or of 1.25 times the dictionary, but never more than 128 MB.
_MAX_WINDOW_BYTES = 128 * 1024 * 1024
# A byte sequence of 32 bytes (RFC 9651, section 3.3.5).
_AVAILABLE = re.compile(r":([A-Za-z0-9+/]{43})=?:")

# The level for deltas that are made while a client waits.
_QUICK_LEVEL = 3
# The largest hash table for such deltas. A delta of 4.7 MB takes 25 ms. With the smaller table of
# level 3, the delta would be 15 times as large.
_MAX_HASH_LOG = 22
# The level for delta files, which are made once.
_BEST_LEVEL = 19

# The sizes of a dictionary for pages. A client has to download all of it.
_MAX_PAGES_BYTES = 1024 * 1024
_MIN_PAGES_BYTES = 8
_YEAR_S = 365 * 24 * 60 * 60
# The most bytes of a trained dictionary.
_MAX_TRAINED_BYTES = 128 * 1024
# A page is added to a trained dictionary if the dictionary so far saves less than this share of
# the page's compressed size.
_NEW_SHARE = 0.5

# A file name with a hash: the part before the hash, the hash, and the extensions. The hash is
# hexadecimal (Django, webpack, Parcel) or has eight characters (Vite, Rollup, esbuild).
_HASHED_NAME = re.compile(
    r"(?P<before>.+[._-])(?P<hash>[0-9a-f]{8,64}|[0-9A-Za-z_-]{8})(?P<after>(?:\.[0-9A-Za-z]+)+)"
)
# A hash with letters and digits. It is very unlikely to be a word or a date.
_SURELY_A_HASH = re.compile(r"(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{8,64}")
# The characters that must be escaped in a URL pattern (URL Pattern Standard).
_PATTERN_CHARACTERS = re.compile(r"[*+?:(){}\\]")


class ClientDictionary(NamedTuple):
    """The dictionary that a client has, and headers about the sender of the request.

    :ivar digest: the SHA-256 of the dictionary.
    :ivar site: the value of Sec-Fetch-Site. None without the header.
    :ivar mode: the value of Sec-Fetch-Mode. None without the header.
    :ivar origin: the value of Origin. None without the header.
    """

    digest: bytes
    site: str | None = None
    mode: str | None = None
    origin: str | None = None

    def may_be_used(self, allow_origin: str | None) -> bool:
        """Return whether the script that sent the request may read the response (section 9.3.3).

        Otherwise no dictionary may be used, since the length would reveal parts of the content.

        :param allow_origin: the response's Access-Control-Allow-Origin. None without the header.
        """
        if self.site is None or self.site == "same-origin":
            return True
        if self.mode is None or self.mode in ("navigate", "same-origin"):
            return True
        if self.mode != "cors" or allow_origin is None or self.origin is None:
            return False
        return allow_origin in ("*", self.origin)


def client_dictionary(
    available: str, header: Callable[[str], str | None]
) -> ClientDictionary | None:
    """Return the dictionary that a request names. None if Available-Dictionary is malformed.

    :param available: the value of Available-Dictionary.
    :param header: a function that returns another request header by its name.
    """
    match = _AVAILABLE.fullmatch(available.strip(" "))
    if match is None:
        return None
    digest = base64.b64decode(f"{match[1]}=")
    return ClientDictionary(
        digest, header("Sec-Fetch-Site"), header("Sec-Fetch-Mode"), header("Origin")
    )


def prefers_delta(accept_encoding: str | None) -> bool:
    """Return whether dcz is the content coding that the client prefers."""
    return accept_encoding is not None and preferred_coding(accept_encoding, _CODINGS) == DCZ


class HashlessName(NamedTuple):
    """The parts of a file name before and after its hash. All releases of a file share them."""

    before: str
    after: str


def hashless_name(name: str) -> HashlessName | None:
    """Return a file name without its hash. None if the name contains no hash."""
    match = _HASHED_NAME.fullmatch(name)
    return None if match is None else HashlessName(match["before"], match["after"])


def is_surely_hashed(name: str) -> bool:
    """Return whether a file name certainly contains a hash. Such a file never changes."""
    match = _HASHED_NAME.fullmatch(name)
    return match is not None and _SURELY_A_HASH.fullmatch(match["hash"]) is not None


def use_as_dictionary(url: str) -> str | None:
    """Return the value of Use-As-Dictionary (section 2.1). It matches all releases of a file.

    :param url: the decoded URL path, with the mount point of the app.
    :returns: None if the name contains no hash.
    """
    folder, _, name = url.rpartition("/")
    parts = hashless_name(name)
    if parts is None:
        return None
    before = _in_pattern(f"{folder}/{parts.before}")
    # In a string of a structured field, a backslash must be escaped (RFC 9651, section 3.3.3).
    pattern = f"{before}*{_in_pattern(parts.after)}".replace("\\", "\\\\")
    return f'match="{pattern}"'


def _in_pattern(text: str) -> str:
    encoded = quote(text.encode("utf-8", "surrogateescape"), safe="/!$&'()*+,;=:@~")
    return _PATTERN_CHARACTERS.sub(r"\\\g<0>", encoded)


def digest_of(content: bytes) -> bytes:
    """Return the SHA-256 of a dictionary."""
    return sha256(content).digest()


def delta_suffix(digest: bytes) -> str:
    """Return the suffix that is added to the name of the original for a delta file.

    :param digest: the SHA-256 of the dictionary.
    """
    return f".{digest.hex()[:_NAME_DIGITS]}{DELTA_SUFFIX}"


def delta_header(digest: bytes) -> bytes:
    """Return the first bytes of a body in dcz, for the SHA-256 of its dictionary."""
    return _MAGIC + digest


def make_delta(content: bytes, dictionary: bytes, *, best: bool = False) -> bytes:
    """Compress content into a body in dcz (section 5).

    :param dictionary: the dictionary, of at least 8 bytes.
    :param best: make the smallest body, which may take seconds.
    """
    zstd = import_module(ZSTD_MODULE)
    parameter = zstd.CompressionParameter
    limit = min(max(1 << MAX_ZSTD_WINDOW_LOG, len(dictionary) * 5 // 4), _MAX_WINDOW_BYTES)
    options = {
        parameter.compression_level: _BEST_LEVEL if best else _QUICK_LEVEL,
        parameter.window_log: min(limit.bit_length() - 1, max(10, len(content).bit_length())),
    }
    if not best:
        options[parameter.hash_log] = min(_MAX_HASH_LOG, max(17, len(dictionary).bit_length() - 2))
    raw = zstd.ZstdDict(dictionary, is_raw=True)
    compressor = zstd.ZstdCompressor(options=options, zstd_dict=raw.as_prefix)
    compressor.set_pledged_input_size(len(content))
    body: bytes = compressor.compress(content) + compressor.flush()
    return delta_header(digest_of(dictionary)) + body


class PagesDictionary:
    """The dictionary for the pages of an app. A client downloads it from the app.

    :param path: the path of a file that :func:`train` has made.
    :ivar url: the URL path of the dictionary below the app's mount point.
    :raises ConfigurationError: if the file cannot be read, or has an invalid size.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        checked_codings(["zstd"])
        try:
            with open(path, "rb") as file:
                self.content = file.read(_MAX_PAGES_BYTES + 1)
        except (OSError, TypeError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ConfigurationError(
                f"dictionary={path!r} cannot be read: {reason}. Name a file that "
                "wsgifast compress --train has written"
            ) from error
        if not _MIN_PAGES_BYTES <= len(self.content) <= _MAX_PAGES_BYTES:
            raise ConfigurationError(
                f"dictionary={path!r} is too small or too large. A dictionary has "
                f"{_MIN_PAGES_BYTES} to {_MAX_PAGES_BYTES} bytes"
            )
        self.digest = digest_of(self.content)
        self.url = f"/wsgifast-pages.{self.digest.hex()[:_NAME_DIGITS]}.dict"

    def headers(self, mount: str) -> list[tuple[str, str]]:
        """Return the headers of the dictionary's response.

        :param mount: the URL path of the app's mount point. The dictionary is for pages below it.
        """
        pattern = _in_pattern(mount.rstrip("/")).replace("\\", "\\\\")
        return [
            ("Content-Type", "application/octet-stream"),
            ("Content-Length", str(len(self.content))),
            ("Cache-Control", f"max-age={_YEAR_S}, public, immutable"),
            # The dictionary is for pages, and for requests by their scripts ("").
            (
                "Use-As-Dictionary",
                f'match="{pattern}/*", match-dest=("document" "frame" "iframe" "")',
            ),
        ]

    def link(self, mount: str) -> str:
        """Return the Link header of pages, by which a client finds the dictionary (section 3).

        :param mount: the URL path of the app's mount point.
        """
        folder = quote(mount.rstrip("/").encode("utf-8", "surrogateescape"))
        return f'<{folder}{self.url}>; rel="compression-dictionary"'

    def compressor(self, level: int, size: int | None, *, padding: bool) -> Compressor:
        """Return a compressor for one page. See :func:`.codings.compressor`."""
        header = delta_header(self.digest)
        return Zstd(level, size, padding, dictionary=self._loaded, header=header)

    @cached_property
    def _loaded(self) -> Any:
        return import_module(ZSTD_MODULE).ZstdDict(self.content, is_raw=True)


def train(pages: Iterable[bytes]) -> bytes:
    """Make a dictionary of the pages whose content is not similar to earlier pages.

    :returns: the dictionary. It is empty if there are no pages.
    """
    dictionary = b""
    for page in pages:
        page = page[: _MAX_TRAINED_BYTES - len(dictionary)]
        if not page:
            continue
        if len(dictionary) >= _MIN_PAGES_BYTES:
            compressed = len(make_delta(page, dictionary)) - HEADER_BYTES
            alone = len(make_delta(page, bytes(_MIN_PAGES_BYTES))) - HEADER_BYTES
            if compressed <= alone * _NEW_SHARE:
                continue
        dictionary += page
    return dictionary
