"""Content codings of request bodies: decoded piece by piece, within limits (RFC 9110, 8.4.1).

A few bytes may decode to gigabytes. So what is decoded is counted while it is decoded, and a body
that grows too large, or too fast, is refused before the rest of it is looked at.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from importlib import import_module
from typing import Any

from ..checks import check_switches, is_count, shown
from ..errors import ConfigurationError
from ..http.framing import list_members
from .codings import MAX_ZSTD_WINDOW_LOG, SIBLING_SUFFIXES, ZSTD_MODULE, available_codings

# Of a decoded body, with ``decompress=True``.
_DEFAULT_MAX_BYTES = 32 * 1024 * 1024
# Text shrinks by 5 to 30, logs of equal lines by a hundred; deflate can do 1000, and the others
# more. It counts from a size on that is no danger.
_MAX_RATIO = 200
_RATIO_COUNTS_FROM_BYTES = 1024 * 1024
# What is decoded at once at most.
_PIECE_BYTES = 64 * 1024


class RefusedBody(Exception):
    """A request body that is not decoded.

    :param status: of the answer.
    :param reason: a sentence for the client's developers.
    """

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(f"{status}: {reason}")
        self.status = status
        self.reason = reason

    def answer(self) -> tuple[list[tuple[str, str]], bytes]:
        """Return the headers and the body of the answer."""
        body = f"{self.reason}\n".encode()
        headers = [
            ("Content-Type", "text/plain; charset=utf-8"),
            ("Content-Length", str(len(body))),
        ]
        if self.status.startswith("415"):  # RFC 9110, section 12.5.3
            headers.append(("Accept-Encoding", ", ".join(decodable())))
        return headers, body


def max_decoded_bytes(decompress: object) -> int | None:
    """Return what an option `decompress` asks for: the largest decoded body; None for none.

    :raises ConfigurationError: if it is neither True nor False nor a number of bytes.
    """
    if is_count(decompress) and decompress:
        return int(decompress)  # type: ignore[call-overload, no-any-return]
    try:
        check_switches(decompress=decompress)
    except ConfigurationError:
        raise ConfigurationError(
            f"decompress={shown(decompress)}: True, False, or the most bytes of a decoded body"
        ) from None
    return _DEFAULT_MAX_BYTES if decompress else None


@lru_cache(1)
def decodable() -> tuple[str, ...]:
    """Return the codings that are decoded here; brotli before 1.2 could not be stopped."""
    return tuple(
        coding
        for coding in available_codings()
        if coding != "br" or hasattr(import_module("brotli").Decompressor, "can_accept_more_data")
    )


def request_decoder(content_encoding: str, max_bytes: int) -> RequestDecoder | None:
    """Return the decoder for a request's Content-Encoding; None for a body that is not coded.

    :raises RefusedBody: for another coding, or several.
    """
    names = list_members(content_encoding)
    names = [name for name in names if name not in ("", "identity")]
    if not names:
        return None
    coding = names[0].removeprefix("x-") if names[0] == "x-gzip" else names[0]
    if len(names) > 1 or coding not in decodable() or coding not in SIBLING_SUFFIXES:
        raise RefusedBody(
            "415 Unsupported Media Type",
            f"A Content-Encoding of {', '.join(decodable())} is accepted here",
        )
    return RequestDecoder(coding, max_bytes)


class RequestDecoder:
    """Decodes one body.

    :param max_bytes: the most that it may decode to.
    """

    def __init__(self, coding: str, max_bytes: int) -> None:
        self._decoder: _Gzip | _Brotli | _Zstd = _DECODERS[coding]()
        self._coding = coding
        self._max_bytes = max_bytes
        self._coded = self._decoded = 0

    def decode(self, data: bytes) -> Iterator[bytes]:
        """Decode some bytes, into pieces of 64 KiB at most.

        :raises RefusedBody: as soon as it has too many bytes, or wrong ones.
        """
        self._coded += len(data)
        pieces = self._decoder.decode(data)
        while True:
            try:
                piece = next(pieces, None)
            except Exception as error:  # each package has its own
                raise self._wrong() from error
            if piece is None:
                return
            self._decoded += len(piece)
            most = self._max_bytes
            if self._decoded > _RATIO_COUNTS_FROM_BYTES:
                most = min(most, self._coded * _MAX_RATIO)
            if self._decoded > most:
                raise RefusedBody(
                    "413 Content Too Large",
                    f"Decoded, the body has more than {self._max_bytes} bytes, or more than "
                    f"{_MAX_RATIO} times those that were sent",
                )
            if piece:
                yield piece

    def end(self) -> None:
        """:raises RefusedBody: if the body is not complete."""
        if self._coded and not self._decoder.is_complete():
            raise self._wrong()

    def _wrong(self) -> RefusedBody:
        return RefusedBody("400 Bad Request", f"The body is not valid {self._coding}")


class _Gzip:
    """Members behind each other are one body (RFC 1952, section 2.2)."""

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(16 + zlib.MAX_WBITS)

    def decode(self, data: bytes) -> Iterator[bytes]:
        while True:
            if self._inflate.eof:
                if not data:
                    return
                self._inflate = zlib.decompressobj(16 + zlib.MAX_WBITS)
            piece = self._inflate.decompress(data, _PIECE_BYTES)
            data = self._inflate.unused_data or self._inflate.unconsumed_tail
            yield piece
            if not data and len(piece) < _PIECE_BYTES:
                return

    def is_complete(self) -> bool:
        return self._inflate.eof


class _Brotli:
    def __init__(self) -> None:
        self._decompressor: Any = import_module("brotli").Decompressor()

    def decode(self, data: bytes) -> Iterator[bytes]:
        decompressor = self._decompressor
        while True:
            piece = decompressor.process(data, output_buffer_limit=_PIECE_BYTES)
            data = b""
            # It may have more than it has returned, even if it can accept more.
            if not piece and decompressor.can_accept_more_data():
                return
            yield piece

    def is_complete(self) -> bool:
        return bool(self._decompressor.is_finished())


class _Zstd:
    """Frames behind each other are one body (RFC 8878, section 3)."""

    def __init__(self) -> None:
        self._zstd = import_module(ZSTD_MODULE)
        self._begin()

    def _begin(self) -> None:
        window_log_max = self._zstd.DecompressionParameter.window_log_max
        options = {window_log_max: MAX_ZSTD_WINDOW_LOG}
        self._decompressor: Any = self._zstd.ZstdDecompressor(options=options)

    def decode(self, data: bytes) -> Iterator[bytes]:
        while True:
            if self._decompressor.eof:
                if not data:
                    return
                self._begin()
            yield self._decompressor.decompress(data, _PIECE_BYTES)
            data = self._decompressor.unused_data if self._decompressor.eof else b""
            if not data and (self._decompressor.eof or self._decompressor.needs_input):
                return

    def is_complete(self) -> bool:
        return bool(self._decompressor.eof)


_DECODERS: dict[str, Callable[[], _Gzip | _Brotli | _Zstd]] = {
    "gzip": _Gzip,
    "br": _Brotli,
    "zstd": _Zstd,
}
