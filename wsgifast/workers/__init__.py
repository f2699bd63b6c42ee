"""FastWorker, which takes the place of gunicorn's gthread worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .gunicorn_version import UnsupportedGunicorn, check_gunicorn

if TYPE_CHECKING:
    from .worker import FastWorker
else:

    def __getattr__(name: str) -> Any:
        # gunicorn's command asks for the class first of all, and prints a RuntimeError as a
        # sentence; an import that fails in the worker's modules would be a traceback.
        if name != "FastWorker":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        check_gunicorn()
        from .worker import FastWorker

        return FastWorker


__all__ = ["FastWorker", "UnsupportedGunicorn"]
