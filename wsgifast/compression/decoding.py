"""Decode compressed request bodies piece by piece, within limits (RFC 9110, section 8.4.1).

A few compressed bytes may decode to gigabytes. So the decoded bytes are counted during decoding. A
body that is too large, or that grows too much, is rejected before its remaining bytes are decoded.
Bodies of thousands of empty or tiny frames are also rejected, since each frame costs much time.
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

# The most bytes of a decoded body, if no limit is configured.
_DECODED_BYTES = 32 * 1024 * 1024
# The highest ratio of decoded to compressed bytes. Usual text has a ratio of 5 to 30, and a log of
# equal lines 100. deflate can reach 1000, and other content codings more.
_MAX_RATIO = 200
# Below this size of the decoded body, the ratio is not checked.
_RATIO_CHECKED_FROM_BYTES = 1024 * 1024
# The most decoded bytes of one step.
_PIECE_BYTES = 64 * 1024
# The most compressed bytes of one step. Small steps are faster: at the end of each frame the
# remaining bytes of the step are copied.
_INPUT_BYTES = 4 * 1024
# A zstd frame of any size takes 10 microseconds. So the number of frames is limited: some in any
# body, and one more for each further number of bytes. A megabyte then takes at most 0.05 s.
_FREE_FRAMES = 100
_BYTES_PER_FRAME = 200
# Empty blocks cost time too. From this size of the compressed body on, its decoded bytes must be at
# least half as many. The size is larger than a block of up to 128 KiB, which zstd's decoder delays.
_WASTE_CHECKED_FROM_BYTES = 256 * 1024


def checked_limits(body_limit_bytes: object, decompress: object) -> BodyLimits | None:
    """Check two options of WSGIFast and ASGIFast. Return None if both are off.

    :raises ConfigurationError: if an option has an invalid value.
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
    """The limit of request bodies, and whether they are decoded.

    :param limit_bytes: the most bytes of a body. The limit holds before and after decoding. None
        for no limit.
    :param decodes: whether a body with a Content-Encoding is decoded.
    """

    limit_bytes: int | None
    decodes: bool

    def check_length(self, length: int | None) -> None:
        """Check a Content-Length.

        :param length: the value. None if there is no Content-Length.
        :raises BodyTooLarge: if it is over the limit.
        """
        if self.limit_bytes is not None and length is not None and length > self.limit_bytes:
            raise BodyTooLarge(self.limit_bytes)

    def decoder(self, content_encoding: str) -> RequestDecoder | None:
        """Return a decoder for a body with this Content-Encoding. None for an uncompressed body.

        :raises RequestError: if a content coding is not available, or the value has several.
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

    :param coding: the content coding of the body.
    :param max_bytes: the most bytes of the decoded body.
    """

    def __init__(self, coding: str, max_bytes: int) -> None:
        self._decoder: _Frames | _Brotli | None = _DECODERS[coding]()
        self._coding = coding
        self._max_bytes = max_bytes
        self._compressed = self._decoded = 0

    def decode(self, data: bytes) -> Iterator[bytes]:
        """Decode a part of the body, into pieces of at most 64 KiB.

        :raises RequestError: if the body is too large, malformed, or has too many small frames.
        """
        try:
            with memoryview(data) as view:
                for at in range(0, len(data), _INPUT_BYTES):
                    yield from self._pieces(bytes(view[at : at + _INPUT_BYTES]))
        except RequestError:
            self._decoder = None  # frees its window of up to 16 MB
            raise

    def end(self) -> None:
        """Check that the body is complete. Call this after the last :meth:`decode`.

        :raises RequestError: if the body is not complete.
        """
        decoder, self._decoder = self._decoder, None
        if self._compressed and (decoder is None or not decoder.is_complete()):
            raise self._malformed()

    def _pieces(self, data: bytes) -> Iterator[bytes]:
        self._compressed += len(data)
        decoder = self._decoder
        if decoder is None:
            raise self._malformed()  # bytes after end(), or after an error
        pieces = decoder.decode(data)
        try:
            while True:
                try:
                    piece = next(pieces, None)
                except Exception as error:  # noqa: BLE001 - each package has its own error class
                    raise self._malformed() from without_frames(error)
                self._decoded += len(piece or b"")
                self._check(decoder.frames)
                if piece is None:
                    return
                if piece:
                    yield piece
        finally:
            pieces.close()
            # The traceback of an error refers to this frame, and the frame to its variables.
            del pieces, decoder

    def _check(self, frames: int) -> None:
        compressed, decoded = self._compressed, self._decoded
        if decoded > self._max_bytes:
            raise BodyTooLarge(self._max_bytes)
        if decoded > max(_RATIO_CHECKED_FROM_BYTES, compressed * _MAX_RATIO):
            raise RequestError(413, f"The request body grows more than {_MAX_RATIO} times")
        if (
            frames > _FREE_FRAMES + compressed // _BYTES_PER_FRAME
            or compressed > _WASTE_CHECKED_FROM_BYTES + 2 * decoded
        ):
            raise MalformedRequest(
                f"The request body is {self._coding} with too many empty or tiny parts: "
                "compress it as a whole"
            )

    def _malformed(self) -> MalformedRequest:
        return MalformedRequest(f"The body is not valid {self._coding}")


class _Frames:
    """Decodes a sequence of gzip members (RFC 1952, 2.2) or zstd frames (RFC 8878, 3).

    :param begin: a function that returns the decompressor for one member or frame.
    :ivar frames: the number of members or frames so far.
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
            # zlib has the unread input in `unconsumed_tail`. zstd buffers it.
            data = self._decompressor.unused_data or getattr(
                self._decompressor, "unconsumed_tail", b""
            )
            yield piece
            if not data and len(piece) < _PIECE_BYTES:
                return

    def is_complete(self) -> bool:
        return bool(self._decompressor.eof)


class _Brotli:
    """Decodes a br body, which has no frames."""

    frames = 1

    def __init__(self) -> None:
        self._decompressor: Any = import_module("brotli").Decompressor()

    def decode(self, data: bytes) -> Generator[bytes, None, None]:
        decompressor = self._decompressor
        while True:
            piece = decompressor.process(data, output_buffer_limit=_PIECE_BYTES)
            data = b""
            # The decompressor may have more output even if it accepts more input. So it is called
            # until it returns nothing.
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
