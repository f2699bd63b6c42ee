"""wsgiref's and Werkzeug's development servers with keep-alive, TCP_NODELAY and sendfile."""

from typing import TYPE_CHECKING

from ..checks import exports_on_demand
from .simple_server import ThreadingWSGIServer, WSGIRequestHandler, WSGIServer, make_server

if TYPE_CHECKING:
    from .werkzeug_server import WerkzeugRequestHandler
else:
    # Imported on demand, since WerkzeugRequestHandler needs Werkzeug.
    __getattr__ = exports_on_demand(__name__, {"WerkzeugRequestHandler": ".werkzeug_server"})

__all__ = [
    "ThreadingWSGIServer",
    "WSGIRequestHandler",
    "WSGIServer",
    "WerkzeugRequestHandler",
    "make_server",
]
