"""WSGIFast's start_response(). It delays the headers until the body is known, and forwards them.

A second call must have exc_info (PEP 3333).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from sys import modules
from time import time_ns
from types import MethodType
from typing import TYPE_CHECKING, Any

from ..checks import app_name
from ..compression.policy import WISH, Compression, Wish
from ..compression.response import ADDS_VARY, Decision, decide
from ..errors import BodyError
from ..http.fields import ResponseStart, invalid_pairs_error, known_start, read_headers, status_code
from ..http.framing import BodyCounter, Framing, frame_response, has_body
from ..http.headers import LOWER, Headers
from .access_log import LENGTH_ERROR, SENT_AS
from .chunks import charset_of, to_bytes
from .content_coding import ContentCoding
from .files import header_of
from .writer import ResponseWriter, check_second_start

if TYPE_CHECKING:
    from _typeshed import OptExcInfo
    from _typeshed.wsgi import StartResponse, WSGIEnvironment


logger = logging.getLogger("wsgifast")
# Calls the app with a response's start(), and returns the object that the server iterates.
Respond = Callable[["AppResponse"], Iterable[bytes]]
# A function of the next stage. It returns a function that works before or after the next stage.
Stage = Callable[[Respond], Respond]


class AppResponse:
    """The status and headers of an app, which are delayed until the body is known.

    forward() passes them to the server at one of these events:

    - The app has returned, and its body was classified.
    - The app calls write() for the first time.
    - A lazy app calls start_response from inside its iterator. `holds` is False then.

    wsgifast's own servers check the headers that they send. For these servers, start() makes the
    same checks, and forward() passes a :class:`~..http.fields.ResponseStart`. The server does not
    check it again.

    This class is also a :class:`~..compression.response.CompressionRequest`.

    :param app: the app, whose name is part of error messages.
    :param environ: the environ of the request. SENT_AS is added to it before the headers are
        forwarded.
    :param compression: the options of compression. None if WSGIFast does not compress.
    :ivar method: the method of the request.
    :ivar status: None until the app has called start_response.
    :ivar headers: a copy of the app's list.
    :ivar length: the value of Content-Length. None if this header is missing.
    :ivar no_body: whether the response must not have a body.
    :ivar edits: functions that may change the headers. They are called with this object before the
        headers are forwarded.
    :ivar codes_stream: whether the body is compressed block by block, if it is compressed. Then
        forward() chooses the content coding.
    :ivar decision: a decision that forward() uses if `codes_stream` is True. None to decide then.
    :ivar exc_info: the exc_info of the app's last call. None after it was passed to the server.
    :ivar began_ns: the start of the request, in nanoseconds since 1970 (UTC).
    """

    # Most responses do not set these attributes. __init__() sets the attributes that all responses
    # read, because CPython reads attributes of an instance faster than those of a class.
    code = 0
    length: int | None = None
    no_body = False
    decision: Decision | None = None
    # The headers that the app passed to start(). They are current while `_headers` is None.
    _given: list[tuple[str, str]] = []  # noqa: RUF012 - replaced by start(), and changed after that
    _coding: ContentCoding | None = None
    accept_encoding: str | None
    wish: Wish
    # The Content-Type of a 200 for GET. None if another header may decide about compression.
    _deciding_type: str | None = None
    _has_text = False
    _counter: BodyCounter | None = None
    _server_write: Callable[[bytes], object] | None = None

    def __init__(
        self,
        app: object,
        environ: WSGIEnvironment,
        server_start: StartResponse,
        compression: Compression | None = None,
    ) -> None:
        self._app = app
        self.environ = environ
        self.method: str = environ.get("REQUEST_METHOD", "GET")
        self.server_start = server_start
        self.status: str | None = None
        self.holds = True
        self.forwarded = False
        self.exc_info: OptExcInfo | None = None
        self.edits: Sequence[Callable[[AppResponse], object]] = ()
        self.codes_stream = False
        self._headers: Headers | None = None
        self._checked: ResponseStart | None = None
        self.began_ns = time_ns()
        self.compression = compression
        if compression is not None:  # before the app can change the environ
            self.accept_encoding = environ.get("HTTP_ACCEPT_ENCODING")
            self.wish = environ[WISH] = []
            if (
                compression.dictionary is not None
                or "HTTP_IF_NONE_MATCH" in environ
                or "HTTP_IF_MATCH" in environ
                or "HTTP_IF" in environ
            ):
                self._made_coding(compression)  # this changes headers in the environ

    @property
    def headers(self) -> Headers:
        headers = self._headers
        if headers is None:
            self._headers = headers = Headers(self._given)
        return headers

    @headers.setter
    def headers(self, headers: Headers) -> None:
        self._headers = headers
        self._deciding_type = None

    # Called by the app

    def start(
        self, status: str, headers: list[tuple[str, str]], exc_info: OptExcInfo | None = None
    ) -> Callable[[bytes], object]:
        """The start_response() that the app gets."""
        forwards = not self.holds
        if exc_info:
            forwards = forwards or self.forwarded
            # uWSGI does not clear the error. Its next call of any function would raise it.
            passes_on = self.forwarded or "uwsgi" not in modules
        elif self.status is not None:
            check_second_start(None, sent=False, app=self.app_name)
        server_start = self.server_start
        try:
            if type(server_start) is MethodType and isinstance(
                server_start.__self__, ResponseWriter
            ):
                self._checked = checked = known_start(status, headers)
                code, length = checked.code, checked.content_length
                deciding_type = checked.deciding_type
                given: list[tuple[str, str]] = checked.given
            else:
                try:
                    given = list(headers)  # the app may change its own list later
                except TypeError:
                    raise invalid_pairs_error(headers) from None
                code = status_code(status)
                length, deciding_type = read_headers(given)
            if exc_info and passes_on:
                self.exc_info = exc_info
        except BodyError as error:
            raise BodyError(f"{self.app_name} called start_response wrongly: {error}") from None
        finally:
            exc_info = None  # it refers to this frame
        self.status = status
        self.code = code
        self.length = length
        self._given = given
        self._headers = None
        if code == 200 and self.method == "GET":
            self.no_body = False
            self._deciding_type = deciding_type
        else:
            self.no_body = not has_body(self.method, code)
            self._deciding_type = None
            if length is not None and self.no_body and not has_body("GET", code):
                # A 304 may have a Content-Length, but gevent's pywsgi responds to it with 500.
                self.set_length(None)
        if forwards:
            # If the headers were sent, the server raises the error of exc_info (PEP 3333, "Error
            # Handling").
            if self.forwarded or not self.delays_headers():
                self.forward()
            self._counter = None
        return self.write

    def write(self, data: bytes) -> None:
        """The write() that start_response returns. It passes each block to the server at once."""
        if not self.forwarded:
            self.codes_stream = self.compression is not None
            self.environ[SENT_AS] = "no-body" if self.no_body else "stream"
            self.forward()
        chunk = self.convert(data)
        counter = self.counter()
        admitted = counter.admit(len(chunk))
        if admitted < len(chunk):
            if not self.no_body and counter.dropped == len(chunk) - admitted:
                self.note_surplus()
            chunk = chunk[:admitted]
        if self._server_write is None:  # for example on Granian and uvicorn
            raise BodyError(
                f"{self.app_name} calls write(), which this server does not have although PEP 3333 "
                "requires it: yield the data"
            )
        coding = self.coding
        if self.codes_stream and coding is not None and not coding.is_done_by_server:
            chunk = coding.flushed_block(chunk)
        self._server_write(chunk)

    # Called by the middleware

    def set_length(self, size: int | None) -> None:
        """Set the Content-Length, if the response may have one (RFC 9110 8.6, RFC 9112 6.2).

        :param size: the length in bytes. None if it is unknown.
        """
        if self.length is not None:
            self.headers = self.headers.without(("content-length",))
        if self.no_body:
            size = frame_response(self.method, self.code, None, size=size).length
        self.length = size
        if size is None:
            return
        # The copy of the app's list may be changed. Checked headers may not.
        is_copy = self._headers is None and self._checked is None
        headers = self._given if is_copy else self.headers
        if self._deciding_type is None:
            for name, _ in headers:
                if len(name) == 17 and LOWER[name] == "transfer-encoding":
                    return  # a message must not have both headers
        headers.append(("Content-Length", str(size)))

    def correct_length(self, size: int) -> None:
        """Set the Content-Length of a body. If the app has set another one, log the correction."""
        if self.length is not None:
            self.environ[LENGTH_ERROR] = "corrected"
            logger.warning(
                "%s declared a Content-Length of %d for a body of %d bytes; corrected",
                self.app_name,
                self.length,
                size,
            )
        self.set_length(size)

    def delays_headers(self) -> bool:
        """Return whether the headers of a stream are forwarded with its first chunk.

        Until then, the app may replace them by a call with exc_info. gunicorn then sends both sets
        of headers. With two Content-Encodings, the client could not decode the body.
        """
        return self.codes_stream and self._checked is None

    def forward(self) -> None:
        """Call the server's start_response."""
        if self.status is None:
            raise self.not_started()
        self.forwarded = True
        if self.edits:
            for edit in self.edits:
                edit(self)
        if self.exc_info is None:
            headers = self._to_send() if self.codes_stream else self._headers
            checked = self._checked
            sent: Any
            if checked is None:
                # wsgiref accepts no subclass of list.
                sent = self._given if headers is None else [*headers]
            elif headers is None or headers == checked.given:
                sent = checked
                if checked.status != self.status:
                    sent = checked.changed(self.status, self.code, checked.given)
            else:
                sent = checked.changed(self.status, self.code, headers)
            self._server_write = self.server_start(self.status, sent)
            return
        # exc_info is passed on for middleware around WSGIFast, such as an error reporter.
        exc_info: OptExcInfo | None = self.exc_info
        self.exc_info = None  # its traceback refers to the app's frame
        coding = self.coding if self.codes_stream else None
        compressor = None if coding is None else coding.compressor
        try:
            sent = list(self._to_send())
            self._server_write = self.server_start(self.status, sent, exc_info)
        except BaseException:
            if coding is not None:  # the first headers remain, and so does their compressor
                coding.compressor = compressor
            raise
        finally:
            exc_info = None

    def _to_send(self) -> Headers:
        if self.codes_stream and self.coding is not None:
            decision, self.decision = self.decision, None  # the app may replace its headers
            return self.coding.begin(self.code, self.headers, decision)
        return self.headers

    @property
    def coding(self) -> ContentCoding | None:
        """The content coding of the body. None if WSGIFast does not compress."""
        if self._coding is None and self.compression is not None:
            return self._made_coding(self.compression)
        return self._coding

    def _made_coding(self, compression: Compression) -> ContentCoding:
        self._coding = ContentCoding(
            compression, self.method, self.accept_encoding, self.wish, self.environ
        )
        return self._coding

    def decide_whole(self, size: int, pages: bool = True) -> Decision | None:
        """Decide whether to compress a body in memory.

        If the headers only need a Vary, this method adds it.

        :param size: the size of the body in bytes.
        :param pages: whether the dictionary for pages may be used.
        :returns: None to send the response with the current headers.
        """
        compression = self.compression
        if compression is None:
            return None
        content_type = self._deciding_type
        is_compressible: str | bool | None
        if content_type is None or self.wish:
            is_compressible = True
        # The next tests are a short form of decide() for most responses that are not compressed.
        elif size < compression.min_bytes or not compression.shrinks[content_type]:
            return None
        else:
            is_compressible = self.accept_encoding
        if is_compressible:
            decision = self._decide(size, pages)
            if decision is not ADDS_VARY:
                return decision
        if self._headers is None and self._checked is None:
            self._given.append(("Vary", "Accept-Encoding"))
        else:
            self.headers.append(("Vary", "Accept-Encoding"))
        return None

    def _decide(self, size: int, pages: bool) -> Decision | None:
        # Frameworks drop the body of a response to HEAD. Then its size is not known.
        known_size = size if size or self.method != "HEAD" else None
        coding = self._coding
        if coding is not None:
            decide_by = coding.decide_page if pages else coding.decide
            return decide_by(self.code, self.headers, known_size)
        headers = self._given if self._headers is None else self._headers
        assert self.compression is not None
        return decide(self.compression, self, self.code, headers, known_size)

    def header(self, name: str) -> str | None:
        """Return a header of the request by its name. None if there is none."""
        return header_of(self.environ, name)

    def compress_whole(
        self, decision: Decision, blocks: Iterable[bytes], size: int
    ) -> Iterable[bytes]:
        """Return the blocks to send for a body in memory, and change the headers to match."""
        if decision.coding is None or not size:
            self.headers = decision.apply(self.headers)
            return blocks
        assert self.compression is not None
        coding = self._coding or self._made_coding(self.compression)
        self._headers, blocks = coding.whole(decision, self.headers, blocks, size)
        return blocks

    def counter(self) -> BodyCounter:
        """Return the counter that limits the body to its Content-Length."""
        if self._counter is None:
            self._counter = BodyCounter(Framing(not self.no_body, self.length, chunked=False))
        return self._counter

    def note_surplus(self) -> None:
        """Log that the body is longer than its Content-Length."""
        self.environ[LENGTH_ERROR] = "long"
        logger.error(
            "%s sent more than its Content-Length of %d bytes; the rest is dropped",
            self.app_name,
            self.counter().length,
        )

    def is_over(self) -> bool:
        """Log the current error if it cannot change the response. Return whether it was logged.

        If a body is compressed block by block, its last compressed bytes follow the last byte of
        the app. An error after the last byte of the Content-Length must not cut them off.
        """
        coding = self.coding if self.codes_stream and self.forwarded else None
        if coding is None or coding.compressor is None or not self.counter().complete:
            return False
        logger.exception(
            "%s failed after the last byte of its body, so the response is complete", self.app_name
        )
        return True

    def convert(self, chunk: object) -> bytes:
        """Convert a chunk to bytes.

        :raises BodyError: if the chunk is neither text nor bytes-like.
        """
        if type(chunk) is bytes:
            return chunk
        data = to_bytes(
            chunk, lambda: charset_of(self.headers), self._app, after_text=self._has_text
        )
        if data and isinstance(chunk, str):
            self._has_text = True
        return data

    def not_started(self) -> BodyError:
        return BodyError(f"{self.app_name} returned a body without calling start_response")

    @property
    def app_name(self) -> str:
        return app_name(self._app)
