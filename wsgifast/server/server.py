"""The server makes its parts, connects them, starts them and ends them.

It owns the registry, the pool, the poller, the acceptor and the output rules. The application
serves the requests. The caller of :meth:`Server.serve` handles signals and the process.
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..errors import ClientGone
from ..sockets.client_limits import ConnectionsByAddress
from ..sockets.closing import LINGER_S
from .acceptor import Acceptor
from .application import Application
from .channel import Channel
from .connection import Connection
from .deadlines import Deadlines, Shedding
from .endpoint import Endpoint, Registry
from .monitor import Watchdog
from .output_rules import OutputRules
from .poller import HUNG_UP, Event, make_poller
from .pool import Pool, Task
from .receiving import Parser, Receiver

# The maximum time between two calls of `beat`, and between two checks of deadlines.
_ROUND_S = 1.0
# The same maximum while the server ends.
_LAST_ROUND_S = 0.05
# All clients are disconnected before the end of the graceful timeout, so that bodies can be closed.
# The time for this is this share of the timeout, but at most _CLOSING_S.
_CLOSING_SHARE = 0.1
_CLOSING_S = 1.0


@dataclass(eq=False, repr=False)
class Server:
    """Serves an application on some listeners.

    :param listeners: they become non-blocking. The caller closes them.
    :param parser_for: returns the parser for a peer's address.
    :param is_proxy: returns whether an IP address is a trusted proxy's.
    :param secure: wraps an accepted socket for TLS, without a handshake. None without TLS.
    :ivar shared: the application's shared data, which all parts use.
    :ivar connections: the open connections.
    """

    application: Application
    listeners: Sequence[socket.socket]
    parser_for: Callable[[Any], Parser]
    is_proxy: Callable[[str], bool]
    secure: Callable[[socket.socket], socket.socket] | None
    _end_at: float = math.inf  # monotonic
    _killed: bool = False
    _sweep_pushed: bool = False

    def __post_init__(self) -> None:
        application = self.application
        self.shared = shared = application.shared
        self._options, self.log = options, log = shared.options, shared.log
        self._by_address = ConnectionsByAddress(
            options.connections_per_address, self.is_proxy, log.warning
        )
        # Connections may stay open after a response, if at most `_max_persistent` are open.
        self._max_persistent = options.max_keepalived if options.keepalive_s > 0 else 0
        self.poller = make_poller()
        self.pool = Pool(
            size=options.threads,
            poller=self.poller,
            log=log,
            receive=self.receive,
            run=self.run,
            on_tick=lambda: self.output_rules.tick(),
            on_queued=self.on_queued,
            on_dequeued=self.on_dequeued,
            on_saturation=lambda: self.acceptor.update(),
        )
        monitor = self.pool.monitor
        self.output_rules = OutputRules(
            shared, share_work=self.pool.share_work, request_tick=monitor.request_tick
        )
        disk = self.output_rules.disk
        self.registry = Registry(
            shared=shared,
            poller=self.poller,
            defer=self.pool.defer,
            push_first=partial(self.pool.push, after=0),
            submit=disk.submit_temporary,
            on_closed=self._on_closed,
            on_handshake_end=lambda connection: self.acceptor.on_handshake_end(connection),
            begin_http2=self._begin_http2,
        )
        self.connections = self.registry.connections
        self._waiting = self.registry.waiting
        self.acceptor = Acceptor(
            shared=shared,
            poller=self.poller,
            listeners=self.listeners,
            connections=self.connections,
            may_accept=self._may_accept,
            connect=self.connect,
            push=self.pool.push,
        )
        self._watchdog = Watchdog(shared, self.pool.members, self.kill)
        application.on_max_requests = monitor.interrupt  # so that `beat` is called
        application.write_late = disk.write_line
        application.postpone = self.pool.postpone
        self._deadlines = Deadlines(shared, self.pool.members, application.time_out, self.kill)
        self._shedding = Shedding(shared)
        self._sheds = options.queue_timeout_s < math.inf

    # Start and end. The main thread calls these methods.

    @property
    def end(self) -> str:
        """Why the server ended: "failed" (an internal error), "stuck" or "stopped"."""
        if self.pool.failed:
            return "failed"
        return "stuck" if self._killed else "stopped"

    @property
    def accepts(self) -> bool:
        """Return whether the server accepts connections: it is not ending, and below its limit."""
        below_limit = len(self.connections) < self._options.worker_connections
        return below_limit and not self.shared.is_draining

    def serve(self, beat: Callable[[], bool]) -> None:
        """Serve until :meth:`stop` is called.

        :param beat: called at least every second. It must not block. If it returns False, the
            server ends.
        """
        self.pool.start()
        while not self.shared.is_ending and not self.pool.failed and beat():
            self._sweep_soon()
            if self.shared.is_draining:
                self._send_goaways(time.monotonic())
            self.pool.monitor.watch(min(_ROUND_S, self._deadlines.check(time.monotonic())))

    def finish(self, beat: Callable[[], object]) -> None:
        """Wait for requests within the time passed to :meth:`stop`.

        Then drop the unfinished requests.

        :param beat: see :meth:`serve`.
        """
        if not self.shared.is_ending:
            self.stop()
        # A client may just be sending a request on an idle connection. So idle connections stay
        # open for a short time. The server responds to such a request with "Connection: close" (RFC
        # 9112 section 9.6).
        self.registry.cap_deadlines(time.monotonic() + LINGER_S, Endpoint.is_idle)
        cut_off_s = min(self._options.graceful_timeout_s * _CLOSING_SHARE, _CLOSING_S)
        self._end(beat, self._is_unfinished, cut_off_s=cut_off_s)

    def end_now(self, beat: Callable[[], object]) -> None:
        """End without waiting for apps. Wait only until postponed close() calls have finished.

        :param beat: see :meth:`serve`.
        """
        self.stop()
        self._end(beat, lambda: False, cut_off_s=self._options.graceful_timeout_s)

    def _end(
        self, beat: Callable[[], object], is_unfinished: Callable[[], bool], *, cut_off_s: float
    ) -> None:
        """Wait for unfinished requests and for the close() of bodies, then end the threads.

        :param cut_off_s: all clients are disconnected this many seconds before the end.
        """
        self.acceptor.close()
        cut_off_at = 0.0
        disk = self.output_rules.disk
        while is_unfinished() or self.pool.has_pending_closes or disk.has_pending_lines:
            now = time.monotonic()
            # Another call of stop() may have set an earlier end in the meantime.
            if not cut_off_at and (now >= self._end_at - cut_off_s or self.pool.failed):
                cut_off_at = now
                self.shared.is_disconnecting = True
                self.log.info("%d connections cut off", len(self.connections))
                for connection in list(self.connections):
                    connection.cut_off()
            if now >= self._end_at:
                break
            if cut_off_at and now - cut_off_at > min(cut_off_s, _CLOSING_S) / 2:
                self.pool.close_in_other_thread(cut_off_at)
            self._send_goaways(now)
            beat()
            self._sweep_soon()
            self._deadlines.check(now)
            self.pool.monitor.watch(min(_LAST_ROUND_S, self._end_at - now))
        self.pool.stop()

    def drain(self) -> None:
        """Fail readiness checks, and close each connection after its response.

        Signal handlers may call this.

        New connections are accepted until :meth:`stop` is called, which begins the drain, too.
        """
        self.shared.is_draining = True
        self._max_persistent = 0
        self.pool.monitor.interrupt()

    def stop(self, *, within_s: float | None = None) -> None:
        """Make :meth:`serve` return, and limit the time of :meth:`finish`.

        Signal handlers may call this.

        :param within_s: the time in seconds for running requests. The default is the graceful
            timeout. After several calls, the earliest end counts.
        """
        if within_s is None:
            within_s = self._options.graceful_timeout_s
        self._end_at = min(self._end_at, time.monotonic() + within_s)
        self.shared.is_ending = True
        self.shared.keepalive_s = min(self.shared.keepalive_s, LINGER_S)
        self.drain()

    def _send_goaways(self, now: float) -> None:
        """Make the next sweep send GOAWAY frames on connections that have not sent any."""
        self.registry.cap_deadlines(now, lambda each: each.needs_goaway())

    def _is_unfinished(self) -> bool:
        """Return whether the server must wait for connections or responses."""
        if self.pool.failed:
            return False
        if self._killed:  # stuck apps never end, so only responses of other apps count
            outputs = [output for each in list(self.connections) for output in each.outputs()]
            return any(exchange and exchange.response_is_complete for _, exchange in outputs)
        return bool(self.acceptor.accepting or self.connections)

    def kill(self, reason: str, *args: object) -> None:
        """End although apps are running. Responses that are being sent may finish.

        :param reason: the text for the log, with its arguments. Only the first reason is logged.
        """
        if not self._killed:
            self._killed = True
            self.log.critical(f"{reason}: the worker ends", *args)
            self.stop()

    # Connections.

    def _may_accept(self) -> bool:
        """Return whether to accept.

        If no thread is free, other workers should accept the connections.
        """
        saturated = self._options.has_other_workers and self.pool.saturated
        return not (self.shared.is_ending or saturated)

    def connect(self, sock: socket.socket, peer: Any, address: Any) -> Connection | None:
        """Make a connection from an accepted socket. Its begin() waits for the first event.

        :returns: None if the socket was closed.
        """
        if not self._by_address.open(peer):
            self.shared.counters.accepted += 1
            self.shared.counters.connections_refused += 1
            self._by_address.close(peer)
            sock.close()
            return None
        try:
            sock.setblocking(False)
            if self.secure is not None:
                sock = self.secure(sock)
            connection = Connection(
                self.registry,
                self.application,
                self.output_rules,
                sock,
                peer,
                address,
                Receiver(self.parser_for(peer), peer, self.shared),
            )
        except Exception as error:
            if isinstance(error, OSError):
                self.log.debug("A connection has failed at once", exc_info=True)
            else:
                self.log.exception("A connection could not be made")
            self._by_address.close(peer)
            sock.close()
            return None
        self.shared.counters.accepted += 1
        self.connections.add(connection)
        return connection

    def _on_closed(self, connection: Endpoint) -> None:
        """Update counts and limits after a connection has closed its descriptor."""
        self._by_address.close(connection.peer)
        self.acceptor.on_closed()
        if self.shared.is_ending and not self.connections:
            self.pool.monitor.interrupt()

    def _begin_http2(self, connection: Endpoint, parser: Parser, received: bytes) -> Channel | None:
        """Replace a connection by an HTTP/2 connection on the same socket.

        :param parser: the parser for the client's requests.
        :param received: the bytes that have been received.
        """
        from .http2.connection import HTTP2Connection  # needs h2

        http2 = HTTP2Connection(
            self.registry, self.application, self.output_rules, connection, parser
        )
        self.connections.add(http2)
        self.connections.discard(connection)
        return self.registry.attempt(http2, partial(http2.begin_streams, received))

    # The pool's threads call these methods.

    def receive(self, item: Event | Task) -> Channel | None:
        """Handle an event or a task without blocking. Return a channel if its app can run now."""
        if not isinstance(item, tuple):
            return item()
        fd, events = item
        # This thread now owns the connection. If the event's connection was closed, this may be a
        # newer connection with the same descriptor number. Then on_event() finds nothing to do.
        connection = self._waiting.pop(fd, None)
        if connection is None:
            self.acceptor.accept(fd)
            return None
        try:
            ready = connection.on_event(events)
        except Exception:
            self.log.exception("Error in a connection")
            connection.close()
            return None
        if ready is not None and events & HUNG_UP:
            # Most clients that have hung up no longer wait for a response. So this request is
            # served after others.
            self.pool.defer(lambda: ready)
            return None
        return ready

    def run(self, channel: Channel) -> None:
        """Run an app. All threads of the pool except the spare call this."""
        try:
            if not channel.begin_app():
                return
            if self._sheds and self._shedding.is_overdue(channel):
                self._shed(channel)
                return
            may_persist = len(self.connections) <= self._max_persistent
            try:
                self.application.run(channel, may_persist=may_persist)
            finally:
                channel.finish_when_sent()
        except Exception:
            self.log.exception("Error in a connection")
            channel.close()

    def on_queued(self, channel: Channel) -> None:
        """Note the time at which a request begins to wait in `ready`, because no thread is free."""
        exchange = channel.exchange
        if exchange is not None:  # the client may have reset its stream in the meantime
            exchange.queued = time.monotonic()

    def on_dequeued(self, channel: Channel) -> bool:
        """Note that a thread has removed a request from `ready`. Return whether to call its app."""
        exchange = channel.exchange
        if exchange is None:
            return False
        if channel.has_left():
            self.shared.counters.shed["client_left"] += 1
            channel.output.fail(ClientGone("the client left before its app was called"))
            self.registry.attempt(channel, channel.finish)
            return False
        self.shared.counters.waits.append(time.monotonic() - exchange.queued)
        return True

    def _shed(self, channel: Channel) -> None:
        """Respond with an error to a request that has waited too long."""
        self.application.refuse(channel, channel.exchange, self._shedding.error())
        channel.finish_when_sent()

    def _shed_overdue(self) -> None:
        """Refuse requests that have waited too long in `ready` while no thread was free.

        Other requests remain in `ready` meanwhile. If `ready` were empty for a moment, a free
        thread would wait for an event.
        """
        ready = self.pool.ready
        for channel in list(ready):
            # A stream that was reset has no exchange. It may precede overdue requests.
            if channel.exchange is not None and not self._shedding.is_overdue(channel):
                return
            try:
                ready.remove(channel)
            except ValueError:
                continue  # another thread has removed the request
            if channel.begin_app():
                self._shed(channel)

    # Overdue connections.

    def _sweep_soon(self) -> None:
        """Make a thread of the pool call the sweep, because the main thread must not block."""
        if not self._sweep_pushed:
            self._sweep_pushed = True
            self.pool.push(self._sweep)

    def _sweep(self) -> None:
        """End overdue connections, and update the acceptor."""
        self._sweep_pushed = False
        now = time.monotonic()
        self.acceptor.shorten_handshakes()
        self.registry.sweep(now)
        self.acceptor.update()
        self._watchdog.check(now)
        if self._sheds:
            self._shed_overdue()
        self.pool.close_in_other_thread(now - self._options.stuck_after_s)
