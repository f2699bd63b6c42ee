"""Serve one request of the doctor to a WSGI app, and record the response.

The server runs in this process, and sends through a real socket to a client thread. It uses the
same system calls as gunicorn's gthread worker: one for the headers, one for each chunk, and
sendfile for a file in `wsgi.file_wrapper`. So the measured CPU time is similar to that of gthread.

asgi_recording.py uses three parts of this module: :class:`RecordedRequest`,
:class:`RecordingClient` and :func:`watch_opened_files`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes
from wsgiref import util

from ...bodies.writer import check_second_start
from ...errors import BodyError, WSGIFastError
from ...http.fields import ResponseStart
from ...http.framing import LAST_CHUNK, BodyCounter, Framing, chunk, chunk_size_line, frame_response
from ...http.request_headers import header_key
from ...sockets.sending import FileSegment, file_segment, send_file_segment
from ..loading import described
from .model import Endpoint, Recording

# A slow client reads nothing for this time. Then the doctor checks whether the app's thread still
# sends the response.
DELAY_S = 0.3
# The size of a slow client's receive buffer, and of the server's send buffer. If a response is
# larger than both buffers together, the app's thread has to wait for the client.
_SLOW_BUFFER_BYTES = 64 * 1024
_READ_BYTES = 1 << 20
# Smaller files gain nothing from sendfile.
_MIN_FILE_BYTES = 16 * 1024
# The paths of files that any thread opens during a request. None if no request runs. An audit hook
# of Python adds the paths. Since an audit hook cannot be removed, it is added only once, and does
# nothing between requests.
_opened: list[str] | None = None
_hook_lock = threading.Lock()
_has_hook = False


class RecordedRequest:
    """A request to an app. This class frames the response for HTTP/1.1, sends it and records it.

    Subclasses call the app, and set `_transmit`, which sends bytes to the client. Mistakes of the
    app are recorded, and raised as WSGIFastError.

    :cvar begin: the name of the call or message by which the app begins its response.
    :param inspect: whether to record each chunk.
    :param reads: see :class:`RecordingClient`.
    :ivar recording: the recording of the response.
    :ivar client: the client, which the caller must close.
    """

    begin: str
    _transmit: Callable[[bytes], object]

    def __init__(
        self, app: Callable[..., Any], endpoint: Endpoint, *, inspect: bool, reads: bool = True
    ) -> None:
        self.recording = Recording()
        self.client = RecordingClient(reads=reads)
        self._app = app
        self._endpoint = endpoint
        self._inspect = inspect
        self._response_start: ResponseStart | None = None  # set when the app begins its response
        self._framing: Framing | None = None  # set when the headers are sent
        self._counter: BodyCounter

    def _send(self, data: bytes) -> None:
        if data:
            self.recording.sends += 1
            self._transmit(data)

    def _problem_error(self, problem: str) -> WSGIFastError:
        """Record a mistake of the app, and return the exception to raise."""
        self.recording.problem = problem
        return WSGIFastError(problem)

    def _start(self, status: str, headers: Sequence[tuple[str, str]]) -> None:
        """Begin the response.

        :raises WSGIFastError: if the status or the headers are invalid.
        """
        try:
            self._response_start = start = ResponseStart(status, headers)
        except WSGIFastError as error:
            raise self._problem_error(str(error)) from None
        self.recording.status = start.code
        self.recording.headers = list(headers)

    def _send_headers(self) -> Framing:
        """Send the headers, if they have not been sent.

        :raises WSGIFastError: if the app has not begun a response.
        """
        start, framing = self._response_start, self._framing
        if start is None:
            raise self._problem_error(f"the body was sent before {self.begin}")
        if framing is None:
            framing = frame_response(self._endpoint.method, start.code, start.content_length)
            self._framing = framing
            self._counter = BodyCounter(framing)
            self._send(start.encode("1.1", framing, ""))
        return framing

    def _send_chunk(self, data: bytes) -> None:
        """Frame and send a chunk. Drop the bytes of the chunk that exceed the Content-Length."""
        framing = self._send_headers()
        data = data[: self._counter.admit(len(data))]
        if self._inspect:
            self.recording.sent(data)
        self._send(chunk(data) if data and framing.chunked else data)

    def _send_end(self) -> None:
        self._send(LAST_CHUNK if self._send_headers().chunked else b"")

    def _record(self, data: Any, wait_s: float) -> None:
        """Record a chunk that the app has produced.

        :param wait_s: the time that the app needed for the chunk.
        :raises WSGIFastError: if the chunk is not bytes.
        """
        if not isinstance(data, bytes):
            raise self._problem_error(f"a chunk is a {type(data).__name__}")
        if self._inspect:
            self.recording.chunks.add(len(data), wait_s)

    def _note_file(self, fd: int, offset: int, size: int) -> None:
        """Record a part of a file that sendfile has sent."""
        self.recording.by_sendfile += size
        while self._inspect and size and (data := os.pread(fd, min(size, _READ_BYTES), offset)):
            self.recording.sent(data)
            offset += len(data)
            size -= len(data)

    def _check_length(self, *, is_file: bool = False) -> None:
        """Record a problem if the length of the body differs from the Content-Length.

        :param is_file: whether the body is a file in `wsgi.file_wrapper`. Such a file may be longer
            than the Content-Length, because the wrapper sends only Content-Length bytes (PEP 3333).
        """
        if self._framing is None or not self._framing.has_body:
            return
        counter = self._counter
        if counter.missing or (counter.dropped and not is_file):
            size = counter.sent + counter.dropped
            declared = self.recording.declared
            self.recording.problem = f"Content-Length says {declared} bytes, the body has {size}"


class RecordingClient:
    """A client that reads and ignores a response, in its own thread.

    :param reads: whether the client reads immediately. False to wait until `may_read` is set.
    :ivar server_side: the server's socket of the connection.
    :ivar cpu_s: the CPU seconds of the client's thread. 0 before :meth:`close`.
    """

    def __init__(self, *, reads: bool = True) -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=1) as listener:
            self._sock = socket.socket()
            if not reads:
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SLOW_BUFFER_BYTES)
            self._sock.connect(listener.getsockname())
            self.server_side, _ = listener.accept()
        if not reads:
            self.server_side.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SLOW_BUFFER_BYTES)
        self.server_side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.cpu_s = 0.0
        self.may_read = threading.Event()
        if reads:
            self.may_read.set()
        self._thread = threading.Thread(target=self._read, name="wsgifast-doctor-client")
        self._thread.start()

    def close(self) -> None:
        """Close both sockets. If the app is still sending, it gets an error."""
        self.may_read.set()
        with contextlib.suppress(OSError):
            self.server_side.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self.server_side.close()
        self._sock.close()

    def _read(self) -> None:
        began = time.thread_time()
        self.may_read.wait()
        buffer = bytearray(1 << 20)
        with contextlib.suppress(OSError):
            while self._sock.recv_into(buffer):
                pass
        self.cpu_s = time.thread_time() - began


@contextlib.contextmanager
def watch_opened_files(recording: Recording) -> Iterator[None]:
    """Watch which files are opened for reading. If one of them is the body, set `file_bytes`.

    A file counts as the body if it has the size of the body.
    """
    global _opened, _has_hook
    with _hook_lock:
        if not _has_hook:
            sys.addaudithook(_on_audit_event)
            _has_hook = True
    paths: list[str] = []
    _opened = paths
    try:
        yield
    finally:
        if _opened is paths:  # not if this request timed out, and the next request has begun
            _opened = None
    size = recording.declared or recording.chunks.total
    if size >= _MIN_FILE_BYTES and any(_has_size(path, size) for path in paths):
        recording.file_bytes = size


def _on_audit_event(event: str, arguments: tuple[Any, ...]) -> None:
    paths = _opened
    if event != "open" or paths is None:
        return
    path, mode = arguments[0], arguments[1]
    reads = mode is None or not set(str(mode)) & set("wax+")
    if reads and isinstance(path, (str, bytes, os.PathLike)):
        paths.append(os.fsdecode(path))


def _has_size(path: str, size: int) -> bool:
    try:
        return os.stat(path).st_size == size
    except OSError:
        return False


if TYPE_CHECKING:
    from _typeshed import OptExcInfo


class FileWrapper(util.FileWrapper):
    """This server's `wsgi.file_wrapper` (PEP 3333, "Optional Platform-Specific File Handling")."""


