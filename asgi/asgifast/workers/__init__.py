"""gunicorn workers that send files by sendfile: on gunicorn's own ASGI protocol, and on uvicorn.

gunicorn -k asgifast.workers.FastASGIWorker module:app
gunicorn -k asgifast.workers.FastUvicornWorker module:app
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wsgifast.imports import exports_on_demand

if TYPE_CHECKING:
    from .gunicorn import FastASGIWorker, UnsupportedGunicorn
    from .uvicorn import FastUvicornH11Worker
    from .uvicorn_httptools import FastUvicornWorker
else:
    __getattr__ = exports_on_demand(
        __name__,
        {
            "FastASGIWorker": ".gunicorn",
            "FastUvicornH11Worker": ".uvicorn",
            "FastUvicornWorker": ".uvicorn_httptools",
            "UnsupportedGunicorn": ".gunicorn",
        },
    )

__all__ = ["FastASGIWorker", "FastUvicornH11Worker", "FastUvicornWorker", "UnsupportedGunicorn"]
