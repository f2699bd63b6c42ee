"""Compression Dictionary Transport (RFC 9842): a response as the dictionary of a later one.

A response offers itself as a dictionary for URLs that match a pattern. A client that has it names
its SHA-256 in a later request, and may get a response in the coding "dcz": zstd with the dictionary
in front of the content. No I/O, no clock.
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
# On everything that may be sent in this coding (section 6.2).
VARY = "Accept-Encoding, Available-Dictionary"
# Of two codings that a client prefers equally, the first one is sent.
_CODINGS = (DCZ, *PRECOMPRESSED_SUFFIXES)

# Section 5: a skippable frame of zstd, with the SHA-256 of the dictionary.
_MAGIC = b"\x5e\x2a\x4d\x18\x20\x00\x00\x00"
DIGEST_BYTES = 32
HEADER_BYTES = len(_MAGIC) + DIGEST_BYTES
# The name of a delta's file: that of its original, some digits of the dictionary's digest, so that
# each dictionary has one of its own, and this.
DELTA_SUFFIX = ".dcz"
_NAME_DIGITS = 16
# A client decodes windows of 8 MB, or of 1.25 times the dictionary, but none over 128 MB.
_MAX_WINDOW_BYTES = 128 * 1024 * 1024
# A byte sequence of 32 bytes (RFC 9651, section 3.3.5).
_AVAILABLE = re.compile(r":([A-Za-z0-9+/]{43})=?:")

# While a client waits: 4.7 MB take 25 ms, and are 15 times smaller than with the tables that zstd
# takes for level 3.
_QUICK_LEVEL = 3
_MAX_HASH_LOG = 22
_BEST_LEVEL = 19

# A client fetches the dictionary of pages before it saves anything by it.
_MAX_PAGES_BYTES = 1024 * 1024
_MIN_PAGES_BYTES = 8
_YEAR_S = 365 * 24 * 60 * 60
# A trained dictionary has pages of this size together at most: a client fetches it as a whole.
_MAX_TRAINED_BYTES = 128 * 1024
# A page is added to it if its size, compressed with the dictionary so far, exceeds this share of
# its usual compressed size.
_NEW_SHARE = 0.5

# A name with a hash of its content: the part before it, the hash, and the extensions. The hash is
# hexadecimal (Django, webpack, Parcel) or has eight characters (Vite, Rollup, esbuild).
_HASHED_NAME = re.compile(
    r"(?P<before>.+[._-])(?P<hash>[0-9a-f]{8,64}|[0-9A-Za-z_-]{8})(?P<after>(?:\.[0-9A-Za-z]+)+)"
)
# One that can hardly be a word or a date.
_SURELY_A_HASH = re.compile(r"(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{8,64}")
# The characters of a URL that have a meaning in a URL pattern (URL Pattern Standard).
_OF_PATTERNS = re.compile(r"[*+?:(){}\\]")


class ClientDictionary(NamedTuple):
    """The dictionary that a client has, and who asks.

    :ivar digest: its SHA-256.
    :ivar site: Sec-Fetch-Site. None if it was not sent.
    :ivar mode: Sec-Fetch-Mode.
    :ivar origin: Origin.
    """

    digest: bytes
    site: str | None = None
    mode: str | None = None
    origin: str | None = None

    def may_be_used(self, allow_origin: str | None) -> bool:
        """Whether the client may read the response (section 9.3.3): its length says something of
        its content, to those who may not, too.

        :param allow_origin: the response's Access-Control-Allow-Origin.
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
    """Return the dictionary of a request. None if its header is malformed.

    :param available: the value of Available-Dictionary.
    :param header: returns another header of the request, by its name.
    """
    match = _AVAILABLE.fullmatch(available.strip(" "))
    if match is None:
        return None
    digest = base64.b64decode(f"{match[1]}=")
    return ClientDictionary(
        digest, header("Sec-Fetch-Site"), header("Sec-Fetch-Mode"), header("Origin")
    )


def prefers_delta(accept_encoding: str | None) -> bool:
    """Return whether a client with a dictionary may get bodies that are compressed with it."""
    return accept_encoding is not None and preferred_coding(accept_encoding, _CODINGS) == DCZ


class HashedName(NamedTuple):
    """A file's name around the hash of its content: the same for every release of the file."""

    before: str
    after: str


