"""A server that records: one request in this process, through a real socket to a client.

It hands an app's body to the socket as gunicorn's threaded worker does: the head and each chunk by
a send of its own, framed as HTTP/1.1 asks, and what is in its `wsgi.file_wrapper` by sendfile. So
what it costs is what such a server pays, and the difference between an app and the same app
wrapped is one that a server would see.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import socket
import sys
import threading
import time
import traceback
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote_to_bytes

from ..errors import WSGIFastError
from ..http import BodyCounter, frame_response
from ..http.framing import LAST_CHUNK, chunk_size_line
from ..http.head import ResponseHead
from ..sockets.sendfile import file_segment, send_file_segment
from .model import Endpoint, FileSeen, Recording

__all__ = [
    "FileWrapper",
    "RecordingClient",
    "TimeLimit",
    "files_of_the_body",
    "opened_files",
    "record_wsgi",
    "told",
]

# The client's receive buffer while it reads slowly: an app's thread that has more to hand over than
# this and the server's send buffer has to wait.
_SLOW_BUFFER_BYTES = 64 * 1024
# A client that does not read is given so long to hold the app's thread up.
_HELD_S = 0.3
# More chunks than this are not counted one by one; the endpoint is judged by what was seen.
_MAX_CHUNKS = 1_000_000
# Files smaller than this have nothing to gain.
_LEAST_FILE_BYTES = 16 * 1024


class TimeLimit(WSGIFastError, TimeoutError):
    """An endpoint did not end within its time; raised into its own thread."""


class FileWrapper:
    """This server's `wsgi.file_wrapper` (PEP 3333, "Optional Platform-Specific File Handling")."""

    def __init__(self, filelike: Any, blksize: int = 8192) -> None:
        self.filelike = filelike
        self.blksize = blksize
        if hasattr(filelike, "close"):
            self.close = filelike.close

    def __iter__(self) -> Iterator[bytes]:
        return iter(lambda: self.filelike.read(self.blksize), b"")


