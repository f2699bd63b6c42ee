"""FastWorker: gunicorn's gthread worker, with another way of doing input and output.

For gunicorn it is a ThreadWorker, with the same settings, hooks and logs. wsgifast.server, which
does not know gunicorn, does everything between the listeners and the app.
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
    arbiters_signals,
    environ_part,
    unfit_threads,
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
    declare,
    drop_http2,
    has_httptools,
    name_module,
    options,
    parsers,
)
from .overrides import name_replaced_methods, name_replaced_parts, uncalled_methods
from .replacement import (
    BOOTING,
    BROKEN,
    PATIENCE,
    READY,
    RELEASED,
    RETIRING,
    Life,
    install,
    log_missing_arbiter,
    running_arbiter,
)
from .tls import TLSContexts

# The folder of a worker's heartbeat file. On a disk, a heartbeat may have to wait for other writes,
# such as those of responses for slow clients.
_MEMORY_FILES = "/dev/shm"


# Errors of an app's code, at its import. Another error may mean that a resource is taken.
_ERRORS_OF_CODE = (
    AppImportError, AttributeError, ImportError, NameError, SyntaxError, TypeError,
)  # fmt: skip


class FastWorker(gthread.ThreadWorker):  # type: ignore[misc]
    """A threaded gunicorn worker that slow clients cannot block.

    ``gunicorn -k wsgifast.workers.FastWorker --threads 4 module:app``

    gunicorn's own settings have the same meaning as for gthread. All other options are class
    attributes. gunicorn's configuration file sets them by their names. FastWorker refuses to start
    with a misspelt name::

        worker_class = "wsgifast.workers.FastWorker"
        body_limit_bytes = 20 * 2**20

    A subclass may set them too, ``class worker_class(FastWorker)``. For some of them an environment
    variable takes precedence: WSGIFAST_BODY_LIMIT_BYTES and so on. wsgifast/server_options.py has
    all options, and docs/reference/fastworker.md shows them in tables.
    """

    # Options that are used here. :func:`declare` sets all of them.
    max_rss_bytes: float
    max_lifetime_s: float
    end_old_worker_first: bool
    metrics_bind: str | None

    # gunicorn's own, named here because it ships no types.
    alive: bool

    server: Server | None = None
    application: Application | None = None
    _responses: ResponseRecorder | None = None
    # The number that a hook has added to the number of requests. And gunicorn's setting, or a
    # hook's.
    _nr_before = 0
    _max_requests = sys.maxsize
    # The monotonic time of the main thread's last heartbeat.
    beaten_at = 0.0

    # Called by gunicorn before any worker is started.

    @classmethod
    def setup(cls) -> None:
        configure(cls, FastWorker)
        prepare_metrics(cls)

    @classmethod
    def check_config(cls, cfg: Any, log: Any) -> None:
        """Refuse a configuration, or a gunicorn, that cannot work.

        A line in the log names the differences with an untested gunicorn or h2.

        :raises UnsupportedGunicorn: for a version that is too old, or lacks a name that we use.
        :raises InvalidWorkerOption: for a class attribute with an impossible value or a misspelt
            name. For an overridden method that is not called. For `threads` below 1, and threads
            that are patched or have no GIL. For TLS files that cannot be used, and metrics that
            cannot be served.
        """
        check_gunicorn()
        super().check_config(cfg, log)
        if name_module(cfg.config):  # which setup() could not know
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
        if problem := unfit_threads():  # an app that is loaded in the arbiter may replace them
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
        if cfg.worker_tmp_dir is None and os.access(_MEMORY_FILES, os.W_OK):
            cfg.set("worker_tmp_dir", _MEMORY_FILES)

    def __init__(self, *args: Any) -> None:
        # For each thread, the number of the request in a post_request hook, or 0.
        self.of_hook = threading.local()
        super().__init__(*args)  # in the arbiter still
        self._limit = ""  # that was reached
        self._memory_return = MemoryReturn()
        drop_http2(self.cfg)  # a reload brings new settings
        self.life = Life(self.max_rss_bytes, self.max_lifetime_s)
        # The arbiter makes its workers itself. Nothing is missing where there is none.
        if not self.life.has_arbiter and self.ppid == os.getpid():
            log_missing_arbiter(self.log)
        self._tls = TLSContexts(self.cfg, self.log) if self.cfg.is_ssl else None
        if self._tls is not None:
            with contextlib.suppress(Exception):  # logged, and raised for each connection
                self._tls.current()

    # gunicorn's attributes, which hooks read and set at any time.

    @property
    def wsgi(self) -> Any:
        """The app. A hook may wrap it."""
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
        """gthread starts with 0. The server counts by itself."""

    @property
    def nr(self) -> int:
        """The number of requests. In a post_request hook, the number of its own request."""
        return self._nr_before + self._served()

    @nr.setter
    def nr(self, requests: int) -> None:
        self._nr_before = requests - self._served()
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
        number: int = getattr(self.of_hook, "number", 0)
        if number or self.application is None:
            return number
        return self.application.requests

    def _pass_max_requests(self) -> None:
        if self.application is not None:
            self.application.max_requests = self._max_requests - self._nr_before

    # The worker's life.

    def init_process(self) -> None:
        self.beaten_at = time.monotonic()  # a probe may ask before the first heartbeat
        # Not gthread's own method, which makes a pool and a poller.
        super(gthread.ThreadWorker, self).init_process()

    def init_signals(self) -> None:
        """Set the worker's handlers. A signal that arrived before ends the worker too."""
        pending_signals = arbiters_signals(running_arbiter())
        super().init_signals()
        for number in pending_signals():
            if number in (signal.SIGTERM, signal.SIGQUIT, signal.SIGINT):
                os.kill(os.getpid(), number)

    def load_wsgi(self) -> None:
        """Load the app.

        :raises AppImportError: also if its threads are unfit (see :func:`unfit_threads`), and
            if the worker has more memory than max_rss_bytes by now.
        """
        try:
            super().load_wsgi()
        except _ERRORS_OF_CODE:
            self.life.stage = BROKEN
            raise
        name_replaced_parts(self.log)
        if problem := unfit_threads():
            raise AppImportError(problem)
        if (used := resident_bytes()) > self.max_rss_bytes:
            raise AppImportError(
                f"FastWorker.max_rss_bytes={self.max_rss_bytes:,}: with this app a worker has "
                f"{used:,} bytes before its first request; allow for more"
            )

    def run(self) -> None:
        """Serve until gunicorn ends the worker, or the server ends by itself."""
        if wants_metrics(type(self)) is not None:
            from ..metrics.prometheus import recorder

            self._responses = ResponseRecorder(recorder(), self.log)
        name_replaced_methods(self, FastWorker)
        self.server = server = self.make_server()
        collector = WorkerCollector(server)
        report_the_last = start_reporting(collector, self._responses, self)
        try:
            server.serve(self._beat)
            self.alive = False
            server.finish(self._beat)
        except SystemExit:  # SIGQUIT, SIGINT, SIGABRT
            server.end_now(self.notify)
            raise
        finally:
            collector.end(self._limit if server.end == "stopped" and self._limit else server.end)
            report_the_last()
        for sock in self.sockets:
            sock.close()
        if server.end in ("failed", "stuck"):
            sys.exit(1)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """SIGTERM: finish running requests, then end."""
        server = self.server
        if self.life.drains and server is not None and not server.shared.is_draining:
            server.drain()
            return
        self.alive = False
        if self.server is None:
            sys.exit(0)  # the app is still being imported: there are no requests to finish
        if self.life.stage == RELEASED:
            self.life.stage = RETIRING  # the next SIGTERM means the whole server
            self._stop_patiently()
        else:
            self.server.stop()

    def handle_quit(self, sig: int, frame: Any) -> None:
        """SIGQUIT, SIGINT: end now, even if apps run. See :meth:`Server.end_now`."""
        super(gthread.ThreadWorker, self).handle_quit(sig, frame)

    def _beat(self) -> bool:
        """Send gunicorn's heartbeat. Return whether the worker goes on."""
        self.beaten_at = time.monotonic()
        self.notify()
        if self.server is not None:
            memory = self.server.output_rules.memory
            self._memory_return.update(memory.used_bytes, memory.disk.used_bytes)
        if self.life.stage == BOOTING:
            self.log.info("Worker ready (pid: %s)", os.getpid())
            self._enter(READY)
        reached = None if self._limit else self.life.limit_reached(self.nr, self.max_requests)
        if reached is not None:
            self._limit, reason = reached
            self.log.info("Autorestarting worker: %s.", reason)
            if self.life.has_arbiter:
                self._enter(RETIRING)
            else:
                self.alive = False
                self._stop_patiently()
        return bool(self.alive and self.is_parent_alive())

    def _enter(self, stage: int) -> None:
        self.life.stage = stage
        if self.life.has_arbiter:
            with contextlib.suppress(OSError):  # another user's: it looks once a second
                os.kill(self.ppid, signal.SIGCHLD)  # the arbiter looks at its workers

    def _stop_patiently(self) -> None:
        if self.server is not None:
            self.server.stop(within_s=PATIENCE * self.server.shared.options.graceful_timeout_s)

    # Its server.

    def make_server(self) -> Server:
        """The server of this process: its app, gunicorn's settings and hooks, TLS and HTTP/2."""
        self.settings = settings = Settings(self.cfg)
        environ = environ_part(settings)
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
            line_needs_thread=access_log.is_seen,
            pre_request=pre_request(settings, self),
            post_request=post_request(settings, self),
            answer_error=self._answer_error,
            on_answered=None if responses is None else responses.record,
        )
        self.application = application
        self._pass_max_requests()
        server = Server(
            application,
            listeners=self.sockets,
            parser_for=parsers(self, settings),
            has_many_clients=settings.is_proxy,
            secure=None if self._tls is None else self._secure,
            readiness=self._readiness,
        )
        if responses is not None:
            responses.watch(server, application)
        return server

    def _readiness(self) -> tuple[bool, str]:
        """Return whether this worker is ready for requests, and why."""
        assert self.server is not None
        return readiness([state_of(self.server, self, most_clients=0)], time.monotonic())

    def _logs_access(self) -> bool:
        if type(self.log).access is not Logger.access:
            return True  # of statsd's logger, for instance, which also counts
        return bool(getattr(self.log, "access_log_enabled", True))

    def _secure(self, sock: socket.socket) -> socket.socket:
        assert self._tls is not None
        return self._tls.current().wrap_socket(
            sock,
            server_side=True,
            suppress_ragged_eofs=self.settings.suppress_ragged_eofs,
            do_handshake_on_connect=False,
        )

    # Callbacks of the application.

    def _answer_error(self, channel: Channel, req: Any, error: Any) -> tuple[str, int]:
        """Let gunicorn log and answer an error. Return the status and the size of the page."""
        page = ErrorPage(channel.send_error)
        recording = RecordingWorker(self)
        type(self).handle_error(recording, req, page, channel.connection().peer, error)
        if req is None and recording.line is not None:
            # The request could not be read to its end. gunicorn has the received part of it.
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


declare(FastWorker)
