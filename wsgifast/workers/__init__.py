"""FastWorker, which replaces gunicorn's gthread worker, and JSONLogger, for any worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..checks import exports_on_demand
from .gunicorn_version import UnsupportedGunicorn, check_gunicorn

if TYPE_CHECKING:
    from .json_log import JSONLogger
    from .worker import FastWorker
else:
    _exported = exports_on_demand(__name__, {"FastWorker": ".worker", "JSONLogger": ".json_log"})

    def __getattr__(name: str) -> object:
        # gunicorn's command loads the class first of all, and prints a RuntimeError as a
        # sentence. An import that fails in the worker's modules would be a traceback.
        if name in __all__:
            check_gunicorn(name)
        return _exported(name)


__all__ = ["FastWorker", "JSONLogger", "UnsupportedGunicorn"]
