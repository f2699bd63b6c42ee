"""uvicorn's own HTTP protocols, sending with sendfile.

    uvicorn --http asgifast.uvicorn:HttpToolsProtocol module:app     (uvicorn 0.36 or newer)
    uvicorn.run(app, http=H11Protocol)

uvicorn's parsing, limits, logging, keep-alive and flow control stay as they are. Two things are put
between: its transport is a GatheringTransport, and the app's send() is that of a `_Response`, which
gathers small body messages, carries out http.response.pathsend and http.response.zerocopysend, and
passes everything else to uvicorn's own.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from wsgifast.errors import MissingExtra, WSGIFastError
from wsgifast.sockets import FileSegment
from wsgifast.sockets.sendfile import FileTruncated

from .loops import next_turn
from .messages import PATHSEND, ZEROCOPYSEND, ASGIApp, Message, Receive, Scope, Send
from .pages import BLOCK_BYTES, read_block
from .sending import (
    GATHERING,
    PLANNED,
    PlannedBody,
    declared_length,
    located,
    open_for_pathsend,
    path_to_send,
    send_run,
    send_unsized,
    truncated,
)
from .transport import GATHER_BYTES, GatheringTransport, SendfileUnavailable

try:
    import uvicorn
    from uvicorn.protocols.http import h11_impl
except ImportError:
    raise MissingExtra("asgifast.uvicorn", "uvicorn", "asgi") from None
try:
    from uvicorn.protocols.http import httptools_impl
except ImportError:
    httptools_impl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    _Base = asyncio.Protocol
else:
    _Base = object

__all__ = ["H11Protocol", "HttpToolsProtocol", "UnsupportedUvicorn"]

# The versions that the tests run over: the oldest, and the newest known.
OLDEST_UVICORN, NEWEST_UVICORN = "0.30.0", "0.54.0"

# A file up to this size is read and leaves in one write with the head; a larger one goes by
# sendfile, for which the connection needs a descriptor more and some calls of its own. CPU of
# sendfile to that of reading, measured: 16 to 128 KiB 0.9 to 1.0 on connections that are kept, 1.0
# to 1.1 on a new one for each file; 256 KiB on kept ones 0.7.
SMALL_FILE_BYTES = 64 * 1024
# A body message up to this size is gathered with its neighbours.
_SMALL_MESSAGE_BYTES = 8 * 1024

# What is offered to apps, and to ASGIFast.
_EXTENSIONS: dict[str, dict[str, Any]] = {
    PATHSEND: {},
    ZEROCOPYSEND: {},
    GATHERING: {},
    PLANNED: {},
}


class UnsupportedUvicorn(WSGIFastError, ImportError):
    """This uvicorn is built differently from those that asgifast.uvicorn knows."""

    def __init__(self, missing: str) -> None:
        super().__init__(
            f"asgifast.uvicorn does not fit uvicorn {uvicorn.__version__} ({missing}); it is "
            f"tested with {OLDEST_UVICORN} to {NEWEST_UVICORN}: install one of these, or use "
            "uvicorn's own --http"
        )


def _check(module: Any, protocol: str, request_handler: str, attributes: set[str]) -> None:
    """Look for everything that is used of uvicorn's internals; its wrong bytes would be ours."""
    cycle = getattr(module, "RequestResponseCycle", None)
    base = getattr(module, protocol, None)
    if cycle is None or base is None:
        raise UnsupportedUvicorn(f"{module.__name__} has no RequestResponseCycle or {protocol}")
    found = set(cycle.send.__code__.co_names)
    if missing := attributes - found:
        raise UnsupportedUvicorn(f"RequestResponseCycle.send has no {', '.join(sorted(missing))}")
    handler = set(getattr(base, request_handler).__code__.co_names)
    if missing := {"RequestResponseCycle", "app", "transport", "flow"} - handler:
        raise UnsupportedUvicorn(
            f"{protocol}.{request_handler} has no {', '.join(sorted(missing))}"
        )


_COMMON = {"flow", "write_paused", "disconnected", "response_started", "response_complete"}
_check(h11_impl, "H11Protocol", "handle_events", _COMMON | {"conn", "transport"})
if httptools_impl is not None:
    _check(
        httptools_impl,
        "HttpToolsProtocol",
        "on_headers_complete",
        _COMMON | {"transport", "chunked_encoding", "expected_content_length"},
    )


