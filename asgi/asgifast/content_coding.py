"""Compress the body of an ASGI response, as a whole or message by message."""

from __future__ import annotations

import os
from collections.abc import Callable
from time import monotonic, time_ns
from typing import Any

from wsgifast.compression.codings import DEFAULT_LEVELS, Compressor
from wsgifast.compression.dictionaries import DCZ, PagesDictionary
from wsgifast.compression.policy import Compression, compress_response
from wsgifast.compression.response import Decision, ResponseCoding
from wsgifast.errors import BodyError, BodyTooShort
from wsgifast.files import RequestFacts
from wsgifast.http.fields import raw_headers
from wsgifast.http.headers import Headers

from .loops import in_thread, running_loop
from .messages import (
    ASGIApp,
    Message,
    RawHeaders,
    Receive,
    Scope,
    Send,
    declared_length,
    flow_of,
    response_body,
    response_start,
    whole_body,
)

# Bodies of at least this size are compressed in a thread. At the default levels, a smaller body
# takes at most a millisecond. A thread would use up to twice the processor time. At higher levels,
# every body is compressed in a thread: br at level 11 takes 0.2 s for 100 kB.
_THREAD_BYTES = {DCZ: 1024 * 1024, "zstd": 1024 * 1024, "br": 192 * 1024, "gzip": 192 * 1024}
# Compression may block one event loop iteration for this long before it counts as overload.
_LONG_ITERATION_S = 0.005
# An iteration that seems to be longer is ignored: its event loop has ended in the middle.
_LONGEST_ITERATION_S = 1.0
_PROCESSORS = os.cpu_count() or 1


class _CompressionLoad:
    """Measures whether other requests wait for compression."""

    def __init__(self) -> None:
        self._iteration_began: float | None = None
        self._in_threads = 0

    def is_behind(self) -> bool:
        """Return whether compression occupies this event loop iteration or all processors."""
        now = monotonic()
        began = self._iteration_began
        if began is None or now > began + _LONGEST_ITERATION_S:
            self._iteration_began = began = now
            running_loop().call_soon(self._end_iteration)
        return now > began + _LONG_ITERATION_S or self._in_threads >= _PROCESSORS

    def _end_iteration(self) -> None:
        self._iteration_began = None

    async def in_thread(self, compress: Callable[[bytes], bytes], block: bytes) -> bytes:
        """Compress a block in a thread."""
        self._in_threads += 1
        try:
            return await in_thread(compress, block)
        finally:
            self._in_threads -= 1


_load = _CompressionLoad()


