"""Content codings of request bodies: decoded piece by piece, within limits (RFC 9110, 8.4.1).

A few bytes may decode to gigabytes. So decoded bytes are counted during decoding, and a body that
grows too large, or too fast, is refused before its remaining bytes are decoded. Thousands of empty
or tiny frames decode to little at much cost. They are refused, too.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Generator, Iterator
from importlib import import_module
from typing import Any, NamedTuple

from ..checks import check_switches, is_count
from ..errors import (
    BodyTooLarge,
    ConfigurationError,
    MalformedRequest,
    RequestError,
    without_frames,
)
from ..http.framing import list_members
from .codings import MAX_ZSTD_WINDOW_LOG, ZSTD_MODULE, available_codings

# Of a decoded body, where no limit is configured.
_DECODED_BYTES = 32 * 1024 * 1024
# Text shrinks by 5 to 30, and logs of equal lines by a hundred. deflate can reach 1000, and the
# others more. The limit counts from a harmless size on.
_MAX_RATIO = 200
_RATIO_COUNTS_FROM_BYTES = 1024 * 1024
# The most bytes decoded at once, and from how many: each frame copies those behind it.
_PIECE_BYTES = 64 * 1024
_FED_BYTES = 4 * 1024
# A frame of zstd takes 10 microseconds, however small it is. So many are free, and then one for so
# many bytes, which makes 0.05 s for a megabyte.
_FREE_FRAMES = 100
_BYTES_PER_FRAME = 200
# Blocks without content in one frame decode to less than half of the sent bytes. A decoder of zstd
# delays a block of up to 128 KiB.
_WASTE_COUNTS_FROM_BYTES = 256 * 1024


def checked_limits(body_limit_bytes: object, decompress: object) -> BodyLimits | None:
    """Return the limits and decoding of both middlewares' options, or None without any.

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
    """The treatment of request bodies.

    :param limit_bytes: of a body, as it was sent and decoded. None for no limit.
    :param decodes: whether a body with a Content-Encoding is decoded.
    """

    limit_bytes: int | None
    decodes: bool

    def check_length(self, length: int | None) -> None:
        """:raises BodyTooLarge: for a Content-Length over the limit."""
        if self.limit_bytes is not None and length is not None and length > self.limit_bytes:
            raise BodyTooLarge(self.limit_bytes)

    def decoder(self, content_encoding: str) -> RequestDecoder | None:
        """Return the decoder of a body with this Content-Encoding. None if it is uncompressed.

        :raises RequestError: for another coding, or several.
        """
        names = [name for name in list_members(content_encoding) if name != "identity"]
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
        self._decoder: _Frames | _Brotli | None = _DECODERS[coding]()
        self._coding = coding
        self._max_bytes = max_bytes
        self._compressed = self._decoded = 0

    def decode(self, data: bytes) -> Iterator[bytes]:
        """Decode some bytes, into pieces of 64 KiB at most.

        A body that is refused has no decoder any more: it has a window of up to 16 MB.

        :raises RequestError: as soon as it has too many bytes, or wrong ones, or too small frames.
        """
        try:
            with memoryview(data) as view:
                for at in range(0, len(data), _FED_BYTES):
                    yield from self._pieces(bytes(view[at : at + _FED_BYTES]))
        except RequestError:
            self._decoder = None
            raise

    def end(self) -> None:
        """:raises RequestError: if the body is not complete."""
        decoder, self._decoder = self._decoder, None
        if self._compressed and (decoder is None or not decoder.is_complete()):
            raise self._wrong()

    def _pieces(self, data: bytes) -> Iterator[bytes]:
        self._compressed += len(data)
        decoder = self._decoder
        if decoder is None:
            raise self._wrong()  # behind the end, or refused before
        pieces = decoder.decode(data)
        try:
            while True:
                try:
                    piece = next(pieces, None)
                except Exception as error:  # noqa: BLE001 - each package has its own
                    raise self._wrong() from without_frames(error)
                self._decoded += len(piece or b"")
                self._check(decoder.frames)
                if piece is None:
                    return
                if piece:
                    yield piece
        finally:
            pieces.close()
            del pieces, decoder  # an error's traceback keeps this frame

    def _check(self, frames: int) -> None:
        compressed, decoded = self._compressed, self._decoded
        if decoded > self._max_bytes:
            raise BodyTooLarge(self._max_bytes)
        if decoded > max(_RATIO_COUNTS_FROM_BYTES, compressed * _MAX_RATIO):
            raise RequestError(413, f"The request body grows more than {_MAX_RATIO} times")
        if (
            frames > _FREE_FRAMES + compressed // _BYTES_PER_FRAME
            or compressed > _WASTE_COUNTS_FROM_BYTES + 2 * decoded
        ):
            raise MalformedRequest(
                f"The request body is {self._coding} with too many empty or tiny parts: "
                "compress it as a whole"
            )

    def _wrong(self) -> MalformedRequest:
        return MalformedRequest(f"The body is not valid {self._coding}")


class _Frames:
    """Members of gzip (RFC 1952, section 2.2), or frames of zstd (RFC 8878, section 3), which are
    one body if they are behind each other.

    :param begin: returns the decompressor of one.
    :ivar frames: how many have begun.
    """

    def __init__(self, begin: Callable[[], Any]) -> None:
        self.frames = 1
        self._begin = begin
        self._decompressor = begin()

    def decode(self, data: bytes) -> Generator[bytes, None, None]:
        while True:
            if self._decompressor.eof:
                if not data:
                    return
                self.frames += 1
                self._decompressor = self._begin()
            piece = self._decompressor.decompress(data, _PIECE_BYTES)
            # zlib returns the bytes that it has not read yet. zstd stores them.
            data = self._decompressor.unused_data or getattr(
                self._decompressor, "unconsumed_tail", b""
            )
            yield piece
            if not data and len(piece) < _PIECE_BYTES:
                return

    def is_complete(self) -> bool:
        return bool(self._decompressor.eof)


class _Brotli:
    frames = 1

    def __init__(self) -> None:
        self._decompressor: Any = import_module("brotli").Decompressor()

    def decode(self, data: bytes) -> Generator[bytes, None, None]:
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
