"""FastWorker: a replacement of gunicorn's gthread worker, with its own input and output.

For gunicorn, FastWorker is a ThreadWorker, with the same settings, hooks and logs. wsgifast.server
does everything between the listeners and the app, and does not depend on gunicorn.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from functools import partial
from typing import Any

from gunicorn.errors import AppImportError
from gunicorn.glogging import Logger
from gunicorn.workers import gthread

from ..bodies.request_ids import TRUSTS_PEER
from ..compression.policy import IS_BEHIND
from ..files.compressed_copies import COPIES
from ..metrics.health import readiness, resident_bytes
from ..metrics.requests import RECORDER
from ..server.application import Application
from ..server.channel import Channel
from ..server.server import Server
from ..server.shared import Shared
from .access_line import AccessLog
from .environ import EnvironFactory, decoded_path
from .gunicorn_support import (
    ErrorPage,
    MemoryReturn,
    RecordingWorker,
    Settings,
    early_signals,
    thread_problem,
    worker_environ,
)
from .gunicorn_version import check_gunicorn, untested_note
from .hooks import post_request, pre_request
from .metrics import (
    ResponseRecorder,
    WorkerCollector,
    check_metrics,
    prepare_metrics,
    start_reporting,
    state_of,
    wants_metrics,
)
from .options import (
    InvalidWorkerOption,
    check_attributes,
    check_settings,
    configure,
    declare_options,
    drop_http2,
    has_httptools,
    options,
    parsers,
    set_config,
)
from .overrides import name_replaced_methods, name_replaced_parts, uncalled_methods
from .replacement import (
    BOOTING,
    BROKEN,
    READY,
    RELEASED,
    RELEASED_TIMEOUTS,
    RETIRING,
    Lifecycle,
    install,
    log_missing_arbiter,
    running_arbiter,
)
from .tls import TLSContexts

# The directory of a worker's heartbeat file, in memory. On a disk, a heartbeat might have to wait
# for other writes, such as responses for slow clients.
_MEMORY_DIR = "/dev/shm"


# If the import of the app raises one of these, the app's code is wrong. With other exceptions, a
# port or a lock may be in use.
_CODE_ERRORS = (
    AppImportError, AttributeError, ImportError, NameError, SyntaxError, TypeError,
)  # fmt: skip


class FastWorker(gthread.ThreadWorker):  # type: ignore[misc]
    """A threaded gunicorn worker that slow clients cannot block.

    ``gunicorn -k wsgifast.workers.FastWorker --threads 4 module:app``

    gunicorn's own settings have the same meaning as for gthread. All other options are class
    attributes. gunicorn's configuration file may define them as variables. FastWorker refuses to
    start with a misspelt name::

        worker_class = "wsgifast.workers.FastWorker"
        body_limit_bytes = 20 * 2**20

    A subclass may define options too: ``class worker_class(FastWorker)``. For some options, an
    environment variable has precedence, such as WSGIFAST_BODY_LIMIT_BYTES.
    wsgifast/server_options.py defines all options. docs/reference/fastworker.md has tables of them.
    """

    # The options that this class reads. :func:`declare_options` sets the defaults of all options.
    max_rss_bytes: float
    max_lifetime_s: float
    end_old_worker_first: bool
    metrics_bind: str | None

    # gunicorn's attribute, declared here because gunicorn ships no types.
    alive: bool

    server: Server | None = None
    application: Application | None = None
    _responses: ResponseRecorder | None = None
    # The difference between `nr`, which a hook may set, and the number of requests.
    _nr_offset = 0
    _max_requests = sys.maxsize
    # The monotonic time of the last heartbeat, which the main thread sends.
    beaten_at = 0.0

    # gunicorn calls these methods in the arbiter, before it starts a worker.

    @classmethod
    def setup(cls) -> None:
        configure(cls, FastWorker)
        prepare_metrics(cls)

    @classmethod
    def check_config(cls, cfg: Any, log: Any) -> None:
        """Refuse a configuration or a gunicorn that cannot work with FastWorker.

        If gunicorn or h2 is untested, this method logs what FastWorker does differently.

        :raises UnsupportedGunicorn: if gunicorn is too old, or does not have a name that FastWorker
            uses.
        :raises InvalidWorkerOption: for a wrong value, a misspelt name, or an overridden method
            that FastWorker does not call. Also if threads, TLS files or metrics cannot be used.
        """
        check_gunicorn()
        super().check_config(cfg, log)
        if set_config(cfg.config):  # setup() did not know this setting
            wanted_before = wants_metrics(cls)
            cls.setup()
            if cfg.preload_app and wants_metrics(cls) != wanted_before:
                raise InvalidWorkerOption(
                    f"metrics_bind={cls.metrics_bind!r} in {cfg.config}: with preload_app it must "
                    "be in a file, or in the environment as WSGIFAST_METRICS"
                )
        check_attributes(cls, FastWorker)
        if uncalled := uncalled_methods(cls, FastWorker):
            raise InvalidWorkerOption(
                f"{', '.join(uncalled)}: FastWorker does not call this method of gthread's. Use "
                "the hooks pre_request and post_request, or middleware, or gthread as the base"
            )
        if cfg.threads < 1:
            raise InvalidWorkerOption(f"threads={cfg.threads}: FastWorker needs 1 or more")
        check_settings(cfg)
        if problem := thread_problem():  # a preloaded app may have patched threads
            raise InvalidWorkerOption(problem)
        for note in (untested_note(has_httptools=has_httptools(cfg)), drop_http2(cfg)):
            if note is not None:
                log.warning(note)
        if cfg.is_ssl:
            try:
                TLSContexts(cfg, log).current()
            except Exception as error:
                raise InvalidWorkerOption(
                    f"certfile={cfg.certfile!r}, keyfile={cfg.keyfile!r}: {error}"
                ) from error
        check_metrics(cls, cfg)
        name_replaced_parts(log)
        install(cfg)
        if cfg.worker_tmp_dir is None and os.access(_MEMORY_DIR, os.W_OK):
            cfg.set("worker_tmp_dir", _MEMORY_DIR)

    def __init__(self, *args: Any) -> None:
        # For each thread, the number of the request whose post_request hook runs, or 0.
        self.hook_request = threading.local()
        super().__init__(*args)  # this runs in the arbiter, before the fork
        self._limit_reached = ""
        self._memory_return = MemoryReturn()
        drop_http2(self.cfg)  # a reload has read the settings again
        self.lifecycle = Lifecycle(self.max_rss_bytes, self.max_lifetime_s)
        # This is only an error if an arbiter makes the worker, which is so if `ppid` is the pid of
        # this process.
        if not self.lifecycle.has_arbiter and self.ppid == os.getpid():
            log_missing_arbiter(self.log)
        self._tls = TLSContexts(self.cfg, self.log) if self.cfg.is_ssl else None
        if self._tls is not None:
            with contextlib.suppress(Exception):  # current() has logged it, and raises it again
                self._tls.current()

    # gunicorn's attributes, which hooks may read and set at any time.

    @property
    def wsgi(self) -> Any:
        """The WSGI app. A hook may wrap it."""
        return self._wsgi

    @wsgi.setter
    def wsgi(self, app: Any) -> None:
        self._wsgi = app
        if self.application is not None:
            self.application.app = app

    @property
    def nr_conns(self) -> int:
        """The number of open connections."""
        return 0 if self.server is None else len(self.server.connections)

    @nr_conns.setter
    def nr_conns(self, connections: int) -> None:
        """Ignore the assignment. gthread sets 0, but the server counts connections itself."""

    @property
    def nr(self) -> int:
        """The number of requests. In a post_request hook, the number of the hook's request."""
        return self._nr_offset + self._served()

    @nr.setter
    def nr(self, requests: int) -> None:
        self._nr_offset = requests - self._served()
        self._pass_max_requests()

    @property
    def max_requests(self) -> int:
        """The number of requests after which the worker is replaced."""
        return self._max_requests

    @max_requests.setter
    def max_requests(self, requests: int) -> None:
        self._max_requests = requests
        self._pass_max_requests()

    def _served(self) -> int:
        number: int = getattr(self.hook_request, "number", 0)
        if number or self.application is None:
            return number
        return self.application.requests

    def _pass_max_requests(self) -> None:
        if self.application is not None:
            self.application.max_requests = self._max_requests - self._nr_offset

    # Start, run and end of the worker.

    def init_process(self) -> None:
        self.beaten_at = time.monotonic()  # probes may read it before the first heartbeat
        # This skips gthread's method, which makes a thread pool and a poller.
        super(gthread.ThreadWorker, self).init_process()

    def init_signals(self) -> None:
        """Set the worker's signal handlers, and handle signals that arrived before."""
        pending_signals = early_signals(running_arbiter())
        super().init_signals()
        for number in pending_signals():
            if number in (signal.SIGTERM, signal.SIGQUIT, signal.SIGINT):
                os.kill(os.getpid(), number)

    def load_wsgi(self) -> None:
        """Load the app.

        :raises AppImportError: if the import fails, if FastWorker cannot use the process's threads
            (see :func:`thread_problem`), or if the worker already exceeds max_rss_bytes.
        """
        try:
            super().load_wsgi()
        except _CODE_ERRORS:
            self.lifecycle.stage = BROKEN
            raise
        name_replaced_parts(self.log)
        if problem := thread_problem():
            raise AppImportError(problem)
        if (used := resident_bytes()) > self.max_rss_bytes:
            raise AppImportError(
                f"FastWorker.max_rss_bytes={self.max_rss_bytes:,}: with this app a worker has "
                f"{used:,} bytes before its first request. Set a higher limit"
            )

    def run(self) -> None:
        """Serve until gunicorn ends the worker, or the server ends because of an error."""
        if wants_metrics(type(self)) is not None:
            from ..metrics.prometheus import recorder

            self._responses = ResponseRecorder(recorder(), self.log)
        name_replaced_methods(self, FastWorker)
        self.server = server = self.make_server()
        collector = WorkerCollector(server)
        report_last = start_reporting(collector, self._responses, self)
        try:
            server.serve(self._beat)
            self.alive = False
            server.finish(self._beat)
        except SystemExit:  # gunicorn's handlers raise it for SIGQUIT, SIGINT and SIGABRT
            server.end_now(self.notify)
            raise
        finally:
            collector.end(
                self._limit_reached
                if server.end == "stopped" and self._limit_reached
                else server.end
            )
            report_last()
        for sock in self.sockets:
            sock.close()
        if server.end in ("failed", "stuck"):
            sys.exit(1)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Handle SIGTERM: finish the running requests, then end."""
        server = self.server
        if self.lifecycle.drains and server is not None and not server.shared.is_draining:
            server.drain()
            return
        self.alive = False
        if self.server is None:
            sys.exit(0)  # the app is being imported, so there are no requests to finish
        if self.lifecycle.stage == RELEASED:
            self.lifecycle.stage = RETIRING  # another SIGTERM stops within graceful_timeout
            self._stop_with_long_timeout()
        else:
            self.server.stop()

    def handle_quit(self, sig: int, frame: Any) -> None:
        """Handle SIGQUIT and SIGINT: end now, even if apps run. See :meth:`Server.end_now`."""
        super(gthread.ThreadWorker, self).handle_quit(sig, frame)

    def _beat(self) -> bool:
        """Send gunicorn's heartbeat. Return whether the worker should continue to serve."""
        self.beaten_at = time.monotonic()
        self.notify()
        if self.server is not None:
            memory = self.server.output_rules.memory
            self._memory_return.update(memory.used_bytes, memory.disk.used_bytes)
        if self.lifecycle.stage == BOOTING:
            self.log.info("Worker ready (pid: %s)", os.getpid())
            self._enter(READY)
        reached = (
            None
            if self._limit_reached
            else self.lifecycle.limit_reached(self.nr, self.max_requests)
        )
        if reached is not None:
            self._limit_reached, reason = reached
            self.log.info("Autorestarting worker: %s.", reason)
            if self.lifecycle.has_arbiter:
                self._enter(RETIRING)
            else:
                self.alive = False
                self._stop_with_long_timeout()
        return bool(self.alive and self.is_parent_alive())

    def _enter(self, stage: int) -> None:
        self.lifecycle.stage = stage
        if self.lifecycle.has_arbiter:
            # The arbiter of another user looks for changes every second.
            with contextlib.suppress(OSError):
                os.kill(self.ppid, signal.SIGCHLD)  # wakes the arbiter

    def _stop_with_long_timeout(self) -> None:
        if self.server is not None:
            self.server.stop(
                within_s=RELEASED_TIMEOUTS * self.server.shared.options.graceful_timeout_s
            )

    # The worker's server.

    def make_server(self) -> Server:
        """Make the server, with the app and with gunicorn's settings, hooks, TLS and HTTP/2."""
        self.settings = settings = Settings(self.cfg)
        environ = worker_environ(settings)
        environ[IS_BEHIND] = lambda: self.server is not None and self.server.pool.is_behind
        COPIES.pace.is_behind = environ[IS_BEHIND]
        environ[TRUSTS_PEER] = lambda environ: settings.trusts(environ["gunicorn.socket"].peer)
        responses = self._responses
        access_log = AccessLog(self.log)
        if responses is not None:
            environ[RECORDER] = responses.metrics
        application = Application(
            shared=Shared(options(self, settings), self.log),
            app=self.wsgi,
            make_environ=EnvironFactory(environ).make,
            file_wrapper=environ["wsgi.file_wrapper"],
            settings=settings,
            log_access=access_log.write if self._logs_access() else None,
            line_needs_thread=access_log.runs_user_code,
            pre_request=pre_request(settings, self),
            post_request=post_request(settings, self),
            answer_error=self._answer_error,
            on_answered=None if responses is None else responses.record,
            readiness=self._readiness,
        )
        self.application = application
        self._pass_max_requests()
        server = Server(
            application,
            listeners=self.sockets,
            parser_for=parsers(self, settings),
            is_proxy=settings.is_proxy,
            secure=None if self._tls is None else self._secure,
        )
        if responses is not None:
            responses.watch(server, application)
        return server

    def _readiness(self) -> tuple[bool, str]:
        """Return whether this worker is ready for requests, and the reason if it is not."""
        assert self.server is not None
        return readiness([state_of(self.server, self, max_clients=0)], time.monotonic())

    def _logs_access(self) -> bool:
        if type(self.log).access is not Logger.access:
            return True  # a subclass's access() may do more than log: statsd's also counts
        return bool(getattr(self.log, "access_log_enabled", True))

    def _secure(self, sock: socket.socket) -> socket.socket:
        assert self._tls is not None
        return self._tls.current().wrap_socket(
            sock,
            server_side=True,
            suppress_ragged_eofs=self.settings.suppress_ragged_eofs,
            do_handshake_on_connect=False,
        )

    # Callbacks that the application calls.

    def _answer_error(self, channel: Channel, req: Any, error: Any) -> tuple[str, int]:
        """Make gunicorn log an error and send its error page. Return the page's status and size."""
        page = ErrorPage(channel.send_error)
        recording = RecordingWorker(self)
        type(self).handle_error(recording, req, page, channel.connection().peer, error)
        if req is None and recording.line is not None:
            # gunicorn's parser failed within the request, and its error contains the parsed part.
            resp, req, environ, elapsed = recording.line
            environ.setdefault("PATH_INFO", decoded_path(req.path or ""))
            environ.setdefault("wsgi.url_scheme", req.scheme)
            resp.sent = page.size
            assert self.application is not None
            self.application.write_elsewhere(
                partial(self._log_refused, resp, req, environ, elapsed)
            )
        return recording.status, page.size

    def _log_refused(self, *line: Any) -> None:
        try:
            self.log.access(*line)
        except Exception:
            self.log.exception("Error in the access log")


declare_options(FastWorker)
