"""Receive request bodies in uvicorn's protocols, and limit clients.

Theory of operation. uvicorn appends the bytes of each read to `body`, an attribute of its cycle. It
pauses reading while `body` is longer than HIGH_WATER_LIMIT, and resumes when the app calls
receive(). asgifast makes :class:`ReceivedBody` the cycle's `body`, and :meth:`Upload.receive` wraps
the cycle's receive().

- If the app is waiting, it gets the bytes of a read without a copy. One read usually exceeds
  HIGH_WATER_LIMIT, so uvicorn pauses reading until the app has received these bytes.
- If the app is busy, for example because it writes to a file, up to BUFFERED_BYTES are read ahead.
  The app's next receive() returns all of them in one message.
- The streams of an HTTP/2 connection share the bytes that are read ahead. zttp, the
  HTTP/2 parser, reopens a stream's window as soon as it has read the stream's bytes. So clients are
  slowed down by TCP, like with HTTP/1.1.
- If a client sends faster than the app receives, its bytes are first read into one buffer that all
  connections share. A lingering close, which discards bytes, uses that buffer too.
- When the app returns, bytes that it has not received are discarded, because the connection may
  stay open for a long time.

receive() refuses a body that is too long, or that arrives too slowly while the app waits for it.
receive() sends the error response to the client and raises the error. Later messages of the app are
discarded. If the app has already begun its response, a body that is too long ends the response
early. A slow body then has no timeout.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sized
from functools import lru_cache
from typing import Any, cast

from wsgifast.checks import needs
from wsgifast.errors import BodyTooLarge, RequestError
from wsgifast.sockets.client_limits import ConnectionsByAddress, UploadPace
from wsgifast.sockets.closing import Lingering

from ..counters import counters
from ..messages import Message

with needs("asgifast.uvicorn", "uvicorn", "asgi"):
    from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
    from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT

# The bytes that are read ahead for a busy app. The last read may exceed this limit.
BUFFERED_BYTES = 256 * 1024
_READ_AHEAD_BYTES = BUFFERED_BYTES - HIGH_WATER_LIMIT
# Shorter pieces are joined, because an object for each piece would need many times its bytes.
_PIECE_BYTES = 4 * 1024
# The size of a read. A copy of these bytes is smaller than 128 KiB. For larger blocks, glibc's
# malloc() maps new pages and unmaps them later, which is slow (mallopt(3), M_MMAP_THRESHOLD).
READ_BYTES = 112 * 1024
# The read buffer of each thread's event loop. One buffer suffices, because bytes are read and
# parsed in one callback.
_thread_local = threading.local()


class ReceivedBody:
    """Replaces the bytearray to which uvicorn appends body bytes for the app.

    uvicorn only uses `+=`, len() and bytes() of its `body`.

    :param requests: the requests in progress on the connection. They share the limit of bytes that
        are read ahead. With an empty sequence, this request is the only one.
    :param pace: measures how fast the client sends, if there is a limit.
    :ivar size: the number of buffered bytes.
    :ivar received: the number of body bytes that have been received so far.
    :ivar awaited: whether the app is waiting for bytes.
    """

    __slots__ = ("_pace", "_pieces", "_requests", "awaited", "received", "size")

    def __init__(self, requests: Sized = (), pace: UploadPace | None = None) -> None:
        self._requests = requests
        self._pace = pace
        self._pieces: list[bytes | bytearray] = []
        self.size = self.received = 0
        self.awaited = False

    def __iadd__(self, data: bytes | bytearray) -> ReceivedBody:
        pieces = self._pieces
        size = len(data)
        self.size += size
        self.received += size
        if self._pace is not None:
            self._pace.count(size)
        if size >= _PIECE_BYTES:
            pieces.append(data if type(data) is bytes else bytes(data))
        elif pieces and type(pieces[-1]) is bytearray:
            pieces[-1] += data
        else:
            pieces.append(bytearray(data))
        return self

    def __len__(self) -> int:
        """Return the size for uvicorn, which pauses reading above HIGH_WATER_LIMIT."""
        if self.awaited:
            return self.size
        return max(0, self.size - _READ_AHEAD_BYTES // (len(self._requests) or 1))

    def __bytes__(self) -> bytes:
        """Remove and return all bytes."""
        pieces = self._pieces
        data = bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self.size = 0
        return data

    def drop(self) -> None:
        self._pieces.clear()
        self.size = 0


class ConnectionLoop:
    """Replaces the event loop in one of uvicorn's protocols. It sets one timer for a connection.

    uvicorn sets a keep-alive timer after every response, and the next request cancels it. For an
    event loop, a timer is more work than everything else about a small response. So this class sets
    a timer once, and no request cancels it. When the timer fires, this class checks how long the
    connection has been idle. It also checks whether the client is late with headers, or with a body
    for which an app waits.

    :meth:`call_later` returns this object in place of a timer, since uvicorn only calls cancel() of
    a timer. All other methods are those of the real loop.

    :param check: ends late requests. Returns the seconds until the next check.
    :param head_timeout_s: the time limit for headers. An idle connection is checked at least this
        often.
    :ivar pace: measures how fast the client uploads. None without a limit.
    :ivar since: the loop's time at which the latest request's headers began to arrive. Before the
        first headers, it is the time when the connection was accepted.
    """

    __slots__ = (
        "_callback", "_check", "_due", "_fires_at", "_head_timeout_s", "_timer", "_uploads",
        "create_task", "pace", "real", "since", "time",
    )  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        check: Callable[[], float],
        head_timeout_s: float = math.inf,
        body_timeout_s: float = math.inf,
    ) -> None:
        self.real = loop
        self.create_task = loop.create_task
        # asyncio's time() only calls time.monotonic(). A direct call is faster, and two are made
        # for every request.
        is_asyncio = type(loop).time is asyncio.BaseEventLoop.time
        self.time = time.monotonic if is_asyncio else loop.time
        self._check = check
        self._head_timeout_s = head_timeout_s
        # The function to call at `_due`, by the loop's clock, or None.
        self._callback: Callable[[], object] | None = None
        self._due = 0.0
        # The only timer of the connection. A request does not cancel it.
        self._timer: asyncio.TimerHandle | None = None
        self._fires_at = 0.0
        self.since = self.time()
        self.pace = UploadPace(body_timeout_s) if body_timeout_s < math.inf else None
        # The uploads for which an app waits. Over HTTP/1 there is at most one.
        self._uploads: tuple[Upload, ...] = ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, **options: Any
    ) -> ConnectionLoop | asyncio.TimerHandle:
        if self._callback is not None or args or options:
            return self.real.call_later(delay, callback, *args, **options)
        self._due = due = self.time() + delay
        self._callback = callback
        if self._timer is None or self._fires_at > due:
            self.check_in(min(delay, self._head_timeout_s))
        return self

    def cancel(self) -> None:
        self._callback = None
        self.since = self.time()

    def check_in(self, seconds: float) -> None:
        """Check after this time at the latest. With math.inf, no check is scheduled."""
        at = self.time() + seconds
        if self._timer is not None:
            if self._fires_at <= at:
                return
            self._timer.cancel()
        if seconds < math.inf:
            self._fires_at = at
            self._timer = self.real.call_later(seconds, self._on_timer)

    def stop(self) -> None:
        """Cancel the timer, which refers to the connection, after the connection is lost."""
        self._callback = None
        self._check = lambda: math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        self._timer = None
        callback = self._callback
        remaining_s = math.inf
        if callback is not None:
            remaining_s = self._due - self.time()
            if remaining_s <= 0:
                self._callback = None
                callback()
                return
            remaining_s = min(remaining_s, self._head_timeout_s)
        self.check_in(min(remaining_s, self._check()))

    # Uploads

    def wait_for(self, upload: Upload) -> None:
        self._uploads += (upload,)
        self.check_in(self.check_uploads())

    def stop_waiting_for(self, upload: Upload) -> None:
        self._uploads = tuple(each for each in self._uploads if each is not upload)

    def check_uploads(self) -> float:
        """Refuse late uploads. Return the seconds until the next upload may be late."""
        now = time.monotonic()
        remaining_s = math.inf
        for upload in self._uploads:
            deadline = upload.deadline()
            if deadline is None:
                continue
            if deadline <= now:
                counters.timeouts["body"] += 1
                upload.refuse_late_body()
            else:
                remaining_s = min(remaining_s, deadline - now)
        return remaining_s


def count_connection(protocol: Any, by_address: ConnectionsByAddress | None) -> None:
    """Count a connection for its client's address. Abort the connection if it exceeds the limit."""
    if by_address is not None and not by_address.open(protocol.client):
        counters.connections_refused += 1
        protocol.transport.abort()


