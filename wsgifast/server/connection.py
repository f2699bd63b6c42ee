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

What has come is the receiver's to understand, which has no socket; what is to be sent is the
queue's. Waiting happens in :meth:`Connection.wait` and :meth:`Connection.wait_to_send` alone.
"""

from __future__ import annotations

import io
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, Protocol

from ..errors import RequestError
from ..sockets.sendfile import FileTruncated
from .carrier import Carrier
from .counters import Counters
from .exchange import Exchange
from .options import Options
from .output import ClientGone, OutputQueue
from .output_rules import OutputRules
from .parser import Parser
from .poller import READ, WRITE
from .receiving import ASKED, COMPLETE, HTTP2, Receiver
from .registry import Registry
from .response import Response
from .sending import Sender
from .states import (
    ANSWERED,
    BEGUN,
    CLOSED,
    GONE,
    HANDSHAKE,
    IDLE,
    LEAVES,
    LINGERING,
    READY,
    RECEIVING,
    REFUSED,
    RUNNING,
    SECURED,
    SENDING,
    STAYS,
    STREAMS,
    SWITCHES,
    TRANSITIONS,
)
from .streamed_body import StreamedBody
from .transport import WOULD_BLOCK, discard, say_goodbye, shake_hands

__all__ = ["LINGER_S", "Connection", "Core"]

# How long a client may take to close the connection after our last word, and what is read and
# thrown away meanwhile.
LINGER_S = 2.0
_LINGER_BYTES = 64 * 1024

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Core(Protocol):
    """What a connection asks of its server."""

    options: Options
    counters: Counters
    output_rules: OutputRules
    registry: Registry[Connection]
    log: Any

    def keepalive_s(self) -> float:
        """Seconds that an idle connection may stay."""

    def resume(self, connection: Connection) -> object:
        """Have a thread go on with a connection that has something to do already."""

    def refuse(self, carrier: Carrier, exchange: Exchange | None, error: Exception) -> object:
        """Answer an error, and log it; with the request, if there is one."""

    def on_sent(self, carrier: Carrier, exchange: Exchange) -> object:
        """The response to a request has been sent, as far as it ever will be."""

    def run_soon(self, task: Callable[[], Carrier | None]) -> object:
        """Have a thread do something, and run what it returns."""

    def is_ending(self) -> bool:
        """Whether clients should make their next requests elsewhere."""

    def begin_http2(self, connection: Connection, parser: Parser) -> Streams:
        """Make what speaks HTTP/2 on a connection that has agreed on it."""


class Streams(Protocol):
    """What speaks HTTP/2 on a connection; its output queue takes the place of the other one."""

    output: OutputQueue

    def begin(self, received: bytes, exchange: Exchange | None) -> Carrier | None:
        """Begin, with what has come already, and perhaps with a request that has asked for it."""

    def on_event(self, event: int) -> Carrier | None:
        """As :meth:`Connection.on_event`."""

    def on_overdue(self) -> None:
        """As :meth:`Connection.on_overdue`."""

    def retry(self) -> None:
        """As :meth:`Connection.retry`."""

    def let_go(self) -> bool:
        """The connection is to be closed: whether that can be now, since no app runs on it."""

    def is_sending(self) -> bool:
        """Whether something is on its way, and no app has to run for it."""

    def is_to_say_goodbye(self) -> bool:
        """Whether the client does not know yet that the server ends."""


class Connection:
    """One accepted connection; made by the thread that accepted it.

    :param sock: non-blocking; a TLS socket's handshake is still to come.
    :param peer: its address as accept() gave it.
    :param address: the listener's.
    :param receiver: of its requests.
    :ivar exchange: the request that runs, or is answered.
    :ivar environ_part: of the environ, what its requests share.
    :ivar streams: what speaks HTTP/2 here, once that is agreed on.
    :ivar hijacked: the app has taken the socket over.

    For `deadline`, `known` and `retries` see :class:`~.registry.Waiting`.
    """

    __slots__ = (
        "_core",
        "_left_to_discard",
        "_receiver",
        "_tls",
        "address",
        "deadline",
        "environ_part",
        "exchange",
        "fd",
        "hijacked",
        "known",
        "output",
        "peer",
        "retries",
        "sock",
        "state",
        "streams",
    )

    response_class = Response

    def __init__(
        self, core: Core, sock: socket.socket, peer: Any, address: Any, receiver: Receiver
    ) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.peer = peer
        self.address = address
        self.exchange: Exchange | None = None
        self.environ_part: dict[str, Any] | None = None
        self.hijacked = False
        self.streams: Streams | None = None
        self.known = False
        self.retries = False
        self.deadline = time.monotonic() + core.options.head_timeout_s
        rules = core.output_rules
        self.output = OutputQueue(Sender(sock, rules), self, rules)
        self._core = core
        self._receiver = receiver
        self._tls = sock if isinstance(sock, ssl.SSLSocket) else None
        self.state = IDLE if self._tls is None else HANDSHAKE

    def begin(self) -> None:
        """Wait for the first event."""
        self.wait(READ)

    def move(self, event: str) -> None:
        """Go on to the state that an event leads to."""
        self.state = TRANSITIONS[self.state][event]

    @property
    def receives_body(self) -> bool:
        """Whether a request's head has come, and its body has not."""
        return self.state is RECEIVING and self._receiver.exchange is not None

    def is_idle(self) -> bool:
        """Whether it is kept alive, and no request has begun."""
        return self.state is IDLE

    def is_sending(self) -> bool:
        """Whether something is on its way, and no app has to run for it."""
        if self.streams is not None and self.state is STREAMS:
            return self.streams.is_sending()
        return self.state is SENDING

    def is_to_say_goodbye(self) -> bool:
        """Whether its client can be told that the server ends, and has not been."""
        return (
            self.streams is not None and self.state is STREAMS and self.streams.is_to_say_goodbye()
        )

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
        if self.streams is not None and self.state is STREAMS:
            self.streams.retry()
        else:
            self.wait(WRITE)

    # Events

    def on_event(self, events: int) -> Carrier | None:
        """Do what an event calls for; the caller owns the connection.

        :param events: 0 for a connection that has something to do already.
        :returns: what is ready to run: itself, or a stream.
        """
        return _ON_EVENT[self.state](self, events)

    def on_overdue(self) -> None:
        """End a connection whose time is over; the sweep owns it."""
        waited_for = "body" if self.receives_body else _WAITED_FOR.get(self.state)
        if waited_for is not None:
            self._core.counters.timeouts[waited_for] += 1
        _ON_OVERDUE[self.state](self)

    def _shake_hands(self, events: int) -> Carrier | None:
        assert self._tls is not None
        try:
            awaited = shake_hands(self._tls)
        except (OSError, ValueError) as error:
            self._core.log.debug("TLS handshake failed: %s", error)
            self.close()
            return None
        if awaited:
            self.wait(awaited)
            return None
        self.move(SECURED)
        if self._tls.selected_alpn_protocol() == "h2":
            return self._speak_http2(None)
        return self._receive(READ)

    def _receive(self, events: int) -> Carrier | None:
        if self.output.draining:  # "100 Continue" goes first
            self.output.on_writable()
            if self.output.draining:
                return None
            events = 0
        receiver = self._receiver
        data = b""
        if events or not receiver.has_more_to_do():
            try:
                data = self.sock.recv(receiver.wanted)
            except WOULD_BLOCK:
                self.wait(READ)
                return None
            except OSError as error:
                self._core.log.debug("Ignoring a lost connection: %s", error)
            if not data:
                self.close()
                return None
        try:
            step = receiver.take(data)
        except Exception as error:  # noqa: BLE001 - each has its answer
            self.refuse(error)
            return None
        if step is COMPLETE:
            self.exchange = exchange = receiver.exchange
            assert exchange is not None
            self.move(READY)
            if exchange.body is None:
                self._stream_body(exchange)
            return self
        if step is HTTP2:
            return self._speak_http2(receiver.exchange)
        if self.state is IDLE:
            self.move(BEGUN)
            self.deadline = time.monotonic() + self._core.options.head_timeout_s
        self._receive_more(asked=step is ASKED)
        return None

    def _receive_more(self, *, asked: bool) -> None:
        """Wait for the rest of a request, or go on with what is here of it.

        :param asked: the client waits for "100 Continue".
        """
        deadline = self._receiver.deadline(time.monotonic())
        if asked:
            try:
                self.output.write(_CONTINUE)
            except ClientGone as error:
                self._core.log.debug("The client has gone before its body: %s", error)
                self.close()
                return
            if self.output.draining:
                return  # it waits under the queue's own event; the body is asked for after that
        if deadline is not None:
            self.deadline = deadline
        if self._receiver.has_more_to_do() or self.has_more_in_tls():
            self._core.resume(self)
        else:
            self.wait(READ)

    def _stream_body(self, exchange: Exchange) -> None:
        """Leave the body to the app's thread."""
        receiver = self._receiver
        exchange.streamed = streamed = StreamedBody(
            self.sock,
            self.output.lock,
            length=exchange.length,
            decoder=receiver.decoder(),
            take_trailers=receiver.take_trailers,
            data=exchange.rest,
            timeout_s=self._core.options.body_timeout_s,
        )
        exchange.body = io.BufferedReader(streamed)
        if exchange.expects_continue and not exchange.rest:
            try:
                self.output.write(_CONTINUE)
            except ClientGone:
                pass  # the first read will tell

    def has_more_in_tls(self) -> bool:
        """Whether TLS has decrypted more than was received: no event would tell of it."""
        return self._tls is not None and self._tls.pending() > 0

    def _send(self, events: int) -> None:
        if self.output.on_writable():
            self._finish()

    # HTTP/2

    def _speak_http2(self, exchange: Exchange | None) -> Carrier | None:
        """Leave all that comes to whoever speaks HTTP/2, and all that waits too.

        :param exchange: the request that has asked for it.
        """
        receiver = self._receiver
        self.move(SWITCHES)
        self.streams = streams = self._core.begin_http2(self, receiver.parser)
        self.output = streams.output
        received, receiver.rest, receiver.exchange = receiver.rest, b"", None
        return streams.begin(received, exchange)

    def _on_streams(self, events: int) -> Carrier | None:
        assert self.streams is not None
        return self.streams.on_event(events)

    def _on_overdue_streams(self) -> None:
        assert self.streams is not None
        self.streams.on_overdue()

    # The app's thread

    def is_wanted(self) -> bool:
        """Whether the app is to run for it."""
        return True

    def send_error(self, status: int, page: bytes) -> None:
        self.output.write(page)

    def hijack(self) -> socket.socket:
        """Hand the socket to the app; what is queued goes out first."""
        if not self.hijacked:
            self.hijacked = True
            self.output.flush()
            self.sock.setblocking(True)
        return self.sock

    def app_is_done(self) -> None:
        """The app has done what it will: finish now, or leave it to whoever sends the last byte."""
        if self.output.waits_for_company:
            self.output.flush()
        self._finish_when_sent(ANSWERED)

    # Ends

    def refuse(self, error: Exception) -> None:
        """Answer a request that will not run, or what is none; then close."""
        exchange = self._receiver.exchange
        self._receiver.close()
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
            self.leave()
            return
        self.output.reset()
        self.move(STAYS)
        self.deadline = time.monotonic() + self._core.keepalive_s()
        # No event will come for what is here already: a pipelined request.
        if self._receiver.rest or self.has_more_in_tls():
            self._core.resume(self)
        else:
            self.wait(READ)

    def _can_stay(self, exchange: Exchange) -> bool:
        """Whether the connection can have a request after this one."""
        self._receiver.exchange = None
        if self.output.error is not None or self.hijacked:
            return False
        if exchange.resp is None or exchange.resp.should_close():
            return False
        if exchange.streamed is not None:
            rest = exchange.streamed.finish()
            if rest is None:
                return False
            self._receiver.rest = rest
        return True

    def leave(self) -> None:
        """Say goodbye, and let the client read all of it before the kernel may reset it.

        Closing a socket with unread data sends a reset, which may destroy the response on its way
        (RFC 9112 section 9.6).
        """
        if self.output.error is not None:
            self.close()
            return
        try:
            say_goodbye(self.sock)
        except (OSError, ValueError):
            self.close()
            return
        self.move(LEAVES)
        self.deadline = time.monotonic() + LINGER_S
        self._left_to_discard = _LINGER_BYTES
        self._discard(READ)

    def _discard(self, events: int) -> None:
        self._left_to_discard = discard(self.sock, self._left_to_discard)
        if self._left_to_discard:
            self.wait(READ)
        else:
            self.close()

    def close(self) -> None:
        """Close at once; only for the owner, and never while the app runs."""
        if self.state is CLOSED:
            return
        if self.streams is not None and not self.streams.let_go():
            return  # the last of its apps closes it
        self.move(GONE)
        registry = self._core.registry
        self.exchange = None
        self._receiver.close()
        self.output.close()
        self.environ_part = None
        registry.forget(self)
        try:
            self.sock.close()
        except OSError:
            pass
        registry.remove(self)

    def _time_out(self) -> None:
        self.refuse(RequestError(408, "The request did not come in time"))

    def _stall(self) -> None:
        self.output.fail(TimeoutError("the client took no byte in time"))
        if self.state is SENDING:  # else the app's thread closes it
            self._finish()


_ON_EVENT: dict[str, Callable[[Connection, int], Carrier | None]] = {
    HANDSHAKE: Connection._shake_hands,
    IDLE: Connection._receive,
    RECEIVING: Connection._receive,
    RUNNING: Connection._send,
    SENDING: Connection._send,
    STREAMS: Connection._on_streams,
    LINGERING: Connection._discard,
    CLOSED: lambda connection, events: None,
}
# What is waited for in a state, other than for a client to close its side.
_WAITED_FOR = {
    HANDSHAKE: "handshake",
    IDLE: "keepalive",
    RECEIVING: "head",
    RUNNING: "send",
    SENDING: "send",
}
_ON_OVERDUE: dict[str, Callable[[Connection], None]] = {
    HANDSHAKE: Connection.close,
    IDLE: Connection.close,
    RECEIVING: Connection._time_out,
    RUNNING: Connection._stall,
    SENDING: Connection._stall,
    STREAMS: Connection._on_overdue_streams,
    LINGERING: Connection.close,
    CLOSED: Connection.close,
}
