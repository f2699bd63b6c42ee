"""One client connection: what an event, or the end of its time, does in each of its states.

Theory of operation
-------------------
states.py has the states and the moves between them; :data:`_ON_EVENT` and :data:`_ON_OVERDUE`,
below, say what is done in each. A connection that waits is in the registry, where an event or the
sweep of overdue connections claims it, which makes one thread its owner (see registry.py). The
owner runs :meth:`Connection.on_event`, and then lets it wait again, closes it, or returns it as
ready to run.

While it runs it belongs to the app's thread. Only if its output queue drains meanwhile does it
wait too, and then the event does nothing but send, under the queue's lock. The socket is
closed by its owner only, never while the app's thread may use it.

Waiting happens in :meth:`Connection.wait` alone, parsing in the parser, the chunk decoder and the
head scanner, none of which has a socket; what is refused is answered by whom :class:`Core` names.
"""

from __future__ import annotations

import io
import socket
import ssl
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import BodyTooLarge, RequestError
from ..http.chunked import ChunkDecoder
from ..http.scan import HeadScanner
from ..sockets.sendfile import FileTruncated
from .disk_budget import DiskBudget
from .exchange import Exchange
from .output import ClientGone, OutputQueue
from .output_rules import OutputRules
from .parser import NeedMoreData, Parser
from .poller import READ, WRITE
from .registry import Registry
from .request_body import ChunkedBody, Collector, KnownLength, Spool
from .sending import WOULD_BLOCK
from .states import (
    ANSWERED,
    BEGUN,
    BODY,
    CLOSED,
    GONE,
    HANDSHAKE,
    HEAD,
    HEAD_ENDED,
    IDLE,
    LEAVES,
    LINGERING,
    READY,
    REFUSED,
    RUNNING,
    SECURED,
    SENDING,
    STAYS,
    TRANSITIONS,
)
from .streamed_body import BODY_BYTES_PER_S, StreamedBody

__all__ = ["LINGER_S", "Connection", "Core", "Limits"]

# One receive of a head: more than any usual head has; pipelined ones come in fewer calls. Never
# less than a TLS record (RFC 8446 section 5.1): no event would tell of what it leaves in there.
_RECEIVE_BYTES = 16 * 1024
# What is read and thrown away of a client that goes on sending after our last word, and for how
# long it may take to close the connection.
_LINGER_BYTES = 64 * 1024
LINGER_S = 2.0

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_END_OF_HEAD = b"\r\n\r\n"


@dataclass(frozen=True)
class Limits:
    """What a client may take, and how long it may take for it; FastWorker's options tell more."""

    is_tls: bool
    buffer_bodies: bool
    body_memory_bytes: int
    body_limit_bytes: int
    body_timeout_s: float
    head_timeout_s: float
    trailer_line_bytes: int
    trailer_fields: int


@dataclass(frozen=True)
class Core:
    """What all connections of a worker share.

    :ivar parser_for: the parser of a peer's requests, by its address.
    :ivar disk: for the bodies in temporary files.
    :ivar keepalive_s: seconds that an idle connection may stay.
    :ivar resume: has a thread go on with a connection that has something to do already.
    :ivar refuse: answers an error, and logs it; with the request, if there is one.
    :ivar on_sent: told of a request whose response has been sent, as far as it ever will be.
    """

    limits: Limits
    output_rules: OutputRules
    registry: Registry[Connection]
    disk: DiskBudget
    log: Any
    parser_for: Callable[[Any], Parser]
    keepalive_s: Callable[[], float]
    resume: Callable[[Connection], object]
    refuse: Callable[[Connection, Exchange | None, Exception], object]
    on_sent: Callable[[Connection, Exchange], object]


