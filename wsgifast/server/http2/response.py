"""A response on a stream: HTTP/1's semantics in HTTP/2's frames (RFC 9113 section 8)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from ...bodies.content_coding import ContentCoding
from ...bodies.streams import Stream
from ...errors import BodyError
from ...http.framing import Framing, frame_response
from ...http.head import ResponseHead, trailer_fields
from ...sockets.sending import FileSegment
from ..output import OutputQueue
from ..response import Response, ResponseSettings, header_lines
from .stream_output import Fields, StreamOutput


class HTTP2Response(Response):
    """A :class:`~..response.Response` whose `output` is a :class:`StreamOutput`."""

    def __init__(self, req: Any, output: OutputQueue, settings: ResponseSettings) -> None:
        super().__init__(req, output, settings)
        self._stream = cast(StreamOutput, output)
        self._trailers: Fields = []

    def offer(self, environ: dict[str, Any]) -> None:
        super().offer(environ)
        environ["HTTP_VERSION"] = "2"
        environ["gunicorn.http2.send_trailers"] = self.send_trailers

    def send_trailers(self, trailers: Iterable[Any]) -> None:
        """Set the trailers to send after the body.

        :param trailers: pairs of str or bytes; those that may only be headers are left out.
        :raises BodyError: for a malformed one.
        """
        self._trailers = _encoded(trailer_fields(trailers))

    def should_close(self) -> bool:
        return self.must_close  # Connection headers do not apply

    def write_all(self, blocks: list[Any] | tuple[Any, ...]) -> None:
        length, size = self.counter.length, self.counter.sent + sum(map(len, blocks))
        if not self._trailers and (length is None or length <= size):
            # END_STREAM goes on the last DATA frame.
            self._stream.stream_sender.ends_after = size if length is None else length
        super().write_all(blocks)
        self._end_stream()

    def write_segments(self, segments: Sequence[bytes | FileSegment]) -> None:
        super().write_segments(segments)
        self._end_stream()

    def write_coded(self, stream: Stream, coding: ContentCoding) -> None:
        super().write_coded(stream, coding)
        if coding.compressor is not None:
            self._end_stream()

    def close(self) -> None:
        super().close()
        self._end_stream()

    def _end_stream(self) -> None:
        if not self.counter.missing:  # or it is reset, so that it does not look complete
            self._stream.end(self.counter.sent, self._trailers)

    def _frame(self, head: ResponseHead) -> Framing:
        if head.code == 101:
            raise BodyError(f"the status is {head.status!r}, which HTTP/2 does not have")
        return frame_response(self.req.method, head.code, head.content_length, chunks=False)

    def _send_hints(self, fields: list[tuple[str, str]]) -> None:
        self._stream.send_interim([(b":status", b"103"), *_encoded(fields)])

    def _encoded_head(self) -> bytes:
        head = self._checked_head()
        fields = _encoded(head.headers)
        server_name = self.cfg.server_name
        if server_name is not None and not head.has_server:
            fields.append((b"server", server_name.encode("latin-1")))
        if not head.has_date:
            fields.append((b"date", header_lines.date().encode()))
        if self._framing.length is not None:
            fields.append((b"content-length", b"%d" % self._framing.length))
        self._stream.begin([(b":status", b"%d" % head.code), *fields])
        return b""


def _encoded(headers: Iterable[tuple[str, str]]) -> Fields:
    """Encode headers: names in lower case, no Upgrade (RFC 9113 sections 8.2 and 8.2.2)."""
    return [
        (name.lower().encode(), value.encode("latin-1"))
        for name, value in headers
        if name.lower() != "upgrade"
    ]
