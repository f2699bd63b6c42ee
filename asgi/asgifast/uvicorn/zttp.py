"""asgifast's versions of uvicorn's zttp protocols. zttp is a parser for HTTP/1.1 and HTTP/2.

Over HTTP/1.1, files are sent by sendfile. For HTTP/2 see zttp_responses.py.

zttp ends a connection at its 4,097th request or 256th reset, and requests in progress fail. So
ZttpH2Protocol ends the connection gracefully before these limits (RFC 9113, section 6.8). It sends
a GOAWAY with the highest possible stream id. Streams that the client opens in the next second are
served. After that second, the connection is closed when the last response has been sent.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Iterable
from functools import partial
from typing import Any, ClassVar

from wsgifast.checks import needs
from wsgifast.errors import RequestError
from wsgifast.server_options import SHARED

from ..access_line import note_cut_off
from ..counters import counters
from ..messages import Receive, Scope, Send
from ..protocols.receiving import Upload, count_connection, uncount_connection
from .protocol import FileSending, check
from .server import Served, ServerOptions
from .zttp_responses import ZttpH2Wire, ZttpWire

with needs("asgifast.uvicorn.ZttpProtocol", "zttp", "zttp"):
    import zttp
import uvicorn
from uvicorn.protocols.http import auto_zttp_impl, zttp_h2_impl, zttp_impl
from uvicorn.protocols.utils import get_remote_addr

check("zttp")

# Class attributes that a subclass may set.
_OPTIONS = {"pathsend", *SHARED}
# The numbers of requests and resets after which a connection ends gracefully. From
# _REQUESTS_BEFORE_END on, it ends when no request is in progress, because clients that use h2
# ignore responses after a GOAWAY. At _MAX_REQUESTS it ends in any case.
_REQUESTS_BEFORE_END, _MAX_REQUESTS, _MAX_RESETS = 3900, 4000, 200
_HIGHEST_STREAM = 2**31 - 1
# The time between the first GOAWAY and the close. Requests that the client sent before it received
# the GOAWAY arrive in this time.
_CLOSE_AFTER_GOAWAY_S = 1.0
# The entry ENABLE_CONNECT_PROTOCOL of a SETTINGS frame (RFC 9113, section 6.5.1).
_CONNECT_SETTING = b"\x00\x08\x00\x00\x00\x01"
_FRAME_HEADER_BYTES = 9
# The message of zttp's error for headers that exceed zttp's limit. zttp has no error class for it.
_SIZE_LIMIT_MESSAGE = "message exceeded configured size limit"


class ZttpProtocol(FileSending, zttp_impl.ZttpProtocol):
    """uvicorn's ZttpProtocol (HTTP/1.1) with sendfile."""

    _wire_class = ZttpWire
    _has_received = False

    def data_received(self, data: bytes) -> None:
        self._has_received = True
        super().data_received(data)

    def _has_begun_headers(self) -> bool:
        return super()._has_begun_headers() or (self.cycle is None and self._has_received)

    def _is_over_limit(self, error: BaseException | None) -> bool:
        return str(error) == _SIZE_LIMIT_MESSAGE

    def end_late_headers(self) -> None:
        """Send 408 for incomplete headers, and close the connection."""
        counters.timeouts["head"] += 1
        self._refuse_with(RequestError(408, "The request did not arrive in time"))
        self.transport.close()


