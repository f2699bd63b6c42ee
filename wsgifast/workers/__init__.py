"""gunicorn's worker FastWorker, which replaces gthread, and JSONLogger for any gunicorn worker."""

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
        # gunicorn's command loads the class before anything else. It prints a RuntimeError without
        # a traceback. An ImportError in the worker's modules would be printed with a traceback.
        if name in __all__:
            check_gunicorn(name)
        return _exported(name)


__all__ = ["FastWorker", "JSONLogger", "UnsupportedGunicorn"]
