"""Django's WSGI application in WSGIFast."""

from __future__ import annotations

from typing import Any

from django.core import wsgi

from ..middleware import WSGIFast
from .compressing import compression


def get_wsgi_application(**options: Any) -> WSGIFast:
    """Return Django's WSGI application in a :class:`wsgifast.WSGIFast`.

    A FileResponse is sent by the server's sendfile and supports Range and preconditions, whatever
    headers middleware adds; a body in memory is sent as a whole.

    :param options: those of :class:`wsgifast.WSGIFast`; `compress` is by default the setting
        WSGIFAST_COMPRESS.
    :raises ConfigurationError: if an option or that setting is invalid.
    """
    application = wsgi.get_wsgi_application()
    options.setdefault("compress", compression() or False)
    return WSGIFast(application, **options)
