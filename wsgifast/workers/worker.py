"""FastWorker: gunicorn's gthread worker, with another way of doing input and output.

It is a ThreadWorker for gunicorn: the same settings, hooks, logs and HTTP/2 code. What it replaces
is the loop (pool.py, poller.py), accepting (acceptor.py), the connections (connection.py) and
the response (response.py).
"""

from __future__ import annotations

import contextlib
import math
import socket
import sys
import time
from functools import partial
from typing import Any

from gunicorn.errors import AppImportError
from gunicorn.glogging import Logger
from gunicorn.workers import gthread

from ..server.acceptor import Acceptor
from ..server.application import Application
from ..server.connection import LINGER_S, Connection, Core
from ..server.disk_budget import DiskBudget
from ..server.drain import Drain
from ..server.environ import EnvironFactory
from ..server.output_rules import Coalescing
from ..server.poller import Event, Poller, make_poller
from ..server.pool import Pool, Task
from ..server.registry import Registry
from ..server.states import LINGERING, SENDING
from ..server.watchdog import Watchdog
from .attributes import InvalidWorkerOption, check_attributes
from .error_page import ErrorPage
from .gunicorn_support import Settings, environ_part, patched_threads
from .gunicorn_version import check_gunicorn
from .http2 import HTTP2, HTTP2Streams
from .tls import TLSContexts
from .wiring import limits, output_rules, parsers

__all__ = ["FastWorker"]

# The main thread looks after time limits and the heartbeat this often, as gthread does.
_ROUND_S = 1.0
# The same while the worker looks for the moment to end, or ends.
_LAST_ROUND_S = 0.05
# A worker that has served its max_requests looks for that moment for so many graceful_timeouts.
_DRAIN_PATIENCE = 10


