"""One client connection, and its steps after an event or a deadline in each of its states.

Theory of operation
-------------------
endpoint.py defines the states and their possible next states. :data:`_STEPS` defines the step of
each state. A waiting connection is in the registry. An event or the sweep claims the connection,
and makes one thread its owner (endpoint.py). The owner calls :meth:`Connection.on_event`. This
method makes the connection wait again, closes the connection, or returns it if its app can run now.
After HTTP/2 was negotiated, an HTTP2Connection replaces the connection (http2/connection.py).

While the app runs, the app's thread is the owner. If the output queue waits for the client
meanwhile, the connection is also in the registry. The thread that gets the next event then only
sends bytes, with the queue's lock. Only the owner closes the socket, and never while the app may
use the socket.

Other objects do the remaining work. The receiver parses received bytes and has no socket. The
output queue sends. The base class Endpoint waits and closes.
"""

from __future__ import annotations

import contextlib
import io
import socket
import ssl
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from ..errors import ClientGone, RequestError
from ..server_options import MIN_BYTES_PER_S
from ..sockets.client_limits import ClientWait
from .application import Application
from .channel import Channel, ErrorPage
from .endpoint import (
    CLOSED,
    HANDSHAKE,
    IDLE,
    LINGERING,
    RECEIVING,
    RECEIVING_HEAD,
    RUNNING,
    SENDING,
    SKIPPING,
    STREAMS,
    Endpoint,
    Registry,
)
from .output import OutputQueue
from .output_rules import OutputRules
from .poller import READ, WOULD_BLOCK, WRITE
from .pool import Job
from .receiving import COMPLETE, HTTP2, WANTS_CONTINUE, Exchange, Receiver
from .response import Response
from .sending import SocketSender
from .streamed_body import StreamedBody

# The deadline of an idle connection that was overdue but had unread data. The connection receives
# once more before it is closed.
_LAST_TURN = 0.0
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
# The errors if the peer closes during the handshake. Versions of Python and OpenSSL differ.
_HANDSHAKE_DISCONNECTS = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
# An alert that reports no error (RFC 8446 section 6.1).
_CANCELLED = "USER_CANCELLED"


