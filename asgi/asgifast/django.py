"""Django's ASGI application with faster files and synchronous iterators.

Django's handler logs a warning for a synchronous iterator, and collects all of its blocks before it
sends the first block. It does this for a FileResponse too. Here ASGIFast sends files, with ranges
and preconditions. Other iterators run in a thread while earlier blocks are sent.

ASGIHandler is not documented by Django. Its `send_response` is overridden because it is the only
method that gets both the response and the send() of a request.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any

from wsgifast.bodies.files import FileSlice, Segment, SegmentedBody, segment_of
from wsgifast.bodies.wrappers import iterated, known_file, unwrapped_body
from wsgifast.checks import needs
from wsgifast.compression.policy import Compression
from wsgifast.django.middleware import PlannedResponse
from wsgifast.django.settings import compression
from wsgifast.files import ByteRange
from wsgifast.files.app_files import plan_file_body
from wsgifast.http.fields import parse_length
from wsgifast.http.framing import has_body
from wsgifast.metrics.instrumented import note_django_pattern
from wsgifast.metrics.requests import Recorder
from wsgifast.sockets import FileSegment

from .file_blocks import SharedReceive
from .files import FileSender, file_request_from
from .instrumented import INSTRUMENTED
from .messages import Message, Receive, Scope, Send, response_start, text_headers
from .middleware import ASGIFast

with needs("asgifast.django", "django", "django"):
    import django
    from asgiref.sync import sync_to_async
    from django.core.handlers.asgi import ASGIHandler
    from django.http import StreamingHttpResponse

# While this many bytes of an iterator wait to be sent, the iterator is paused.
_AHEAD_BYTES = 256 * 1024


def get_asgi_application(
    *,
    coalesce: bool = True,
    ranges: bool = True,
    conditional: bool = True,
    metrics: str | Recorder | None = None,
    traces: bool = False,
    compress: bool | Compression | None = None,
) -> ASGIFast:
    """Return Django's ASGI application, wrapped in ASGIFast. Use this in place of django.core.asgi.

    :param coalesce: see :class:`asgifast.ASGIFast`, which wraps Django.
    :param ranges: handle Range for a FileResponse, like ASGIFast for files.
    :param conditional: handle the preconditions for a FileResponse.
    :param metrics: see :class:`asgifast.ASGIFast`.
    :param traces: see :class:`asgifast.ASGIFast`.
    :param compress: see :class:`asgifast.ASGIFast`. The default is the setting WSGIFAST_COMPRESS.
    """
    django.setup(set_prefix=False)
    handler = _Handler(ranges, conditional)
    if compress is None:
        compress = compression() or False
    return ASGIFast(handler, coalesce=coalesce, metrics=metrics, traces=traces, compress=compress)


class _Channel:
    """The send() of a request, with the scope and the FileSender of the request.

    Django's handler passes this object to `send_response` unchanged."""

    __slots__ = ("_send", "files", "scope")

    def __init__(self, scope: Scope, shared_receive: SharedReceive, send: Send) -> None:
        self.scope = scope
        self.files = FileSender(scope, shared_receive, send)
        self._send = send

    async def __call__(self, message: Message) -> None:
        await self._send(message)


