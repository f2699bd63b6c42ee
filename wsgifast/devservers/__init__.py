"""Development servers that are not slow: wsgiref's and Werkzeug's, repaired."""

from typing import TYPE_CHECKING

from ..imports import exports_on_demand
from .simple_server import ThreadingWSGIServer, WSGIRequestHandler, WSGIServer, make_server

if TYPE_CHECKING:
    from .serving import WerkzeugRequestHandler
else:
    # Which needs Werkzeug.
    __getattr__ = exports_on_demand(__name__, {"WerkzeugRequestHandler": ".serving"})

__all__ = [
    "ThreadingWSGIServer",
    "WSGIRequestHandler",
    "WSGIServer",
    "WerkzeugRequestHandler",
    "make_server",
]
