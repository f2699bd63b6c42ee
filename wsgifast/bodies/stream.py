"""The iterable that WSGIFast returns for a stream. It converts and counts the app's chunks."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from ..errors import BodyTooShort
from .access_log import CHUNKS, LENGTH_ERROR, SAMPLED_CHUNKS, SENT_AS, stream_kind
from .body import Sendable
from .chunks import coalesced, is_event_stream
from .content_coding import ContentCoding
from .files import close_body
from .start_response import AppResponse
from .wrappers import iterated
from .writer import ResponseWriter


class ConvertedStream(Sendable):
    """The stream of an app. It converts each chunk to bytes, and counts it, when the app yields it.

    This class has no len(), because gevent's pywsgi iterates twice over a body with len().

    :param response: the response. It may change during the iteration: a lazy app calls
        start_response from inside its iterator, and may call write() between two chunks. SENT_AS is
        stored in its environ now, and CHUNKS at the end.
    :param body: the iterable of the app.
    :param coalesce: whether to join small chunks. Chunks of event streams are not joined.
    """

    def __init__(self, response: AppResponse, body: Iterable[Any], *, coalesce: bool) -> None:
        self._response = response
        self._body: Iterable[Any] | None = body
        self._coalesce = coalesce
        response.environ[SENT_AS] = "no-body" if response.no_body else "stream"

    def __iter__(self) -> Iterator[bytes]:
        coding = self.coding
        return self.uncompressed() if coding is None else coding.flushed(self.uncompressed())

    @property
    def coding(self) -> ContentCoding | None:
        """The content coding of the stream. None if WSGIFast does not compress.

        A lazy app sets its headers at the first block. They decide whether to compress.
        """
        return self._response.coding if self._response.codes_stream else None

    def uncompressed(self) -> Iterator[bytes]:
        """Return an iterator of the uncompressed blocks."""
        return self._coalesced() if self._coalesce else self._chunks()

    def send_to(self, writer: ResponseWriter) -> None:
        coding = self.coding
        if coding is None or writer.headers_sent:  # the app may have called write()
            writer.write_stream(self)
        else:
            writer.write_compressed(self.uncompressed(), coding)

    def _coalesced(self) -> Iterator[bytes]:
        chunks = self._chunks()
        for chunk in chunks:
            yield chunk
            break  # a lazy app has called start_response by now
        if not self._response.no_body and not is_event_stream(self._response.headers):
            self._response.environ[SENT_AS] = "coalesced"
            chunks = coalesced(chunks, time.monotonic)
        yield from chunks

    def _chunks(self) -> Iterator[bytes]:
        response = self._response
        convert = response.convert
        chunks = iter(iterated(self._body))
        first = b""
        # A lazy app calls start_response before it yields its first chunk. Until the first byte is
        # sent, an app may replace the headers by a call with exc_info. So HEAD iterates up to the
        # first byte, like GET.
        try:
            for chunk in chunks:
                first = convert(chunk)
                if response.status is not None:
                    if not response.forwarded:
                        response.forward()
                    if first:
                        break
                    yield b""
                elif first:
                    break
        except Exception:
            if response.status is not None and not response.forwarded:
                response.forward()
            if not response.is_over():
                raise
        if response.status is None:
            # If an iterable raises before start_response was called, cheroot sends no response.
            response.codes_stream = False
            response.start(
                "500 Internal Server Error",
                [("Content-Type", "text/plain"), ("Content-Length", "0")],
            )
            if not response.forwarded:
                response.forward()
            raise response.not_started()
        if not response.forwarded:  # the stream is empty
            response.forward()
        if response.no_body:
            yield b""  # makes the server send the headers, without adding a Content-Length
            return
        counter = None if response.length is None else response.counter()
        count = total = 0
        try:
            for chunk in chain((first,), chunks) if first else ():
                if type(chunk) is not bytes:
                    chunk = convert(chunk)
                size = len(chunk)
                count += 1
                total += size
                if counter is not None:
                    admitted = counter.admit(size)
                    if admitted < size:
                        response.note_surplus()
                        yield chunk[:admitted]
                        return
                elif count == SAMPLED_CHUNKS:
                    yield chunk
                    break
                yield chunk
            else:
                if counter is not None and counter.missing:
                    response.environ[LENGTH_ERROR] = "short"
                    raise BodyTooShort(counter.missing)
                return
            for chunk in chunks:
                count += 1
                yield chunk if type(chunk) is bytes else convert(chunk)
        except Exception:
            if not response.is_over():
                raise
        finally:
            environ = response.environ
            environ[CHUNKS] = count
            if count > 1 and environ[SENT_AS] == "stream" and not is_event_stream(response.headers):
                measured = count if counter else min(count, SAMPLED_CHUNKS)
                environ[SENT_AS] = stream_kind(measured, len(first), total)

    def close(self) -> None:
        """Close the iterable of the app. A second call has no effect."""
        body, self._body = self._body, None
        close_body(body)