class FastWorker(HTTP2Streams):
    """A threaded gunicorn worker that no slow client can hold.

    ``gunicorn -k wsgifast.workers.FastWorker --threads 4 module:app``

    gunicorn's own settings mean what they mean for gthread. What it has no setting for is a class
    attribute; a subclass in gunicorn's configuration file changes it, and one that is misspelt is
    refused at the start::

        from wsgifast.workers import FastWorker

        class worker_class(FastWorker):
            body_limit_bytes = 20 * 2**20

    :cvar buffer_bodies: receive request bodies before the app runs, so that slow uploads hold no
        thread. False: the app's thread reads them from the client, as with gthread.
    :cvar body_memory_bytes: bodies up to this size are kept in memory, larger ones in a temporary
        file.
    :cvar body_limit_bytes: larger bodies are refused with 413, since they could fill the disk. Not
        for those that the app's thread reads.
    :cvar bodies_on_disk_bytes: the most bytes that a worker keeps of bodies in temporary files, all
        together; whose body finds no room there is answered 503.
    :cvar body_timeout_s: a client that sends nothing of its body for this many seconds is answered
        408; so is one that has sent, after this time, less than 500 bytes a second on average.
    :cvar head_timeout_s: seconds for a request's head, from its first byte (or the connection's
        begin) on; then 408.
    :cvar send_timeout_s: a client that takes no byte of a response for this many seconds is
        dropped.
    :cvar send_least_bytes_per_s: so is one that has taken, after this time, fewer bytes a second on
        average; 0 for any.
    :cvar output_ahead_bytes: what waits in memory for one client, before the next block of a
        generator goes to a temporary file; to twice as much until then. Where it must not, as with
        a stream of events, the generator is not asked for its next block.
    :cvar response_on_disk_bytes: the most of one response in a temporary file; beyond it the
        generator waits for its client. 0: it always does.
    :cvar responses_on_disk_bytes: the most of all of them.
    :cvar output_memory_bytes: what waits in memory for all clients together, beside 16 KiB for
        each; the rest of their responses waits in temporary files.
    :cvar check_host: answer 400 to a request whose Host header is missing (from HTTP/1.1 on),
        malformed, or not the only one (RFC 9112 section 3.2).
    :cvar stuck_after_s: after so many seconds in which no thread has ended its request, it is
        logged what each of them is doing.
    :cvar kill_stuck_after_s: after so many, the worker ends, and the arbiter starts another one.
        `math.inf`: never. A stream without end, and an HTTP/2 connection, are such requests too.
    :cvar poller_kind: "epoll", "selectors", or "auto" for the first of them that the system
        has.
    """

    buffer_bodies = True
    check_host = True
    body_memory_bytes = 512 * 1024
    body_limit_bytes = 1024 * 1024 * 1024
    bodies_on_disk_bytes = 16 * 1024 * 1024 * 1024
    body_timeout_s = 30.0
    head_timeout_s = 20.0
    send_timeout_s = 60.0
    send_least_bytes_per_s = 500.0
    output_ahead_bytes = 256 * 1024
    output_memory_bytes = 64 * 1024 * 1024
    response_on_disk_bytes = 1024 * 1024 * 1024
    responses_on_disk_bytes = 16 * 1024 * 1024 * 1024
    stuck_after_s = 30.0
    kill_stuck_after_s = math.inf
    poller_kind = "auto"

    # gunicorn's own, named here because it ships no types.
    alive: bool

    # What gunicorn calls before any worker is started.

    @classmethod
    def check_config(cls, cfg: Any, log: Any) -> None:
        """Refuse a configuration, or a gunicorn, that cannot work.

        :raises UnsupportedGunicorn: for a version outside the supported range.
        :raises InvalidWorkerOption: for a class attribute with an impossible value or a misspelt
            name, for `threads` below 1, and for TLS files that cannot be used.
        """
        check_gunicorn()
        super().check_config(cfg, log)
        check_attributes(cls, FastWorker)
        if cfg.threads < 1:
            raise InvalidWorkerOption(f"threads={cfg.threads}: FastWorker needs 1 or more")
        if problem := patched_threads():  # by an app that is loaded in the arbiter
            raise InvalidWorkerOption(problem)
        if cfg.is_ssl:
            try:
                TLSContexts(cfg, log).current()
            except Exception as error:
                raise InvalidWorkerOption(
                    f"certfile={cfg.certfile!r}, keyfile={cfg.keyfile!r}: {error}"
                ) from error

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)  # in the arbiter still
        self._tls = TLSContexts(self.cfg, self.log) if self.cfg.is_ssl else None
        if self._tls is not None:
            with contextlib.suppress(Exception):  # it is logged, and met again at each connection
                self._tls.current()

    # The worker's life.

    def init_process(self) -> None:
        self.tpool = None  # ours are in the pool
        self._ends_soon = False  # it has served its max_requests
        self._stopping = False
        self._killed = False
        self._sweep_pushed = False
        # Who can accept from the same listeners: not where each worker has its own.
        self._has_siblings = self.cfg.workers > 1 and not self.cfg.reuse_port
        self.poller: Poller = make_poller(self.poller_kind)
        self.registry: Registry[Connection] = Registry(
            self.poller, on_closed=self._on_closed, log=self.log
        )
        self._coalescing = Coalescing(lambda: self.pool.ticks_soon())
        self.pool: Pool[Connection] = Pool(
            size=self.cfg.threads,
            poller=self.poller,
            receive=self._receive,
            run=self._run,
            on_tick=self._coalescing.tick,
            on_failure=self._on_pool_failure,
            on_saturation=self._on_saturation,
        )
        # Past gthread's own method, which makes a pool and a poller.
        super(gthread.ThreadWorker, self).init_process()

    def load_wsgi(self) -> None:
        """Load the app.

        :raises AppImportError: also if it has replaced threads, which would stop all of ours.
        """
        super().load_wsgi()
        if problem := patched_threads():
            raise AppImportError(problem)

    def run(self) -> None:
        """The main thread: the pool's monitor, time limits, and gunicorn's heartbeat."""
        self._prepare()
        self.pool.start()
        drain: Drain[Connection] | None = None
        while self.alive and not self.pool.failed:
            self.notify()
            self._sweep_soon()
            if not self.is_parent_alive():
                break
            if self._ends_soon:
                now = time.monotonic()
                self.registry.cap_deadlines(now + LINGER_S, Connection.is_idle)
                drain = drain or self._drain(now)
                if drain.is_over(now):
                    break
            self.pool.monitor(_ROUND_S if drain is None else _LAST_ROUND_S)
        self.alive = False
        self._stop()

    def handle_exit(self, sig: int, frame: Any) -> None:
        """SIGTERM: finish what is running, then end."""
        if self.alive:
            self.alive = False
            self.pool.interrupt()

    def handle_quit(self, sig: int, frame: Any) -> None:
        """SIGQUIT, SIGINT: end now; the threads are daemons and end with the process."""
        super(gthread.ThreadWorker, self).handle_quit(sig, frame)

    def _prepare(self) -> None:
        cfg = self.cfg
        self.settings = settings = Settings(cfg)
        self._acceptor = Acceptor(
            self.sockets,
            self.poller,
            connect=self._connect,
            count=self.registry.__len__,
            limit=settings.worker_connections,
            is_open=self._is_open,
            log=self.log,
        )
        self._watchdog = Watchdog(
            self.pool,
            log=self.log,
            after_s=self.stuck_after_s,
            kill_after_s=self.kill_stuck_after_s,
            kill=self._kill,
        )
        environ = environ_part(settings)
        self.application = Application(
            self.wsgi,
            environs=EnvironFactory(environ),
            file_wrapper=environ["wsgi.file_wrapper"],
            settings=settings,
            log=self.log,
            # A logger with an access() of its own (statsd's) is always called.
            logs_access=type(self.log).access is not Logger.access
            or bool(getattr(self.log, "access_log_enabled", True)),
            pre_request=partial(settings.pre_request, self),
            post_request=partial(settings.post_request, self),
            may_stay=self._may_stay,
            answer_error=self._answer_error,
        )
        self.http2 = HTTP2(self)
        self._core = Core(
            limits=limits(self, settings),
            output_rules=output_rules(self, settings, self._coalescing),
            registry=self.registry,
            disk=DiskBudget(self.bodies_on_disk_bytes),
            log=self.log,
            parser_for=parsers(self, settings),
            keepalive_s=self._keepalive_s,
            resume=self._resume,
            refuse=self.application.refuse,
            on_sent=self.application.log_exchange,
        )

    def _stop(self) -> None:
        """Let what runs finish within graceful_timeout; then drop the rest."""
        self._stopping = True
        self._acceptor.close()
        now = time.monotonic()
        deadline = now + self.cfg.graceful_timeout
        # Kept-alive connections get a moment for a request that is under way already; it is
        # answered with "Connection: close" (RFC 9112 section 9.6).
        self.registry.cap_deadlines(now + LINGER_S, Connection.is_idle)
        while self._is_unfinished() and not self.pool.failed:
            now = time.monotonic()
            if now >= deadline:
                self.log.info("%d connections cut off", len(self.registry))
                break
            self.notify()
            self._sweep_soon()
            self.pool.monitor(min(_LAST_ROUND_S, deadline - now))
        self.pool.stop()
        for sock in self.sockets:
            sock.close()
        if self.pool.failed or self._killed:
            sys.exit(1)

    def _drain(self, now: float) -> Drain[Connection]:
        return Drain(
            self.registry.connections,
            counts=lambda connection: connection.state != LINGERING,
            now=now,
            patience_s=_DRAIN_PATIENCE * self.cfg.graceful_timeout,
        )

    def _is_unfinished(self) -> bool:
        """Whether the worker has to wait before it ends."""
        if self._killed:  # apps that are stuck never end
            return any(each.state == SENDING for each in list(self.registry.connections))
        return self._acceptor.is_accepting or bool(self.registry.connections)

    def _kill(self) -> None:
        """End, although apps run; what is being sent goes on for a while."""
        self._killed = True
        self.alive = False
        self.pool.interrupt()

    def _on_saturation(self) -> None:
        self._acceptor.update()

    def _on_pool_failure(self) -> None:
        self.log.exception("A thread of the worker has failed; the worker restarts")
        self.pool.interrupt()

    # Connections come and go.

    def _is_open(self) -> bool:
        """Whether to accept; a worker without a free thread leaves newcomers to its siblings."""
        return self.alive and not (self._has_siblings and self.pool.saturated)

    def _connect(self, sock: socket.socket, peer: Any, address: Any) -> Connection | None:
        try:
            sock.setblocking(False)
            if self._tls is not None:
                sock = self._tls.current().wrap_socket(
                    sock,
                    server_side=True,
                    suppress_ragged_eofs=self.settings.suppress_ragged_eofs,
                    do_handshake_on_connect=False,
                )
            connection = Connection(self._core, sock, peer, address)
        except Exception:
            self.log.debug("A connection has failed at once", exc_info=True)
            sock.close()
            return None
        self.registry.connections.add(connection)
        self.nr_conns = len(self.registry)
        return connection

    def _on_closed(self) -> None:
        self.nr_conns = len(self.registry)
        self._acceptor.on_closed()
        if (self._ends_soon or self._stopping) and not self.registry.connections:
            self.pool.interrupt()

    def _resume(self, connection: Connection) -> None:
        """Let a thread of the pool go on with a connection that has something buffered."""
        self.pool.push_behind(partial(self._go_on, connection, 0))

    # What the pool calls.

    def _receive(self, item: Event | Task[Connection]) -> Connection | None:
        """Take an event or a task up; returns the connection if it is ready to run."""
        if not isinstance(item, tuple):
            return item()
        fd, events = item
        connection = self.registry.claim(fd)
        if connection is None:
            if self._acceptor.listens_on(fd):
                self._acceptor.accept(fd)
            return None
        if self._acceptor.unfinished is not None:
            self._acceptor.count_event()
        return self._go_on(connection, events)

    def _go_on(self, connection: Connection, events: int) -> Connection | None:
        try:
            return connection if connection.on_event(events) else None
        except Exception:
            self.log.exception("Error in a connection")
            connection.close()
            return None

    def _run(self, connection: Connection) -> None:
        try:
            if connection.http2:
                self.http2.run(connection)
            elif connection.exchange is not None and connection.exchange.upgrade is not None:
                self.http2.run_upgrade(connection)
            else:
                self.application.run(connection)
        except Exception:
            self.log.exception("Error in a connection")
            connection.close()

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

    def _keepalive_s(self) -> float:
        """Seconds that an idle connection may stay."""
        keepalive = float(self.settings.keepalive)
        return min(keepalive, LINGER_S) if self._stopping or self._ends_soon else keepalive

    # What the application asks for.

    def _may_stay(self) -> bool:
        """Count a request; whether its connection may have another one."""
        self.nr += 1
        if self.nr >= self.max_requests:
            if self.alive and not self._ends_soon:
                self.log.info("Autorestarting worker after current request.")
                self._ends_soon = True
                self.pool.interrupt()
            return False
        return bool(
            self.alive
            and self.settings.keepalive
            and len(self.registry.connections) <= self.max_keepalived
        )

    def _answer_error(self, connection: Connection, req: Any, error: Any) -> None:
        """Let gunicorn log an error and answer it; without a request it logs less."""
        page = ErrorPage(connection.output.write)
        try:
            self.handle_error(req, page, connection.peer, error)
        except Exception:  # it logs first: nothing has been sent
            self.log.exception("Error in the access log")
            self.handle_error(None, page, connection.peer, error)