def uncount_connection(protocol: Any, by_address: ConnectionsByAddress | None) -> None:
    """Stop counting a connection that is lost or gets another protocol."""
    if by_address is not None:
        by_address.close(protocol.client)


def counted_by_address(
    max_connections: float, proxies: str | list[str]
) -> ConnectionsByAddress | None:
    """Return the counter that all connections of a process with these options share.

    :param max_connections: the maximum number of connections of one address.
    :param proxies: uvicorn's `forwarded_allow_ips`. Their connections are not limited.
    :returns: None if there is no limit.
    """
    if max_connections == math.inf:
        return None
    return _counter(max_connections, proxies if isinstance(proxies, str) else ",".join(proxies))


@lru_cache(maxsize=64)
def _counter(max_connections: float, proxies: str) -> ConnectionsByAddress:
    trusted: Any = ProxyHeadersMiddleware(cast("Any", None), proxies)
    return ConnectionsByAddress(
        max_connections,
        lambda address: address in trusted.trusted_hosts,
        logging.getLogger("uvicorn.error").warning,
    )


class Upload:
    """A request whose body has unread bytes. An app gets :meth:`receive` as its receive().

    :param cycle: uvicorn's RequestResponseCycle.
    :param resume_reading: resumes reading from the socket.
    :param refuse: sends an error response in place of the app.
    :param requests: see :class:`ReceivedBody`.
    :param limit_bytes: the length of the longest body, or None.
    :ivar error: the error for which the body is refused, or None.
    """

    __slots__ = (
        "_connection", "_cycle", "_limit_bytes", "_received", "_received_before", "_refuse",
        "_resume_reading", "_waited_s", "_waiting_since", "error",
    )  # fmt: skip

    def __init__(
        self,
        cycle: Any,
        resume_reading: Callable[[], None],
        connection: ConnectionLoop,
        refuse: Callable[[Any, RequestError], Awaitable[None]],
        requests: Sized = (),
        limit_bytes: int | None = None,
    ) -> None:
        self.error: RequestError | None = None
        self._cycle = cycle
        self._resume_reading = resume_reading
        self._connection = connection
        self._refuse = refuse
        self._limit_bytes = sys.maxsize if limit_bytes is None else limit_bytes
        pace = connection.pace
        self._received_before = 0 if pace is None else pace.received
        self._waited_s = self._waiting_since = 0.0
        self._received = ReceivedBody(requests, pace)
        if cycle.body:
            self._received += cycle.body
        cycle.body = self._received

    async def receive(self) -> Message:
        """Receive a message for the app.

        :raises RequestError: if the body is refused. The error response has been sent.
        """
        cycle, received, connection = self._cycle, self._received, self._connection
        received.awaited = not received.size
        if received.awaited and cycle.more_body and connection.pace is not None:
            self._waiting_since = time.monotonic()
            connection.wait_for(self)
        try:
            message: Message = await cycle.receive()
        finally:
            received.awaited = False
            if self._waiting_since:
                self._waited_s += time.monotonic() - self._waiting_since
                self._waiting_since = 0.0
                connection.stop_waiting_for(self)
        if message["type"] != "http.request":
            return message
        if received.received > self._limit_bytes:
            self.error = BodyTooLarge(self._limit_bytes)
        if self.error is not None:
            received.drop()
            await self._refuse(cycle, self.error)
            raise self.error
        if type(message["body"]) is not bytes:  # an older uvicorn passes cycle.body itself
            message["body"] = bytes(message["body"])
        cycle.body = received
        if message["more_body"] and cycle.flow.read_paused:
            read_into_buffer(cycle.transport.real)
            self._resume_reading()
        return message

    def deadline(self) -> float | None:
        """Return the monotonic time from which the client is too slow, or None.

        There is no such time if the app does not wait for the body, or has begun its response.
        """
        pace = self._connection.pace
        if pace is None or self._cycle.response_started or not self._waiting_since:
            return None
        return pace.deadline(self._waiting_since, self._received_before, self._waited_s)

    def refuse_late_body(self) -> None:
        """Refuse the body, because the client is too slow."""
        self.error = RequestError(408, "The request body did not arrive in time")
        self._cycle.message_event.set()

    def discard(self) -> None:
        """Discard the buffered bytes after the app has returned or was cancelled."""
        self._received.drop()


