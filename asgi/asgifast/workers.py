"""gunicorn's worker that runs uvicorn, and sends files by sendfile.

gunicorn -k asgifast.workers.FastUvicornWorker module:app
"""

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

from .exporting import ExportingWorker
from .uvicorn import HttpToolsProtocol


class FastUvicornWorker(ExportingWorker, UvicornWorker):  # type: ignore[misc, unused-ignore]
    """uvicorn's worker with asgifast.uvicorn.HttpToolsProtocol."""

    CONFIG_KWARGS: dict[str, Any] = {  # noqa: RUF012 - as the base class has it
        "loop": "auto",
        "http": HttpToolsProtocol,
    }

    sockets: list[Any]

    def run(self) -> None:
        # uvloop closes a listening descriptor itself, and marks a socket.socket as closed.
        # gunicorn's wrapper would close the descriptor again, whose number may have been reused.
        self.sockets = [getattr(listener, "sock", listener) for listener in self.sockets]
        super().run()
