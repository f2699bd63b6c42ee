"""Modules that the fork server imports before it forks: servers, changed to end quickly."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import sys
import time
from types import SimpleNamespace
from typing import Any

# No module of an app under test, and no module that looks for gevent when it is imported.
_PRELOADED = """
    anyio._backends._asyncio asgifast.middleware asgifast.responses asgifast.static
    asgifast.uvicorn asgifast.workers cheroot.wsgi ctypes django.contrib.staticfiles.finders
    django.core.asgi django.core.management django.core.wsgi django.db.models
    django.views.static encodings.idna falcon flask granian.cli gunicorn.app.wsgiapp
    gunicorn.workers.gasgi gunicorn.workers.gthread gunicorn.workers.sync gunicorn_h1c
    hypercorn.asyncio multiprocessing.spawn servestatic starlette.applications
    starlette.middleware.base starlette.middleware.gzip starlette.staticfiles unittest.mock
    uvicorn.lifespan.on uvicorn.loops.uvloop uvicorn.main uvicorn.protocols.http.h11_impl
    uvicorn.protocols.http.httptools_impl uvicorn.protocols.websockets.auto waitress
    werkzeug.serving werkzeug.test whitenoise wsgifast.commands.cli wsgifast.devservers
    wsgifast.commands.doctor.command wsgifast.middleware wsgifast.commands.run.command
    wsgifast.static wsgifast.workers.worker wsgiref.simple_server zttp
"""
# How long gunicorn's arbiter sleeps between two checks of its workers, in place of 0.1 s. Also how
# long servers on asyncio sleep between two checks for their end, in place of 0.1 s and 1 s.
_LOOK_S, _ASYNCIO_LOOK_S = 0.01, 0.02
_ON_ASYNCIO = ("uvicorn.server", "gunicorn.workers.gasgi")


def _look_often() -> None:
    """Have servers notice a request to end at once. Otherwise it takes up to a second."""
    if "gunicorn.arbiter" in sys.modules:
        arbiter: Any = sys.modules["gunicorn.arbiter"]
        arbiter.time = SimpleNamespace(**vars(time))
        arbiter.time.sleep = lambda seconds: time.sleep(min(seconds, _LOOK_S))
    for name in _ON_ASYNCIO:
        if name in sys.modules:
            server: Any = sys.modules[name]
            server.asyncio = SimpleNamespace(**vars(asyncio))
            server.asyncio.sleep = lambda seconds: asyncio.sleep(min(seconds, _ASYNCIO_LOOK_S))


gc.disable()  # modules are not garbage
for _name in _PRELOADED.split():
    with contextlib.suppress(ImportError):  # an extra that is not installed
        importlib.import_module(_name)
_look_often()
gc.freeze()
gc.enable()
