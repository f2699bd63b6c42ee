"""Content codings of request bodies: decoded piece by piece, within limits (RFC 9110, 8.4.1).

A few bytes may decode to gigabytes. So what is decoded is counted while it is decoded, and a body
that grows too large, or too fast, is refused before the rest of it is looked at.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, NamedTuple

from ..checks import check_switches, is_count
from ..errors import BodyTooLarge, ConfigurationError, MalformedRequest, RequestError
from ..http.framing import list_members
from .codings import MAX_ZSTD_WINDOW_LOG, ZSTD_MODULE, available_codings

# Of a decoded body, where no limit is configured.
_DECODED_BYTES = 32 * 1024 * 1024
# Text shrinks by 5 to 30, logs of equal lines by a hundred; deflate can do 1000, and the others
# more. It counts from a size on that is no danger.
_MAX_RATIO = 200
_RATIO_COUNTS_FROM_BYTES = 1024 * 1024
# What is decoded at once at most.
_PIECE_BYTES = 64 * 1024


def checked_limits(body_limit_bytes: object, decompress: object) -> BodyLimits | None:
    """Return what the options of both middlewares ask for; None if they ask for nothing.

    :raises ConfigurationError: for a value that an option does not have.
    """
    if body_limit_bytes is not None and not is_count(body_limit_bytes):
        raise ConfigurationError(
            f"body_limit_bytes={body_limit_bytes!r}: bytes, 0 or more; None for no limit"
        )
    check_switches(decompress=decompress)
    if body_limit_bytes is None and not decompress:
        return None
    return BodyLimits(body_limit_bytes, bool(decompress))  # type: ignore[arg-type]


class BodyLimits(NamedTuple):
    """What is done with request bodies.

    :param limit_bytes: of a body, as it was sent and decoded; None for no limit.
    :param decodes: whether a body with a Content-Encoding is decoded.
    """

    limit_bytes: int | None
    decodes: bool

    def check_length(self, length: int | None) -> None:
        """:raises BodyTooLarge: for a Content-Length over the limit."""
        if self.limit_bytes is not None and length is not None and length > self.limit_bytes:
            raise BodyTooLarge(self.limit_bytes)

    def decoder(self, content_encoding: str) -> RequestDecoder | None:
        """Return what decodes a body with this Content-Encoding; None if it is not coded.

        :raises RequestError: for another coding, or several.
        """
        names = [name for name in list_members(content_encoding) if name not in ("", "identity")]
        if not names:
            return None
        coding = "gzip" if names[0] == "x-gzip" else names[0]
        if len(names) > 1 or coding not in available_codings():
            accepted = ", ".join(available_codings())
            refused = RequestError(415, f"A Content-Encoding of {accepted} is accepted here")
            refused.headers = (("Accept-Encoding", accepted),)  # RFC 9110, section 12.5.3
            raise refused
        limit = _DECODED_BYTES if self.limit_bytes is None else self.limit_bytes
        return RequestDecoder(coding, limit)


class RequestDecoder:
    """Decodes one body.

    :param max_bytes: the most that it may decode to.
    """

    def __init__(self, coding: str, max_bytes: int) -> None:
        self._decoder = _DECODERS[coding]()
        self._coding = coding
        self._max_bytes = max_bytes
        self._coded = self._decoded = 0

    def decode(self, data: bytes) -> Iterator[bytes]:
        """Decode some bytes, into pieces of 64 KiB at most.

        :raises RequestError: as soon as it has too many bytes, or wrong ones.
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
            if self._decoded > self._max_bytes:
                raise BodyTooLarge(self._max_bytes)
            if self._decoded > max(_RATIO_COUNTS_FROM_BYTES, self._coded * _MAX_RATIO):
                raise RequestError(413, f"The request body grows more than {_MAX_RATIO} times")
            if piece:
                yield piece

    def end(self) -> None:
        """:raises RequestError: if the body is not complete."""
        if self._coded and not self._decoder.is_complete():
            raise self._wrong()

    def _wrong(self) -> MalformedRequest:
        return MalformedRequest(f"The body is not valid {self._coding}")


class _Frames:
    """Members of gzip (RFC 1952, section 2.2), or frames of zstd (RFC 8878, section 3), which are
    one body if they are behind each other.

    :param begin: returns the decompressor of one.
    """

    def __init__(self, begin: Callable[[], Any]) -> None:
        self._begin = begin
        self._decompressor = begin()

    def decode(self, data: bytes) -> Iterator[bytes]:
        while True:
            if self._decompressor.eof:
                if not data:
                    return
                self._decompressor = self._begin()
            piece = self._decompressor.decompress(data, _PIECE_BYTES)
            # zlib returns what it has not looked at yet; zstd keeps it.
            data = self._decompressor.unused_data or getattr(
                self._decompressor, "unconsumed_tail", b""
            )
            yield piece
            if not data and len(piece) < _PIECE_BYTES:
                return

    def is_complete(self) -> bool:
        return bool(self._decompressor.eof)


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


def _zstd() -> Any:
    zstd = import_module(ZSTD_MODULE)
    options = {zstd.DecompressionParameter.window_log_max: MAX_ZSTD_WINDOW_LOG}
    return zstd.ZstdDecompressor(options=options)


_DECODERS: dict[str, Callable[[], _Frames | _Brotli]] = {
    "gzip": lambda: _Frames(lambda: zlib.decompressobj(16 + zlib.MAX_WBITS)),
    "br": _Brotli,
    "zstd": lambda: _Frames(_zstd),
}
