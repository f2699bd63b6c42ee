"""FastWorker, which takes the place of gunicorn's gthread worker; JSONLogger, for any worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .gunicorn_version import UnsupportedGunicorn, check_gunicorn

if TYPE_CHECKING:
    from .json_log import JSONLogger
    from .worker import FastWorker
else:

    def __getattr__(name: str) -> Any:
        # gunicorn's command asks for the class first of all, and prints a RuntimeError as a
        # sentence; an import that fails in the worker's modules would be a traceback.
        if name not in ("FastWorker", "JSONLogger"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        check_gunicorn()
        if name == "JSONLogger":
            from .json_log import JSONLogger

            return JSONLogger
        from .worker import FastWorker

        return FastWorker


__all__ = ["FastWorker", "JSONLogger", "UnsupportedGunicorn"]
