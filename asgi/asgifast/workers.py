"""gunicorn workers that send files by sendfile: on gunicorn's own ASGI protocol, and on uvicorn.

gunicorn -k asgifast.workers.FastASGIWorker module:app
gunicorn -k asgifast.workers.FastUvicornWorker module:app
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wsgifast.imports import exports_on_demand

if TYPE_CHECKING:
    from .gunicorn_asgi import FastASGIWorker, UnsupportedGunicorn
    from .uvicorn_workers import FastUvicornH11Worker, FastUvicornWorker
else:
    __getattr__ = exports_on_demand(
        __name__,
        {
            "FastASGIWorker": "asgifast.gunicorn_asgi",
            "FastUvicornH11Worker": "asgifast.uvicorn_workers",
            "FastUvicornWorker": "asgifast.uvicorn_workers",
            "UnsupportedGunicorn": "asgifast.gunicorn_asgi",
        },
    )

__all__ = ["FastASGIWorker", "FastUvicornH11Worker", "FastUvicornWorker", "UnsupportedGunicorn"]
