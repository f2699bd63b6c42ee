"""Serve the static files, media files and downloads of Django 4.2 or newer.

Put these lines into the settings, in place of those for WhiteNoise:

    INSTALLED_APPS = ["wsgifast.django", ...]                       # checks, and runserver
    MIDDLEWARE = ["django.middleware.security.SecurityMiddleware",
                  "wsgifast.django.StaticFilesMiddleware", ...]
    STORAGES = {"staticfiles": {
        "BACKEND": "wsgifast.django.storage.CompressedManifestStaticFilesStorage"}, ...}

:func:`get_wsgi_application` and :func:`get_asgi_application` replace Django's functions of the same
names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..checks import exports_on_demand, needs

with needs("wsgifast.django", "django", "django"):
    import django as django

if TYPE_CHECKING:
    from asgifast.django import get_asgi_application

    from ..middleware import WSGIFast
    from .middleware import StaticFilesMiddleware, serve_media
else:
    __getattr__ = exports_on_demand(
        __name__,
        {
            "StaticFilesMiddleware": ".middleware",
            "get_asgi_application": "asgifast.django",
            "serve_media": ".middleware",
        },
    )

__all__ = ["StaticFilesMiddleware", "get_asgi_application", "get_wsgi_application", "serve_media"]


def get_wsgi_application(**options: Any) -> WSGIFast:
    """Return Django's WSGI application, wrapped in a :class:`wsgifast.WSGIFast`.

    A FileResponse is sent by the sendfile() of the server. It supports Range and preconditions,
    also if middleware has added headers. A body in memory is sent in one piece.

    :param options: the options of :class:`wsgifast.WSGIFast`. The default of `compress` is the
        setting WSGIFAST_COMPRESS.
    :raises ConfigurationError: if an option or WSGIFAST_COMPRESS is invalid.
    """
    from django.core import wsgi

    from ..middleware import WSGIFast
    from .settings import compression

    application = wsgi.get_wsgi_application()
    options.setdefault("compress", compression() or False)
    return WSGIFast(application, **options)