class ZttpH2Protocol(FileSending, zttp_h2_impl.ZttpH2Protocol):
    """uvicorn's ZttpH2Protocol. The app's send() waits for the client's flow-control windows."""

    _is_http1 = False
    # The numbers of requests and of resets by the client, and the highest id of a request's stream.
    _requests = _resets = _last_stream_id = 0
    # The last request event, until :meth:`_correct_cycle` has corrected uvicorn's objects.
    _request_event: Any = None
    # The timer between the first GOAWAY and the close, and whether this timer has fired.
    _closing_timer: asyncio.TimerHandle | None = None
    _may_close = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Set when a flow-control window may have opened, or a stream or the connection may have
        # ended.
        self._window_updated = asyncio.Event()
        self._wire_class = partial(ZttpH2Wire, self._window_updated)
        super().__init__(*args, **kwargs)

    @property
    def cycle(self) -> Any:
        """One of the requests in progress, or None. Metrics use this in any thread."""
        return next(iter(list(self.cycles.values())), None)

    def _upload(self, cycle: Any) -> Upload:
        return Upload(
            cycle, cycle.resume_reading, self.loop, self._refuse, self.cycles,
            limit_bytes=self._served.body_limit_bytes,
        )  # fmt: skip

    def _end_request(self, cycle: Any) -> None:
        """Reset the stream. Other streams of the connection continue."""
        if cycle.response_complete and cycle.more_body:
            # The client does not have to send the remaining body (RFC 9113 section 8.1).
            cycle.stream.reset(zttp.H2ErrorCode.NO_ERROR)
            cycle.transport.write(cycle.conn.data_to_send())
        elif not cycle.response_complete:
            note_cut_off(cycle)
            cycle.abort_stream()
        cycle.disconnected = True
        cycle.message_event.set()

    def _check_client(self) -> float:
        if self.cycles:
            uploads_s: float = self.loop.check_uploads()
            return uploads_s
        # Only a new request extends this deadline. Other frames do not.
        remaining_s: float = self.loop.since + self._served.head_timeout_s - self.loop.time()
        if remaining_s <= 0 and not self.transport.is_closing():
            counters.timeouts["head"] += 1
            self.conn.close()
            self.flush()
            self.transport.close()
        return remaining_s if remaining_s > 0 else math.inf

    def on_stream_closed(self) -> None:
        super().on_stream_closed()
        self.loop.since = self.loop.time()
        if self._may_close:
            self._close_if_idle()
        elif self._requests >= _REQUESTS_BEFORE_END and not self.cycles:
            self._end_gracefully()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.conn.initiate_connection()
        # Removed from the connection, so that uvicorn does not send the unchanged frame.
        settings = self.conn.data_to_send()
        super().connection_made(transport)
        self.transport.write(_without_connect(settings))

    def handle_rst_stream(self, event: Any) -> None:
        super().handle_rst_stream(event)
        self._resets += 1
        if self._resets == _MAX_RESETS:
            self._end_gracefully()

    def handle_request(self, event: Any) -> None:
        stream_id = event.stream_id
        self._last_stream_id = max(self._last_stream_id, stream_id)
        self._requests += 1
        if self._requests == _MAX_REQUESTS:
            self._end_gracefully()
        if event.protocol is not None:
            # The request is malformed, because the server has not enabled the protocol (RFC 8441,
            # section 3).
            self.conn.stream(stream_id).reset(zttp.H2ErrorCode.PROTOCOL_ERROR)
            return
        self._request_event = event
        super().handle_request(event)
        if self._request_event is not None and stream_id in self.cycles:
            self._correct_cycle(self.cycles[stream_id])

    def _call_app(self, scope: Scope, receive: Receive, send: Send) -> Any:
        # An eager task begins before handle_request() has returned.
        if self._request_event is not None:
            self._correct_cycle(send.__self__)  # type: ignore[attr-defined]
        return super()._call_app(scope, receive, send)

    def _correct_cycle(self, cycle: Any) -> None:
        """Correct the objects that uvicorn has made for a request."""
        event, self._request_event = self._request_event, None
        cycle.scope["headers"] = _with_one_cookie(cycle.scope["headers"])
        if event.end_stream:
            # uvicorn's receive() waits for an EndOfMessage. zttp sends this event only after a
            # body. So an app that awaits the body of a GET would wait until the client disconnects.
            cycle.more_body = False
            cycle.message_event.set()

    def end_when_idle(self) -> None:
        """End the connection gracefully when no request is in progress."""
        self._requests = max(self._requests, _REQUESTS_BEFORE_END)
        if not self.cycles:
            self._end_gracefully()

    def _end_gracefully(self) -> None:
        """Send the first GOAWAY. The client opens a new connection, and new streams are served."""
        if self._closing_timer is not None or self.transport.is_closing():
            return
        self.conn.close(zttp.H2ErrorCode.NO_ERROR, _HIGHEST_STREAM)
        self.flush()
        self._closing_timer = self.loop.real.call_later(_CLOSE_AFTER_GOAWAY_S, self._on_grace_end)

    def _on_grace_end(self) -> None:
        self._may_close = True
        self._close_if_idle()

    def _close_if_idle(self) -> None:
        if not self.cycles and not self.transport.is_closing():
            self.conn.close(zttp.H2ErrorCode.NO_ERROR, self._last_stream_id)
            self.flush()
            # Close with a lingering close: a TCP reset, caused by the client's last frames, could
            # lose responses.
            self.transport.is_receiving = lambda: True
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._closing_timer is not None:
            self._closing_timer.cancel()
        self._window_updated.set()

    def data_received(self, data: bytes) -> None:
        queue, since = self.transport, self.loop.since
        # Flush at the end, so that WINDOW_UPDATE frames are sent before the app runs.
        queue.flush_follows = True
        try:
            super().data_received(data)
        finally:
            queue.flush_follows = False
            if not queue.is_closing():
                queue.flush()
        if not self.cycles:
            self.loop.since = since  # no request has begun
        self._window_updated.set()


