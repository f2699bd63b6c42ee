"""Request bodies under uvicorn's protocols, and the limits of clients.

Theory of operation. uvicorn appends the bytes of each read to its cycle's `body`. It stops reading
while that is longer than HIGH_WATER_LIMIT, and resumes when the app calls receive(). That does not
change. Here :class:`ReceivedBody` is the cycle's `body`, and :meth:`Upload.receive` wraps the
cycle's receive().

- An app that waits gets the bytes of a read without a copy. One read mostly exceeds uvicorn's
  limit, so that the next one waits until the app has the first.
- While the app is busy, writing to a file for example, reading goes on up to BUFFERED_BYTES. Its
  next receive() returns all of that as one message.
- The streams of an HTTP/2 connection share the buffer above uvicorn's limit. A stream's window
  opens as soon as zttp has read its bytes from the socket. So the back-pressure is TCP's, as with
  HTTP/1.1.
- If a client sends faster than the app receives, its bytes are read into one buffer for all
  connections. So are bytes that a lingering close discards.
- When the app returns, the bytes that it has not received are dropped, because the connection may
  stay open for long.

A body that is too long, or too slow while the app waits for it, is refused in the app's receive().
The client gets the error response, receive() raises the error, and later messages of the app are
dropped. If the app has begun its response, a body that is too long breaks it off, and a slow one
has no timeout.
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

# The bytes that are buffered for a busy app before reading stops. One more read may exceed it.
BUFFERED_BYTES = 256 * 1024
_MORE_BYTES = BUFFERED_BYTES - HIGH_WATER_LIMIT
# A shorter piece is appended to the one before: an object for each would take many times its bytes.
_PIECE_BYTES = 4 * 1024
# One read of the socket. A copy of it stays below the 128 KiB from which on glibc's malloc() maps
# fresh pages and unmaps them again (mallopt(3), M_MMAP_THRESHOLD).
READ_BYTES = 112 * 1024
# Bytes are read and parsed in one callback, so that one buffer serves all of a thread's loop.
_of_this_thread = threading.local()


class ReceivedBody:
    """Body bytes for the app, with the methods of a bytearray that uvicorn uses.

    These are `+=`, len() and bytes().

    :param requests: the connection's requests in progress. By default there is one.
    :param pace: of the connection, if its client may be too slow.
    :ivar size: bytes buffered.
    :ivar received: all bytes of the body up to now.
    :ivar awaited: the app is waiting for them.
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
        """The size that uvicorn compares with HIGH_WATER_LIMIT, above which it stops reading."""
        if self.awaited:
            return self.size
        return max(0, self.size - _MORE_BYTES // (len(self._requests) or 1))

    def __bytes__(self) -> bytes:
        """Take all bytes."""
        pieces = self._pieces
        data = bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self.size = 0
        return data

    def drop(self) -> None:
        self._pieces.clear()
        self.size = 0


class ConnectionLoop:
    """Stands for the event loop in one of uvicorn's protocols, with one timer for a connection.

    uvicorn sets a keep-alive timer after every response, and the next request cancels it. A timer
    costs an event loop more than all its other work for a small response. Here one timer runs on.
    When it fires, it checks whether the connection is idle, and since when. It also checks whether
    the client is late with headers, or with a body that an app is waiting for.

    :meth:`call_later` returns this object, since uvicorn uses only :meth:`cancel` of a timer. All
    other methods are the real loop's.

    :param check: ends late requests. Returns in how many seconds to check again.
    :param head_timeout_s: how soon to check again while the connection is idle.
    :ivar pace: of the client's uploads. None without a limit.
    :ivar since: the loop's time of the first byte of the last headers. Before the first headers it
        is the time when the connection was accepted.
    """

    __slots__ = (
        "_callback", "_check", "_due", "_fires_at", "_headers_timeout_s", "_timer", "_uploads",
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
        # asyncio's own is this one in a function, which is called twice for every request.
        is_asyncio = type(loop).time is asyncio.BaseEventLoop.time
        self.time = time.monotonic if is_asyncio else loop.time
        self._check = check
        self._headers_timeout_s = head_timeout_s
        # To be called at `_due`, by the loop's time, unless it is None.
        self._callback: Callable[[], object] | None = None
        self._due = 0.0
        # Runs on while requests come and go.
        self._timer: asyncio.TimerHandle | None = None
        self._fires_at = 0.0
        self.since = self.time()
        self.pace = UploadPace(body_timeout_s) if body_timeout_s < math.inf else None
        # Uploads with a waiting app. Over HTTP/1 there is one at most.
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
            self.check_in(min(delay, self._headers_timeout_s))
        return self

    def cancel(self) -> None:
        self._callback = None
        self.since = self.time()

    def check_in(self, seconds: float) -> None:
        """Check at this time, or before it. math.inf: only after another call."""
        at = self.time() + seconds
        if self._timer is not None:
            if self._fires_at <= at:
                return
            self._timer.cancel()
        if seconds < math.inf:
            self._fires_at = at
            self._timer = self.real.call_later(seconds, self._on_timer)

    def stop(self) -> None:
        """The connection is lost: drop the timer, which refers to it."""
        self._callback = None
        self._check = lambda: math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        self._timer = None
        callback = self._callback
        left_s = math.inf
        if callback is not None:
            left_s = self._due - self.time()
            if left_s <= 0:
                self._callback = None
                callback()
                return
            left_s = min(left_s, self._headers_timeout_s)
        self.check_in(min(left_s, self._check()))

    # Uploads

    def wait_for(self, upload: Upload) -> None:
        self._uploads += (upload,)
        self.check_in(self.check_uploads())

    def has_come(self, upload: Upload) -> None:
        self._uploads = tuple(each for each in self._uploads if each is not upload)

    def check_uploads(self) -> float:
        """Refuse late uploads. Return in how many seconds the next one may be late."""
        now = time.monotonic()
        left_s = math.inf
        for upload in self._uploads:
            deadline = upload.deadline()
            if deadline is None:
                continue
            if deadline <= now:
                counters.timeouts["body"] += 1
                upload.give_up()
            else:
                left_s = min(left_s, deadline - now)
        return left_s


def admit(protocol: Any, by_address: ConnectionsByAddress | None) -> None:
    """Count a connection by its client's address. One beyond the limit is aborted."""
    if by_address is not None and not by_address.open(protocol.client):
        counters.connections_refused += 1
        protocol.transport.abort()


def release(protocol: Any, by_address: ConnectionsByAddress | None) -> None:
    """A connection that was counted is lost, or another protocol's."""
    if by_address is not None:
        by_address.close(protocol.client)


def counted_by_address(most: float, proxies: str | list[str]) -> ConnectionsByAddress | None:
    """Return the counter for all connections of a process with the same options.

    :param most: connections of one address.
    :param proxies: uvicorn's `forwarded_allow_ips`.
    :returns: None without a limit.
    """
    if most == math.inf:
        return None
    return _counter(most, proxies if isinstance(proxies, str) else ",".join(proxies))


@lru_cache(maxsize=64)
def _counter(most: float, proxies: str) -> ConnectionsByAddress:
    trusted: Any = ProxyHeadersMiddleware(cast("Any", None), proxies)
    return ConnectionsByAddress(
        most,
        lambda address: address in trusted.trusted_hosts,
        logging.getLogger("uvicorn.error").warning,
    )


class Upload:
    """The receive() of an app for a request with unread body bytes.

    :param cycle: uvicorn's RequestResponseCycle.
    :param resume_reading: resumes reading, unless another request of the connection prevents it.
    :param refuse: answers in place of the app.
    :param requests: as for :class:`ReceivedBody`.
    :param limit_bytes: the longest body.
    :ivar error: why the body is refused.
    """

    __slots__ = (
        "_connection", "_cycle", "_limit_bytes", "_received", "_received_before", "_refuse",
        "_resume_reading", "_waited_s", "_waits_since", "error",
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
        self._waited_s = self._waits_since = 0.0
        self._received = ReceivedBody(requests, pace)
        if cycle.body:
            self._received += cycle.body
        cycle.body = self._received

    async def receive(self) -> Message:
        """The receive() that the app is given.

        :raises RequestError: if the body is refused. The client has the error response then.
        """
        cycle, received, connection = self._cycle, self._received, self._connection
        received.awaited = not received.size
        if received.awaited and cycle.more_body and connection.pace is not None:
            self._waits_since = time.monotonic()
            connection.wait_for(self)
        try:
            message: Message = await cycle.receive()
        finally:
            received.awaited = False
            if self._waits_since:
                self._waited_s += time.monotonic() - self._waits_since
                self._waits_since = 0.0
                connection.has_come(self)
        if message["type"] != "http.request":
            return message
        if received.received > self._limit_bytes:
            self.error = BodyTooLarge(self._limit_bytes)
        if self.error is not None:
            received.drop()
            await self._refuse(cycle, self.error)
            raise self.error
        if type(message["body"]) is not bytes:  # an older uvicorn passes on cycle.body
            message["body"] = bytes(message["body"])
        cycle.body = received
        if message["more_body"] and cycle.flow.read_paused:
            read_into_buffer(cycle.transport.real)
            self._resume_reading()
        return message

    def deadline(self) -> float | None:
        """Return the monotonic time at which the client is too slow.

        The result is None after the app has begun its response.
        """
        pace = self._connection.pace
        if pace is None or self._cycle.response_started or not self._waits_since:
            return None
        return pace.deadline(self._waits_since, self._received_before, self._waited_s)

    def give_up(self) -> None:
        """Refuse the body, because the client is too slow."""
        self.error = RequestError(408, "The request body did not come in time")
        self._cycle.message_event.set()

    def end(self) -> None:
        """The app has returned, or was cancelled."""
        self._received.drop()


class _Buffered(asyncio.BufferedProtocol):
    """Adapts an asyncio.Protocol. Its data_received() must not retain its argument."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        self.protocol = protocol
        if not hasattr(_of_this_thread, "buffer"):
            _of_this_thread.buffer = memoryview(bytearray(READ_BYTES))
        self._buffer: memoryview = _of_this_thread.buffer

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


class _Discarding(_Buffered):
    """Lingering close: discards received bytes, and closes its transport at their end."""

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
    """Have a transport with paused reading read into the buffer from now on."""
    protocol = transport.get_protocol()
    if not isinstance(protocol, _Buffered):
        transport.set_protocol(_Buffered(cast("asyncio.Protocol", protocol)))


def read_plainly(transport: asyncio.Transport) -> None:
    """Undo :func:`read_into_buffer`, before the transport gets another protocol."""
    protocol = transport.get_protocol()
    if isinstance(protocol, _Buffered):
        transport.pause_reading()  # uvloop looks at a protocol's kind when reading begins
        transport.set_protocol(protocol.protocol)
        transport.resume_reading()


def linger(transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
    """Close a transport after its client's input. A second call closes it soon."""
    protocol = transport.get_protocol()
    if isinstance(protocol, _Discarding):
        protocol.limits.hurry()
        return
    if isinstance(protocol, _Buffered):
        protocol = protocol.protocol
    if transport.can_write_eof():  # TLS has no half-closed connections
        try:
            transport.write_eof()
        except OSError:  # the client has reset the connection, which asyncio sees when it reads
            transport.abort()
            return
    transport.pause_reading()  # uvloop looks at a protocol's kind when reading begins
    transport.set_protocol(_Discarding(cast("asyncio.Protocol", protocol), transport, loop))
    transport.resume_reading()
