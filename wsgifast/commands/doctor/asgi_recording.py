"""Serve an ASGI app with one request at a time, and record the responses for the doctor.

The server has one event loop in a thread, and a real connection for each request. Like uvicorn, it
writes each body message to the transport, and waits while the transport's buffer is full. Like
asgifast's protocols, it can also support the extension http.response.pathsend, with sendfile.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar
from urllib.parse import unquote

from ...errors import WSGIFastError
from ..loading import described
from .model import Endpoint, Recording
from .recording import RecordedRequest, watch_opened_files

App = Callable[..., Awaitable[None]]
T = TypeVar("T")

_HOST = (b"host", b"localhost")
_HEARTBEAT_S = 0.005
# The time limit of the app's startup, and of its shutdown. The lifespan protocol of ASGI defines
# these two steps.
_LIFESPAN_S = 30.0
# If the app blocks the event loop for this time, the doctor does not try to shut it down.
_BLOCKED_S = 1.0


class TimeLimit(WSGIFastError, TimeoutError):
    """A startup, request or shutdown did not finish in time."""


class StartedApp:
    """An ASGI app that has started. Only one request may run at a time.

    :raises TimeLimit: if the app's startup does not end.
    :raises WSGIFastError: if the app reports that its startup failed.
    """

    def __init__(self, app: App) -> None:
        self._loops: queue.SimpleQueue[asyncio.AbstractEventLoop] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run_loop()), name="wsgifast-doctor-loop", daemon=True
        )
        self._thread.start()
        self._loop = self._loops.get()
        # The app stores this state at its startup. Each request gets a copy of the state (ASGI,
        # "Lifespan State").
        self._state: dict[str, Any] = {}
        self._from_threads = 0  # the number of wake-ups of the event loop by other threads
        # The messages of the lifespan protocol to the app, and from the app.
        self._requests: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._responses: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        try:
            self._run(self._start(app), _LIFESPAN_S)
        except BaseException:
            self._end_loop()
            raise

    def __enter__(self) -> StartedApp:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Shut down the app, and end the event loop."""
        with contextlib.suppress(Exception):
            self._run(asyncio.sleep(0), _BLOCKED_S)
            self._run(self._exchange_messages("lifespan.shutdown"), _LIFESPAN_S)
        self._end_loop()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(1.0)

    async def _run_loop(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: None)  # _Request records the app's errors
        self._end = asyncio.Event()
        call = loop.call_soon_threadsafe

        def counted(*args: Any, **options: Any) -> asyncio.Handle:
            self._from_threads += 1
            return call(*args, **options)

        with contextlib.suppress(AttributeError):  # the method of uvloop cannot be replaced
            loop.call_soon_threadsafe = counted  # type: ignore[assignment,method-assign]
        self._loops.put(loop)
        await self._end.wait()

    async def _start(self, app: App) -> None:
        version = {"version": "3.0", "spec_version": "2.0"}
        scope = {"type": "lifespan", "asgi": version, "state": self._state}
        self._app = asyncio.ensure_future(app(scope, self._requests.get, self._responses.put))
        response = await self._exchange_messages("lifespan.startup")
        if response["type"] == "lifespan.startup.failed":
            raise WSGIFastError(f"the app's startup failed: {response.get('message', '')}")

    async def _exchange_messages(self, event: str) -> dict[str, Any]:
        self._requests.put_nowait({"type": event})
        response = asyncio.create_task(self._responses.get())
        await asyncio.wait({response, self._app}, return_when=asyncio.FIRST_COMPLETED)
        # An app that does not support the lifespan protocol returns or raises, and sends no
        # response.
        return response.result() if response.done() else {"type": ""}

    def record(
        self,
        app: App,
        endpoint: Endpoint,
        *,
        limit_s: float,
        pathsend: bool = False,
        inspect: bool = True,
    ) -> Recording:
        """Request an endpoint, and record the response.

        :param app: the started app, or a wrapper around it.
        :param pathsend: whether the server supports http.response.pathsend.
        :param inspect: whether to record each chunk. False to measure only times.
        """
        request = _Request(app, endpoint, inspect=inspect)
        request.state, request.pathsend = self._state.copy(), pathsend
        recording, client = request.recording, request.client
        recording.returned = "messages"
        from_threads = self._from_threads + 1  # the start of the request wakes the event loop once
        cpu_before = time.process_time() - client.cpu_s
        try:
            self._run(request.run(), limit_s)
        except TimeLimit:
            recording.timed_out = True
        finally:
            client.close()
        # The CPU time of the process includes threads that read files. The time of the client's
        # thread is subtracted.
        recording.cpu_s = time.process_time() - cpu_before - client.cpu_s
        recording.from_threads = max(0, self._from_threads - from_threads)
        return recording

    def _run(self, coroutine: Coroutine[Any, Any, T], limit_s: float) -> T:
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(limit_s)
        except TimeoutError:
            future.cancel()
            raise TimeLimit(f"not finished after {limit_s} s") from None


