"""The server: its connections and the threads that serve them, from the first one to the last.

It owns the registry, the pool, the poller, the listeners and what all connections share. What is
served is the application's; what else there is to know of the process, such as signals and signs
of life, is whoever runs it to see to.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from .acceptor import Acceptor
from .application import Application
from .channel import Channel
from .connection import Connection
from .counters import Counters
from .drain import Drain
from .endpoint import LINGER_S, Endpoint, Streams
from .exchange import Exchange
from .limits import DiskBudget
from .options import HTTP2Options, Options
from .output_rules import Coalescing, OutputRules
from .parser import Parser
from .poller import HUNG_UP, Event, make_poller
from .pool import Pool, Task
from .receiving import Receiver
from .registry import Registry
from .states import LINGERING
from .watchdog import Watchdog

__all__ = ["Server"]

# Time limits are looked after this often, and a sign of life is given.
_ROUND_S = 1.0
# The same while the server looks for the moment to end, or ends.
_LAST_ROUND_S = 0.05
# A server that is to be replaced looks for that moment for so many graceful timeouts.
_DRAIN_LIMIT = 10


class Server:
    """Serves an application to the clients of some listeners.

    :param listeners: whoever made them closes them.
    :param parser_for: the parser of a peer's requests, by its address.
    :param secure: wraps an accepted socket for TLS, its handshake still to come; None without TLS.
    :param http2: what clients of HTTP/2 are told.
    :ivar connections: those that are open.
    """

    def __init__(
        self,
        application: Application,
        options: Options,
        *,
        listeners: Iterable[socket.socket],
        parser_for: Callable[[Any], Parser],
        secure: Callable[[socket.socket], socket.socket] | None,
        http2: HTTP2Options,
        log: Any,
    ) -> None:
        self.options = options
        self.log = log
        self.counters = Counters()
        self.listeners = list(listeners)
        self._application = application
        self._parser_for = parser_for
        self._secure = secure
        self._http2 = http2
        self._ends_soon = ""  # or why
        self._stopping = False
        self._killed = False
        self._sweep_pushed = False
        self.poller = make_poller(options.poller_kind)
        self.registry: Registry[Connection] = Registry(
            self.poller,
            on_closed=self._on_closed,
            push=lambda event: self.pool.push(event),
            log=log,
        )
        self.connections = self.registry.connections
        self.coalescing = Coalescing(lambda: self.pool.monitor.ticks_soon())
        self.pool: Pool[Channel] = Pool(
            size=options.threads,
            poller=self.poller,
            receive=self._receive,
            run=self._run,
            on_tick=self.coalescing.tick,
            on_failure=self._on_pool_failure,
            on_saturation=lambda: self._acceptor.update(),
            on_queued=self._on_queued,
            on_taken=self._on_taken,
        )
        self._acceptor = Acceptor(
            self.listeners,
            self.poller,
            connect=self._connect,
            count=self.connections.__len__,
            limit=options.worker_connections,
            is_open=self._is_open,
            log=log,
        )
        self._watchdog = Watchdog(
            self.pool,
            log=log,
            after_s=options.stuck_after_s,
            kill_after_s=options.kill_stuck_after_s,
            kill=self._kill,
        )
        self.bodies_on_disk = DiskBudget(options.bodies_on_disk_bytes)
        # What connections ask for, beside options, registry and log: see connection.Core.
        self.output_rules = OutputRules.of(
            options,
            coalescing=self.coalescing,
            counters=self.counters,
            make_way=self.pool.make_way,
            log=log,
        )
        self.on_sent = application.on_sent

    # Its life; the main thread.

    @property
    def has_failed(self) -> bool:
        """Whether it has ended because it could not go on."""
        return self.pool.failed or self._killed

    @property
    def end(self) -> str:
        """Why it has ended: "failed", "stuck", what :meth:`end_soon` was told, or "stopped"."""
        if self.pool.failed:
            return "failed"
        if self._killed:
            return "stuck"
        return self._ends_soon or "stopped"

    @property
    def accepts(self) -> bool:
        """Whether it would accept a connection; not if it is to end, or has as many as it may."""
        return not self._stopping and len(self.connections) < self.options.worker_connections

    def serve(self, beat: Callable[[], bool]) -> None:
        """Serve until it is to end: the pool's monitor, and time limits.

        :param beat: called at least every second; False to end. Must not block.
        """
        self.pool.start()
        drain: Drain[Connection] | None = None
        while not self._stopping and not self.pool.failed and beat():
            self._sweep_soon()
            if self._ends_soon:
                now = time.monotonic()
                self.registry.cap_deadlines(now + LINGER_S, Connection.is_idle)
                self._send_goaways(now)
                drain = drain or self._drain(now)
                if drain.is_over(now):
                    break
            self.pool.monitor.run(_ROUND_S if drain is None else _LAST_ROUND_S)

    def finish(self, beat: Callable[[], object]) -> None:
        """Let what runs finish within the graceful timeout; then drop the rest.

        :param beat: as for :meth:`serve`.
        """
        self._stopping = True
        self._acceptor.close()
        now = time.monotonic()
        deadline = now + self.options.graceful_timeout_s
        # Kept-alive connections get a moment for a request that is under way already; it is
        # answered with "Connection: close" (RFC 9112 section 9.6).
        self.registry.cap_deadlines(now + LINGER_S, Connection.is_idle)
        while self._is_unfinished() and not self.pool.failed:
            now = time.monotonic()
            self._send_goaways(now)
            if now >= deadline:
                self.log.info("%d connections cut off", len(self.connections))
                break
            beat()
            self._sweep_soon()
            self.pool.monitor.run(min(_LAST_ROUND_S, deadline - now))
        self.pool.stop()

    def stop(self) -> None:
        """Have :meth:`serve` return; safe in a signal handler."""
        self._stopping = True
        self.pool.monitor.interrupt()

    def end_soon(self, reason: str) -> bool:
        """Have it end at a good moment; False if that is so already.

        :param reason: the name of the limit that was reached.
        """
        if self._ends_soon:
            return False
        self._ends_soon = reason
        self.pool.monitor.interrupt()
        return True

    def _send_goaways(self, now: float) -> None:
        """Have clients of HTTP/2 told, by the next sweep, that the server ends."""
        self.registry.cap_deadlines(now, Connection.owes_goaway)

    def _drain(self, now: float) -> Drain[Connection]:
        return Drain(
            self.connections,
            counts=lambda connection: connection.state != LINGERING,
            now=now,
            limit_s=_DRAIN_LIMIT * self.options.graceful_timeout_s,
        )

    def _is_unfinished(self) -> bool:
        """Whether it has to wait before it ends."""
        if self._killed:  # apps that are stuck never end
            return any(each.is_sending() for each in list(self.connections))
        return self._acceptor.is_accepting or bool(self.connections)

    def _kill(self) -> None:
        """End, although apps run; what is being sent goes on for a while."""
        self._killed = True
        self.stop()

    def _on_pool_failure(self) -> None:
        self.log.exception("A thread of the worker has failed; the worker restarts")
        self.pool.monitor.interrupt()

    # Connections come and go.

    def _is_open(self) -> bool:
        """Whether to accept; without a free thread, newcomers are left to siblings."""
        return not self._stopping and not (self.options.has_siblings and self.pool.saturated)

    def _connect(self, sock: socket.socket, peer: Any, address: Any) -> Connection | None:
        try:
            sock.setblocking(False)
            if self._secure is not None:
                sock = self._secure(sock)
            receiver = Receiver(self._parser_for(peer), peer, self.options, self.bodies_on_disk)
            connection = Connection(self, sock, peer, address, receiver)
        except Exception:
            self.log.debug("A connection has failed at once", exc_info=True)
            sock.close()
            return None
        self.counters.accepted += 1
        self.connections.add(connection)
        return connection

    def _on_closed(self) -> None:
        self._acceptor.on_closed()
        if (self._ends_soon or self._stopping) and not self.connections:
            self.pool.monitor.interrupt()

    # What connections ask for.

    def resume(self, connection: Connection) -> None:
        self.pool.push_behind(partial(self._go_on, connection, 0))

    def run_soon(self, task: Task[Channel]) -> None:
        self.pool.push_behind(task)

    def begin_http2(self, connection: Endpoint, parser: Parser) -> Streams:
        from .http2.multiplexer import Multiplexer  # needs h2

        return Multiplexer(self, connection, parser, self._http2, self.bodies_on_disk)

    def is_ending(self) -> bool:
        return self._stopping or bool(self._ends_soon)

    def refuse(self, channel: Channel, exchange: Exchange | None, error: Exception) -> None:
        self.counters.refused[getattr(error, "status", 400)] += 1
        self._application.refuse(channel, exchange, error)

    def keepalive_s(self) -> float:
        keepalive_s = self.options.keepalive_s
        ends = self._stopping or self._ends_soon
        return min(keepalive_s, LINGER_S) if ends else keepalive_s

    # What the pool calls.

    def _receive(self, item: Event | Task[Channel]) -> Channel | None:
        """Take an event or a task up; returns the connection if it is ready to run."""
        if not isinstance(item, tuple):
            return item()
        fd, events = item
        connection = self.registry.claim(fd)
        if connection is None:
            if self._acceptor.listens_on(fd):
                self._acceptor.accept(fd)
                return None
            connection = self.registry.miss(fd, events)
            if connection is None:
                return None
        if self._acceptor.unfinished is not None:
            self._acceptor.count_event()
        ready = self._go_on(connection, events)
        if ready is not None and events & HUNG_UP:
            # Most who have hung up do not wait for an answer any more: the others come first.
            self.pool.push_behind(lambda: ready)
            return None
        return ready

    def _go_on(self, connection: Connection, events: int) -> Channel | None:
        try:
            return connection.on_event(events)
        except Exception:
            self.log.exception("Error in a connection")
            connection.close()
            return None

    def _on_queued(self, channel: Channel) -> None:
        if channel.exchange is not None:
            channel.exchange.queued = time.monotonic()

    def _on_taken(self, channel: Channel) -> None:
        if channel.exchange is not None:
            self.counters.count_wait(time.monotonic() - channel.exchange.queued)

    def _run(self, channel: Channel) -> None:
        try:
            if channel.is_wanted():
                self._application.run(channel)
        except Exception:
            self.log.exception("Error in a connection")
            channel.close()

    def _sweep_soon(self) -> None:
        """Let a thread of the pool sweep: the main thread does nothing that could block."""
        if not self._sweep_pushed:
            self._sweep_pushed = True
            self.pool.push(self._sweep)

    def _sweep(self) -> None:
        """End what is overdue; take up accepting again."""
        self._sweep_pushed = False
        now = time.monotonic()
        self.registry.sweep(now)
        self._acceptor.update()
        self._watchdog.look(now)
