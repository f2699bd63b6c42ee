"""gunicorn's workers that run uvicorn, and send files by sendfile.

gunicorn -k asgifast.workers.FastUvicornWorker module:app
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wsgifast.checks import exports_on_demand

if TYPE_CHECKING:
    from .uvicorn import FastUvicornH11Worker
    from .uvicorn_httptools import FastUvicornWorker
else:
    __getattr__ = exports_on_demand(
        __name__,
        {"FastUvicornH11Worker": ".uvicorn", "FastUvicornWorker": ".uvicorn_httptools"},
    )

__all__ = ["FastUvicornH11Worker", "FastUvicornWorker"]
