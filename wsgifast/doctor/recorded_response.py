"""A response: framed, inspected and recorded, for both recording servers."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import WSGIFastError
from ..http import LAST_CHUNK, BodyCounter, frame_response
from ..http.framing import Framing, chunk
from ..http.head import ResponseHead
from .model import Recording

__all__ = ["RecordedResponse"]

# Further chunks are not recorded; the endpoint is judged by these.
_MAX_CHUNKS = 1_000_000


class RecordedResponse:
    """Frames a response, and records what the app does.

    :param method: of the request.
    :param inspect: False: do not record each chunk.
    :ivar head: None before the app has called start_response, or sent http.response.start.
    """

    def __init__(self, method: str, recording: Recording, *, inspect: bool) -> None:
        self.head: ResponseHead | None = None
        self._method = method
        self._recording = recording
        self._inspect = inspect
        self._framing: Framing | None = None
        self._counter: BodyCounter

    @property
    def head_sent(self) -> bool:
        return self._framing is not None

    @property
    def chunked(self) -> bool:
        return self._framing is not None and self._framing.chunked

    def fails(self, problem: str) -> WSGIFastError:
        """Record what the app did wrong; returns an exception to raise."""
        self._recording.problem = problem
        return WSGIFastError(problem)

    def start(self, status: str, headers: Sequence[tuple[str, str]]) -> None:
        """:raises WSGIFastError: if the head cannot be sent."""
        try:
            self.head = ResponseHead(status, headers)
        except WSGIFastError as error:
            self._recording.problem = str(error)
            raise
        self._recording.status = self.head.code
        self._recording.headers = list(headers)

    def encoded_head(self) -> bytes:
        """The head, encoded for sending."""
        head = self.head
        assert head is not None
        self._framing = framing = frame_response(self._method, head.code, head.content_length)
        self._counter = BodyCounter(framing)
        return head.encode("1.1", framing, "")

    def record(self, data: bytes, wait_s: float) -> None:
        """Record a chunk that the app has produced.

        :param wait_s: how long it took.
        """
        if self._inspect:
            self.record_size(len(data), wait_s)
            self._recording.keep(data)

    def record_size(self, size: int, wait_s: float) -> None:
        chunks = self._recording.chunks
        if chunks.count < _MAX_CHUNKS:
            chunks.add(size, wait_s)

    def admit(self, size: int) -> int:
        """How many of the next `size` bytes fit into the Content-Length."""
        return self._counter.admit(size)

    def framed(self, data: bytes) -> bytes:
        """A chunk, framed, without what exceeds the Content-Length."""
        data = data[: self.admit(len(data))]
        return chunk(data) if data and self.chunked else data

    def end(self) -> bytes:
        """The last chunk, if the body is chunked."""
        return LAST_CHUNK if self.chunked else b""

    def check_length(self, *, is_file: bool = False) -> None:
        """Record a problem if the length of the body differs from the Content-Length.

        :param is_file: it came in `wsgi.file_wrapper`, which sends no more than Content-Length says
            (PEP 3333).
        """
        if self._framing is None or not self._framing.has_body:
            return
        said = f"Content-Length says {self._recording.declared} bytes, the body"
        if self._counter.missing:
            self._recording.problem = f"{said} has {self._counter.sent}"
        elif self._counter.dropped and not is_file:
            self._recording.problem = f"{said} goes on for {self._counter.dropped} more"
