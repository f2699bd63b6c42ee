"""A server that records: one request in this process, through a real socket to a client.

It sends a body like gunicorn's gthread worker: the head and each chunk by a send of its own, framed
for HTTP/1.1, and files in its `wsgi.file_wrapper` by sendfile. So the CPU time that it measures is
what such a server would spend.
"""

from __future__ import annotations

import io
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes
from wsgiref import util

from ...bodies.held_head import check_second_start
from ...errors import BodyError
from ...http.framing import chunk_size_line
from ...server.environ import header_key
from ...sockets.sending import FileSegment, file_segment, send_file_segment
from ..loading import described
from .model import Endpoint, Recording
from .recorder import HELD_S, RecordedRequest, RecordingClient, body_file_noted, note_file

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
    """Request an endpoint from a WSGI app, and record the response.

    The request runs in a thread of its own, which is abandoned after the time limit.

    :param reads: False for a client that does not read for the first 0.3 s.
    :param inspect: False: measure times only, without recording each chunk.
    """
    recording = Recording()
    client = RecordingClient(reads=reads)
    request = _Request(app, endpoint, recording, client, inspect=inspect)
    thread = threading.Thread(target=request.run, name="wsgifast-doctor-app", daemon=True)
    thread.start()
    try:
        if not reads:
            thread.join(HELD_S)
            recording.held = thread.is_alive() and recording.sends > 0
            client.read_on()
        thread.join(limit_s)
        if thread.is_alive():
            recording.timed_out = True
    finally:
        client.close()
    if recording.timed_out:
        thread.join(0.1)  # closing the connection ends an app that is sending
    return recording


class _Request(RecordedRequest):
    """Runs in a thread of its own."""

    begin = "start_response"

    def run(self) -> None:
        try:
            with body_file_noted(self._recording):
                self._run()
        except BaseException as error:  # noqa: BLE001 - any exception of the app is a finding
            self._recording.error = described(error)

    def _run(self) -> None:
        recording = self._recording
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
            recording.sent_as = environ.get("wsgifast.sent_as")
        if recording.problem is None:
            self._check_length(is_file=isinstance(result, FileWrapper))

    def _start_response(
        self, status: str, headers: list[tuple[str, str]], exc_info: OptExcInfo | None = None
    ) -> Callable[[bytes], object]:
        if exc_info or self._head is not None:
            try:
                check_second_start(exc_info, sent=self._framing is not None)
            except BodyError as error:
                raise self._fails(str(error)) from None
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
            self._record_size(memoryview(data).nbytes)
            raise self._fails(f"a bare {type(body).__name__} is no iterable of bytes")
        try:
            chunks = iter(body)
        except TypeError:
            raise self._fails(f"{_class_name(body)} is no iterable of bytes") from None
        began = time.perf_counter()
        for data in chunks:
            wait_s = time.perf_counter() - began
            self._recording.app_s += wait_s
            self._record(data, wait_s)
            if data:
                self._send_chunk(data)
            began = time.perf_counter()
        self._recording.app_s += time.perf_counter() - began
        self._send_end()

    def _send_file(self, segment: FileSegment) -> None:
        framing = self._send_head()
        size = self._counter.admit(segment.size)
        self._record_size(segment.size)
        if framing.chunked:
            self._send(chunk_size_line(size))
        send_file_segment(self._client.server_side, segment._replace(size=size), self._count_send)
        if framing.chunked:
            self._send(b"\r\n")
        self._send_end()
        self._recording.by_sendfile += size
        if self._inspect:
            note_file(self._recording, segment.fd, segment.offset, size)

    def _count_send(self, size: int) -> None:
        self._recording.sends += 1

    def _transmit(self, data: bytes) -> None:
        self._client.server_side.sendall(data)


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
    given: dict[str, list[str]] = {}
    for name, value in endpoint.headers:
        given.setdefault(header_key(name.upper()), []).append(value)
    for key, values in given.items():
        # As servers do; RFC 6265 has another separator for cookies.
        environ[key] = ("; " if key == "HTTP_COOKIE" else ",").join(values)
    return environ


def _class_name(value: object) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
