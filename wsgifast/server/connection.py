"""One client connection: what an event, or the end of its time, does in each of its states.

Theory of operation
-------------------
states.py has the states and the moves between them; :data:`_ON_EVENT` and :data:`_ON_OVERDUE`,
below, say what is done in each. A connection that waits is in the registry, where an event or the
sweep of overdue connections claims it, which makes one thread its owner (see registry.py). The
owner runs :meth:`Connection.on_event`, and then lets it wait again, closes it, or returns it as
ready to run. Once HTTP/2 is agreed on, it is that one's (http2/multiplexer.py) to say what an event
does.

While it runs it belongs to the app's thread. Only if its output queue drains meanwhile does it
wait too, and then the event does nothing but send, under the queue's lock. The socket is
closed by its owner only, never while the app's thread may use it.

What has come is the receiver's to understand, which has no socket; what is to be sent is the
queue's. How it waits and ends is the endpoint's, its base: the same for HTTP/2.
"""

from __future__ import annotations

import io
import socket
import time
from collections.abc import Callable
from typing import Any

from ..errors import ClientGone, RequestError
from ..sockets.sendfile import FileTruncated
from .channel import Channel
from .endpoint import Core, Endpoint
from .exchange import Exchange
from .poller import READ
from .receiving import ASKED, COMPLETE, HTTP2, Receiver
from .response import Response
from .states import (
    ANSWERED,
    BEGUN,
    CLOSED,
    HANDSHAKE,
    IDLE,
    LINGERING,
    READY,
    RECEIVING,
    REFUSED,
    RUNNING,
    SECURED,
    SENDING,
    SKIPPING,
    SKIPS,
    STAYS,
    STREAMS,
    SWITCHES,
)
from .streamed_body import StreamedBody
from .transport import WOULD_BLOCK, has_come, shake_hands

__all__ = ["Connection"]