class _Response:
    """One response: what the app sends, on its way to uvicorn's RequestResponseCycle.

    Small body messages wait in `_chunks` until the end of the loop's turn, GATHER_BYTES, or any
    other message; together they make one chunk of the chunked coding.
    """

    # A response lives as long as its slowest download, and thousands may be under way.
    __slots__ = (
        "_chunks",
        "_cycle",
        "_error",
        "_headers",
        "_is_head",
        "_size",
        "_transport",
    )

    def __init__(self, cycle: Any, transport: GatheringTransport) -> None:
        self._cycle = cycle
        self._transport = transport
        self._headers: list[tuple[bytes, bytes]] | None = None
        self._chunks: list[bytes] = []
        self._size = 0
        self._error: Exception | None = None
        self._is_head = cycle.scope["method"] == "HEAD"

    async def send(self, message: Message) -> None:
        kind = message["type"]
        cycle = self._cycle
        if kind == "http.response.body":
            body = message.get("body", b"")
            if message.get("more_body"):
                if (
                    type(body) is bytes
                    and len(body) <= _SMALL_MESSAGE_BYTES
                    and cycle.response_started
                    and not cycle.flow.write_paused
                    and self._error is None
                    and not cycle.response_complete
                    and not cycle.disconnected
                    and not self._is_head
                ):
                    if not self._chunks:
                        self._transport.gather(self._write_chunks)
                    self._chunks.append(body)
                    self._size += len(body)
                    if self._size >= GATHER_BYTES:
                        self._transport.flush()
                    return
                self._settle()
                await cycle.send(message)
                if type(body) is not bytes:
                    self._transport.flush()  # its owner may change it in this very turn
                return
            if self._chunks and type(body) is bytes:
                self._chunks.append(body)
                message = {**message, "body": b"".join(self._chunks)}
                self._chunks.clear()
                self._size = 0
            self._settle()
            await cycle.send(message)
            self._transport.flush()
        elif kind == "http.response.start":
            headers = message.get("headers", ())
            if type(headers) is not list:
                headers = list(headers)
                message = {**message, "headers": headers}
            self._headers = headers
            await cycle.send(message)
        elif kind in (PATHSEND, ZEROCOPYSEND) and cycle.response_started:
            self._settle()
            if cycle.response_complete or cycle.disconnected:
                await cycle.send(message)  # uvicorn says what is wrong with that
            elif PLANNED in message:
                await self._send_planned(message[PLANNED])
            elif kind == PATHSEND:
                await self._send_path(path_to_send(message))
            else:
                await self._send_zero_copy(message)
        else:
            self._settle()
            await cycle.send(message)

    # Gathered messages

    def _settle(self) -> None:
        """Write what was gathered, before anything else is sent."""
        if self._chunks:
            self._write_chunks()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _write_chunks(self) -> None:
        if not self._chunks:
            return
        data = b"".join(self._chunks)
        self._chunks.clear()
        self._size = 0
        if not data or self._cycle.disconnected:
            return
        try:
            before, after = self._announce(len(data))
        except Exception as error:  # noqa: BLE001 - raised by the app's next send()
            self._error = error
            return
        self._transport.write(before + data + after if before else data)

    def _announce(self, size: int) -> tuple[bytes, bytes]:
        """Have uvicorn count `size` body bytes; return what is to be sent before and after them."""
        raise NotImplementedError

    # Files

    async def _send_path(self, path: str) -> None:
        if self._is_head:
            await self._finish()
            return
        fd, size = open_for_pathsend(path)
        try:
            declared = declared_length(self._headers or ())
            self._headers = None
            # Grown since the app looked: not one byte more than was declared.
            size = size if declared is None else declared
            await self._send_run(FileSegment(fd, 0, size))
        finally:
            os.close(fd)
        await self._finish()

    async def _send_planned(self, planned: PlannedBody) -> None:
        with planned.file as file:
            for segment in () if self._is_head else planned.segments:
                if isinstance(segment, bytes):
                    await self._cycle.send(
                        {"type": "http.response.body", "body": segment, "more_body": True}
                    )
                else:
                    await self._send_run(FileSegment(file.fileno(), segment.offset, segment.size))
        await self._finish()

    async def _send_zero_copy(self, message: Message) -> None:
        if not self._is_head:
            file = located(message)
            if file.segment is None:
                await send_unsized(self._cycle.send, file.fd, message.get("count"))
            else:
                await self._send_run(file.segment)
                file.advance()
        if not message.get("more_body", False):
            await self._finish()

    async def _send_run(self, segment: FileSegment) -> None:
        if segment.size <= SMALL_FILE_BYTES:
            try:
                await send_run(self._cycle.send, segment, more_body=True)
            except FileTruncated:
                self._cut_off()
                raise
            return
        before, after = self._announce(segment.size)
        self._transport.write(before)
        try:
            await self._send_announced(segment)
        except ConnectionError:
            return  # the client has gone: uvicorn ignores what is sent after that, too
        except BaseException:
            self._cut_off()
            raise
        self._transport.write(after)

    async def _send_announced(self, segment: FileSegment) -> None:
        try:
            await self._transport.send_file(segment)
            return
        except SendfileUnavailable:
            pass
        fd, offset, size = segment
        end = offset + size
        while offset < end and not self._cycle.disconnected:
            block = await read_block(fd, offset, min(BLOCK_BYTES, end - offset))
            if not block:
                raise truncated(end - offset, size)
            offset += len(block)
            self._transport.write(block)
            if self._cycle.flow.write_paused:
                await self._cycle.flow.drain()
            elif offset < end:
                await next_turn()

    def _cut_off(self) -> None:
        """Close, and have uvicorn ignore what an app that goes on sends: it would be taken for the
        bytes that are missing, or for the end of the whole body."""
        self._transport.close()
        self._cycle.disconnected = True

    async def _finish(self) -> None:
        await self._cycle.send({"type": "http.response.body", "body": b"", "more_body": False})
        self._transport.flush()


