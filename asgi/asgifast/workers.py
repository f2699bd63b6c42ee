"""A gunicorn worker that runs uvicorn and sends files by sendfile.

gunicorn -k asgifast.workers.FastUvicornWorker module:app
"""

from __future__ import annotations

import asyncio
import logging
import mmap
import os
import signal
import warnings
from functools import cache, wraps
from typing import Any

from wsgifast.bodies.access_log import ErrorLogFormatter
from wsgifast.checks import configuration_names, needs
from wsgifast.errors import ConfigurationError, MissingExtra
from wsgifast.hosts import GUNICORN
from wsgifast.metrics.setup import Wanted, check, wanted_metrics
from wsgifast.server_options import options_of_environment

with needs("asgifast.workers", "gunicorn", "gunicorn,asgi"):
    from gunicorn.arbiter import Arbiter
    from gunicorn.errors import AppImportError


try:
    from uvicorn_worker import UvicornWorker  # type: ignore[import-not-found, import-untyped, unused-ignore]
except ImportError:
    with warnings.catch_warnings():
        # The module in uvicorn itself is deprecated in favor of the uvicorn-worker package. It is
        # only used if that package is not installed.
        warnings.simplefilter("ignore", DeprecationWarning)
        with needs("asgifast.workers", "uvicorn", "gunicorn,asgi"):
            from uvicorn.workers import UvicornWorker

from .counters import counters
from .exporting import begin
from .json_log import JSONFormatter
from .uvicorn.httptools import HttpToolsProtocol

__all__ = ["FastUvicornWorker"]

# A byte that the arbiter shares with its workers. The byte is 1 if the whole server ends, and 0 if
# a reload replaces the workers.
_server_ends = mmap.mmap(-1, 1)


@cache
def _note_server_end() -> None:
    """Have the arbiter set the byte before it sends SIGTERM to its workers."""
    stop = Arbiter.stop

    @wraps(stop)
    def stop_and_note(arbiter: Any, graceful: bool = True) -> None:
        _server_ends[0] = graceful and not (arbiter.master_pid or arbiter.reexec_pid)
        stop(arbiter, graceful)

    Arbiter.stop = stop_and_note


class FastUvicornWorker(UvicornWorker):  # type: ignore[misc, unused-ignore]
    """uvicorn's worker with asgifast.uvicorn.HttpToolsProtocol."""

    CONFIG_KWARGS: dict[str, Any] = {  # noqa: RUF012 - like the base class
        "loop": "auto",
        "http": HttpToolsProtocol,
    }

    cfg: Any
    ppid: int
    sockets: list[Any]
    _wanted: Wanted | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # uvicorn writes its access log to the handlers of gunicorn's access log. With the logger
        # class wsgifast.workers.JSONLogger, both logs are in JSON. A user's own format remains.
        if any(type(h.formatter) is ErrorLogFormatter for h in self.log.error_log.handlers):
            for handler in self.log.access_log.handlers:
                stock = handler.formatter
                if type(stock) is logging.Formatter and stock._fmt == self.log.access_fmt:
                    handler.setFormatter(JSONFormatter())

    @classmethod
    def setup(cls) -> None:
        """Prepare the arbiter. The arbiter calls this before it starts workers.

        :raises UnsupportedHost: if gunicorn lacks a name that this worker uses.
        """
        GUNICORN.check(
            cls.__name__, "FastUvicornWorker",
            way_out="install a tested gunicorn, or start it with `-k uvicorn_worker.UvicornWorker`",
        )  # fmt: skip
        _note_server_end()

    def load_wsgi(self) -> None:
        """Check the options, choose where metrics are served, and load the app.

        :raises AppImportError: if metrics cannot be served, or if the value of an option is
            invalid. gunicorn prints its message.
        """
        configured = configuration_names(self.cfg.config).get("metrics_bind")
        try:
            default_s = getattr(self.config.http, "drain_delay_s", 0)
            delay_s = options_of_environment().get("drain_delay_s", default_s)
            if delay_s >= self.cfg.graceful_timeout:
                raise ConfigurationError(
                    f"drain_delay_s={delay_s:g}: gunicorn ends a worker after "
                    f"graceful_timeout={self.cfg.graceful_timeout} s, the drain included. Set a "
                    "longer graceful_timeout"
                )
            wanted = wanted_metrics("metrics_bind", configured)
            if wanted is not None and self.cfg.preload_app:
                raise ConfigurationError(
                    f"{wanted}: with preload_app, metrics of an ASGI app begin before "
                    "its workers start. Remove preload_app"
                )
            if wanted is not None:
                check(wanted, self.ppid)
        except (ConfigurationError, MissingExtra) as error:
            raise AppImportError(str(error)) from None
        self._wanted = wanted
        super().load_wsgi()

    async def _serve(self) -> None:
        counters.drains = lambda: bool(_server_ends[0])
        if self._wanted is not None:
            begin(self._wanted, self.ppid, asyncio.get_running_loop())
        await super()._serve()

    async def callback_notify(self) -> None:
        """Tell the arbiter that this worker is alive. End the worker if the arbiter has ended.

        uvicorn calls this method at half of gunicorn's timeout. Other workers of gunicorn end too
        after their arbiter was killed. Otherwise, they would serve the old code on its port.
        """
        await super().callback_notify()
        if os.getppid() != self.ppid:
            self.log.info("Parent changed, shutting down: %s", self)
            signal.raise_signal(signal.SIGTERM)

    def run(self) -> None:
        # uvloop closes the descriptor of each listening socket. It marks a socket.socket as closed,
        # but not gunicorn's wrapper. The wrapper would later close the same descriptor number,
        # which may then belong to another file.
        self.sockets = [getattr(listener, "sock", listener) for listener in self.sockets]
        super().run()