class RecordingClient:
    """The other end of the connection: reads all, or nothing for a while.

    :param reads: False for a client that takes nothing until :meth:`read_on`.
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
        #: The client's own CPU seconds; whole once it is closed.
        self.cpu_s = 0.0
        self._may_read = threading.Event()
        if reads:
            self._may_read.set()
        self._thread = threading.Thread(target=self._read, name="wsgifast-doctor-client")
        self._thread.start()

    def read_on(self) -> None:
        self._may_read.set()

    def close(self) -> None:
        """End both sides; whoever still sends gets an error."""
        self._may_read.set()
        with contextlib.suppress(OSError):
            self.server_side.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self.server_side.close()
        self._sock.close()

    def _read(self) -> None:
        began = time.thread_time()
        self._may_read.wait()
        buffer = bytearray(1 << 20)
        with contextlib.suppress(OSError):
            while self._sock.recv_into(buffer):
                pass
        self.cpu_s = time.thread_time() - began


def record_wsgi(
    app: Callable[..., Any],
    endpoint: Endpoint,
    *,
    limit_s: float,
    reads: bool = True,
    memory: bool = False,
    look: bool = True,
) -> Recording:
    """Ask a WSGI app for an endpoint, and record what comes back.

    The request runs in a thread of its own, which is left to itself after the time limit.

    :param reads: False for a client that does not read for the first 0.3 s.
    :param memory: measure the memory that Python takes; slower, so not together with times.
    :param look: False measures times alone: nothing is noted for each chunk.
    """
    recording = Recording()
    client = RecordingClient(reads=reads)
    exchange = _Exchange(app, endpoint, recording, client.server_side, look=look)
    thread = threading.Thread(
        target=_run, args=(exchange, memory), name="wsgifast-doctor-app", daemon=True
    )
    thread.start()
    try:
        if not reads:
            thread.join(_HELD_S)
            recording.held = thread.is_alive() and exchange.sending
            client.read_on()
        thread.join(limit_s)
        if thread.is_alive():
            recording.timed_out = True
    finally:
        client.close()
    if recording.timed_out:
        thread.join(0.1)  # an app that sends ends with the connection
    return recording


def _run(exchange: _Exchange, memory: bool) -> None:
    recording = exchange.recording
    if memory:
        tracemalloc.start()
    try:
        with opened_files() as paths:
            exchange.run()
        recording.files = files_of_the_body(paths, recording)
    except BaseException as error:  # noqa: BLE001 - whatever an app raises is a finding
        recording.error = told(error)
    finally:
        if memory:
            recording.peak_bytes = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()


class _Exchange:
    """One request and its response; runs in a thread of its own."""

    def __init__(
        self,
        app: Callable[..., Any],
        endpoint: Endpoint,
        recording: Recording,
        sock: socket.socket,
        *,
        look: bool,
    ) -> None:
        self.recording = recording
        self.sending = False
        self._app = app
        self._endpoint = endpoint
        self._sock = sock
        self._look = look
        self._head: ResponseHead | None = None
        self._counter: BodyCounter | None = None
        self._chunked = False
        self._digest = hashlib.blake2b(digest_size=16)

    def run(self) -> None:
        recording = self.recording
        environ = _environ(self._endpoint)
        cpu, wall = time.thread_time(), time.perf_counter()
        result: Any = None
        try:
            began = time.perf_counter()
            result = self._app(environ, self._start_response)
            recording.app_s += time.perf_counter() - began
            recording.returned = _class_name(result)
            self._send_body(result)
        finally:
            close = getattr(result, "close", None)
            if close is not None:
                close()
            recording.wall_s = time.perf_counter() - wall
            recording.cpu_s = time.thread_time() - cpu
            recording.route = environ.get("wsgifast.route")
            recording.digest = self._digest.hexdigest()
        counter = self._counter
        if counter is not None and recording.problem is None:
            if counter.missing and self._endpoint.method != "HEAD":
                recording.problem = (
                    f"Content-Length says {recording.declared} bytes, the body has {counter.sent}"
                )
            elif counter.dropped:
                recording.problem = (
                    f"Content-Length says {recording.declared} bytes, the body goes on for "
                    f"{counter.dropped} more"
                )

    def _start_response(
        self, status: str, headers: list[tuple[str, str]], exc_info: Any = None
    ) -> Callable[[bytes], object]:
        if exc_info is not None and self._counter is not None:
            raise exc_info[1].with_traceback(exc_info[2])
        if self._head is not None and exc_info is None:
            self.recording.problem = "start_response was called twice without exc_info"
        try:
            self._head = ResponseHead(status, headers)
        except WSGIFastError as error:
            self.recording.problem = str(error)
            raise
        self.recording.status = self._head.code
        self.recording.headers = list(headers)
        return self._write

    def _send_body(self, body: Any) -> None:
        if isinstance(body, FileWrapper):
            segment = file_segment(body.filelike)
            if segment is not None:
                self._send_file(segment)
                return
        if isinstance(body, (str, bytes, bytearray, memoryview)):
            self.recording.problem = f"a bare {type(body).__name__} is no iterable of bytes"
            body = body if isinstance(body, (bytes, str)) else bytes(body)
            self._note(len(body.encode() if isinstance(body, str) else body), 0.0)
            return
        try:
            chunks = iter(body)
        except TypeError:
            self.recording.problem = f"{_class_name(body)} is no iterable of bytes"
            return
        while True:
            began = time.perf_counter()
            try:
                chunk = next(chunks)
            except StopIteration:
                self.recording.app_s += time.perf_counter() - began
                break
            wait = time.perf_counter() - began
            self.recording.app_s += wait
            if not isinstance(chunk, bytes):
                self.recording.problem = f"a chunk is a {type(chunk).__name__}: yield bytes"
                return
            if self._look:
                self._note(len(chunk), wait)
                self._digest.update(chunk)
                self.recording.keep(chunk)
            if chunk:
                self._write(chunk)
        if self._head is None:
            self.recording.problem = "the body ended without a call of start_response"
            return
        if self._counter is None:
            self._send(self._encoded_head())
        if self._chunked:
            self._send(LAST_CHUNK)

    def _write(self, chunk: bytes) -> None:
        if self._head is None:
            self.recording.problem = "a body came before start_response"
            raise WSGIFastError(self.recording.problem)
        head = b"" if self._counter is not None else self._encoded_head()
        if head:
            self._send(head)
        assert self._counter is not None
        admitted = self._counter.admit(len(chunk))
        if not admitted:
            return
        data = chunk[:admitted]
        self._send(chunk_size_line(admitted) + data + b"\r\n" if self._chunked else data)

    def _send_file(self, segment: Any) -> None:
        self._send(self._encoded_head())
        assert self._counter is not None
        size = self._counter.admit(segment.size)
        recording = self.recording
        if self._look:
            self._digest_of(segment)
            recording.chunks.add(segment.size, 0.0)
        self.sending = True
        if self._chunked:
            self._send(chunk_size_line(size))
        send_file_segment(self._sock, segment._replace(size=size), self._count_send)
        if self._chunked:
            self._send(b"\r\n" + LAST_CHUNK)
        recording.by_sendfile += size

    def _digest_of(self, segment: Any) -> None:
        offset, end = segment.offset, segment.offset + segment.size
        while offset < end and (data := os.pread(segment.fd, min(1 << 20, end - offset), offset)):
            self._digest.update(data)
            offset += len(data)

    def _count_send(self, size: int) -> None:
        self.recording.sends += 1

    def _encoded_head(self) -> bytes:
        head = self._head
        assert head is not None
        framing = frame_response(self._endpoint.method, head.code, head.content_length)
        self._counter = BodyCounter(framing)
        self._chunked = framing.chunked
        return head.encode("1.1", framing, "")

    def _send(self, data: bytes) -> None:
        self.sending = True
        self._sock.sendall(data)
        self.recording.sends += 1

    def _note(self, size: int, wait: float) -> None:
        chunks = self.recording.chunks
        if chunks.count < _MAX_CHUNKS:
            chunks.add(size, wait)


def _environ(endpoint: Endpoint) -> dict[str, Any]:
    path, _, query = endpoint.url.partition("?")
    environ: dict[str, Any] = {
        "REQUEST_METHOD": endpoint.method,
        "SCRIPT_NAME": "",
        "PATH_INFO": unquote_to_bytes(path).decode("latin-1"),
        "QUERY_STRING": query,
        "SERVER_NAME": "localhost",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "SERVER_SOFTWARE": "wsgifast-doctor",
        "REMOTE_ADDR": "127.0.0.1",
        "RAW_URI": endpoint.url,
        "HTTP_HOST": "localhost",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(endpoint.body),
        "wsgi.input_terminated": True,
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
        "wsgi.file_wrapper": FileWrapper,
    }
    if endpoint.body:
        environ["CONTENT_LENGTH"] = str(len(endpoint.body))
    for name, value in endpoint.headers:
        key = name.upper().replace("-", "_")
        environ[key if key in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{key}"] = value
    return environ


# An audit hook cannot be removed, so it is added once, and notes nothing while nobody looks.
_watched = threading.local()
_everywhere: list[str] | None = None
_adding_hook = threading.Lock()
_has_hook = False


@contextlib.contextmanager
def opened_files(*, everywhere: bool = False) -> Iterator[list[str]]:
    """Note the files that are opened for reading.

    :param everywhere: by any thread; else by this one alone.
    """
    global _everywhere, _has_hook
    with _adding_hook:
        if not _has_hook:
            sys.addaudithook(_on_audit_event)
            _has_hook = True
    paths: list[str] = []
    if everywhere:
        _everywhere = paths
    else:
        _watched.paths = paths
    try:
        yield paths
    finally:
        _everywhere = _watched.paths = None


def _on_audit_event(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open":
        return
    paths = getattr(_watched, "paths", None)
    if paths is None:
        paths = _everywhere
    if paths is None:
        return
    path, mode = arguments[0], arguments[1]
    reads = mode is None or not set(str(mode)) & set("wax+")
    if reads and isinstance(path, (str, bytes, os.PathLike)):
        paths.append(os.fsdecode(path))


def files_of_the_body(paths: list[str], recording: Recording) -> list[FileSeen]:
    """Those of the opened files that the body is made of, by their size."""
    total = recording.declared or recording.chunks.total
    found = []
    for path in dict.fromkeys(paths):
        try:
            size = os.stat(path).st_size
        except OSError:
            continue
        if size >= _LEAST_FILE_BYTES and size == total:
            found.append(FileSeen(path, size))
    return found


def _class_name(value: object) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def told(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"