class Connection(Endpoint, Channel):
    """One accepted HTTP/1 connection. It is a channel, like an HTTP/2 stream.

    :param sock: a non-blocking socket. With TLS, the handshake has not begun.
    :param peer: the client's address as returned by accept().
    :param address: the listener's address.
    :param receiver: parses the requests.
    :ivar exchange: the current request and its response.
    :ivar hijacked: whether the app has taken over the socket.
    """

    __slots__ = ("_application", "_receiver", "_unread", "exchange", "hijacked")

    response_class = Response

    def __init__(
        self,
        registry: Registry,
        application: Application,
        rules: OutputRules,
        sock: socket.socket,
        peer: Any,
        address: Any,
        receiver: Receiver,
    ) -> None:
        secure = isinstance(sock, ssl.SSLSocket)
        super().__init__(registry, sock, peer, address, HANDSHAKE if secure else IDLE)
        self.output = OutputQueue(SocketSender(sock, rules), self, rules)
        self.exchange: Exchange | None = None
        self.hijacked = False
        self._application = application
        self._receiver = receiver
        self._unread: StreamedBody | None = None  # a body whose unread bytes are discarded

    def outputs(self) -> list[tuple[OutputQueue, Exchange | None]]:
        return [(self.output, self.exchange)]

    # Events

    def on_event(self, events: int) -> Job | None:
        return _STEPS[self.state][0](self, events)

    def on_overdue(self) -> None:
        """End a connection that is past its deadline. The sweep owns it.

        An idle connection stays open if a busy server has not read its next request yet. If the
        connection were closed, the client would not know whether its request was processed (RFC
        9110 section 9.2.2).
        """
        if self.state is IDLE and self.deadline != _LAST_TURN and self.peek():
            self.deadline = _LAST_TURN
            self.registry.resume(self)
            return
        _, end, timeout_label = _STEPS[self.state]
        if self.state is IDLE and not self._receiver.number:
            timeout_label = "head"
        if timeout_label:
            self.shared.counters.timeouts[timeout_label] += 1
        end(self)

    def _shake_hands(self, events: int) -> Channel | None:
        assert self._tls is not None
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self.wait(READ)
        except ssl.SSLWantWriteError:
            self.wait(WRITE)
        except (OSError, ValueError) as error:
            if isinstance(error, ssl.SSLError) and not _has_left(error):
                ip = self.peer[0] if isinstance(self.peer, tuple) else ""
                self.shared.log.warning("Invalid request from ip=%s: %s", ip, error)
                self.registry.on_handshake_end(self)
                self.linger()  # so that the client receives OpenSSL's alert
            else:
                self.shared.log.debug("The client has left in the TLS handshake: %s", error)
                self.close()
        else:
            self.state = IDLE
            self.registry.on_handshake_end(self)
            is_http2 = self._tls.selected_alpn_protocol() == "h2"
            return self._speak_http2() if is_http2 else self._receive(READ)
        return None

    def _receive_body(self, events: int) -> Channel | None:
        """Receive more of a body. If a temporary file may be written, a disk thread does it."""
        step = partial(self._receive, events)
        is_passed_on = self._receiver.may_need_disk() and self.registry.wait_for_disk(self, step)
        return None if is_passed_on else step()

    def _receive(self, events: int) -> Channel | None:
        output = self.output
        if output.is_waiting:  # "100 Continue" must be sent first
            output.on_writable()
            if self.output.is_waiting:
                return None
            events = 0
        receiver = self._receiver
        data = b""
        if events or not receiver.has_more_to_do():
            try:
                data = self.sock.recv(receiver.receive_limit)
            except WOULD_BLOCK:
                self.wait(READ)
                return None
            except OSError as error:
                self.shared.log.debug("Ignoring a lost connection: %s", error)
            if not data:
                self.close()
                return None
        try:
            step = receiver.feed(data)
        except Exception as error:  # noqa: BLE001 - refuse() responds to any error
            self.refuse(error)
            return None
        if step is COMPLETE:
            self.exchange = exchange = receiver.exchange
            assert exchange is not None
            self.state = RUNNING
            if exchange.body is None:
                self._stream_body(exchange)
            probes = self._application.probes
            if probes.paths and exchange.req.path in probes.paths and probes.answer(self):
                return None
            return self
        if step is HTTP2:
            return self._speak_http2()
        if self.state is IDLE:
            self.state = RECEIVING_HEAD
            self.deadline = time.monotonic() + self.shared.options.head_timeout_s
        if step is WANTS_CONTINUE:
            self._send_continue()
        if receiver.exchange is not None:
            self.state = RECEIVING
            if output.is_waiting:
                return None  # when "100 Continue" was sent, this method continues
            self.deadline = receiver.deadline(time.monotonic())
        # An event reports only bytes that are still in the socket.
        if receiver.has_more_to_do() or self.has_more_in_tls():
            self.registry.resume(self)
        else:
            self.wait(READ)
        return None

    def _await_request(self) -> None:
        """Wait for the next request, or continue at once if its first bytes have been received."""
        self.state = IDLE
        if self._receiver.unparsed or (self._tls is not None and self.has_more_in_tls()):
            self.registry.resume(self)
        else:
            self.wait(READ)

    def _send_continue(self) -> None:
        """Send "100 Continue". The next receive, or the app's first read, reports a lost client."""
        with contextlib.suppress(ClientGone):
            self.output.write(_CONTINUE)

    def _stream_body(self, exchange: Exchange) -> None:
        """Make a `wsgi.input` that reads the body from the socket in the app's thread."""
        receiver = self._receiver
        exchange.streamed = streamed = StreamedBody(
            self.sock,
            self.output.lock,
            receiver.decoder(exchange.length),
            receiver.add_trailers,
            exchange.unparsed,
            ClientWait(self.shared.options.body_timeout_s, MIN_BYTES_PER_S),
        )
        exchange.body = io.BufferedReader(streamed)
        if exchange.expects_continue and not exchange.unparsed:
            self._send_continue()

    def _send(self, events: int) -> None:
        if self.output.on_writable():
            self.finish()

    def _speak_http2(self) -> Channel | None:
        """Replace this connection by an HTTP/2 connection, which gets the received bytes."""
        self.state = STREAMS
        receiver = self._receiver
        return self.registry.begin_http2(self, receiver.parser, receiver.unparsed)

    # The app's thread

    def begin_app(self) -> bool:
        """Return True: an HTTP/1 client is waiting for its response."""
        return True

    def has_left(self) -> bool:
        """Return whether the client has closed the connection or its sending side."""
        return self.peek() == b""

    def end_early(self, error: Exception, page: ErrorPage | None) -> None:
        self.output.replace(b"" if page is None else _encoded(page), error)
        with contextlib.suppress(OSError):
            # SSLSocket's own method is not thread-safe: another thread may use its TLS object.
            socket.socket.shutdown(self.sock, socket.SHUT_WR if page else socket.SHUT_RDWR)

    def _is_head(self) -> bool:
        exchange = self._receiver.exchange
        return exchange is not None and exchange.req.method == "HEAD"

    def _write_error(self, page: ErrorPage) -> bool:
        self.output.write(_encoded(page))
        return True

    def connection(self) -> Connection:
        """Return this connection."""
        return self

    def hijack(self) -> socket.socket:
        """Let the app take over the socket, after all queued output was sent."""
        if not self.hijacked:
            self.hijacked = True
            self.output.wait_until_sent()
            self.sock.setblocking(True)
        return self.sock

    # The end of a request or of the connection.

    def refuse(self, error: Exception) -> None:
        """Respond to a malformed or refused request, then close the connection."""
        self.state = SENDING
        self._application.refuse(self, self._receiver.exchange, error)
        self._receiver.close()
        self.finish_when_sent()

    def finish(self) -> None:
        """Finish the exchange. Then wait for the next request, or end the connection."""
        exchange, self.exchange = self.exchange, None
        output = self.output
        now = time.monotonic()
        may_persist = False
        if exchange is not None:
            self._application.end_exchange(output, exchange, now)
            self._receiver.exchange = None
            if output.error is None:
                resp = exchange.resp
                may_persist = not (self.hijacked or resp is None or resp.must_close or resp.closes)
        if not may_persist:
            self.linger()
            return
        if output.delayed is not None or output.backlog is not None:
            output.reset()
        self.deadline = now + self.shared.keepalive_s
        if exchange is None or exchange.streamed is None:
            self._await_request()
            return
        self.deadline = min(self.deadline, now + self.shared.options.body_timeout_s)
        self._unread = exchange.streamed
        self.state = SKIPPING
        self._discard_body(0)

    def _discard_body(self, events: int) -> None:
        """Discard the unread bytes of a body, then wait for the next request.

        The response has announced a persistent connection. If the connection were closed now, the
        client's next request could be lost.
        """
        body = self._unread
        assert body is not None
        unparsed = body.skip()
        if unparsed is not None:
            self._unread = None
            self._receiver.unparsed = unparsed
            self.deadline = time.monotonic() + self.shared.keepalive_s
            self._await_request()
        elif body.failure is None:
            self.wait(READ)
        else:
            self.linger()

    def _drop_requests(self) -> bool:
        if self.state is HANDSHAKE:
            self.registry.on_handshake_end(self)
        exchange, self.exchange = self.exchange, None
        self._unread = None
        if exchange is not None and exchange.schedule_close is not None:
            exchange.schedule_close()
        self._receiver.close()
        return True

    def _on_receive_timeout(self) -> None:
        self.refuse(RequestError(408, "The request did not arrive in time"))

    def _on_send_timeout(self) -> None:
        self.output.fail(TimeoutError("the client accepted no bytes in time"))
        if self.state is SENDING:  # in another state, the app's thread finishes
            self.finish()