def record_wsgi(
    app: Callable[..., Any],
    endpoint: Endpoint,
    *,
    limit_s: float,
    reads: bool = True,
    inspect: bool = True,
) -> Recording:
    """Request an endpoint of a WSGI app, and record the response.

    A new thread calls the app. After the time limit, this function no longer waits for the thread.

    :param reads: whether the client reads immediately. False to read after DELAY_S.
    :param inspect: whether to record each chunk. False to measure only times.
    """
    request = _Request(app, endpoint, inspect=inspect, reads=reads)
    recording, client = request.recording, request.client
    thread = threading.Thread(target=request.run, name="wsgifast-doctor-app", daemon=True)
    thread.start()
    try:
        if not reads:
            thread.join(DELAY_S)
            recording.blocks_thread = thread.is_alive() and recording.sends > 0
            client.may_read.set()
        thread.join(limit_s)
        if thread.is_alive():
            recording.timed_out = True
    finally:
        client.close()
    if recording.timed_out:
        # If the app is sending, it gets an error now, because the connection is closed.
        thread.join(0.1)
    return recording


class _Request(RecordedRequest):
    begin = "start_response"

    def run(self) -> None:
        try:
            with watch_opened_files(self.recording):
                self._run()
        except BaseException as error:  # noqa: BLE001 - any exception of the app is a finding
            self.recording.error = described(error)

    def _run(self) -> None:
        recording = self.recording
        self._transmit = self.client.server_side.sendall
        environ = _environ(self._endpoint)
        cpu, wall = time.thread_time(), time.perf_counter()
        result: Any = None
        try:
            result = self._app(environ, self._start_response)
            recording.returned = _class_name(result)
            self._send_body(result)
        finally:
            close = getattr(result, "close", None)
            if close is not None:
                close()
            recording.wall_s = time.perf_counter() - wall
            recording.cpu_s = time.thread_time() - cpu
            recording.sent_as = environ.get("wsgifast.sent_as")
        if recording.problem is None:
            self._check_length(is_file=isinstance(result, FileWrapper))

    def _start_response(
        self, status: str, headers: list[tuple[str, str]], exc_info: OptExcInfo | None = None
    ) -> Callable[[bytes], object]:
        if exc_info or self._response_start is not None:
            try:
                check_second_start(exc_info, sent=self._framing is not None)
            except BodyError as error:
                raise self._problem_error(str(error)) from None
            finally:
                exc_info = None
        self._start(status, headers)
        return self._send_chunk

    def _send_body(self, body: Any) -> None:
        if isinstance(body, FileWrapper):
            segment = file_segment(body.filelike)
            if segment is not None:
                self._send_file(segment)
                return
        if isinstance(body, (str, bytes, bytearray, memoryview)):
            data = body.encode() if isinstance(body, str) else body
            self.recording.chunks.add(memoryview(data).nbytes)
            raise self._problem_error(f"a bare {type(body).__name__} is not an iterable of bytes")
        try:
            chunks = iter(body)
        except TypeError:
            raise self._problem_error(f"{_class_name(body)} is not an iterable of bytes") from None
        began = time.perf_counter()
        for data in chunks:
            self._record(data, time.perf_counter() - began)
            if data:
                self._send_chunk(data)
            began = time.perf_counter()
        self._send_end()

    def _send_file(self, segment: FileSegment) -> None:
        framing = self._send_headers()
        size = self._counter.admit(segment.size)
        self.recording.chunks.add(segment.size)
        if framing.chunked:
            self._send(chunk_size_line(size))
        send_file_segment(self.client.server_side, segment._replace(size=size), self._count_send)
        if framing.chunked:
            self._send(b"\r\n")
        self._send_end()
        self._note_file(segment.fd, segment.offset, size)

    def _count_send(self, size: int) -> None:
        self.recording.sends += 1


def _environ(endpoint: Endpoint) -> dict[str, Any]:
    path, _, query = endpoint.url.partition("?")
    environ: dict[str, Any] = {
        "REQUEST_METHOD": endpoint.method,
        "SCRIPT_NAME": "",
        "PATH_INFO": unquote_to_bytes(path).decode("latin-1"),
        "QUERY_STRING": query,
        "SERVER_NAME": "localhost",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "SERVER_SOFTWARE": "wsgifast-doctor",
        "REMOTE_ADDR": "127.0.0.1",
        "RAW_URI": endpoint.url,
        "wsgi.input_terminated": True,
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.file_wrapper": FileWrapper,
    }
    if endpoint.scheme == "https":
        environ |= {"HTTPS": "on", "wsgi.url_scheme": "https", "SERVER_PORT": "443"}
    util.setup_testing_defaults(environ)
    fields: dict[str, str] = {}
    for name, value in endpoint.headers:
        key = header_key(name.upper())
        # Servers join repeated headers with a comma, and cookies with a semicolon (RFC 6265).
        separator = "; " if key == "HTTP_COOKIE" else ","
        fields[key] = f"{fields[key]}{separator}{value}" if key in fields else value
    return environ | fields


def _class_name(value: object) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