class _HttpToolsResponse(_Response):
    __slots__ = ()

    def _announce(self, size: int) -> tuple[bytes, bytes]:
        cycle = self._cycle
        if cycle.chunked_encoding:
            return b"%x\r\n" % size, b"\r\n"
        if size > cycle.expected_content_length:
            raise RuntimeError("Response content longer than Content-Length")
        cycle.expected_content_length -= size
        return b"", b""


class _Bytes:
    """Stands for body bytes that h11 counts and frames but does not see."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size


class _H11Response(_Response):
    __slots__ = ()

    def _announce(self, size: int) -> tuple[bytes, bytes]:
        import h11

        stand_in: Any = _Bytes(size)
        parts = self._cycle.conn.send_with_data_passthrough(h11.Data(data=stand_in))
        place = parts.index(stand_in)
        return b"".join(parts[:place]), b"".join(parts[place + 1 :])


class _Answering:
    """The app as a protocol calls it: with our send() in place of the cycle's."""

    __slots__ = ("_app", "_response_class")

    def __init__(self, app: Any, response_class: type[_Response]) -> None:
        self._app: ASGIApp = app
        self._response_class = response_class

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        cycle = send.__self__  # type: ignore[attr-defined]
        if "extensions" in scope:
            scope["extensions"] = {**scope["extensions"], **_EXTENSIONS}
        else:
            scope["extensions"] = _EXTENSIONS.copy()
        response = self._response_class(cycle, cycle.transport)
        return self._app(scope, receive, response.send)


class _FileSending(_Base):
    """What both protocols add to uvicorn's."""

    _response_class: type[_Response]
    _gathering: GatheringTransport
    app: Any
    loop: asyncio.AbstractEventLoop

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.app = _Answering(self.app, self._response_class)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._gathering = GatheringTransport(transport, self.loop)
        super().connection_made(self._gathering)

    def connection_lost(self, exc: Exception | None) -> None:
        self._gathering.lost()
        super().connection_lost(exc)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._gathering.drained()

    def handle_websocket_upgrade(self, *args: Any) -> None:
        # uvicorn hands the connection over to its WebSocket protocol, which needs none of this.
        self._gathering.flush()
        self._gathering.lost()
        self.transport = self._gathering.real
        super().handle_websocket_upgrade(*args)  # type: ignore[misc]


class H11Protocol(_FileSending, h11_impl.H11Protocol):
    """uvicorn's H11Protocol with sendfile."""

    _response_class = _H11Response


if httptools_impl is not None:

    class HttpToolsProtocol(_FileSending, httptools_impl.HttpToolsProtocol):
        """uvicorn's HttpToolsProtocol with sendfile."""

        _response_class = _HttpToolsResponse

else:

    def __getattr__(name: str) -> Any:
        if name == "HttpToolsProtocol":
            raise MissingExtra("asgifast.uvicorn.HttpToolsProtocol", "httptools", "asgi")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
