"""WSGIFast: call the app, look at what came back, repair it, and route it to the server."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from . import body as bodies
from . import front_server
from .apps import app_name, check_app
from .delivery import BLOCK_BYTES, FileReader, FileSlice, SegmentedBody
from .environ import request_facts
from .errors import BodyError, ConfigurationError
from .file_answers import file_parts, plan_file_body
from .front_server import FrontServer
from .options import check_switches
from .sockets.options import owned_socket, set_nodelay
from .sockets.sendfile import FileSegment, file_segment
from .streams import NoBody, SizedStream, Stream, close_body

if TYPE_CHECKING:
    from _typeshed import OptExcInfo
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

__all__ = ["ROUTE", "WSGIFast"]

# environ[ROUTE] says how a body went out; access logs may print it.
ROUTE = "wsgifast.route"

logger = logging.getLogger("wsgifast")

# With these, and with 1xx, a response ends at its head (RFC 9110 6.4.1).
_NO_BODY_STATUSES = frozenset({"204", "304"})
_ABSENT = object()
# A stream with one of these types is read event by event: it is never coalesced.
_EVENT_STREAMS = ("text/event-stream", "multipart/x-mixed-replace", "application/x-ndjson")


class WSGIFast:
    """WSGI middleware that repairs what an app returns and routes it to the server's fastest way.

    ======================================  =======================================  ==============
    the app returns                         the server gets                          route
    ======================================  =======================================  ==============
    a list or tuple of few large bytes      the same object                          ``as-is``
    str, bytes, bytearray, memoryview       one chunk of bytes                       ``rescued``
    a list or tuple of crumbs               few large chunks                         ``joined``
    a file, or a known wrapper around one   the server's own ``wsgi.file_wrapper``   ``file``
    the same where the server has none      blocks of 256 KiB                        ``blocks``
    a file, asked for in several ranges     its runs, as a :class:`SegmentedBody`    ``segments``
    a file for the front server to send     no body                                  ``accel``
    any other iterable                      its chunks, each as it comes             ``stream``
    the same with `coalesce`                its chunks, gathered while they are      ``coalesced``
                                            quick
    anything to HEAD, or with 1xx/204/304   no body                                  ``no-body``
    ======================================  =======================================  ==============

    The last column is what ``environ["wsgifast.route"]`` says afterwards. A Content-Length is
    added where the length is known, a wrong one is corrected where the whole body is at hand;
    a body that turns out shorter than its Content-Length ends in an error, so that the server
    closes the connection instead of leaving the client waiting for the rest. Where no body may be
    sent, an iterator is still run up to its first byte, so that the app fails or replaces its head
    as it does for a GET.

    :param app: any WSGI application (PEP 3333).
    :param coalesce: also gather the small chunks of iterators; for apps that yield crumbs quickly,
        not for event streams. See :func:`wsgifast.body.coalesced` for what may wait, and for how
        long.
    :param nodelay: set TCP_NODELAY on each connection whose socket the server lets us reach.
    :param ranges: True answers Range and If-Range where the app answers a GET with 200 and a file;
        see :func:`wsgifast.file_answers.plan_file_body` for which files, and for their ETag.
        "take-over" also keeps the two headers from the app: one that would cut the range out by
        reading then answers with the whole file, and the range goes out by sendfile. False does
        neither.
    :param conditional: answer If-None-Match, If-Modified-Since, If-Match and If-Unmodified-Since
        for the same files.
    :param accel_redirect: from folders to nginx's internal locations, such as
        ``{"/srv/files": "/protected/"}``: files in them are sent by nginx. See
        :func:`wsgifast.front_server.accel_redirect`, also for the headers that nginx drops.
    :param x_sendfile: folders whose files Apache or lighttpd sends.
    :raises ConfigurationError: if `app` can never be called as a WSGI app is, or an option has a
        value that cannot work.
    :raises BodyError: (to the server, for a request) if the app returns what cannot be a body.
    """

    def __init__(
        self,
        app: WSGIApplication,
        *,
        coalesce: bool = False,
        nodelay: bool = True,
        ranges: bool | Literal["take-over"] = True,
        conditional: bool = True,
        accel_redirect: Mapping[str, str] | None = None,
        x_sendfile: Iterable[str] | None = None,
    ) -> None:
        check_app(app, "WSGI")
        check_switches(coalesce=coalesce, nodelay=nodelay, conditional=conditional)
        if not (isinstance(ranges, bool) or ranges == "take-over"):
            raise ConfigurationError(f"ranges is True, False or 'take-over', not {ranges!r}")
        if accel_redirect is not None and x_sendfile is not None:
            raise ConfigurationError(
                f"accel_redirect={accel_redirect!r} is for nginx, x_sendfile={x_sendfile!r} for "
                "Apache and lighttpd: give one of the two"
            )
        self.app = app
        self.coalesce = coalesce
        self.nodelay = nodelay
        self.ranges = ranges
        self.conditional = conditional
        self.front_server: FrontServer | None = None
        if accel_redirect is not None:
            self.front_server = front_server.accel_redirect(accel_redirect)
        elif x_sendfile is not None:
            self.front_server = front_server.x_sendfile(x_sendfile)
        self._nodelay_set: set[weakref.ref[Any]] = set()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if self.nodelay:
            self._set_nodelay(environ)
        exchange = _Exchange(self, environ, start_response)
        if self.ranges == "take-over" and "HTTP_RANGE" in environ:
            # A copy: the server's own stays whole, for its access log and for us.
            environ = {**environ}
            del environ["HTTP_RANGE"]
            environ.pop("HTTP_IF_RANGE", None)
        result: Any = self.app(environ, exchange.start)
        exchange.returned = True
        try:
            return exchange.route(result)
        except BaseException:
            close_body(result)
            raise

    def _set_nodelay(self, environ: WSGIEnvironment) -> None:
        """Set TCP_NODELAY once for each connection."""
        sock = environ.get("gunicorn.socket") or environ.get("werkzeug.socket")
        if sock is None:
            # wsgiref, gevent's pywsgi and cheroot hand over a stream that reads from the socket.
            sock = owned_socket(environ.get("wsgi.input"))
            if sock is None:
                return
        done = self._nodelay_set
        if weakref.ref(sock) in done:
            return  # a later request of the same connection
        try:
            set_nodelay(sock)
        except OSError:
            return  # the client has gone; the server will notice when it writes
        done.add(weakref.ref(sock, done.discard))


class _Exchange:
    """One request's way through the middleware.

    The app's start_response is held until the body is known (`returned` is False) and handed on at
    once after that, when a lazy app calls it from inside its iterator.
    """

    # What start_response has not said yet. Class attributes: an exchange that is well-shaped never
    # pays for setting them.
    status: str | None = None
    headers: list[tuple[str, str]] = []  # noqa: RUF012 - replaced by start(), never mutated here
    declared: int | None = None
    no_body = False
    # Whether the app has returned, and whether the server's start_response was called.
    returned = False
    forwarded = False
    # Bytes that went to the server through write() and through a counted stream.
    written = 0
    server_write: Callable[[bytes], object]

    def __init__(
        self, middleware: WSGIFast, environ: WSGIEnvironment, start_response: StartResponse
    ) -> None:
        self.middleware = middleware
        self.environ = environ
        self.server_start = start_response

    # What the app calls

    def start(
        self, status: str, headers: list[tuple[str, str]], exc_info: OptExcInfo | None = None, /
    ) -> Callable[[bytes], object]:
        """The start_response that the app is given."""
        if self.status is not None and exc_info is None:
            raise BodyError(f"{self.app_name} called start_response twice without exc_info")
        if self.forwarded and exc_info is not None:
            # The server re-raises if the headers are out already (PEP 3333, "Error Handling").
            try:
                self._take(status, headers)
                self.server_write = self.server_start(status, self.headers, exc_info)
            finally:
                exc_info = None  # it holds this frame
            return self.write
        self._take(status, headers)
        if self.returned:
            self.forward()
        return self.write

    def write(self, data: bytes) -> None:
        """The write() that start_response returns: straight to the server, nothing is held."""
        if not self.forwarded:
            self.forward()
        chunk = self.convert(data)
        if self.no_body:
            chunk = b""
        elif self.declared is not None and self.written + len(chunk) > self.declared:
            raise BodyError(
                f"{self.app_name} wrote {self.written + len(chunk)} bytes, more than its "
                f"Content-Length of {self.declared}"
            )
        self.written += len(chunk)
        self.server_write(chunk)

    # Routing

    def route(self, body: Any) -> Iterable[bytes]:
        """Look at the returned body; answer with what the server is to iterate."""
        kind = type(body)
        if kind is list or kind is tuple:
            if self.status is None:
                raise self.not_started()
            if self.forwarded:
                return self._stream(body)
            return self._chunks(body)
        if kind is str or kind is bytes or isinstance(body, (bytes, str, bytearray, memoryview)):
            if self.status is None:
                raise self.not_started()
            if self.forwarded:
                return self._stream((body,))
            chunk = self.convert(body)
            return self._whole("rescued", [chunk], len(chunk))
        file = bodies.wrapped_file(body)
        if file is None and bodies.is_readable(body):
            file = body
        if file is not None:
            if self.status is None:
                raise self.not_started()
            return self._file(file)
        wrapper = self.environ.get("wsgi.file_wrapper")
        if isinstance(wrapper, type) and isinstance(body, wrapper):
            return self._unopened(body, "file")
        if kind is SegmentedBody:
            return self._unopened(body, "segments")
        error = bodies.refuse(body, self.middleware.app)
        if error is not None:
            raise error
        return self._stream(body)

    def _chunks(self, body: list[Any] | tuple[Any, ...]) -> Iterable[bytes]:
        if len(body) == 1 and type(body[0]) is bytes:
            return self._whole("as-is", body, len(body[0]))
        few, total = bodies.few_chunks(body, self.convert)
        if few is body:
            route = "as-is"
        else:
            route = "joined" if len(body) > 1 else "rescued"
        return self._whole(route, few, total)

    def _whole(self, route: str, chunks: Iterable[bytes], total: int) -> Iterable[bytes]:
        """Send a body that is all at hand: its length is certain."""
        if self.declared is not None and self.declared != total and (total or not self.no_body):
            logger.warning(
                "%s declared a Content-Length of %d for a body of %d bytes; corrected",
                self.app_name,
                self.declared,
                total,
            )
            self.declared = None
            self.headers = _without_content_length(self.headers)
        if self.no_body:
            return self._no_body(total, chunks)
        if self.declared is None:
            self.add_content_length(total)
        self.forward()
        self.environ[ROUTE] = route
        return chunks

    def _file(self, file: Any) -> Iterable[bytes]:
        if self.forwarded and self.no_body:
            return self._no_body(None, file)
        if self.forwarded:
            # write() was used: the server counts its bytes towards a Content-Length, which its
            # sendfile may not, so the rest goes the same way.
            size = None if self.declared is None else self.declared - self.written
            self.environ[ROUTE] = "blocks"
            return FileReader(file, size, self.convert)
        declared = self.declared
        # An inner WSGIFast or StaticFiles has made a slice of its file, and answered the request.
        answered_before = isinstance(file, FileSlice)
        segment = file.rest() if isinstance(file, FileSlice) else file_segment(file)
        reader: FileSlice | FileReader
        if segment is not None and (declared is None or declared <= segment.size):
            if declared is not None:
                segment = segment._replace(size=declared)
            answered = None if answered_before else self._answer_file(file, segment)
            if answered is not None:
                return answered
            size = segment.size
            reader = FileSlice(segment, file)
        else:
            size = bodies.known_size(file) if declared is None else declared
            reader = FileReader(file, size, self.convert)
        if self.no_body:
            return self._no_body(size, reader)
        if declared is None and size is not None:
            self.add_content_length(size)
        self.forward()
        return self._wrapped(reader)

    def _answer_file(self, file: Any, segment: FileSegment) -> Iterable[bytes] | None:
        """Answer a 200 with a file as a file server would; None if it is to go out as it is."""
        environ, middleware = self.environ, self.middleware
        if (self.status or "")[:3] != "200" or environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return None
        if middleware.front_server is not None:
            headers = middleware.front_server.hand_over(self.headers, file, segment)
            if headers is not None:
                self.headers = headers
                self.forward()
                environ[ROUTE] = "accel"
                return NoBody(file)
        if not (middleware.ranges or middleware.conditional):
            return None
        plan = plan_file_body(
            request_facts(environ),
            self.headers,
            file,
            segment,
            ranges=bool(middleware.ranges),
            conditional=middleware.conditional,
        )
        if plan is None:
            return None
        if plan.status != 200:  # the app's own phrase stays
            self.status = plan.status_line
        self.headers = list(plan.headers)
        self.forward()
        parts = file_parts(plan)
        if not parts:
            environ[ROUTE] = "no-body"
            return NoBody(file)
        if len(parts) == 1 and isinstance(parts[0], FileSegment):
            return self._wrapped(FileSlice(parts[0], file))
        environ[ROUTE] = "segments"
        end = max(part.offset + part.size for part in parts if isinstance(part, FileSegment))
        # A slice knows at its end whether the file has become shorter.
        sent = FileSlice(segment._replace(size=end - segment.offset), file)
        return SegmentedBody(parts, sent.close)

    def _wrapped(self, reader: FileSlice | FileReader) -> Iterable[bytes]:
        """Put a file into the server's own wrapper, if it has one."""
        wrapper = self.environ.get("wsgi.file_wrapper")
        if wrapper is None:
            self.environ[ROUTE] = "blocks"
            return reader
        self.environ[ROUTE] = "file"
        wrapped: Iterable[bytes] = wrapper(reader, BLOCK_BYTES)
        return wrapped

    def _unopened(self, body: Any, route: str) -> Iterable[bytes]:
        """Let a body pass that its server knows how to send."""
        if self.status is None:
            raise self.not_started()
        if self.no_body:
            return self._no_body(None, body)
        if not self.forwarded:
            self.forward()
        self.environ[ROUTE] = route
        passed: Iterable[bytes] = body
        return passed

    def _stream(self, body: Iterable[Any]) -> Iterable[bytes]:
        if self.status is not None and not self.forwarded:
            self.forward()
        if self.no_body:
            self.environ[ROUTE] = "no-body"
            return Stream(self, body)
        if self.route_stream():
            return Stream(self, body, coalesce=True)
        try:
            length = len(body)  # type: ignore[arg-type]
        except (TypeError, AttributeError, NotImplementedError):
            return Stream(self, body)
        return SizedStream(self, body, length)

    def _no_body(self, size: int | None, body: Iterable[bytes]) -> Iterable[bytes]:
        """Answer without a body: the response to HEAD, and 1xx, 204 and 304 (RFC 9110 6.4.1)."""
        if self.forwarded:  # by write()
            return NoBody(body)
        if size and self.declared is None and self.environ["REQUEST_METHOD"] == "HEAD":
            self.add_content_length(size)  # what GET would have said (RFC 9110 8.6)
        self.forward()
        self.environ[ROUTE] = "no-body"
        return NoBody(body)

    # The head of the response

    def _take(self, status: str, headers: list[tuple[str, str]]) -> None:
        """Note what the app says of its response; refuse what no server could send."""
        declared: Any = _ABSENT
        try:
            headers = list(headers)
            for name, value in headers:
                # The length is compared first: a third of lower()'s cost, and it nearly always
                # decides.
                if len(name) == 14 and name.lower() == "content-length":
                    if declared is not _ABSENT and value != declared:
                        raise self._bad_length(f"{declared!r} and to {value!r}")
                    declared = value
        except BodyError:
            raise
        except (TypeError, ValueError):
            raise BodyError(
                f"{self.app_name} called start_response with the headers {headers!r}; "
                "give a list of (name, value) tuples of str"
            ) from None
        if declared is _ABSENT:
            self.declared = None
        elif isinstance(declared, str) and declared.isascii() and declared.isdigit():
            # RFC 9110 8.6: ASCII digits. (What a regex would say, at a quarter of its time.)
            self.declared = int(declared)
        else:
            raise self._bad_length(repr(declared))
        if not isinstance(status, str) or not status:
            raise BodyError(
                f"{self.app_name} called start_response with the status {status!r}; "
                "give a str such as '200 OK'"
            )
        no_body_status = status[:3] in _NO_BODY_STATUSES or status[0] == "1"
        self.status = status
        self.headers = headers
        self.no_body = no_body_status or self.environ["REQUEST_METHOD"] == "HEAD"
        if no_body_status and self.declared is not None:
            # RFC 9110 8.6 forbids it with 1xx and 204; with 304 it is better left out (15.4.5),
            # and gevent's pywsgi answers 500 if it is there.
            self.headers = _without_content_length(headers)
            self.declared = None

    def add_content_length(self, size: int) -> None:
        """Add a Content-Length, unless the status or a transfer coding forbids it."""
        code = (self.status or "")[:3]
        if code in _NO_BODY_STATUSES or code[0] == "1":
            return
        for name, _ in self.headers:
            if len(name) == 17 and name.lower() == "transfer-encoding":
                return  # RFC 9112 6.2: never both
        self.headers.append(("Content-Length", str(size)))

    def forward(self) -> None:
        """Call the server's start_response with what the app said."""
        if self.status is None:
            raise self.not_started()
        self.forwarded = True
        self.server_write = self.server_start(self.status, self.headers)

    # Helpers

    @property
    def app_name(self) -> str:
        return app_name(self.middleware.app)

    def get_charset(self) -> str:
        return bodies.charset_of(self.headers)

    def convert(self, chunk: object) -> bytes:
        if type(chunk) is bytes:
            return chunk
        return bodies.to_bytes(chunk, self.get_charset, self.middleware.app)

    def _bad_length(self, values: str) -> BodyError:
        return BodyError(
            f"{self.app_name} set Content-Length to {values}; "
            "give one number of bytes, in digits, or leave it out"
        )

    def not_started(self) -> BodyError:
        return BodyError(f"{self.app_name} returned a body without calling start_response")

    def route_stream(self) -> bool:
        """Note the route, as far as the head is known; return whether chunks are coalesced."""
        coalesces = self.middleware.coalesce and not self._is_event_stream()
        self.environ[ROUTE] = "coalesced" if coalesces else "stream"
        return coalesces

    def _is_event_stream(self) -> bool:
        for name, value in self.headers:
            lowered = name.lower()
            if lowered == "content-type" and value.lower().startswith(_EVENT_STREAMS):
                return True
            if lowered == "x-accel-buffering" and value.lower() == "no":
                return True
        return False


def _without_content_length(headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [header for header in headers if header[0].lower() != "content-length"]