def _encoded(page: ErrorPage) -> bytes:
    lines = "".join([f"{name}: {value}\r\n" for name, value in page.headers])
    headers = f"HTTP/1.1 {page.status} {page.reason}\r\nConnection: close\r\n{lines}\r\n"
    return headers.encode("latin-1") + page.body


def _has_left(error: ssl.SSLError) -> bool:
    """Return whether a handshake failed because the client left, not because of wrong bytes."""
    return isinstance(error, _HANDSHAKE_DISCONNECTS) or _CANCELLED in (error.reason or "")


# For each state: the step after an event, the step after the deadline, and the label of the timeout
# in the counter of timeouts.
_STEPS: dict[str, tuple[Callable[[Any, int], Any], Callable[[Any], object], str]] = {
    HANDSHAKE: (Connection._shake_hands, Connection.close, "handshake"),
    IDLE: (Connection._receive, Connection.close, "keepalive"),
    RECEIVING_HEAD: (Connection._receive, Connection._on_receive_timeout, "head"),
    RECEIVING: (Connection._receive_body, Connection._on_receive_timeout, "body"),
    RUNNING: (Connection._send, Connection._on_send_timeout, "send"),
    SENDING: (Connection._send, Connection._on_send_timeout, "send"),
    SKIPPING: (Connection._discard_body, Connection.linger, "body"),
    LINGERING: (Connection._discard, Connection.close, ""),
    CLOSED: (lambda connection, events: None, Connection.close, ""),
}