class _SharedBufferProtocol(asyncio.BufferedProtocol):
    """Reads into a shared buffer, and passes the bytes to a Protocol.

    That Protocol's data_received() must not retain the bytes.
    """

    def __init__(self, protocol: asyncio.Protocol) -> None:
        self.protocol = protocol
        if not hasattr(_thread_local, "buffer"):
            _thread_local.buffer = memoryview(bytearray(READ_BYTES))
        self._buffer: memoryview = _thread_local.buffer

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.protocol.data_received(cast("bytes", self._buffer[:nbytes]))

    def eof_received(self) -> bool | None:
        return self.protocol.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        self.protocol.pause_writing()

    def resume_writing(self) -> None:
        self.protocol.resume_writing()


class _DiscardingProtocol(_SharedBufferProtocol):
    """Lingering close: discards received bytes until the client closes, or a limit is reached."""

    def __init__(
        self,
        protocol: asyncio.Protocol,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(protocol)
        self._transport = transport
        self._loop = loop
        self.limits = Lingering(loop.time())
        self._timer = loop.call_at(self.limits.deadline, transport.close)

    def buffer_updated(self, nbytes: int) -> None:
        self._timer.cancel()
        if self.limits.should_continue(nbytes, self._loop.time()):
            self._timer = self._loop.call_at(self.limits.deadline, self._transport.close)
        else:
            self._transport.close()

    def eof_received(self) -> None:
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)


