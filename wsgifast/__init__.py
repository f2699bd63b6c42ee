"""Middleware, servers and file serving that send the responses of Python web apps faster.

- :class:`WSGIFast` wraps any WSGI app. :class:`StaticFiles` serves directories.
- :class:`wsgifast.workers.FastWorker` is a gunicorn worker that no slow client can block.
- :mod:`wsgifast.devservers` has faster versions of wsgiref's and Werkzeug's development servers.
- :mod:`wsgifast.sockets` has functions for sockets: TCP_NODELAY, coalesced sends, whole receives.
- :mod:`wsgifast.mail` has SMTP and IMAP clients and an SMTP server.
- The package `asgifast` is for ASGI apps.
"""

from typing import TYPE_CHECKING

from .checks import exports_on_demand
from .errors import BodyError, ConfigurationError, MissingExtra, WSGIFastError

if TYPE_CHECKING:
    from .bodies.wrappers import register_file_wrapper
    from .compression import Compression, compress_response
    from .deadlines import request_timeout
    from .middleware import WSGIFast
    from .static import StaticFiles
    from .workers import FastWorker as FastWorker
else:
    __getattr__ = exports_on_demand(
        __name__,
        {
            "Compression": ".compression",
            "compress_response": ".compression",
            "StaticFiles": ".static",
            "WSGIFast": ".middleware",
            "register_file_wrapper": ".bodies.wrappers",
            "request_timeout": ".deadlines",
            # Not in __all__, because it needs an extra. `gunicorn -k wsgifast.FastWorker` imports
            # it.
            "FastWorker": ".workers",
        },
    )

__all__ = [
    "BodyError",
    "Compression",
    "ConfigurationError",
    "MissingExtra",
    "StaticFiles",
    "WSGIFast",
    "WSGIFastError",
    "__version__",
    "compress_response",
    "register_file_wrapper",
    "request_timeout",
]

__version__ = "0.1.0"
