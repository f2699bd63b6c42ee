"""WSGIFAST_METRICS for ASGI servers: each worker counts, and one exporter is scraped for all."""

from __future__ import annotations

import asyncio
import logging
import math
import multiprocessing
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from wsgifast.errors import ConfigurationError, MissingExtra
from wsgifast.metrics.health import State
from wsgifast.metrics.multiprocess import wanted_metrics
from wsgifast.metrics.requests import Recorder
from wsgifast.metrics.worker_setup import prepare_worker, start_reporting
from wsgifast.option_checks import configuration_names

from .instrumented import Instrumented
from .messages import ASGIApp

if TYPE_CHECKING:
    from wsgifast.metrics.supervisor import Export

    class _Worker:
        cfg: Any
        ppid: int

        def load_wsgi(self) -> None: ...

        async def _serve(self) -> None: ...

else:
    _Worker = object

# A sign of life of the event loop.
_BEAT_S = 1.0
# No server of ASGI leaves a worker whose event loop stands still for longer.
_LOST_AFTER_S = 60.0
# uvicorn's own status for what would fail again at every start: its supervisor ends with it.
_STARTUP_FAILURE = 3

_recorder: Recorder | None = None


def instrumented(app: ASGIApp) -> ASGIApp:
    """Return the app, with its requests counted if metrics are enabled."""
    return app if _recorder is None else Instrumented(app, _recorder, None)


def begin_under_uvicorn() -> None:
    """Begin, if uvicorn is loading its protocol.

    Each worker does that in the event loop that will serve, before it loads the app. It is the only
    time at which uvicorn runs code of ours before a request; its supervisor never does.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return  # imported by another program
    supervisor = multiprocessing.parent_process()
    server = os.getpid() if supervisor is None else supervisor.pid
    assert server is not None
    try:
        export = prepare_worker(server)
    except (ConfigurationError, MissingExtra) as error:
        logging.getLogger("uvicorn.error").error("%s", error)
        sys.exit(_STARTUP_FAILURE)
    if export is not None:
        _begin(export, loop)


def _begin(export: Export, loop: Any) -> None:
    """Count and report from now on.

    :param loop: the event loop that serves; probes tell whether it still runs.
    """
    global _recorder
    beaten_at = time.monotonic()

    def beat() -> None:
        nonlocal beaten_at
        beaten_at = time.monotonic()
        loop.call_later(_BEAT_S, beat)

    def state() -> State:
        return State(os.getpid(), beaten_at, None, True, math.inf, _LOST_AFTER_S, [])

    _recorder = start_reporting(export, state)
    loop.call_soon(beat)


class ExportingWorker(_Worker):
    """A mixin for uvicorn's worker classes under gunicorn, which reports their metrics."""

    _export: Export | None = None

    def load_wsgi(self) -> None:
        """Load the app, after choosing where its metrics go.

        :raises AppImportError: if they cannot be served; gunicorn prints its message.
        """
        from gunicorn.errors import AppImportError

        configured = configuration_names(self.cfg.config).get("metrics_bind")
        wanted = wanted_metrics("metrics_bind", configured)
        if wanted is not None and self.cfg.preload_app:
            raise AppImportError(
                f"{wanted[0]}={wanted[1]!r}: with preload_app an ASGI app counts before its "
                "workers are there; leave preload_app out"
            )
        try:
            self._export = prepare_worker(self.ppid, configured)
        except (ConfigurationError, MissingExtra) as error:
            raise AppImportError(str(error)) from None
        super().load_wsgi()

    async def _serve(self) -> None:
        if self._export is not None:
            _begin(self._export, asyncio.get_running_loop())
        await super()._serve()
