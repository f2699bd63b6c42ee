"""The base class that adds asgifast's features to uvicorn's protocols."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import sys
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, TypeVar, cast

from wsgifast.checks import needs
from wsgifast.errors import BodyTooLarge, HeadersTooLarge, RequestError, WSGIFastError
from wsgifast.hosts import UVICORN

from ..access_line import AccessLogger, note_cut_off
from ..counters import counters
from ..exchange import Exchange
from ..messages import COALESCING, EARLY_HINT, PATHSEND_ADVICE, Receive, Scope, Send
from ..protocols.output import OutputQueue
from ..protocols.queue_wire import QueueWire
from ..protocols.receiving import (
    ConnectionLoop,
    Upload,
    count_connection,
    read_plainly,
    uncount_connection,
)
from ..request_bodies import declared, send_refusal
from .server import ServerOptions

with needs("asgifast.uvicorn", "uvicorn", "asgi"):
    import uvicorn

logger = logging.getLogger("uvicorn.error")

_T = TypeVar("_T")
_SWITCHING_PROTOCOLS = b"HTTP/1.1 101 "
# The empty line that ends the headers, matched like in h11.
_END_OF_HEADERS = re.compile(rb"\n\r?\n")


class UnsupportedUvicorn(WSGIFastError, ImportError):
    """Raised if the installed uvicorn lacks a name that asgifast.uvicorn uses."""

    def __init__(self, missing: str) -> None:
        super().__init__(
            f"asgifast.uvicorn does not fit uvicorn {uvicorn.__version__}, which has no {missing}. "
            f"It is tested with {UVICORN.oldest} to {UVICORN.newest}: install one of these, or use "
            "uvicorn's own --http"
        )


def check(parser: str) -> None:
    """Check that uvicorn has every name that asgifast uses. A missing name could corrupt responses.

    :param parser: "h11", "httptools" or "zttp".
    :raises UnsupportedUvicorn: if a name is missing.
    """
    if missing := UVICORN.missing("receiving", parser):
        raise UnsupportedUvicorn(", ".join(missing))


@cache
def _access_logger_for(logger: logging.Logger) -> AccessLogger:
    return AccessLogger(logger)


async def _bad_request(scope: Scope, receive: Receive, send: Send) -> None:
    await send_refusal(send, RequestError(400, "Invalid HTTP request received."))


class FileSending(ServerOptions, asyncio.Protocol):
    """The base class of asgifast's protocols, in addition to one of uvicorn's protocols.

    :ivar _header_bytes: the number of received bytes of incomplete headers.
    :ivar app: the app that uvicorn calls: :meth:`_call_app`. :meth:`_call_app` calls the real app
        with the send() of an Exchange and the receive() of an Upload.
    :ivar transport: an OutputQueue, or the event loop's transport when the connection has become a
        WebSocket.
    :ivar loop: a ConnectionLoop.
    :ivar tcp_socket: see OperatedApp.tcp_socket().
    """

    # These attributes are slots, to save memory: with two more attributes in their dictionaries,
    # CPython could no longer share the keys between the dictionaries of all protocols.
    __slots__ = ("_header_bytes", "_responding_cycle", "_served", "tcp_socket")

    _wire_class: Callable[[], QueueWire]
    # Whether the connection has one request at a time.
    _is_http1 = True
    access_logger: Any
    app: Any
    client: Any
    config: Any
    cycle: Any
    flow: Any
    loop: Any
    pipeline: Any
    server: Any
    server_state: Any
    timeout_keep_alive: Any
    timeout_keep_alive_task: Any
    transport: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._served = served = self.served_by(self.config)
        self._header_bytes = 0
        self.app = self._call_app
        # The cycle of the current response, over HTTP/1.1. uvicorn's `cycle` belongs to the request
        # that was read last.
        self._responding_cycle: Any = None
        self.loop = ConnectionLoop(
            self.loop, self._check_client, served.head_timeout_s, served.body_timeout_s
        )
        if type(self.access_logger) is logging.Logger:  # a subclass may override info()
            self.access_logger = _access_logger_for(self.access_logger)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        queue: Any = OutputQueue(transport, self.loop.real)
        if hasattr(self, "cycle"):
            queue.is_receiving = self._is_receiving
        counters.accepted += 1
        counters.open[self] = queue
        super().connection_made(queue)
        # The first check is at the earlier of two deadlines, so that one timer suffices.
        self.loop.check_in(min(self._served.head_timeout_s, self.timeout_keep_alive))
        self.server = _interned(self.server)
        operated = self._served.operated
        self.tcp_socket = None if operated is None else operated.tcp_socket(transport)
        count_connection(self, self._served.by_address)

    def data_received(self, data: bytes) -> None:
        """Receive bytes like uvicorn, with a limit for the size of the headers.

        If headers follow another request in the same read, only their bytes in later reads are
        counted.
        """
        before = self._header_bytes
        limit = self._served.head_limit_bytes
        if not before and data[-4:] == b"\r\n\r\n" and len(data) <= limit:  # most requests
            self._parse(data)
            return
        cycle = self.cycle
        if not self._is_http1 or (not before and cycle is not None and cycle.more_body):
            self._parse(data)
            return
        room = limit - before
        if len(data) > room and not _END_OF_HEADERS.search(data, 0, room):
            # The end of the headers may have begun in an earlier read.
            if room:
                self._parse(data[:room])
            if not room or (self.cycle is cycle and not self.transport.is_closing()):
                self._refuse_headers(HeadersTooLarge(limit))
                return
            data = data[room:]
            before = 0
        self._parse(data)
        headers_are_incomplete = self.cycle is cycle and not _END_OF_HEADERS.search(data)
        self._header_bytes = before + len(data) if headers_are_incomplete else 0

    def _parse(self, data: bytes) -> None:
        super().data_received(data)

    def _is_over_limit(self, error: BaseException | None) -> bool:
        """Return whether a parser's error means that headers exceed the parser's own limit."""
        return False

    def _refuse_headers(self, error: RequestError) -> None:
        """Send an error response for headers that are too long.

        During a response, close the connection after that response.
        """
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            self._refuse_with(error)
            self.transport.close()
        else:
            counters.refused[error.status] += 1
            self.flow.pause_reading()
            self.shutdown()

    async def _call_app(self, scope: Scope, receive: Receive, send: Send) -> Any:
        cycle = send.__self__  # type: ignore[attr-defined]
        served = self._served
        limit_bytes = served.body_limit_bytes
        if limit_bytes is not None and (
            len(cycle.body) > limit_bytes
            or (cycle.more_body and (declared(scope).length or 0) > limit_bytes)
        ):
            await self._refuse(cycle, BodyTooLarge(limit_bytes))
            return None
        is_http1 = self._is_http1
        if not is_http1 and _header_bytes(scope) > served.head_limit_bytes:
            await self._refuse(cycle, HeadersTooLarge(served.head_limit_bytes))
            return None
        extensions = served.offer.extensions_for(scope["path"])
        offered = scope.get("extensions")
        if offered:
            scope["extensions"] = {**offered, **extensions}
        elif scope["http_version"] == "1.1":
            scope["extensions"] = {EARLY_HINT: {}, **extensions}
        else:
            scope["extensions"] = {**extensions}
        scope[COALESCING] = True
        # The attributes are set here. A constructor would cost one more call for every request.
        wire = self._wire_class()
        wire.cycle = cycle
        wire.body_sent = wire.recording = None
        wire.forbids_body = False
        upload = result = None
        operated = served.operated
        if is_http1:
            self._responding_cycle = cycle
        if cycle.more_body:
            upload = self._upload(cycle)
            receive = upload.receive
        exchange = Exchange()
        exchange.wire = wire
        exchange.scope = scope
        exchange.server_receive = receive
        exchange.repairs = exchange.coding = None
        exchange.is_examined = False
        exchange.start = exchange.order = exchange.shared_receive = None
        try:
            # The result is returned because uvicorn reports apps that return another value than
            # None.
            result = await served.app(scope, receive, exchange.send)  # type: ignore[func-returns-value]
            if exchange.start is not None or exchange.order is not None:
                await exchange.finish()
        except Exception as error:
            await exchange.handle_error(error)
            await wire.wait_until_sent()
            if upload is not None and upload.error is not None:
                return None  # the error response has been sent
            raise
        except asyncio.CancelledError:
            if operated is None or not operated.has_timed_out(wire):
                raise
        finally:
            if operated is not None:
                operated.running.pop(wire, None)
            if upload is not None:
                upload.discard()
        if not cycle.response_started and not cycle.disconnected:
            # After this, uvicorn logs that no response was started.
            logger.error("The app has sent nothing. If it sends a file, %s", PATHSEND_ADVICE)
        if wire.body_sent is not None:
            path = scope["path"]
            if is_http1:
                _forget_request(self, cycle, scope)
            del scope, receive, send, exchange
            try:
                await wire.body_sent
            except asyncio.CancelledError:
                # uvicorn's shutdown has cancelled this task. The error is not raised: the app has
                # returned, and uvicorn would log an error of the app.
                logger.warning(
                    "The response for %r was cut off, because the server shuts down", path
                )
                note_cut_off(cycle)
                cycle.disconnected = True
                cycle.transport.close()
        return result

    def _upload(self, cycle: Any) -> Upload:
        return Upload(
            cycle, cycle.flow.resume_reading, self.loop, self._refuse,
            limit_bytes=self._served.body_limit_bytes,
        )  # fmt: skip

    async def _refuse(self, cycle: Any, error: RequestError) -> None:
        """Send an error response in place of the app, or cut off the response that it has begun."""
        counters.refused[error.status] += 1
        if not cycle.response_started and not cycle.disconnected:
            await send_refusal(cycle.send, error)
        self._end_request(cycle)

    def _end_request(self, cycle: Any) -> None:
        """Close the connection of a refused request. Later messages of the app are ignored."""
        if not cycle.response_complete:
            note_cut_off(cycle)
            self.transport.close()
        cycle.disconnected = True
        cycle.message_event.set()

    # Late clients

    def _check_client(self) -> float:
        """End a request that is late. Return the seconds until the next check."""
        cycle = self.cycle
        if self.timeout_keep_alive_task is not None or self.transport.is_closing():
            return math.inf
        if cycle is not None and not cycle.response_complete:
            remaining_s: float = self.loop.check_uploads()
            return remaining_s
        # The client sends headers, or the remaining bytes of a body after the response. In the
        # second case `more_body` is still True, because uvicorn does not reset it.
        has_begun_headers = self._has_begun_headers()
        is_body = cycle is not None and cycle.more_body and not has_begun_headers
        remaining_s = self.loop.since - self.loop.time()
        remaining_s += self._served.body_timeout_s if is_body else self._served.head_timeout_s
        if remaining_s > 0:
            return remaining_s
        counters.timeouts["body" if is_body else "head"] += 1
        if has_begun_headers:
            self._refuse_with(RequestError(408, "The request did not arrive in time"))
        self.transport.close()
        return math.inf

    def _has_begun_headers(self) -> bool:
        """Return whether incomplete headers have arrived."""
        # This is only called when no keep-alive timer runs, since uvicorn stops that timer when the
        # first bytes of the next request arrive.
        return self.cycle is not None and not self.cycle.more_body

    def _refuse_with(self, error: RequestError) -> None:
        """Send an error response for refused headers. No other response may be in progress."""
        counters.refused[error.status] += 1
        status, headers, body = error.response()
        lines = [f"HTTP/1.1 {status}".encode()]
        lines += [b"%b: %b" % field for field in self.server_state.default_headers]
        lines += [f"{name.lower()}: {value}".encode() for name, value in headers]
        lines += [b"connection: close", b"", body]
        self.transport.write(b"\r\n".join(lines))
        self.transport.is_receiving = lambda: True

    def timeout_keep_alive_handler(self) -> None:
        if not self.transport.is_closing():
            counters.timeouts["keepalive"] += 1
        super().timeout_keep_alive_handler()  # type: ignore[misc]

    def _is_receiving(self) -> bool:
        return self.cycle is not None and self.cycle.more_body

    def connection_lost(self, exc: Exception | None) -> None:
        self._detach()
        super().connection_lost(exc)
        cycle = self._responding_cycle
        if cycle is not None and not cycle.response_complete:
            # With pipelining, uvicorn does this only for the last request.
            cycle.disconnected = True
            cycle.message_event.set()

    def _detach(self) -> None:
        """Release a connection that is lost or gets another protocol."""
        if counters.open.pop(self, None) is not None:
            uncount_connection(self, self._served.by_address)
        self.transport.on_connection_lost()
        self.loop.stop()
        self.app = None

    def eof_received(self) -> Any:  # uvicorn's protocols return None
        """Handle the end of the client's bytes. The client may still read.

        uvicorn closes the connection at once, and unwritten bytes are lost. So a file that is being
        sent is completed before the connection is closed. If the client does not read either, its
        reset ends the file.
        """
        if not self.transport.sends_file:
            return super().eof_received()
        self.shutdown()  # uvicorn closes after this response
        return True

    def send_400_response(self, msg: str) -> None:
        """Send 400 for bytes that are not a request, or for a malformed body.

        uvicorn sends the 400 at once, even in the middle of a response, and closes the transport.
        If the app sends more, it may get an error of the closed transport. This method avoids both.
        """
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            if self._is_over_limit(sys.exc_info()[1]):
                self._refuse_headers(RequestError(431, "The request's headers are too large"))
            else:
                super().send_400_response(msg)  # type: ignore[misc]
        elif cycle.more_body and getattr(self, "pipeline", None):
            self.flow.pause_reading()
            cycle.keep_alive = False
            self.pipeline[0] = cycle, _bad_request  # called after the earlier requests
        elif cycle.more_body:
            if cycle.response_started:
                note_cut_off(cycle)
                self.transport.close()  # too late for a 400: cut off the response
            else:
                super().send_400_response(msg)  # type: ignore[misc]
            cycle.disconnected = True
            cycle.message_event.set()
        else:
            self.flow.pause_reading()
            self.shutdown()  # uvicorn closes after this response

    def shutdown(self) -> None:
        super().shutdown()  # type: ignore[misc]
        if self.transport.is_closing():
            self.transport.close()  # the second call shortens the wait

    def pause_writing(self) -> None:
        super().pause_writing()
        self.transport.is_paused = True

    def resume_writing(self) -> None:
        super().resume_writing()
        self.transport.on_writing_resumed()

    def handle_websocket_upgrade(self, *args: Any, remaining: bytes = b"") -> None:
        """Pass the connection to uvicorn's WebSocket protocol, with the event loop's transport.

        :param remaining: the bytes after the request, which are WebSocket frames. uvicorn would
            discard them.
        """
        self.transport.flush()
        self._detach()
        self.transport = self.transport.real
        read_plainly(self.transport)
        if remaining:
            self.transport = _FramesAfterRequest(self.transport, remaining)
        super().handle_websocket_upgrade(*args)  # type: ignore[misc]


# Thousands of clients may each read a download for minutes. So the functions below save memory for
# each of them. uvicorn's empty deques remain: two of 760 bytes, and a third during a request.


@lru_cache(maxsize=64)
def _interned(value: _T) -> _T:
    """Return the same object for all equal values, such as the server's address."""
    return value


