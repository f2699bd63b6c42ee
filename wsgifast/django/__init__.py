"""Django, 4.2 or newer, with its files sent by the server: static files, media, downloads.

In the settings, in place of WhiteNoise's lines:

    INSTALLED_APPS = ["wsgifast.django", ...]                       # checks, and runserver
    MIDDLEWARE = ["django.middleware.security.SecurityMiddleware",
                  "wsgifast.django.StaticFilesMiddleware", ...]
    STORAGES = {"staticfiles": {
        "BACKEND": "wsgifast.django.storage.CompressedManifestStaticFilesStorage"}, ...}

:func:`get_wsgi_application` and :func:`get_asgi_application` replace Django's own.
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
    """Return Django's WSGI application in a :class:`wsgifast.WSGIFast`.

    A FileResponse is sent by the server's sendfile and supports Range and preconditions, whatever
    headers middleware adds. A body in memory is sent as a whole.

    :param options: those of :class:`wsgifast.WSGIFast`. The default of `compress` is the setting
        WSGIFAST_COMPRESS.
    :raises ConfigurationError: if an option or that setting is invalid.
    """
    from django.core import wsgi

    from ..middleware import WSGIFast
    from .settings import compression

    application = wsgi.get_wsgi_application()
    options.setdefault("compress", compression() or False)
    return WSGIFast(application, **options)
