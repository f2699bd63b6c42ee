"""Compress the body of one WSGI response, as a whole or block by block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ..compression.codings import Compressor
from ..compression.policy import IS_BEHIND, Compression, Wish
from ..compression.response import Decision, ResponseCoding
from ..http.headers import Headers
from .access_log import CODING, COMPRESSED_BYTES, UNCOMPRESSED_BYTES
from .files import header_of

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

# A whole body is compressed in one piece up to this size, with a Content-Length. A larger one is
# compressed while it is sent, so that its compressed bytes are never in memory as a whole.
_WHOLE_BYTES = 4 * 1024 * 1024


class ContentCoding(ResponseCoding):
    """Compresses the response to one request.

    :param environ: the environ of the request. Entity tags in its preconditions are replaced by the
        tags of the app. See
        :meth:`~wsgifast.compression.response.ResponseCoding.app_preconditions`.
    :ivar if_none_match: the value of If-None-Match that the client has sent.
    :ivar if_match: the value of If-Match that the client has sent.
    :ivar is_done_by_server: whether the server compresses the blocks of the stream, and of write().
    """

    is_done_by_server = False

    def __init__(
        self,
        compression: Compression,
        method: str,
        accept_encoding: str | None,
        wish: Wish,
        environ: WSGIEnvironment,
    ) -> None:
        # This repeats the __init__ of the base class, because a call costs more.
        self.compression = compression
        self.method = method
        self.accept_encoding = accept_encoding
        self.wish = wish
        get = environ.get
        self.environ = environ
        if compression.dictionary is not None:
            self.find_dictionary(get("SCRIPT_NAME", ""))
        self.if_none_match: str | None = get("HTTP_IF_NONE_MATCH")
        self.if_match: str | None = get("HTTP_IF_MATCH")
        if self.if_none_match is not None or self.if_match is not None:
            restored = self.app_preconditions(self.if_none_match, self.if_match)
            for key, value in zip(("HTTP_IF_NONE_MATCH", "HTTP_IF_MATCH"), restored, strict=True):
                if value is not None:
                    environ[key] = value
        if "HTTP_IF" in environ:
            environ["HTTP_IF"] = self.app_if(environ["HTTP_IF"])

    def whole(
        self, decision: Decision, headers: Headers, blocks: Iterable[bytes], size: int
    ) -> tuple[Headers, Iterable[bytes]]:
        """Compress a body in memory. Return the headers and the blocks to send."""
        coding = decision.coding
        assert coding is not None
        if size > _WHOLE_BYTES:
            if self.method != "HEAD":
                self.compressor = self.compressor_for(decision, coding, None)
                blocks = self.flushed(blocks)
            return decision.apply(headers), blocks
        self.compressor = None
        content = b"".join(blocks)
        compressed = self.compressor_for(decision, coding, size).whole(content)
        if len(compressed) >= size:
            for key in (CODING, UNCOMPRESSED_BYTES, COMPRESSED_BYTES):
                self.environ.pop(key)
            return headers.with_vary(decision.vary), [content]
        headers = decision.apply(headers)
        if self.method != "HEAD":
            self.environ[COMPRESSED_BYTES] = len(compressed)
            headers.append(("Content-Length", str(len(compressed))))
            blocks = [compressed]
        return headers, blocks

    def note(self, coding: str, uncompressed_bytes: int, compressed_bytes: int) -> None:
        """Store the content coding and both sizes in the environ, for access logs."""
        self.environ[CODING] = coding
        self.environ[UNCOMPRESSED_BYTES] = uncompressed_bytes
        self.environ[COMPRESSED_BYTES] = compressed_bytes

    def flushed(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """Compress and flush each block when it arrives. PEP 3333 forbids to delay a block."""
        for block in blocks:
            yield self.flushed_block(block)
        # After an error, the end is missing. So the client notices that the body was cut off.
        if self.compressor is not None:
            yield self.end()

    def end(self) -> bytes:
        """Return the remaining compressed bytes, and finish the compression."""
        assert self.compressor is not None
        return self._count(b"", self.compressor.finish())

    def flushed_block(self, block: bytes) -> bytes:
        """Compress and flush one block, if the body is compressed.

        A lazy app has set its headers before its first block. So :attr:`compressor` is final.
        """
        compressor = self.compressor
        if compressor is None or not block:
            return block
        return self._count(block, compressor.flushed(block))

    def compressor_for(self, decision: Decision, coding: str, size: int | None) -> Compressor:
        environ = self.environ
        environ.update({CODING: coding, UNCOMPRESSED_BYTES: size or 0, COMPRESSED_BYTES: 0})
        is_behind = environ.get(IS_BEHIND)
        return self.compression.compressor(
            coding,
            decision.content_type,
            size,
            is_behind=is_behind is not None and is_behind(),
        )

    def header(self, name: str) -> str | None:
        return header_of(self.environ, name)

    def has_user(self) -> bool:
        # HTTP_REMOTE_USER is a proxy's header.
        keys = ("REMOTE_USER", "AUTH_TYPE", "HTTP_REMOTE_USER")
        return any(self.environ.get(key) for key in keys)

    def _count(self, block: bytes, compressed: bytes) -> bytes:
        environ: Any = self.environ
        environ[UNCOMPRESSED_BYTES] += len(block)
        environ[COMPRESSED_BYTES] += len(compressed)
        return compressed