def _header_bytes(scope: Scope) -> int:
    """Return the approximate size of a request's headers if they were sent over HTTP/1.1."""
    target: int = len(scope["raw_path"]) + len(scope["query_string"])
    return target + sum(len(name) + len(value) + 4 for name, value in scope["headers"])


def _forget_request(protocol: Any, cycle: Any, scope: Scope) -> None:
    """Release a request when the app has returned and its response has begun.

    :param protocol: uvicorn's protocol, over HTTP/1.1.
    :param cycle: uvicorn's RequestResponseCycle. From now on it uses only the scope's method.
    """
    cycle.scope = _scope_of(scope["method"])
    if protocol.scope is scope:  # the attribute may contain the scope of the next request
        protocol.scope = protocol.headers = None


@lru_cache(maxsize=16)
def _scope_of(method: str) -> Scope:
    return {"method": method}


class _FramesAfterRequest:
    """Wraps the transport of a WebSocket whose first frames arrived together with the request.

    uvicorn's protocol for wsproto discards frames that arrive before it has accepted the WebSocket.
    So the frames are delivered after the 101 response, and reading is paused until then. All other
    attributes are those of the transport.
    """

    def __init__(self, transport: asyncio.Transport, frames: bytes) -> None:
        self._transport = transport
        self._frames = frames
        transport.pause_reading()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._transport.write(data)
        if self._frames and data.startswith(_SWITCHING_PROTOCOLS):
            asyncio.get_running_loop().call_soon(self._deliver, self._frames)
            self._frames = b""

    def _deliver(self, frames: bytes) -> None:
        if not self._transport.is_closing():
            cast("asyncio.Protocol", self._transport.get_protocol()).data_received(frames)
            self._transport.resume_reading()