def hashed_name(name: str) -> HashedName | None:
    """Return a name without its hash. None if it can have none."""
    match = _HASHED_NAME.fullmatch(name)
    return None if match is None else HashedName(match["before"], match["after"])


def is_surely_hashed(name: str) -> bool:
    """Whether a name has a hash for certain, so that its file never changes."""
    match = _HASHED_NAME.fullmatch(name)
    return match is not None and _SURELY_A_HASH.fullmatch(match["hash"]) is not None


def use_as_dictionary(url: str) -> str | None:
    """Return the Use-As-Dictionary header (section 2.1) for the other releases of a file.

    :param url: the decoded path from the root of the origin.
    :returns: None if the name has no hash.
    """
    folder, _, name = url.rpartition("/")
    hashed = hashed_name(name)
    if hashed is None:
        return None
    before = _in_pattern(f"{folder}/{hashed.before}")
    # In a string of a structured field a backslash is doubled (RFC 9651, section 3.3.3).
    pattern = f"{before}*{_in_pattern(hashed.after)}".replace("\\", "\\\\")
    return f'match="{pattern}"'


def _in_pattern(text: str) -> str:
    encoded = quote(text.encode("utf-8", "surrogateescape"), safe="/!$&'()*+,;=:@~")
    return _OF_PATTERNS.sub(r"\\\g<0>", encoded)


def digest_of(content: bytes) -> bytes:
    """Return the SHA-256 that a dictionary goes by."""
    return sha256(content).digest()


def delta_suffix(digest: bytes) -> str:
    """Return the suffix of a delta's file after the name of its original."""
    return f".{digest.hex()[:_NAME_DIGITS]}{DELTA_SUFFIX}"


def delta_header(digest: bytes) -> bytes:
    """Return the first bytes of a body in the coding dcz."""
    return _MAGIC + digest


def make_delta(content: bytes, dictionary: bytes, *, best: bool = False) -> bytes:
    """Return the content in the coding dcz (section 5).

    :param dictionary: of at least 8 bytes.
    :param best: take seconds for it.
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
    """One dictionary for an app's pages, which a client fetches from the app itself.

    :param path: of its file, made by :func:`train`.
    :ivar url: its path below the app's mount point.
    :raises ConfigurationError: if it cannot be read, or cannot be a dictionary.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        checked_codings(["zstd"])
        try:
            with open(path, "rb") as file:
                self.content = file.read(_MAX_PAGES_BYTES + 1)
        except (OSError, TypeError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ConfigurationError(
                f"dictionary={path!r} cannot be read: {reason}; name a file that "
                "wsgifast compress --train has written"
            ) from error
        if not _MIN_PAGES_BYTES <= len(self.content) <= _MAX_PAGES_BYTES:
            raise ConfigurationError(
                f"dictionary={path!r} has {_MIN_PAGES_BYTES} bytes at least, and "
                f"{_MAX_PAGES_BYTES} at most"
            )
        self.digest = digest_of(self.content)
        self.url = f"/wsgifast-pages.{self.digest.hex()[:_NAME_DIGITS]}.dict"

    def headers(self, mount: str) -> list[tuple[str, str]]:
        """Return those that it is sent with, to be used for pages below a mount point."""
        pattern = _in_pattern(mount.rstrip("/")).replace("\\", "\\\\")
        return [
            ("Content-Type", "application/octet-stream"),
            ("Content-Length", str(len(self.content))),
            ("Cache-Control", f"max-age={_YEAR_S}, public, immutable"),
            # Pages, and requests of their scripts. Files have dictionaries of their own.
            (
                "Use-As-Dictionary",
                f'match="{pattern}/*", match-dest=("document" "frame" "iframe" "")',
            ),
        ]

    def link(self, mount: str) -> str:
        """Return the Link header by which a client finds it (section 3)."""
        folder = quote(mount.rstrip("/").encode("utf-8", "surrogateescape"))
        return f'<{folder}{self.url}>; rel="compression-dictionary"'

    def compressor(self, level: int, size: int | None, *, padding: bool) -> Compressor:
        """Return the compressor for one page."""
        header = delta_header(self.digest)
        return Zstd(level, size, padding, dictionary=self._loaded, header=header)

    @cached_property
    def _loaded(self) -> Any:
        return import_module(ZSTD_MODULE).ZstdDict(self.content, is_raw=True)


def train(pages: Iterable[bytes]) -> bytes:
    """Make a dictionary of pages: those that have much that is not in the ones before.

    :returns: nothing if there are no pages.
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