class Connection:
    """One accepted connection; made by the thread that accepted it.

    :param sock: non-blocking; a TLS socket's handshake is still to come.
    :param peer: its address as accept() gave it.
    :param address: the listener's.
    :ivar exchange: the request that it is about.
    :ivar environ_part: of the environ, what its requests share.
    :ivar http2: HTTP/2 is agreed on: whoever runs it speaks that.

    For `deadline`, `known` and `retries` see :class:`~.registry.Waiting`.
    """

    __slots__ = (
        "_body",
        "_core",
        "_discarded",
        "_parser",
        "_received",
        "_requests",
        "_scanner",
        "address",
        "deadline",
        "environ_part",
        "exchange",
        "fd",
        "hijacked",
        "http2",
        "known",
        "output",
        "peer",
        "retries",
        "sock",
        "state",
    )

    def __init__(self, core: Core, sock: socket.socket, peer: Any, address: Any) -> None:
        limits = core.limits
        self.sock = sock
        self.fd = sock.fileno()
        self.peer = peer
        self.address = address
        self.exchange: Exchange | None = None
        self.environ_part: dict[str, Any] | None = None
        self.hijacked = False
        self.http2 = False
        self.known = False
        self.retries = False
        self.state = HANDSHAKE if limits.is_tls else IDLE
        self.deadline = time.monotonic() + limits.head_timeout_s
        self.output = OutputQueue(sock, self, core.output_rules)
        self._core = core
        self._parser = core.parser_for(peer)
        self._received = b""  # and not parsed
        self._scanner: HeadScanner | None = None  # of an incomplete head
        self._requests = 0
        self._body: Collector | StreamedBody | None = None  # on its way in

    def begin(self) -> None:
        """Wait for the first event."""
        self.wait(READ)

    def move(self, event: str) -> None:
        """Go on to the state that an event leads to."""
        self.state = TRANSITIONS[self.state][event]

    def is_idle(self) -> bool:
        """Whether it is kept alive, and no request has begun."""
        return self.state is IDLE

    # Waiting

    def wait(self, events: int) -> None:
        """Give the connection up until an event; nothing of it may be touched afterwards."""
        try:
            self._core.registry.wait(self, events)
        except (OSError, ValueError) as error:
            self.output.fail(error)
            if self.state is not RUNNING:
                self.close()

    def wait_to_send(self, deadline: float, *, retry: bool) -> None:
        """Have the output queue go on when the socket is writable; see OutputOwner."""
        self.deadline = deadline
        self.retries = retry
        self._core.registry.wait(self, 0 if retry else WRITE)

    def resume_sending(self) -> None:
        """Have the output queue go on soon; see OutputOwner."""
        self._core.resume(self)

    def retry(self) -> None:
        """Wait for writability after all; the sweep owns it."""
        self.retries = False
        self.wait(WRITE)

    # Events

    def on_event(self, events: int) -> bool:
        """Do what an event calls for; the caller owns the connection.

        :param events: 0 for a connection that has something to do already.
        :returns: whether it is ready to run.
        """
        return _ON_EVENT[self.state](self, events)

    def on_overdue(self) -> None:
        """End a connection whose time is over; the sweep owns it."""
        _ON_OVERDUE[self.state](self)

    def _shake_hands(self, events: int) -> bool:
        sock = self.sock
        assert isinstance(sock, ssl.SSLSocket)
        try:
            sock.do_handshake()
        except ssl.SSLWantReadError:
            self.wait(READ)
            return False
        except ssl.SSLWantWriteError:
            self.wait(WRITE)
            return False
        except (OSError, ValueError) as error:
            self._core.log.debug("TLS handshake failed: %s", error)
            self.close()
            return False
        self.move(SECURED)
        if sock.selected_alpn_protocol() == "h2":
            self.move(BEGUN)
            return self._run_as_http2(b"")
        return self._receive_head(READ)

    def _run_as_http2(self, data: bytes) -> bool:
        self.http2 = True
        self._received = data
        self.move(READY)
        return True

    def _receive_head(self, events: int) -> bool:
        if events:
            data = self._receive(_RECEIVE_BYTES)
            if data is None:
                return False
        else:
            data, self._received = self._received, b""
        if self.state is IDLE:
            self.move(BEGUN)
            self.deadline = time.monotonic() + self._core.limits.head_timeout_s
            if data.endswith(_END_OF_HEAD) or _END_OF_HEAD in data:
                return self._parse(data)
        scanner = self._scanner
        if scanner is None:
            scanner = self._scanner = HeadScanner()
        parser = self._parser
        looks = scanner.add(data) or len(scanner.data) <= parser.eager_bytes
        if looks or len(scanner.data) > parser.head_limit_bytes:
            return self._parse(bytes(scanner.data))
        self.wait(READ)
        return False

    def _parse(self, data: bytes) -> bool:
        try:
            exchange = self._parser.parse(data, self.peer, self._requests + 1)
        except NeedMoreData:
            if len(data) > self._parser.head_limit_bytes:
                self.refuse(RequestError(431, "The request's head is too large"))
                return False
            if self._scanner is None:
                self._scanner = HeadScanner(data)
            self.wait(READ)
            return False
        except Exception as error:  # noqa: BLE001 - each has its answer
            self.refuse(error)
            return False
        self._scanner = None
        if exchange is None:
            return self._run_as_http2(data)
        self._requests += 1
        self.exchange = exchange
        if exchange.length == 0:
            self._received = exchange.rest
            exchange.body = io.BytesIO()
            self.move(READY)
            return True
        return self._begin_body(exchange)

    # The body

    def _begin_body(self, exchange: Exchange) -> bool:
        limits = self._core.limits
        length = exchange.length
        if limits.buffer_bodies:
            if length is not None and length > limits.body_limit_bytes:
                self.refuse(BodyTooLarge("The request body is too large"))
                return False
            spool = Spool(limits.body_memory_bytes, limits.body_limit_bytes, self._core.disk)
            if length is None:
                self._body = ChunkedBody(self._decoder(), spool)
            else:
                self._body = KnownLength(length, spool)
            self.move(HEAD_ENDED)
            self.deadline = time.monotonic() + limits.body_timeout_s
            return self._collect(exchange.rest, asks=exchange.expects_continue)
        self._body = streamed = StreamedBody(
            self.sock,
            self.output.lock,
            length=length,
            decoder=self._decoder(),
            take_trailers=self._take_trailers,
            data=exchange.rest,
            timeout_s=limits.body_timeout_s,
        )
        exchange.body = io.BufferedReader(streamed)
        self.move(READY)
        if exchange.expects_continue and not exchange.rest:
            try:
                self.output.write(_CONTINUE)
            except ClientGone:
                pass  # the first read will tell
        return True

    def _decoder(self) -> ChunkDecoder:
        limits = self._core.limits
        return ChunkDecoder(
            body_limit=limits.body_limit_bytes if limits.buffer_bodies else sys.maxsize,
            line_limit=limits.trailer_line_bytes,
            trailer_fields=limits.trailer_fields,
        )

    def _take_trailers(self, lines: list[bytes]) -> None:
        if self.exchange is not None:
            self._parser.take_trailers(self.exchange.req, lines)

    def _receive_body(self, events: int) -> bool:
        if self.output.draining:  # "100 Continue" goes first
            self.output.on_writable()
            if self.output.draining:
                return False
        body = self._body
        assert body is not None
        assert not isinstance(body, StreamedBody)
        if body.has_more_to_do:
            return self._collect(b"")
        data = self._receive(body.wanted)
        return data is not None and self._collect(data)

    def _collect(self, data: bytes, asks: bool = False) -> bool:
        """Take more of the body in, and wait for the rest; returns whether it is whole.

        :param asks: whether the client waits for "100 Continue".
        """
        exchange = self.exchange
        body = self._body
        assert exchange is not None
        assert body is not None
        assert not isinstance(body, StreamedBody)
        limits = self._core.limits
        try:
            if body.has_more_to_do:
                body.go_on()
            elif data:
                body.take(data)
            if body.is_whole:
                return self._end_body(exchange, body)
            if asks:
                self.output.write(_CONTINUE)
                if self.output.draining:
                    # Written under the queue's own event; the body is asked for after that.
                    return False
        except ConnectionError as error:
            self._core.log.debug("The client has gone in the middle of its body: %s", error)
            self.close()
            return False
        except Exception as error:  # noqa: BLE001 - malformed chunks; a full disk
            self.refuse(error)
            return False
        if data:
            self.deadline = min(
                time.monotonic() + limits.body_timeout_s,
                exchange.started + limits.body_timeout_s + body.received / BODY_BYTES_PER_S,
            )
        if body.has_more_to_do or self._has_more_in_tls():
            self._core.resume(self)
        else:
            self.wait(READ)
        return False

    def _end_body(self, exchange: Exchange, body: Collector) -> bool:
        if isinstance(body, ChunkedBody):
            self._take_trailers(body.decoder.trailers)
        self._received = body.rest
        exchange.body = body.open()
        self._body = None
        self.move(READY)
        return True

    # The app's thread

    def take_received(self) -> bytes:
        """What has come behind the request; for whoever takes the socket over."""
        data, self._received = self._received, b""
        return data

    @property
    def body_failure(self) -> Exception | None:
        """What has kept the app from reading its body to the end."""
        return self._body.failure if isinstance(self._body, StreamedBody) else None

    def hijack(self) -> socket.socket:
        """Hand the socket to the app; what is queued goes out first."""
        if not self.hijacked:
            self.hijacked = True
            self.output.flush()
            self.sock.setblocking(True)
        return self.sock

    def app_is_done(self) -> None:
        """The app has done what it will: finish now, or leave it to whoever sends the last byte."""
        if self.output.backlog is not None:  # its last blocks may wait for company
            self.output.flush()
        self._finish_when_sent(ANSWERED)

    # Ends

    def refuse(self, error: Exception) -> None:
        """Answer a request that will not run, or what is none; then close."""
        exchange = self.exchange
        self._abandon()
        self.move(REFUSED)
        self._core.refuse(self, exchange, error)
        self._finish_when_sent()

    def _finish_when_sent(self, event: str | None = None) -> None:
        with self.output.lock:
            if event is not None:
                self.move(event)
            if self.output.draining:
                self.output.closing = True
                return
        self._finish()

    def _finish(self) -> None:
        """The response has been sent, or never will be: go on, or close."""
        exchange, self.exchange = self.exchange, None
        stays = False
        if exchange is not None:
            self._core.on_sent(self, exchange)
            error = self.output.error
            if isinstance(error, FileTruncated):
                self._core.log.warning("Cutting off %s: %s", exchange.req.uri, error)
            stays = self._can_stay(exchange)
            if exchange.body is not None:
                exchange.body.close()
        if not stays:
            self._close_gracefully()
            return
        self.output.reset()
        self.move(STAYS)
        self.deadline = time.monotonic() + self._core.keepalive_s()
        if self._core.limits.is_tls and self._has_more_in_tls():
            # The record that ended the body may have brought the next request's head too.
            assert isinstance(self.sock, ssl.SSLSocket)
            self._received += self.sock.recv(self.sock.pending())
        if self._received:  # pipelined: no event will come for what is here already
            self._core.resume(self)
        else:
            self.wait(READ)

    def _can_stay(self, exchange: Exchange) -> bool:
        """Whether the connection can have a request after this one."""
        body, self._body = self._body, None
        if self.output.error is not None or self.hijacked:
            return False
        if exchange.resp is None or exchange.resp.should_close():
            return False
        if body is not None and isinstance(body, StreamedBody):
            rest = body.finish()
            if rest is None:
                return False
            self._received = rest
        return True

    def _abandon(self) -> None:
        self.exchange = None
        self._scanner = None
        if self._body is not None:
            self._body.close()
            self._body = None

    def _close_gracefully(self) -> None:
        """Say goodbye, and let the client read all of it before the kernel may reset it.

        Closing a socket with unread data sends a reset, which may destroy the response on its way
        (RFC 9112 section 9.6).
        """
        if self.output.error is not None:
            self.close()
            return
        sock = self.sock
        try:
            sock.setblocking(False)
            if isinstance(sock, ssl.SSLSocket):
                try:  # the end is no truncation (RFC 8446 section 6.1); do not wait for theirs
                    sock.unwrap()
                except (OSError, ValueError):
                    pass
            sock.shutdown(socket.SHUT_WR)
        except (OSError, ValueError):
            self.close()
            return
        self.move(LEAVES)
        self.deadline = time.monotonic() + LINGER_S
        self._discarded = 0
        self._discard(READ)

    def _discard(self, events: int) -> bool:
        try:
            # Below TLS, if there is any: nobody looks at what comes now.
            while data := socket.socket.recv(self.sock, _LINGER_BYTES):
                self._discarded += len(data)
                if self._discarded >= _LINGER_BYTES:
                    break
        except WOULD_BLOCK:
            self.wait(READ)
            return False
        except (OSError, ValueError):
            pass
        self.close()
        return False

    def close(self) -> None:
        """Close at once; only for the owner, and never while the app runs."""
        if self.state is CLOSED:
            return
        self.move(GONE)
        registry = self._core.registry
        self._abandon()
        self.output.close()
        self.environ_part = None
        registry.forget(self)
        try:
            self.sock.close()
        except OSError:
            pass
        registry.remove(self)

    # Small steps

    def _receive(self, size: int) -> bytes | None:
        """Receive once; None if nothing is there, and it waits, or nothing ever will be."""
        try:
            data = self.sock.recv(size)
        except WOULD_BLOCK:
            self.wait(READ)
            return None
        except OSError as error:
            self._core.log.debug("Ignoring a lost connection: %s", error)
            data = b""
        if not data:
            self.close()
            return None
        return data

    def _has_more_in_tls(self) -> bool:
        """Whether TLS has decrypted more than was received: no event would tell of it."""
        return isinstance(self.sock, ssl.SSLSocket) and self.sock.pending() > 0

    def _send(self, events: int) -> bool:
        if self.output.on_writable():
            self._finish()
        return False

    def _time_out(self) -> None:
        self.refuse(RequestError(408, "The request did not come in time"))

    def _stall(self) -> None:
        self.output.fail(TimeoutError("the client took no byte in time"))
        if self.state is SENDING:  # else the app's thread closes it
            self._finish()


_ON_EVENT: dict[str, Callable[[Connection, int], bool]] = {
    HANDSHAKE: Connection._shake_hands,
    IDLE: Connection._receive_head,
    HEAD: Connection._receive_head,
    BODY: Connection._receive_body,
    RUNNING: Connection._send,
    SENDING: Connection._send,
    LINGERING: Connection._discard,
    CLOSED: lambda connection, events: False,
}
_ON_OVERDUE: dict[str, Callable[[Connection], None]] = {
    HANDSHAKE: Connection.close,
    IDLE: Connection.close,
    HEAD: Connection._time_out,
    BODY: Connection._time_out,
    RUNNING: Connection._stall,
    SENDING: Connection._stall,
    LINGERING: Connection.close,
    CLOSED: Connection.close,
}