class _Request(RecordedRequest, asyncio.Protocol):
    """A request that runs in the app's event loop.

    :ivar pathsend: whether the server supports http.response.pathsend.
    :ivar state: a copy of the app's state, for the scope.
    """

    begin = "http.response.start"
    pathsend: bool
    state: dict[str, Any]
    _transport: asyncio.Transport
    _body_sent = False
    _awaited_since = _last_beat = 0.0

    async def run(self) -> None:
        recording = self.recording
        loop = asyncio.get_running_loop()
        self._ended, self._may_write = asyncio.Event(), asyncio.Event()
        self._may_write.set()
        self._transport, _ = await loop.create_connection(
            lambda: self, sock=self.client.server_side.dup()
        )
        self._transmit = self._transport.write
        heart = asyncio.create_task(self._beat())
        await asyncio.sleep(0)  # start the heartbeat
        began = self._awaited_since = time.perf_counter()
        try:
            with watch_opened_files(recording):
                await self._app(self._scope(), self._receive, self._on_message)
        except Exception as error:  # noqa: BLE001 - any exception of the app is a finding
            recording.error = described(error)
        finally:
            recording.wall_s = time.perf_counter() - began
            self._note_delay()  # the app may have blocked the event loop since the last heartbeat
            heart.cancel()
            self._transport.abort()
        if recording.failed:
            return
        if not self._ended.is_set():
            recording.problem = "the app returned before it completed its response"
        else:
            self._check_length()

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
        extensions: dict[str, Any] = {"http.response.pathsend": {}} if self.pathsend else {}
        headers = [(k.lower().encode(), v.encode("latin-1")) for k, v in self._endpoint.headers]
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": self._endpoint.method,
            "scheme": self._endpoint.scheme,
            "path": unquote(path),
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": headers if b"host" in dict(headers) else [_HOST, *headers],
            "client": ("127.0.0.1", 50000),
            "server": ("localhost", 443 if self._endpoint.scheme == "https" else 80),
            "extensions": extensions,
            "state": self.state,
        }

    async def _receive(self) -> dict[str, Any]:
        if not self._body_sent:
            self._body_sent = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._ended.wait()
        return {"type": "http.disconnect"}

    async def _on_message(self, message: dict[str, Any]) -> None:
        kind = message["type"]
        if kind == "http.response.start":
            self._begin(message)
        elif kind == "http.response.body":
            await self._body(message)
        elif kind == "http.response.pathsend":
            await self._path(message)
        else:
            raise self._problem_error(f"a message of type {kind!r}")

    def _begin(self, message: dict[str, Any]) -> None:
        if self._response_start is not None:
            raise self._problem_error("http.response.start was sent twice")
        pairs = [
            (bytes(name).decode("latin-1"), bytes(value).decode("latin-1"))
            for name, value in message.get("headers", ())
        ]
        self._start(f"{message['status']} -", pairs)
        self._send_headers()

    async def _body(self, message: dict[str, Any]) -> None:
        self._send_headers()
        body, more = message.get("body", b""), message.get("more_body", False)
        if body or more or not isinstance(body, bytes):
            self._record(body, time.perf_counter() - self._awaited_since)
        self._send_chunk(body)
        if not more:
            self._end()
        await self._may_write.wait()
        self._awaited_since = time.perf_counter()

    async def _path(self, message: dict[str, Any]) -> None:
        self._send_headers()
        with open(message["path"], "rb") as file:
            size = self._counter.admit(os.fstat(file.fileno()).st_size)
            self.recording.chunks.add(size)
            if size:
                loop = asyncio.get_running_loop()
                await loop.sendfile(self._transport, file, 0, size)
            self._note_file(file.fileno(), 0, size)
            self.recording.sends += 1
        self._end()

    def _end(self) -> None:
        self._ended.set()
        self._send_end()

    async def _beat(self) -> None:
        """Measure the longest delay of the event loop."""
        while True:
            self._last_beat = time.perf_counter()
            await asyncio.sleep(_HEARTBEAT_S)
            self._note_delay()

    def _note_delay(self) -> None:
        delay_s = time.perf_counter() - self._last_beat - _HEARTBEAT_S
        self.recording.blocked_s = max(self.recording.blocked_s, delay_s)
