"""gunicorn workers that run uvicorn with sendfile."""

from __future__ import annotations

import warnings
from typing import Any

from wsgifast.errors import MissingExtra
from wsgifast.imports import needs

__all__ = ["FastUvicornH11Worker", "FastUvicornWorker"]

with needs("asgifast.workers", "gunicorn", "gunicorn,asgi"):
    import gunicorn  # noqa: F401

try:
    from uvicorn_worker import UvicornWorker  # type: ignore[import-not-found, import-untyped, unused-ignore]
except ImportError:
    with warnings.catch_warnings():
        # uvicorn's own module says that it has moved to the uvicorn-worker package; it is used
        # only where that is not installed.
        warnings.simplefilter("ignore", DeprecationWarning)
        with needs("asgifast.workers", "uvicorn", "gunicorn,asgi"):
            from uvicorn.workers import UvicornWorker

from .gunicorn_metrics import Exporting
from .uvicorn import H11Protocol

try:
    from .uvicorn import HttpToolsProtocol
except MissingExtra:
    HttpToolsProtocol = None  # type: ignore[assignment, misc]


class _Worker(Exporting, UvicornWorker):  # type: ignore[misc, unused-ignore]
    """uvicorn's worker, with gunicorn's listeners as what they are.

    gunicorn wraps each listening socket. uvloop closes a listener's descriptor by itself and tells
    a socket.socket so; anything else it closes once more, by a number that may be another's then.
    """

    sockets: list[Any]

    def run(self) -> None:
        self.sockets = [getattr(listener, "sock", listener) for listener in self.sockets]
        super().run()


class FastUvicornH11Worker(_Worker):
    """uvicorn's worker with asgifast.uvicorn.H11Protocol, on asyncio's own event loop."""

    CONFIG_KWARGS: dict[str, Any] = {  # noqa: RUF012 - as the base class has it
        "loop": "asyncio",
        # A class, not its name: uvicorn takes any name since 0.36 only.
        "http": H11Protocol,
    }


if HttpToolsProtocol is not None:

    class FastUvicornWorker(_Worker):
        """uvicorn's worker with asgifast.uvicorn.HttpToolsProtocol."""

        CONFIG_KWARGS: dict[str, Any] = {  # noqa: RUF012 - as the base class has it
            "loop": "auto",
            "http": HttpToolsProtocol,
        }

else:

    def __getattr__(name: str) -> Any:
        if name == "FastUvicornWorker":
            raise MissingExtra("asgifast.workers.FastUvicornWorker", "httptools", "asgi")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
