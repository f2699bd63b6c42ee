"""Django's WSGI application in WSGIFast."""

from __future__ import annotations

from typing import Any

from django.core import wsgi

from ..middleware import WSGIFast

__all__ = ["get_wsgi_application"]


def get_wsgi_application(**options: Any) -> WSGIFast:
    """Take the place of django.core.wsgi's.

    A FileResponse goes out by the server's sendfile and answers Range and conditions, whatever
    middleware has added to its headers; what Django has whole leaves as a whole.

    :param options: those of :class:`wsgifast.WSGIFast`.
    """
    return WSGIFast(wsgi.get_wsgi_application(), **options)
