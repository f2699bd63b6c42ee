"""FastWorker, which takes the place of gunicorn's gthread worker."""

from .gunicorn_support import UnsupportedGunicorn
from .worker import FastWorker

__all__ = ["FastWorker", "UnsupportedGunicorn"]
