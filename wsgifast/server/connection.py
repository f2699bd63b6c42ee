"""One client connection: its states, and what each event does.

Theory of operation
-------------------
    HANDSHAKE  TLS is being agreed on
    HEAD       waiting for a request, or in the middle of its head; idle keep-alive is this too
    BODY       a head has been parsed, its body is being received
    RUNNING    the app has the request, or its thread is waiting in `work`
    SENDING    the app is done; the output queue goes on by itself
    LINGERING  the last response is sent; waiting for the client to close (RFC 9112 section 9.6)
    CLOSED

A connection that waits is in the registry, where an event or the sweep of overdue connections
claims it (see registry.py). Whoever has it runs :meth:`Connection.on_event` and either lets it wait
again, closes it, or returns it as ready to run. During RUNNING it belongs to the app's thread; only
if its output queue drains meanwhile does it wait too, and then the event does nothing but send
(under the queue's lock). The socket is closed by its owner only, never while the app's thread may
use it.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from gunicorn import util
from gunicorn.http.body import LengthReader
from gunicorn.http.errors import LimitRequestHeaders
from gunicorn.http.wsgi import proxy_environ

from ..sockets.sendfile import FileTruncated
from .exchange import AppSocket, ErrorSocket, Exchange
from .output import ClientGone, OutputQueue
from .poller import READ, WRITE
from .request_body import (
    BodyTooLarge,
    Collector,
    NeedMoreData,
    Received,
    collector_for,
    receive_available,
)
from .streamed_body import drain, receive_blocking
from .transport import WOULD_BLOCK

if TYPE_CHECKING:
    from ..workers.worker import FastWorker

__all__ = ["LINGER_S", "Connection"]

HANDSHAKE, HEAD, BODY, RUNNING, SENDING, LINGERING, CLOSED = range(7)

# One receive of a head: more than any usual head has; pipelined ones come in fewer calls. Never
# less than a TLS record (RFC 8446 section 5.1): no event would tell of what it leaves in there.
_RECEIVE_BYTES = 16 * 1024
# An incomplete head is shown to the parser again after so many more bytes, so that a head over the
# limits is refused while it comes.
_HEAD_STEP_BYTES = 4 * 1024
# What is read and thrown away of a client that goes on sending after our last word, and for how
# long it may take to close the connection.
_LINGER_BYTES = 64 * 1024
LINGER_S = 2.0
# Apache's rule against bodies that drip (mod_reqtimeout, MinRate): each so many bytes give the
# client one more second.
_BODY_BYTES_PER_S = 500.0

# A block that comes so soon after the one before waits for more, until the next tick at most.
_COALESCE_S = 0.0005

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Connection:
    """One accepted connection; made by the thread that accepted it."""

    __slots__ = (
        "_attempted",
        "_collector",
        "_discarded",
        "_last_block",
        "_part",
        "_proxy",
        "_requests",
        "_settings",
        "_started",
        "address",
        "deadline",
        "exchange",
        "fd",
        "hijacked",
        "http2",
        "known",
        "output",
        "peer",
        "received",
        "retries",
        "server",
        "sock",
        "state",
        "upgrade_settings",
    )

    def __init__(self, server: FastWorker, sock: socket.socket, peer: Any, address: Any) -> None:
        self.server = server
        self.sock = sock
        self.fd = sock.fileno()
        self.peer = peer
        self.address = address
        self.received = Received()
        self.exchange: Exchange | None = None
        self.hijacked = False
        self.http2 = False
        self.upgrade_settings: Any = None
        self.state = HANDSHAKE if server.settings.is_ssl else HEAD
        self.retries = False  # its output is tried again by the next sweep
        # When the sweep may end it; monotonic.
        self.deadline = time.monotonic() + server.head_timeout_s
        self.output = OutputQueue(sock, self, server.output_rules)
        self._settings = (
            server.trusted_settings if server.settings.trusts(peer) else server.settings
        )
        self.known = False  # whether the poller knows the descriptor
        self._attempted = 0  # bytes of an incomplete head that the parser has seen
        self._requests = 0
        self._part: dict[str, Any] | None = None
        self._proxy: dict[str, Any] | None = None
        self._collector: Collector | None = None
        self._started = False  # the client has begun a head
        self._last_block = 0.0  # when the app handed its last block over

    @property
    def error_socket(self) -> ErrorSocket:
        return ErrorSocket(self)

    def begin(self) -> None:
        """Wait for the first event; the connection is registered with its server."""
        self.wait(READ)

    def is_idle(self) -> bool:
        """Whether it is kept alive, and no request has begun."""
        return self.state == HEAD and not self._started

    # Waiting

    def wait(self, events: int) -> None:
        """Give the connection up until an event; nothing of it may be touched afterwards."""
        try:
            self._register(events)
        except (OSError, ValueError) as error:
            self.output.fail(error)
            if self.state != RUNNING:
                self.close()

    def _register(self, events: int) -> None:
        """Wait for an event.

        :raises OSError, ValueError: if the kernel cannot watch the descriptor; the connection is
            still the caller's then.
        """
        self.server.registry.wait(self, events)

    def wait_to_send(self, deadline: float, *, retry: bool) -> None:
        """Have the output queue go on when the socket is writable; see OutputOwner."""
        self.deadline = deadline
        self.retries = retry
        self._register(0 if retry else WRITE)

    def resume_sending(self) -> None:
        """Have the output queue go on soon; see OutputOwner."""
        self.server.resume(self)

    def send_held(self) -> bool:
        """Send what was held back, unless another thread is sending; the monitor's tick."""
        return self.output.flush(wait=False)

    def retry(self) -> None:
        """Wait for writability after all; the sweep owns it."""
        self.retries = False
        self.wait(WRITE)

    # Events. Each returns whether the connection is ready to run.

    def on_event(self, events: int) -> bool:
        """Do what an event calls for; the caller owns the connection.

        :param events: 0 for a connection that has something buffered, as after pipelining.
        """
        state = self.state
        if state == HEAD:
            return self._on_head(events)
        if state == BODY:
            return self._on_body()
        if state in (RUNNING, SENDING):
            self._on_writable()
            return False
        if state == HANDSHAKE:
            return self._on_handshake()
        if state == LINGERING:
            self._on_linger()
        return False

    def on_overdue(self) -> None:
        """End a connection whose time is over; the sweep owns it."""
        state = self.state
        if state == RUNNING:  # its output stalls; the app's thread closes it
            self.output.fail(TimeoutError("the client took no byte in time"))
        elif state == SENDING:
            self.output.fail(TimeoutError("the client took no byte in time"))
            self.finish()
        elif state == BODY or (state == HEAD and self._started):
            self.refuse(408, "Request Timeout", "The request did not come in time")
        else:
            self.close()

    def _on_handshake(self) -> bool:
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
            self.server.log.debug("TLS handshake failed: %s", error)
            self.close()
            return False
        self.state = HEAD
        if sock.selected_alpn_protocol() == "h2":
            return self._become_http2()
        return self._on_head(READ)

    def _become_http2(self) -> bool:
        self.http2 = True
        self.state = RUNNING
        return True

    def _on_head(self, events: int) -> bool:
        received = self.received
        if events:
            try:
                data = self.sock.recv(_RECEIVE_BYTES)
            except WOULD_BLOCK:
                self.wait(READ)
                return False
            except OSError as error:
                self.server.log.debug("Ignoring a lost connection: %s", error)
                self.close()
                return False
            if not data:
                self.close()
                return False
            received.data = data = received.data + data if received.data else data
        else:
            data = received.data
        if not self._started:
            self._started = True
            self.deadline = time.monotonic() + self.server.head_timeout_s
        if not self._may_be_complete(data):
            self.wait(READ)
            return False
        if self._requests == 0 and self.server.http2.prior_knowledge is not None:
            matched = self.server.http2.prior_knowledge(self, data)
            if matched is not None:
                return matched and self._become_http2()
        return self._parse(data)

    def _tls_rest(self) -> bytes:
        """What TLS has decrypted already: no event would tell of it."""
        sock = self.sock
        assert isinstance(sock, ssl.SSLSocket)
        pending = sock.pending()  # of one record; the next one is an event
        return sock.recv(pending) if pending else b""

    def _may_be_complete(self, data: bytes) -> bool:
        if data.endswith(b"\r\n\r\n") or b"\r\n\r\n" in data or self.server.settings.uses_uwsgi:
            return True
        if len(data) - self._attempted >= _HEAD_STEP_BYTES:
            self._attempted = len(data)
            return True
        if self.server.http2.prior_knowledge is not None and self._requests == 0:
            return True
        # A bare LF ends no line (RFC 9112 section 2.2): the parser refuses it at once.
        return data.count(b"\n") != data.count(b"\r\n")

    def _parse(self, data: bytes) -> bool:
        server = self.server
        try:
            req = server.request_class(self._settings, self.received, self.peer, self._requests + 1)
        except NeedMoreData:
            self.received.data = data
            if len(data) > server.head_limit:
                self.reject(LimitRequestHeaders("max buffer headers"))
            else:
                self.wait(READ)
            return False
        except Exception as error:  # noqa: BLE001 - gunicorn answers each in its own way
            self.reject(error)
            return False
        self._requests += 1
        self._started = False
        self._attempted = 0
        self.exchange = exchange = Exchange(req)
        if self._requests == 1 and getattr(req, "proxy_protocol_info", None):
            # It speaks of the connection, so of every request on it.
            self._proxy = {k: v for k, v in proxy_environ(req).items() if v not in (None, "None")}
        if server.http2.upgrade is not None:
            self.upgrade_settings = server.http2.upgrade(self, req)
        self.state = RUNNING
        reader = req.body.reader
        if type(reader) is LengthReader and reader.length == 0:
            return True
        if not server.buffer_bodies or self.upgrade_settings is not None:
            self._stream_body(req)
            return True
        return self._begin_body(exchange, reader)

    def _begin_body(self, exchange: Exchange, reader: Any) -> bool:
        server = self.server
        try:
            collector = collector_for(
                reader, self.received, server.body_memory_bytes, server.body_limit_bytes
            )
        except BodyTooLarge:
            self._refuse_body()
            return False
        self._collector = collector
        self.state = BODY
        self.deadline = time.monotonic() + server.body_timeout_s
        return self._collect(collector.begin, ask=exchange.req._expected_100_continue)

    def _on_body(self) -> bool:
        if self.output.draining:  # "100 Continue" goes first
            self.output.on_writable()
            if self.output.draining:
                return False
        assert self._collector is not None
        return self._collect(partial(receive_available, self._collector, self.sock))

    def _collect(self, step: Callable[[], bool], ask: bool = False) -> bool:
        """Take more of the body in, and wait for the rest; returns whether it is whole.

        :param ask: whether the client waits for "100 Continue".
        """
        exchange = self.exchange
        collector = self._collector
        assert exchange is not None
        assert collector is not None
        before = collector.received
        try:
            if step():
                exchange.body = collector.open()
                self._collector = None
                self.state = RUNNING
                return True
            if ask:
                self.output.write(_CONTINUE)
                if self.output.draining:
                    # Written under the queue's own event; the body is asked for after that.
                    return False
        except WOULD_BLOCK:
            pass
        except (EOFError, ConnectionError) as error:
            self.server.log.debug("The client has gone in the middle of its body: %s", error)
            self.close()
            return False
        except BodyTooLarge:
            self._refuse_body()
            return False
        except Exception as error:  # noqa: BLE001 - malformed chunks; a full disk
            self.reject(error, exchange.req)
            return False
        if collector.received > before:
            timeout = self.server.body_timeout_s
            self.deadline = min(
                time.monotonic() + timeout,
                exchange.started + timeout + collector.received / _BODY_BYTES_PER_S,
            )
        self.wait(READ)
        return False

    def _refuse_body(self) -> None:
        self.refuse(413, "Content Too Large", "The request body is too large")

    def _stream_body(self, req: Any) -> None:
        """Let the app's thread read the body from the client, and wait for it."""
        if req._expected_100_continue and not self.received.data:
            try:
                self.output.write(_CONTINUE)
            except ClientGone:
                pass  # the first read will tell
        self.received.wait = self._receive_for_app

    def _receive_for_app(self, wanted: int) -> bytes:
        timeout_s = self.server.body_timeout_s
        return receive_blocking(self.sock, self.output.lock, wanted, timeout_s)

    def _on_writable(self) -> None:
        if self.output.on_writable():
            self.finish()

    # The app's thread.

    def environ(self, exchange: Exchange) -> dict[str, Any]:
        """The environ of a request of this connection."""
        factory = self.server.environs
        if self._part is None:
            self._part = factory.for_connection(AppSocket(self), self.peer, self.address)
        return factory.for_request(self._part, exchange.req, exchange.body, self._proxy)

    def write_more(self, block: bytes) -> None:
        """Send a block that others may follow at once."""
        server = self.server
        now = time.monotonic()
        behind = now - self._last_block < _COALESCE_S
        self._last_block = now
        if self.output.write(block, coalesce=behind and server.pool.ticking):
            server.registry.hold(self)
            # The monitor may have stopped ticking meanwhile; nobody else would send it then.
            if not server.pool.ticking:
                self.output.flush()

    def hijack(self) -> socket.socket:
        """Hand the socket to the app; what is queued goes out first."""
        if not self.hijacked:
            self.hijacked = True
            self.output.flush()
            self.sock.setblocking(True)
        return self.sock

    def app_is_done(self) -> None:
        """End of RUNNING: finish now, or leave it to whoever sends the last byte."""
        output = self.output
        self.server.registry.unhold(self)
        output.flush()
        with output.lock:
            self.state = SENDING
            if output.draining:
                output.closing = True
                return
        self.finish()

    def finish(self) -> None:
        """The response has been sent, or never will be: log it, and go on or close."""
        output = self.output
        exchange, self.exchange = self.exchange, None
        stays = False
        if exchange is not None:
            self.server.application.log_exchange(self, exchange)
            if isinstance(output.error, FileTruncated):
                self.server.log.warning("Cutting off %s: %s", exchange.req.uri, output.error)
            stays = self._can_stay(exchange)
            self.received.wait = None
            if exchange.body is not exchange.req.body:
                exchange.body.close()
        if not stays:
            self.close_gracefully()
            return
        output.reset()
        self.state = HEAD
        self.deadline = time.monotonic() + self.server.keepalive_s()
        if self.server.settings.is_ssl:
            # The record that ended the body may have brought the next request's head too.
            self.received.data += self._tls_rest()
        if self.received.data:
            # Pipelined: no event will come for what is here already.
            self.server.resume(self)
        else:
            self.wait(READ)

    def _can_stay(self, exchange: Exchange) -> bool:
        """Whether the connection can have a request after this one."""
        if self.output.error is not None or self.hijacked:
            return False
        resp = exchange.resp
        if resp is None or resp.should_close():
            return False
        return self.received.wait is None or drain(exchange.req.body, self.received, self.sock)

    # Ends

    def reject(self, error: Exception, req: Any = None) -> None:
        """Let gunicorn answer an error in a request, or what cannot be one; then close."""
        self.state = SENDING
        self._abandon()
        self.server.answer_error(self, req, error)
        self._close_after_output()

    def refuse(self, status: int, reason: str, message: str) -> None:
        """Answer a request that will not run; then close."""
        self.state = SENDING
        exchange = self.exchange
        self._abandon()
        try:
            util.write_error(self.error_socket, status, reason, message)
        except Exception as error:  # noqa: BLE001 - it has gone already
            self.server.log.debug("Failed to send error message: %s", error)
        if exchange is not None:
            self.server.application.log_refusal(self, exchange, f"{status} {reason}")
        self._close_after_output()

    def _abandon(self) -> None:
        self.exchange = None
        if self._collector is not None:
            self._collector.close()
            self._collector = None

    def _close_after_output(self) -> None:
        with self.output.lock:
            if self.output.draining:
                self.output.closing = True
                return
        self.close_gracefully()

    def close_gracefully(self) -> None:
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
                self._send_close_notify(sock)
            sock.shutdown(socket.SHUT_WR)
        except (OSError, ValueError):
            self.close()
            return
        self.state = LINGERING
        self.deadline = time.monotonic() + LINGER_S
        self._discarded = 0
        self._on_linger()

    def _send_close_notify(self, sock: ssl.SSLSocket) -> None:
        """Tell the peer that the end is no truncation (RFC 8446 section 6.1); do not wait."""
        try:
            sock.unwrap()
        except (OSError, ValueError):
            pass

    def _on_linger(self) -> None:
        try:
            # Below TLS, if there is any: nobody looks at what comes now.
            while data := socket.socket.recv(self.sock, _LINGER_BYTES):
                self._discarded += len(data)
                if self._discarded >= _LINGER_BYTES:
                    break
        except WOULD_BLOCK:
            self.wait(READ)
            return
        except (OSError, ValueError):
            pass
        self.close()

    def close(self) -> None:
        """Close at once; only for the owner, and never while the app runs."""
        if self.state == CLOSED:
            return
        self.state = CLOSED
        server = self.server
        self._abandon()
        self.output.close()
        self._part = None
        server.registry.forget(self)
        try:
            self.sock.close()
        except OSError:
            pass
        server.registry.remove(self)