def read_into_buffer(transport: asyncio.Transport) -> None:
    """Make a transport whose reading is paused read into the shared buffer."""
    protocol = transport.get_protocol()
    if not isinstance(protocol, _SharedBufferProtocol):
        transport.set_protocol(_SharedBufferProtocol(cast("asyncio.Protocol", protocol)))


def read_plainly(transport: asyncio.Transport) -> None:
    """Undo :func:`read_into_buffer`, before the transport gets another protocol."""
    protocol = transport.get_protocol()
    if isinstance(protocol, _SharedBufferProtocol):
        transport.pause_reading()  # uvloop checks the type of a protocol when reading begins
        transport.set_protocol(protocol.protocol)
        transport.resume_reading()


def linger(transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
    """Start a lingering close of a transport. A second call shortens it."""
    protocol = transport.get_protocol()
    if isinstance(protocol, _DiscardingProtocol):
        protocol.limits.hurry()
        return
    if isinstance(protocol, _SharedBufferProtocol):
        protocol = protocol.protocol
    if transport.can_write_eof():  # TLS has no half-closed connections
        try:
            transport.write_eof()
        except OSError:  # the client has reset the connection
            transport.abort()
            return
    transport.pause_reading()  # uvloop checks the type of a protocol when reading begins
    transport.set_protocol(_DiscardingProtocol(cast("asyncio.Protocol", protocol), transport, loop))
    transport.resume_reading()