class AutoZttpProtocol(ServerOptions, auto_zttp_impl.AutoZttpProtocol):
    """Chooses HTTP/1.1 or HTTP/2 like uvicorn's --http2: by ALPN or by the client's preface.

    The options that a subclass sets apply to both versions of HTTP.
    """

    http1: ClassVar[type[ZttpProtocol]] = ZttpProtocol
    http2: ClassVar[type[ZttpH2Protocol]] = ZttpH2Protocol

    # The client's address, for the count of connections, until the first bytes arrive.
    client: tuple[str, int] | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        class_options = {name: value for name, value in vars(cls).items() if name in _OPTIONS}
        cls.http1 = type(cls.__name__, (cls.http1,), class_options)
        cls.http2 = type(cls.__name__, (cls.http2,), class_options)

    @classmethod
    def served_by(cls, config: uvicorn.Config) -> Served:
        cls.http2.served_by(config)
        return cls.http1.served_by(config)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._served = self.served_by(self.config)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.timeout_task is not None:
            self.timeout_task.cancel()
            # uvicorn would use its keep-alive timeout, which is shorter.
            timeout_s = min(self._served.head_timeout_s, threading.TIMEOUT_MAX)
            self.timeout_task = self.loop.call_later(timeout_s, self._end_late_headers)
            self.client = get_remote_addr(transport)
            count_connection(self, self._served.by_address)

    def _end_late_headers(self) -> None:
        """End a connection that is late and does not yet show whether it uses HTTP/2."""
        if not self.buffer:
            counters.timeouts["head"] += 1
            self.transport.close()
            return
        self.connections.discard(self)
        self.timeout_task = None
        self._switch(False, self.buffer).end_late_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        uncount_connection(self, self._served.by_address)
        super().connection_lost(exc)

    def _switch(self, http2: bool, initial_data: bytes = b"") -> Any:
        uncount_connection(self, self._served.by_address)
        protocol = (self.http2 if http2 else self.http1)(
            config=self.config,
            server_state=self.server_state,
            app_state=self.app_state,
            _loop=self.loop,
        )
        self.transport.set_protocol(protocol)
        protocol.connection_made(self.transport)
        if initial_data:
            protocol.data_received(initial_data)
        return protocol


def _without_connect(settings: bytes) -> bytes:
    """Return a SETTINGS frame without ENABLE_CONNECT_PROTOCOL.

    With this setting, zttp offers WebSockets over HTTP/2 (RFC 8441), which uvicorn does not
    support. Without it, clients use HTTP/1.1 for WebSockets.
    """
    size = int.from_bytes(settings[:3])
    header, entries = settings[3:_FRAME_HEADER_BYTES], settings[_FRAME_HEADER_BYTES:]
    remaining = [
        entries[start : start + 6]
        for start in range(0, size, 6)
        if entries[start : start + 6] != _CONNECT_SETTING
    ]
    return (6 * len(remaining)).to_bytes(3) + header + b"".join(remaining) + entries[size:]


def _with_one_cookie(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return headers with all cookies in one field (RFC 9113, section 8.2.3)."""
    listed = list(headers)
    cookies = [value for name, value in listed if name == b"cookie"]
    if len(cookies) < 2:
        return listed
    others = [header for header in listed if header[0] != b"cookie"]
    return [*others, (b"cookie", b"; ".join(cookies))]
