"""Development servers that are not slow: wsgiref's and Werkzeug's, repaired."""

from .serving import WerkzeugRequestHandler
from .simple_server import ThreadingWSGIServer, WSGIRequestHandler, WSGIServer, make_server

__all__ = [
    "ThreadingWSGIServer",
    "WSGIRequestHandler",
    "WSGIServer",
    "WerkzeugRequestHandler",
    "make_server",
]