class _Handler(ASGIHandler):
    def __init__(self, ranges: bool, conditional: bool) -> None:
        super().__init__()
        self._ranges = ranges
        self._conditional = conditional

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        shared_receive = SharedReceive(receive)
        await super().__call__(scope, shared_receive.receive, _Channel(scope, shared_receive, send))

    async def send_response(self, response: Any, send: _Channel) -> None:
        if INSTRUMENTED in send.scope:
            note_django_pattern(send.scope, response)
        # If a subclass overrides __aiter__(), Django sends its response.
        known = (StreamingHttpResponse.__aiter__, PlannedResponse.__aiter__)
        if not response.streaming or response.is_async or type(response).__aiter__ not in known:
            await super().send_response(response, send)
            return
        inner = unwrapped_body(response)
        if type(inner) is SegmentedBody:
            await self._send_instead(response, partial(_send_segments, send, inner.segments))
            return
        file: Any = known_file(getattr(response, "file_to_stream", None))
        segment = segment_of(file)
        declared = parse_length(response.get("Content-Length", ""))
        if segment is not None and (declared is None or declared <= segment.size):
            if declared is not None:
                segment = segment._replace(size=declared)
            await self._send_instead(response, partial(self._send_file, send, file, segment))
            return
        running = _ThreadedIterator(iter(iterated(response)))
        response.streaming_content = running.blocks()
        try:
            await super().send_response(response, send)
        finally:
            running.stop()

    async def _send_instead(
        self, response: Any, send: Callable[[Message], Awaitable[None]]
    ) -> None:
        """Have Django make the start message, and pass that to `send`, which sends the response."""
        messages: list[Message] = []

        async def store(message: Message) -> None:
            messages.append(message)

        async def no_blocks() -> AsyncIterator[bytes]:
            await send(messages[0])
            return
            yield b""  # this yield makes the function a generator

        response.streaming_content = no_blocks()
        await super().send_response(response, store)

    async def _send_file(
        self, channel: _Channel, file: Any, segment: FileSegment, start: Message
    ) -> None:
        status, headers, method = start["status"], start["headers"], channel.scope["method"]
        segments: Sequence[Segment] = [segment] if has_body(method, status) else ()
        # A FileSlice is already the result of a range.
        if status == 200 and method in ("GET", "HEAD") and type(file) is not FileSlice:
            plan = plan_file_body(
                file_request_from(channel.scope),
                text_headers(headers),
                file,
                segment,
                ranges=self._ranges,
                conditional=self._conditional,
            )
            if plan is not None:
                status, headers = plan.status, plan.raw_headers
                segments = plan.segments_of(segment.fd, segment.offset)
        await _send_segments(channel, segments, response_start(status, headers))


async def _send_segments(channel: _Channel, segments: Sequence[Segment], start: Message) -> None:
    """Send the start message, and a body of bytes and ranges of one file."""
    fd = next((segment.fd for segment in segments if isinstance(segment, FileSegment)), None)
    await channel(start)
    await channel.files.send_segments(
        [s if isinstance(s, bytes) else ByteRange(s.offset, s.size) for s in segments], fd
    )


class _ThreadedIterator:
    """Runs a synchronous iterator in its request's thread while the event loop sends its blocks.

    The thread appends each block to a list, and wakes the event loop if the list was empty. The
    loop sends all blocks of the list at once. So small blocks that follow each other quickly are
    sent together, and a block never waits for the next one. When _AHEAD_BYTES are in the list, the
    function in the thread returns. It is called again after the loop has sent the blocks. The
    thread is that of synchronous views (asgiref's thread-sensitive thread), since database
    connections belong to a thread. The iterator's close() runs in this thread too.
    """

    def __init__(self, iterator: Iterator[bytes]) -> None:
        self._iterator = iterator
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._stopped = False
        self._wake = asyncio.Event()

    async def blocks(self) -> AsyncIterator[bytes]:
        more = True
        while more and not self._stopped:
            thread = asyncio.ensure_future(sync_to_async(self._run)())
            thread.add_done_callback(self._on_thread_end)
            while not thread.done():
                await self._wake.wait()
                self._wake.clear()
                if block := self._pop_blocks():
                    yield block
            if block := self._pop_blocks():
                yield block
            more = thread.result()

    def stop(self) -> None:
        """Stop the iterator at the next block, because no more blocks are sent."""
        self._stopped = True

    def _run(self) -> bool:
        """Run the iterator, in the thread. Return False if the iterator has ended."""
        for block in self._iterator:
            with self._lock:
                wake = not self._waiting
                self._waiting.append(block)
                self._waiting_bytes += len(block)
                full = self._waiting_bytes >= _AHEAD_BYTES
            if wake:
                self._loop.call_soon_threadsafe(self._wake.set)
            if full or self._stopped:
                return True
        return False

    def _on_thread_end(self, thread: asyncio.Future[bool]) -> None:
        if not thread.cancelled():
            thread.exception()  # mark the error as handled: blocks() raises it, if it still runs
        self._wake.set()

    def _pop_blocks(self) -> bytes:
        with self._lock:
            blocks, self._waiting, self._waiting_bytes = self._waiting, [], 0
        return blocks[0] if len(blocks) == 1 else b"".join(blocks)
