"""wsgifast: hand bodies and files to the server the way the kernel sends fastest."""

from .body import register_file_wrapper
from .errors import BodyError, ConfigurationError, MissingExtra, WSGIFastError
from .middleware import WSGIFast
from .static import StaticFiles

__all__ = [
    "BodyError",
    "ConfigurationError",
    "MissingExtra",
    "StaticFiles",
    "WSGIFast",
    "WSGIFastError",
    "__version__",
    "register_file_wrapper",
]

__version__ = "0.1.0"
