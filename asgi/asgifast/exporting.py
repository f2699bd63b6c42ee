"""WSGIFAST_METRICS for servers of ASGI: each worker counts, and one exporter is scraped for all."""

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
from wsgifast.metrics.recorder import Recorder
from wsgifast.metrics.states import State
from wsgifast.metrics.worker_setup import prepare_worker, start_reporting

from .instrumented import Instrumented
from .messages import ASGIApp

if TYPE_CHECKING:
    from wsgifast.metrics.supervisor import Export

__all__ = ["begin", "begin_under_uvicorn", "instrumented"]

# A sign of life of the event loop.
_BEAT_S = 1.0
# No server of ASGI leaves a worker whose event loop stands still for longer.
_LOST_AFTER_S = 60.0
# uvicorn's own status for what would fail again at every start: its supervisor ends with it.
_STARTUP_FAILURE = 3

_recorder: Recorder | None = None


def instrumented(app: ASGIApp) -> ASGIApp:
    """The app, with its requests counted where that is wanted."""
    return app if _recorder is None else Instrumented(app, _recorder, None)


def begin_under_uvicorn() -> None:
    """Begin, if this is a uvicorn that loads its protocol.

    It does so in the event loop that is to serve, and before it loads the app: the one moment in
    each of its workers at which it asks for something of ours. Its supervisor asks for nothing.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return  # imported by somebody else
    supervisor = multiprocessing.parent_process()
    server = os.getpid() if supervisor is None else supervisor.pid
    assert server is not None
    try:
        export = prepare_worker(server)
    except (ConfigurationError, MissingExtra) as error:
        logging.getLogger("uvicorn.error").error("%s", error)
        sys.exit(_STARTUP_FAILURE)
    if export is not None:
        begin(export, loop)


def begin(export: Export, loop: Any) -> None:
    """Count from now on, and tell of it.

    :param loop: the event loop that serves; whether it turns is what probes ask for.
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