# The deadline of a connection that is overdue, and has been given a last turn.
_LAST_TURN = 0.0
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Connection(Endpoint):
    """One accepted connection; made by the thread that accepted it.

    :param sock: non-blocking; a TLS socket's handshake is still to come.
    :param peer: its address as accept() gave it.
    :param address: the listener's.
    :param receiver: of its requests.
    :ivar exchange: the request that runs, or is answered.
    :ivar hijacked: the app has taken the socket over.
    """

    __slots__ = ("_is_read_empty", "_receiver", "_unread", "exchange", "hijacked")

    response_class = Response

    def __init__(
        self, core: Core, sock: socket.socket, peer: Any, address: Any, receiver: Receiver
    ) -> None:
        super().__init__(core, sock, peer, address)
        self.exchange: Exchange | None = None
        self.hijacked = False
        self._receiver = receiver
        # Whether the last receive has left nothing, so that all that still comes has an event.
        self._is_read_empty = False
        self._unread: StreamedBody | None = None  # what is left of it is thrown away

    @property
    def receives_body(self) -> bool:
        """Whether a request's head has come, and its body has not."""
        return self.state is RECEIVING and self._receiver.exchange is not None

    def is_idle(self) -> bool:
        """Whether it is kept alive, and no request has begun."""
        return self.state is IDLE or self.state is SKIPPING

    def is_sending(self) -> bool:
        """Whether something is on its way, and no app has to run for it."""
        if self.streams is not None and self.state is STREAMS:
            return self.streams.is_sending()
        return self.state is SENDING

    def owes_goaway(self) -> bool:
        """Whether its client can be told that the server ends, and has not been."""
        return self.streams is not None and self.state is STREAMS and self.streams.owes_goaway()

    # Events

    def on_event(self, events: int) -> Channel | None:
        """Do what an event calls for; the caller owns the connection.

        :param events: 0 for a connection that has something to do already.
        :returns: what is ready to run: itself, or a stream.
        """
        return _ON_EVENT[self.state](self, events)

    def on_overdue(self) -> None:
        """End a connection whose time is over; the sweep owns it.

        But not behind the back of a request that has come, and to which a busy server has not: its
        client would not know whether it was run (RFC 9110 section 9.2.2).
        """
        if self.state is IDLE and self.deadline != _LAST_TURN and has_come(self.sock):
            self.deadline = _LAST_TURN
            self._core.resume(self)
            return
        waited_for = "body" if self.receives_body else _WAITED_FOR.get(self.state)
        if waited_for is not None:
            self._core.counters.timeouts[waited_for] += 1
        _ON_OVERDUE[self.state](self)

    def _shake_hands(self, events: int) -> Channel | None:
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

    def _receive(self, events: int) -> Channel | None:
        if self.output.draining:  # "100 Continue" goes first
            self.output.on_writable()
            if self.output.draining:
                return None
            events = 0
        receiver = self._receiver
        data = b""
        if events or not receiver.has_more_to_do():
            wanted = receiver.wanted
            try:
                data = self.sock.recv(wanted)
            except WOULD_BLOCK:
                self.wait_for_more()
                return None
            except OSError as error:
                self._core.log.debug("Ignoring a lost connection: %s", error)
            if not data:
                self.close()
                return None
            # epoll(7): for a stream, less than was asked for is all there was; but for its end, and
            # what is behind urgent data, of which the event has told together with it.
            self._is_read_empty = len(data) < wanted and events == READ
        else:
            self._is_read_empty = False
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
            self._wait_to_receive()

    def _wait_to_receive(self) -> None:
        if self._is_read_empty and self.watched:
            self._core.registry.publish(self)
        elif self._is_read_empty:
            self.wait_for_more()
        else:
            self.wait(READ)

    def _stream_body(self, exchange: Exchange) -> None:
        """Leave the body to the app's thread."""
        receiver = self._receiver
        self._is_read_empty = False
        self._core.registry.unwatch(self)
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

    def _send(self, events: int) -> None:
        if self.output.on_writable():
            self._finish()

    # HTTP/2

    def _speak_http2(self, exchange: Exchange | None) -> Channel | None:
        """Leave all that comes to whoever speaks HTTP/2, and all that waits too.

        :param exchange: the request that has asked for it.
        """
        receiver = self._receiver
        self.move(SWITCHES)
        self.streams = streams = self._core.begin_http2(self, receiver.parser)
        self.output = streams.output
        received, receiver.rest, receiver.exchange = receiver.rest, b"", None
        return streams.begin(received, exchange)

    def _on_streams(self, events: int) -> Channel | None:
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
        asked = self._receiver.exchange
        if asked is not None and asked.req.method == "HEAD":  # RFC 9110 section 9.3.2
            head, end, _ = page.partition(b"\r\n\r\n")
            page = head + end
        self.output.write(page)

    def hijack(self) -> socket.socket:
        """Hand the socket to the app; what is queued goes out first."""
        if not self.hijacked:
            self.hijacked = True
            self._core.registry.unwatch(self)
            self.output.flush()
            self.sock.setblocking(True)
        return self.sock

    def app_is_done(self) -> None:
        """The app has done what it will: finish now, or leave it to whoever sends the last byte."""
        if self.output.may_hold_blocks():
            self.output.flush()
        # Under the lock: whoever sends at a tick may have taken what waited, and not queued it yet.
        self._finish_when_sent(ANSWERED)

    # Ends

    def refuse(self, error: Exception) -> None:
        """Answer a request that will not run, or what is none; then close."""
        self.move(REFUSED)
        self._core.refuse(self, self._receiver.exchange, error)
        self._receiver.close()
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
        now = time.monotonic()
        if exchange is not None:
            self._core.on_sent(self, exchange, now)
            self._receiver.exchange = None
            error = self.output.error
            if error is None:
                stays = self._can_stay(exchange)
            elif isinstance(error, FileTruncated):
                self._core.log.warning("Cutting off %s: %s", exchange.req.uri, error)
            if exchange.body is not None:
                exchange.body.close()
        if not stays:
            self.leave()
            return
        self.output.reset()
        self.deadline = now + self._core.keepalive_s()
        if exchange is None or exchange.streamed is None:
            self._stay()
            return
        self.deadline = min(self.deadline, now + self._core.options.body_timeout_s)
        self._unread = exchange.streamed
        self.move(SKIPS)
        self._skip(0)

    def _skip(self, events: int) -> None:
        """Go on to the request behind a body that the app has not read, or wait for its end.

        A client that has been promised another request would lose what it sends of it.
        """
        body = self._unread
        assert body is not None
        rest = body.skip()
        if rest is not None:
            self._unread = None
            self._receiver.rest = rest
            self.deadline = time.monotonic() + self._core.keepalive_s()
            self._stay()
        elif body.failure is None:
            self.wait(READ)
        else:
            self.leave()

    def _stay(self) -> None:
        """Wait for the next request."""
        self.move(STAYS)
        # No event will come for what is here already: a pipelined request.
        if self._receiver.rest or (self._tls is not None and self.has_more_in_tls()):
            self._core.resume(self)
        else:
            self._wait_to_receive()

    def _can_stay(self, exchange: Exchange) -> bool:
        """Whether the connection can have a request after this one."""
        return not (self.hijacked or exchange.resp is None or exchange.resp.should_close())

    def _drop_request(self) -> None:
        self.exchange = self._unread = None
        self._receiver.close()

    def _time_out(self) -> None:
        self.refuse(RequestError(408, "The request did not come in time"))

    def _stall(self) -> None:
        self.output.fail(TimeoutError("the client took no byte in time"))
        if self.state is SENDING:  # else the app's thread closes it
            self._finish()


_ON_EVENT: dict[str, Callable[[Connection, int], Channel | None]] = {
    HANDSHAKE: Connection._shake_hands,
    IDLE: Connection._receive,
    RECEIVING: Connection._receive,
    RUNNING: Connection._send,
    SENDING: Connection._send,
    SKIPPING: Connection._skip,
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
    SKIPPING: "body",
}
_ON_OVERDUE: dict[str, Callable[[Connection], None]] = {
    HANDSHAKE: Connection.close,
    IDLE: Connection.close,
    RECEIVING: Connection._time_out,
    RUNNING: Connection._stall,
    SENDING: Connection._stall,
    SKIPPING: Connection.leave,
    STREAMS: Connection._on_overdue_streams,
    LINGERING: Connection.close,
    CLOSED: Connection.close,
}
