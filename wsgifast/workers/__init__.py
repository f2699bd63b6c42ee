"""gunicorn: FastWorker, a drop-in for its gthread worker."""

from .gunicorn_support import UnsupportedGunicorn
from .worker import FastWorker

__all__ = ["FastWorker", "UnsupportedGunicorn"]
