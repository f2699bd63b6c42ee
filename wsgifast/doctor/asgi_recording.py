"""A recording ASGI server: one event loop in a thread, and a real connection for each request.

It writes each body message to the transport as uvicorn does, and waits while the transport's buffer
is full. With `pathsend` it offers that extension and sends such a file by sendfile, as asgifast's
protocols do.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar
from urllib.parse import unquote

from ..errors import WSGIFastError
from ..http import BodyCounter, frame_response
from ..http.framing import LAST_CHUNK, chunk_size_line
from ..http.head import ResponseHead
from .model import Endpoint, Recording
from .recording import RecordingClient, TimeLimit, files_of_the_body, opened_files, told

__all__ = ["ASGISession"]

App = Callable[..., Awaitable[None]]
T = TypeVar("T")

_HEARTBEAT_S = 0.005
# For the app's startup and shutdown (the lifespan protocol).
_LIFESPAN_S = 30.0
_HELD_S = 0.3


class ASGISession:
    """An ASGI app that has started; one request at a time.

    :raises TimeLimit: if the app's startup does not end.
    :raises WSGIFastError: if the app says that its startup has failed.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda loop, context: None)  # told by what fails
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="wsgifast-doctor-loop", daemon=True
        )
        self._thread.start()
        self._lifespan: _Lifespan | None = None
        try:
            self._lifespan = self._run(_Lifespan.start(app), _LIFESPAN_S)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> ASGISession:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Shut the app down, and end the loop."""
        if self._lifespan is not None:
            with contextlib.suppress(Exception):
                self._run(self._lifespan.stop(), _LIFESPAN_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(1.0)
        if not self._thread.is_alive():
            self._loop.close()

    def record(
        self,
        app: App,
        endpoint: Endpoint,
        *,
        limit_s: float,
        pathsend: bool = False,
        reads: bool = True,
        look: bool = True,
    ) -> Recording:
        """Ask for an endpoint, and record what comes back.

        :param app: the session's own app, or a wrapper around it.
        :param pathsend: offer http.response.pathsend.
        :param reads: False for a client that does not read for the first 0.3 s.
        :param look: False measures times alone.
        """
        recording = Recording(returned="messages")
        client = RecordingClient(reads=reads)
        exchange = _Exchange(app, endpoint, recording, client, pathsend=pathsend, look=look)
        cpu = time.process_time() - client.cpu_s
        try:
            if not reads:
                threading.Timer(_HELD_S, exchange.look_if_held).start()
            self._run(exchange.run(), limit_s)
        except TimeLimit:
            recording.timed_out = True
        finally:
            client.close()
        # Threads that read files count too; the client, which is none of the server's, does not.
        recording.cpu_s = time.process_time() - cpu - client.cpu_s
        return recording

    def _run(self, coroutine: Coroutine[Any, Any, T], limit_s: float) -> T:
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(limit_s)
        except concurrent.futures.TimeoutError:  # another class than the builtin one on Python 3.10
            future.cancel()
            raise TimeLimit(f"no end after {limit_s} s") from None


class _Lifespan:
    """The app's startup and shutdown; an app that knows nothing of it raises, which is allowed."""

    def __init__(self) -> None:
        self._asked: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, app: App) -> _Lifespan:
        self = cls()
        self._task = asyncio.create_task(self._serve(app))
        said = await self._ask("lifespan.startup")
        if said is not None and said["type"] == "lifespan.startup.failed":
            raise WSGIFastError(f"the app's startup failed: {said.get('message', '')}")
        return self

    async def stop(self) -> None:
        await self._ask("lifespan.shutdown")
        if self._task is not None:
            self._task.cancel()

    async def _serve(self, app: App) -> None:
        scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": {}}
        await app(scope, self._asked.get, self._said.put)

    async def _ask(self, what: str) -> dict[str, Any] | None:
        """What the app says to an event; None if it takes none."""
        assert self._task is not None
        if self._task.done():
            return None
        self._asked.put_nowait({"type": what})
        answer = asyncio.create_task(self._said.get())
        await asyncio.wait({answer, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        answer.cancel()
        self._task.exception()  # seen: the app does not speak lifespan
        return None


class _Exchange(asyncio.Protocol):
    """One request and its response."""

    def __init__(
        self,
        app: App,
        endpoint: Endpoint,
        recording: Recording,
        client: RecordingClient,
        *,
        pathsend: bool,
        look: bool,
    ) -> None:
        self._app = app
        self._endpoint = endpoint
        self._recording = recording
        self._client = client
        self._pathsend = pathsend
        self._look = look
        self._digest = hashlib.blake2b(digest_size=16)
        self._head: ResponseHead | None = None
        self._counter: BodyCounter | None = None
        self._chunked = False
        self._done = False
        self._body_sent = False
        self._may_write = asyncio.Event()
        self._before = self._beaten_at = 0.0
        self._transport: asyncio.Transport

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        recording = self._recording
        self._may_write.set()
        self._transport, _ = await loop.create_connection(
            lambda: self, sock=self._client.server_side.dup()
        )
        heart = asyncio.create_task(self._beat())
        await asyncio.sleep(0)  # it has begun
        wall = self._before = time.perf_counter()
        try:
            with opened_files(everywhere=True) as paths:
                await self._app(self._scope(), self._receive, self._send)
            recording.files = files_of_the_body(paths, recording)
        except Exception as error:  # noqa: BLE001 - whatever an app raises is a finding
            recording.error = told(error)
        finally:
            recording.wall_s = time.perf_counter() - wall
            recording.digest = self._digest.hexdigest()
            self._note_turn()  # the app may not have let it beat again
            heart.cancel()
            self._transport.abort()
        if recording.failed:
            return
        counter = self._counter
        if self._head is None or not self._done:
            recording.problem = "the app ended before its response did"
        elif counter is not None and counter.missing and self._endpoint.method != "HEAD":
            recording.problem = (
                f"Content-Length says {recording.declared} bytes, the body has {counter.sent}"
            )

    def look_if_held(self) -> None:
        """Called 0.3 s after the request, in another thread: does the app wait for the client?"""
        self._recording.held = not self._done and not self._may_write.is_set()
        self._client.read_on()

    # asyncio.Protocol

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._may_write.set()

    # ASGI

    def _scope(self) -> dict[str, Any]:
        path, _, query = self._endpoint.url.partition("?")
        extensions: dict[str, Any] = {"http.response.pathsend": {}} if self._pathsend else {}
        given = [(k.lower().encode(), v.encode("latin-1")) for k, v in self._endpoint.headers]
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": self._endpoint.method,
            "scheme": "http",
            "path": unquote(path),
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(b"host", b"localhost"), *given],
            "client": ("127.0.0.1", 50000),
            "server": ("localhost", 80),
            "extensions": extensions,
            "state": {},
        }

    async def _receive(self) -> dict[str, Any]:
        if not self._body_sent:
            self._body_sent = True
            return {"type": "http.request", "body": self._endpoint.body, "more_body": False}
        while not self._done:
            await asyncio.sleep(_HEARTBEAT_S)
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        kind = message["type"]
        if kind == "http.response.start":
            self._start(message)
        elif kind == "http.response.body":
            await self._body(message)
        elif kind == "http.response.pathsend":
            await self._path(message)
        else:
            self._recording.problem = f"a message of type {kind!r}"
            raise WSGIFastError(self._recording.problem)

    def _start(self, message: dict[str, Any]) -> None:
        recording = self._recording
        if self._head is not None:
            recording.problem = "http.response.start was sent twice"
            raise WSGIFastError(recording.problem)
        pairs = [
            (bytes(name).decode("latin-1"), bytes(value).decode("latin-1"))
            for name, value in message.get("headers", ())
        ]
        try:
            self._head = head = ResponseHead(f"{message['status']} -", pairs)
        except WSGIFastError as error:
            recording.problem = str(error)
            raise
        recording.status, recording.headers = head.code, pairs
        framing = frame_response(self._endpoint.method, head.code, head.content_length)
        self._counter = BodyCounter(framing)
        self._chunked = framing.chunked
        self._write(head.encode("1.1", framing, ""))

    async def _body(self, message: dict[str, Any]) -> None:
        recording = self._recording
        body = message.get("body", b"")
        if not isinstance(body, bytes):
            recording.problem = f"a chunk is a {type(body).__name__}: send bytes"
            raise WSGIFastError(recording.problem)
        if self._counter is None:
            recording.problem = "a body came before http.response.start"
            raise WSGIFastError(recording.problem)
        now = time.perf_counter()
        more = message.get("more_body", False)
        if self._look and (body or more):
            recording.chunks.add(len(body), now - self._before)
            self._digest.update(body)
            recording.keep(body)
        size = self._counter.admit(len(body))
        if self._counter.dropped:
            recording.problem = (
                f"Content-Length says {recording.declared} bytes, the body goes on for "
                f"{self._counter.dropped} more"
            )
        if size:
            data = body[:size]
            self._write(chunk_size_line(size) + data + b"\r\n" if self._chunked else data)
        if not more:
            self._end()
        await self._may_write.wait()
        self._before = time.perf_counter()

    async def _path(self, message: dict[str, Any]) -> None:
        assert self._counter is not None
        with open(message["path"], "rb") as file:
            size = self._counter.admit(os.fstat(file.fileno()).st_size)
            self._recording.chunks.add(size, 0.0)
            if self._look:
                while data := file.read(1 << 20):
                    self._digest.update(data)
                file.seek(0)
            if size:
                loop = asyncio.get_running_loop()
                await loop.sendfile(self._transport, file, 0, size)
            self._recording.by_sendfile += size
            self._recording.sends += 1
        self._end()

    def _end(self) -> None:
        self._done = True
        if self._chunked:
            self._write(LAST_CHUNK)

    def _write(self, data: bytes) -> None:
        self._transport.write(data)
        self._recording.sends += 1

    async def _beat(self) -> None:
        """Notice a turn of the loop that took long."""
        while True:
            self._beaten_at = time.perf_counter()
            await asyncio.sleep(_HEARTBEAT_S)
            self._note_turn()

    def _note_turn(self) -> None:
        late = time.perf_counter() - self._beaten_at - _HEARTBEAT_S
        self._recording.blocked_s = max(self._recording.blocked_s, late)