class ContentCoding(ResponseCoding):
    """Compresses the response to one request.

    A body in one message is compressed by :meth:`compress_whole`. A body in several messages passes
    through the send() of :meth:`stream`. That send() flushes the compressor after each message. An
    Exchange joins the messages of one event loop iteration before it calls this send().

    :param scope: the scope of the request.
    :ivar app_headers: the request headers for the app, with the app's own entity tags in the
        preconditions. None if they equal the client's headers.
    :ivar app_scope: the scope that the app gets. Middleware of the app may add the user to it.
    :ivar is_file: whether the body is a file that is sent unchanged or as its compressed copy.
    :ivar began_ns: the start of the request, in nanoseconds since 1970 (UTC).
    """

    app_headers: RawHeaders | None = None
    # The decision for a body in one message, when it is made.
    _page_decision: Decision | None = None
    _app_preconditions: tuple[str | None, str | None] | None = None
    is_file = False
    # The decision for a body that is a file, when it is made.
    _file_decision: Decision | None = None
    _is_file_decided = False
    _send: Send
    # The remaining bytes of the app's Content-Length, if the body is compressed.
    _remaining_bytes: int | None = None
    # Whether the end of the compressed body has been sent.
    _is_finished = False
    # Blocks of at least this size are compressed in a thread.
    _thread_bytes: int

    def __init__(self, compression: Compression, scope: Scope) -> None:
        self.app_scope = scope
        self._headers = scope["headers"]
        self.began_ns = time_ns()
        accepted: list[bytes] = []
        preconditions = False
        for name, value in self._headers:
            if name == b"accept-encoding":
                accepted.append(value)
            elif name in (b"if-none-match", b"if-match", b"if"):
                preconditions = True
        accept_encoding = b",".join(accepted).decode("latin-1")
        super().__init__(compression, scope["method"], accept_encoding, [])
        if compression.dictionary is not None:
            self.find_dictionary(scope.get("root_path") or "")
        if preconditions:
            self._restore_tags()

    def uncompressed_start(self, start: Message, message: Message) -> Message | None:
        """Return the start message of an uncompressed response, or None if it may be compressed.

        The decision is stored for :meth:`compress_whole`.

        :param start: the app's start message.
        :param message: the app's first body message.
        """
        body = message.get("body")
        if type(body) is not bytes or message.get("more_body", False) or self.method == "HEAD":
            return None
        decision = self._decide_page(start, len(body))
        if decision is None:
            return start
        if decision.coding is not None:
            return None
        headers = decision.apply(Headers.from_raw(start["headers"]))
        return {**start, "headers": headers.raw()}

    async def compress_whole(self, start: Message, message: Message) -> tuple[Message, Message]:
        """Return the start message and the only body message to send, compressed if possible."""
        body = whole_body(message)
        assert body is not None
        is_head = self.method == "HEAD"
        size: int | None = len(body)
        declared = declared_length(start["headers"])
        if declared is not None and declared != size:
            if not is_head:
                return start, message  # the server shortens or refuses the body
            size = None
        elif is_head and not body:  # some frameworks send an empty body for HEAD
            size = None
        decision = self._page_decision or self._decide_page(start, size)
        if decision is None:
            return start, message
        headers = Headers.from_raw(start["headers"])
        changed = decision.apply(headers)
        if decision.coding is not None:
            compressor = self.compressor_for(decision, decision.coding, len(body))
            compressed = await self._compressed(compressor.whole, body)
            if len(compressed) >= len(body):
                changed = headers.with_vary(decision.vary)
            elif not is_head:
                changed.append(("content-length", str(len(compressed))))
                message = {**message, "body": compressed}
        return {**start, "headers": changed.raw()}, message

    def _decide_page(self, start: Message, size: int | None) -> Decision | None:
        headers = Headers.from_raw(start["headers"])
        self._page_decision = self.decide_page(start["status"], headers, size)
        return self._page_decision

    def stream(self, send: Send) -> Send:
        """Return a send() that compresses messages and passes them on to `send`."""
        self._send = send
        return self._send_compressed

    def expect_file(self) -> None:
        """Announce that the next body is a file."""
        self.is_file = True
        self._is_file_decided = False

    def file_coding(self, start: Message, size: int) -> str | None:
        """Return the content coding for a body that is a file, or None to send it unchanged."""
        decision = self._decide_file(start, size)
        return None if decision is None else decision.coding

    def _decide_file(self, start: Message, size: int | None = None) -> Decision | None:
        if not self._is_file_decided:
            self._is_file_decided = True
            self._file_decision = self.decide(
                start["status"], Headers.from_raw(start["headers"]), size
            )
        return self._file_decision

    def file_request_for_app(self, file_request: RequestFacts) -> RequestFacts:
        """Return the client's preconditions with the app's own entity tags."""
        if self._app_preconditions is None:
            return file_request
        if_none_match, if_match = self._app_preconditions
        return file_request._replace(if_none_match=if_none_match, if_match=if_match)

    @property
    def flow(self) -> Any:
        """The flow control of the server's send(), for :func:`~.messages.has_to_wait`."""
        return flow_of(self._send)

    async def end(self) -> None:
        """End a compressed body that is complete by its Content-Length.

        This is called when the app has returned without a last message. An uncompressed body would
        then be complete, but a compressed body needs its end.
        """
        if self._is_finished and self.compressor is not None:
            self.compressor = None
            await self._send(response_body())

    async def _send_compressed(self, message: Message) -> None:
        kind = message["type"]
        if kind == "http.response.body" and self.compressor is not None:
            await self._send_body(message, self.compressor)
            return
        if kind == "http.response.start":
            message = self._begin(message)
        await self._send(message)

    async def _send_body(self, message: Message, compressor: Compressor) -> None:
        """Send a body message, compressed.

        :raises BodyError: if the body is longer than its Content-Length.
        :raises BodyTooShort: if the body is shorter than its Content-Length.
        """
        body = message.get("body", b"")
        is_last = not message.get("more_body")
        remaining = self._remaining_bytes
        if remaining is not None:
            if len(body) > remaining:
                await self.end()
                raise BodyError(
                    f"the app sent {len(body) - remaining} bytes more than its Content-Length; "
                    "declare the length of the body that is sent"
                )
            self._remaining_bytes = remaining = remaining - len(body)
        if is_last and remaining:
            if body:
                flushed = await self._compressed(compressor.flushed, body)
                await self._send(response_body(flushed, more_body=True))
            raise BodyTooShort(remaining)
        is_whole = is_last or remaining == 0
        if is_whole and not self._is_finished:
            body = await self._compressed(lambda last: _finished(compressor, last), body)
            self._is_finished = True
        elif body:
            body = await self._compressed(compressor.flushed, body)
        if is_last:
            self.compressor = None
        await self._send({**message, "body": body})

    def _begin(self, start: Message) -> Message:
        """Decide about compression, and return the start message to send."""
        code, headers = start["status"], Headers.from_raw(start["headers"])
        if not self.is_file:
            changed = self.begin(code, headers, self.refine(self._file_decision, code, headers))
            if self.compressor is not None:
                self._remaining_bytes = declared_length(start["headers"])
        else:
            # The response with a file may be a 304. Its ETag must be the one that the client sent.
            decision = self.decide(304, headers) if code == 304 else self._decide_file(start)
            if decision is None:
                return start
            changed = headers.with_vary() if decision.coding else decision.apply(headers)
        return start if changed is headers else {**start, "headers": Headers(changed).raw()}

    def compressor_for(self, decision: Decision, coding: str, size: int | None) -> Compressor:
        level = "zstd" if coding == DCZ else coding
        is_quick = self.compression.levels[level] <= DEFAULT_LEVELS[level]
        self._thread_bytes = _THREAD_BYTES[coding] if is_quick else 0
        return super().compressor_for(decision, coding, size)

    def is_behind(self) -> bool:
        return _load.is_behind()

    def has_user(self) -> bool:
        if self.header("Remote-User") is not None:
            return True
        # ASGI has no REMOTE_USER. Starlette's AuthenticationMiddleware sets scope["user"].
        user = self.app_scope.get("user")
        return user is not None and getattr(user, "is_authenticated", True) is not False

    async def _compressed(self, compress: Callable[[bytes], bytes], block: bytes) -> bytes:
        if len(block) < self._thread_bytes:
            return compress(block)
        return await _load.in_thread(compress, block)

    def header(self, name: str) -> str | None:
        key = name.lower().encode()
        values = [value for each, value in self._headers if each == key]
        return b", ".join(values).decode("latin-1") if values else None

    def _restore_tags(self) -> None:
        sent = self.header("If-None-Match"), self.header("If-Match")
        self._app_preconditions = restored = self.app_preconditions(*sent)
        condition = self.header("If")
        app_if = None if condition is None else self.app_if(condition)
        if (*restored, app_if) != (*sent, condition):
            changed = {"if-none-match": restored[0], "if-match": restored[1], "if": app_if}
            headers = Headers.from_raw(self._headers).without(changed)
            headers += [(name, value) for name, value in changed.items() if value is not None]
            self.app_headers = headers.raw()


def _finished(compressor: Compressor, block: bytes) -> bytes:
    """Compress the last block and end the compressed body."""
    return (compressor.add(block) if block else b"") + compressor.finish()


def with_dictionary(app: ASGIApp, dictionary: PagesDictionary) -> ASGIApp:
    """Wrap an app. Requests for the URL of the dictionary are answered with the dictionary."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        mount = scope.get("root_path") or ""
        is_requested = scope["path"] in (dictionary.url, mount + dictionary.url)
        if not is_requested or scope["method"] not in ("GET", "HEAD"):
            await app(scope, receive, send)
            return
        compress_response(scope, True)
        await send(response_start(200, raw_headers(dictionary.headers(mount))))
        await send(response_body(dictionary.content))

    return call
