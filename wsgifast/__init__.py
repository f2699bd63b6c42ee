"""wsgifast: hand bodies and files to the server the way the kernel sends fastest."""

from .errors import ConfigurationError, MissingExtra, WSGIFastError

__all__ = [
    "ConfigurationError",
    "MissingExtra",
    "WSGIFastError",
    "__version__",
]

__version__ = "0.1.0"
