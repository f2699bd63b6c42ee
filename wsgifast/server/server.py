"""The server: it wires the parts together, starts them and ends them.

It owns the registry, the pool, the poller, the acceptor and the rules of output. The application
serves the requests. Signals, and everything else about the process, are left to the caller of
:meth:`Server.serve`.
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from ..errors import ClientGone
from ..sockets.client_limits import ConnectionsByAddress
from ..sockets.closing import LINGER_S
from .acceptor import Acceptor
from .application import Application
from .channel import Channel
from .connection import Connection
from .deadlines import Deadlines
from .endpoint import Endpoint, Registry
from .monitor import Watchdog
from .output_rules import OutputRules
from .poller import HUNG_UP, Event, make_poller
from .pool import Pool, Task
from .probes import Probes
from .receiving import Parser, Receiver
from .shedding import Shedding

# How often deadlines are checked and `beat` is called.
_ROUND_S = 1.0
# The same while the server ends.
_LAST_ROUND_S = 0.05
# The last part of the graceful timeout, and at most so many seconds, is left for the close() of
# bodies. Their clients are disconnected then.
_CLOSING_SHARE = 0.1
_CLOSING_S = 1.0


class Server:
    """Serves an application on some listeners.

    :param listeners: made non-blocking. The caller closes them.
    :param parser_for: returns the parser for a peer's requests, given its address.
    :param has_many_clients: whether an IP address is a trusted proxy's.
    :param secure: wraps an accepted socket for TLS, before its handshake. None without TLS.
    :param readiness: returns whether this worker is ready for requests, and why.
    :ivar shared: the application's, which all parts have.
    :ivar connections: the open ones.
    """

    def __init__(
        self,
        application: Application,
        *,
        listeners: Iterable[socket.socket],
        parser_for: Callable[[Any], Parser],
        has_many_clients: Callable[[str], bool],
        secure: Callable[[socket.socket], socket.socket] | None,
        readiness: Callable[[], tuple[bool, str]] = lambda: (True, "ready"),
    ) -> None:
        self.shared = shared = application.shared
        self._options, self.log = options, log = shared.options, shared.log
        self.listeners = list(listeners)
        self._application = application
        self._parser_for = parser_for
        self._by_address = (
            ConnectionsByAddress(options.connections_per_address, has_many_clients, log.warning)
            if options.connections_per_address < math.inf
            else None
        )
        self._secure = secure
        # Whether connections stay open after a response, up to this number of connections.
        self._keeps_alive = options.keepalive_s > 0
        self._most_persistent = options.max_keepalived
        self._end_at = float("inf")  # monotonic
        self._killed = False
        self._sweep_pushed = False
        self.poller = make_poller()
        self.pool = Pool(
            options.threads,
            self.poller,
            log,
            receive=self.receive,
            run=self.run,
            on_tick=lambda: self.output_rules.tick(),
            on_queued=self.on_queued,
            on_taken=self.on_taken,
            on_saturation=lambda: self.acceptor.update(),
        )
        monitor = self.pool.monitor
        self.output_rules = OutputRules(
            shared, share_work=self.pool.share_work, request_tick=monitor.request_tick
        )
        disk = self.output_rules.disk
        self.registry = Registry(
            shared,
            self.poller,
            defer=self.pool.defer,
            push_first=self.pool.push_first,
            submit=disk.submit_temporary,
            on_closed=self._on_closed,
        )
        self.connections = self.registry.connections
        self._waiting = self.registry.waiting
        self.acceptor = Acceptor(
            shared,
            self.poller,
            self.listeners,
            self.connections,
            may_accept=self._may_accept,
            connect=self.connect,
        )
        self._watchdog = Watchdog(shared, self.pool.turns, self.kill)
        application.on_max_requests = monitor.interrupt  # it calls `beat`
        application.write_late = disk.write_line
        application.postpone = self.pool.postpone
        probes = Probes(shared, application.settings, application.file_wrapper, readiness)
        application.probe_paths, application.answer_probe = probes.paths, probes.response
        self._deadlines = Deadlines(shared, self.pool.members, application.time_out, self.kill)
        self._shedding = Shedding(shared)
        self._sheds = options.queue_timeout_s < math.inf

    # Start and end, called by the main thread

    @property
    def end(self) -> str:
        """Why it ended: "failed" (an internal error), "stuck" or "stopped"."""
        if self.pool.failed:
            return "failed"
        return "stuck" if self._killed else "stopped"

    @property
    def requests(self) -> int:
        """How many the app has been called for, or is about to be."""
        return self._application.requests

    @property
    def accepts(self) -> bool:
        """Return whether it would accept a connection: it is not ending, and below its limit."""
        shared = self.shared
        return (
            not (shared.is_ending or shared.is_draining)
            and len(self.connections) < self._options.worker_connections
        )

    def serve(self, beat: Callable[[], bool]) -> None:
        """Serve until :meth:`stop`.

        :param beat: called at least every second. It returns False to end, and must not block.
        """
        self.pool.start()
        while not self.shared.is_ending and not self.pool.failed and beat():
            self._sweep_soon()
            if self.shared.is_draining:
                self._send_goaways(time.monotonic())
            self.pool.monitor.watch(min(_ROUND_S, self._deadlines.check(time.monotonic())))

    def finish(self, beat: Callable[[], object]) -> None:
        """Let requests finish within the time given to :meth:`stop`, and drop the others then.

        :param beat: as for :meth:`serve`.
        """
        if not self.shared.is_ending:
            self.stop()
        # A request may be on its way on an idle connection: it is answered, with "Connection:
        # close" (RFC 9112 section 9.6).
        self.registry.cap_deadlines(time.monotonic() + LINGER_S, Endpoint.is_idle)
        cut_off_s = min(self._options.graceful_timeout_s * _CLOSING_SHARE, _CLOSING_S)
        self._end(beat, self._is_unfinished, cut_off_s=cut_off_s)

    def end_now(self, beat: Callable[[], object]) -> None:
        """End without waiting for requests, only for the close() of bodies that apps have returned.

        :param beat: as for :meth:`serve`.
        """
        self.stop()
        self._end(beat, lambda: False, cut_off_s=self._options.graceful_timeout_s)

    def _end(
        self, beat: Callable[[], object], is_unfinished: Callable[[], bool], *, cut_off_s: float
    ) -> None:
        """Wait for unfinished requests and for the close() of bodies, then end the threads.

        :param cut_off_s: this long before the end, all clients are cut off.
        """
        self.acceptor.close()
        cut_off_at = 0.0
        disk = self.output_rules.disk
        while is_unfinished() or self.pool.has_pending_closes or disk.has_pending_lines:
            now = time.monotonic()
            # A later call of stop() may have brought the end forward.
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
        """Fail readiness, and close each connection after its response. Safe in a signal handler.

        New connections are still accepted, until :meth:`stop`.
        """
        self.shared.is_draining = True
        self._keeps_alive = False
        self.pool.monitor.interrupt()

    def stop(self, *, within_s: float | None = None) -> None:
        """Make :meth:`serve` return, and limit :meth:`finish`. Safe in a signal handler.

        :param within_s: seconds for requests under way, by default the graceful timeout. If it is
            called again, the earlier end counts.
        """
        if within_s is None:
            within_s = self._options.graceful_timeout_s
        self._end_at = min(self._end_at, time.monotonic() + within_s)
        self.shared.is_ending = True
        self._keeps_alive = False
        self.shared.keepalive_s = min(self.shared.keepalive_s, LINGER_S)
        self.pool.monitor.interrupt()

    def _send_goaways(self, now: float) -> None:
        """Have the next sweep send GOAWAY frames to clients that have got none."""
        self.registry.cap_deadlines(now, lambda each: each.needs_goaway())

    def _is_unfinished(self) -> bool:
        """Return whether something is still worth waiting for."""
        if self.pool.failed:
            return False
        if self._killed:  # apps that are stuck never end
            return any(each.is_sending() for each in list(self.connections))
        return self.acceptor.is_accepting or bool(self.connections)

    def kill(self) -> None:
        """End although apps run. Responses that are being sent may finish."""
        self._killed = True
        self.stop()

    # Connections

    def _may_accept(self) -> bool:
        """Return whether to accept. Without a free thread, other workers get the connections."""
        saturated = self._options.has_other_workers and self.pool.saturated
        return not (self.shared.is_ending or saturated)

    def connect(self, sock: socket.socket, peer: Any, address: Any) -> Connection | None:
        """Make a connection of an accepted socket. Its begin() has it wait for its first event.

        :returns: None if it is closed already.
        """
        if self._by_address is not None and not self._by_address.open(peer):
            self.shared.counters.accepted += 1
            self.shared.counters.connections_refused += 1
            self._by_address.close(peer)
            sock.close()
            return None
        try:
            sock.setblocking(False)
            if self._secure is not None:
                sock = self._secure(sock)
            connection = Connection(
                self.registry,
                self._application,
                self.output_rules,
                sock,
                peer,
                address,
                Receiver(self._parser_for(peer), peer, self.shared),
                begin_http2=self._begin_http2,
                on_handshake_end=self.acceptor.on_handshake_end,
            )
        except Exception as error:
            if isinstance(error, OSError):
                self.log.debug("A connection has failed at once", exc_info=True)
            else:
                self.log.exception("A connection could not be made")
            if self._by_address is not None:
                self._by_address.close(peer)
            sock.close()
            return None
        self.shared.counters.accepted += 1
        self.connections.add(connection)
        return connection

    def _on_closed(self, connection: Endpoint) -> None:
        """A connection has closed its descriptor."""
        if self._by_address is not None:
            self._by_address.close(connection.peer)
        self.acceptor.on_closed()
        if self.shared.is_ending and not self.connections:
            self.pool.monitor.interrupt()

    def _begin_http2(self, connection: Endpoint, parser: Parser, received: bytes) -> Channel | None:
        """Go on with HTTP/2 on the socket of a connection. Its owner drops the old object.

        :param parser: for the requests of its client.
        :param received: the bytes that the client has sent already.
        """
        from .http2.connection import HTTP2Connection  # needs h2

        http2 = HTTP2Connection(
            self.registry, self._application, self.output_rules, connection, parser
        )
        self.registry.replace(connection, http2)
        return self.registry.attempt(http2, partial(http2.begin_streams, received))

    # Called by the pool's threads

    def receive(self, item: Event | Task) -> Channel | None:
        """Handle an event or a task without blocking. Return a channel if it is ready to run."""
        if not isinstance(item, tuple):
            return item()
        fd, events = item
        # This thread owns it now. It may be another one than the event was for, which has closed.
        # The new owner copes with finding nothing to do.
        connection = self._waiting.pop(fd, None)
        if connection is None:
            self.acceptor.accept(fd)
            return None
        if self.acceptor.unfinished is not None:
            self.acceptor.count_event()
        try:
            ready = connection.on_event(events)
        except Exception:
            self.log.exception("Error in a connection")
            connection.close()
            return None
        if ready is not None and events & HUNG_UP:
            # Most clients that have hung up no longer wait for a response: the others go first.
            self.pool.defer(lambda: ready)
            return None
        return ready

    def run(self, channel: Channel) -> None:
        """Run an app. Called by every thread but the spare one and the monitor's."""
        try:
            if not channel.begin_app():
                return
            if self._sheds and self._shedding.is_overdue(channel):
                self._shed(channel)
                return
            stays = self._keeps_alive and len(self.connections) <= self._most_persistent
            try:
                self._application.run(channel, stays=stays)
            finally:
                channel.finish_when_sent()
        except Exception:
            self.log.exception("Error in a connection")
            channel.close()

    def on_queued(self, channel: Channel) -> None:
        """No thread is free for a request, which is about to wait in `ready`."""
        exchange = channel.exchange
        if exchange is not None:  # a stream may end meanwhile, and drop it
            exchange.queued = time.monotonic()

    def on_taken(self, channel: Channel) -> bool:
        """A thread takes such a request. Return whether its client still waits for it."""
        exchange = channel.exchange
        if exchange is None:
            return False
        if channel.has_left():
            self.shared.counters.shed["client_left"] += 1
            try:
                channel.output.fail(ClientGone("the client left before its app was called"))
                channel.finish()
            except Exception:
                self.log.exception("Error in a connection")
                channel.close()
            return False
        self.shared.counters.waits.append(time.monotonic() - exchange.queued)
        return True

    def _shed(self, channel: Channel) -> None:
        """Refuse a request that has waited too long."""
        self._application.refuse(channel, channel.exchange, self._shedding.error())
        channel.finish_when_sent()

    def _shed_overdue(self) -> None:
        """Refuse requests that have waited too long in `ready` while no thread was free.

        The others stay there meanwhile: a thread that finds none would wait for an event.
        """
        ready = self.pool.ready
        for channel in list(ready):
            # A stream that its client has reset has no exchange, and may wait before others.
            if channel.exchange is not None and not self._shedding.is_overdue(channel):
                return
            try:
                ready.remove(channel)
            except ValueError:
                continue  # another thread was quicker
            if channel.begin_app():
                self._shed(channel)

    # Overdue connections

    def _sweep_soon(self) -> None:
        """Have a thread of the pool sweep: the main thread must not block."""
        if not self._sweep_pushed:
            self._sweep_pushed = True
            self.pool.push(self._sweep)

    def _sweep(self) -> None:
        """End overdue connections, and see whether to accept again."""
        self._sweep_pushed = False
        now = time.monotonic()
        self.acceptor.shorten_handshakes()
        self.registry.sweep(now)
        self.acceptor.update()
        self._watchdog.check(now)
        if self._sheds:
            self._shed_overdue()
        self.pool.close_in_other_thread(now - self._options.stuck_after_s)
