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

from typing import TYPE_CHECKING

from ..checks import exports_on_demand, needs

with needs("wsgifast.django", "django", "django"):
    import django as django

if TYPE_CHECKING:
    from asgifast.django import get_asgi_application

    from .media import serve_media
    from .middleware import StaticFilesMiddleware
    from .wsgi import get_wsgi_application
else:
    __getattr__ = exports_on_demand(
        __name__,
        {
            "StaticFilesMiddleware": ".middleware",
            "get_asgi_application": "asgifast.django",
            "get_wsgi_application": ".wsgi",
            "serve_media": ".media",
        },
    )

__all__ = ["StaticFilesMiddleware", "get_asgi_application", "get_wsgi_application", "serve_media"]
