"""gunicorn's workers that run uvicorn with sendfile: what they share, and the one with h11."""

from __future__ import annotations

import warnings
from typing import Any

from wsgifast.checks import needs

with needs("asgifast.workers", "gunicorn", "gunicorn,asgi"):
    import gunicorn  # noqa: F401

try:
    from uvicorn_worker import UvicornWorker  # type: ignore[import-not-found, import-untyped, unused-ignore]
except ImportError:
    with warnings.catch_warnings():
        # uvicorn's own module is deprecated in favour of the uvicorn-worker package, and used only
        # if that is not installed.
        warnings.simplefilter("ignore", DeprecationWarning)
        with needs("asgifast.workers", "uvicorn", "gunicorn,asgi"):
            from uvicorn.workers import UvicornWorker

from ..exporting import ExportingWorker
from ..uvicorn import H11Protocol


class UvicornSocketsWorker(ExportingWorker, UvicornWorker):  # type: ignore[misc, unused-ignore]
    """uvicorn's worker, which gives uvicorn the sockets inside gunicorn's listeners.

    uvloop closes a listening descriptor itself, and marks a socket.socket as closed. gunicorn's
    wrapper would close the descriptor again, whose number may have been reused by then.
    """

    sockets: list[Any]

    def run(self) -> None:
        self.sockets = [getattr(listener, "sock", listener) for listener in self.sockets]
        super().run()


class FastUvicornH11Worker(UvicornSocketsWorker):
    """uvicorn's worker with asgifast.uvicorn.H11Protocol, on asyncio's own event loop."""

    CONFIG_KWARGS: dict[str, Any] = {  # noqa: RUF012 - as the base class has it
        "loop": "asyncio",
        # A class, not its name: uvicorn takes any name since 0.36 only.
        "http": H11Protocol,
    }
