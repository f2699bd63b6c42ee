"""A Django project of static files, downloads and exports, by WSGI and by ASGI.

The same project each time, with another middleware or another application around it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from .payloads import FILE_BYTES, PAYLOADS, payload_file, table_lines

# Names the folder of the large files of a run to the servers.
LARGE_FOLDER_VARIABLE = "WSGIFAST_LARGE_FOLDER"
MIDDLEWARE = {
    "WhiteNoise": "whitenoise.middleware.WhiteNoiseMiddleware",
    "ServeStatic": "servestatic.middleware.ServeStaticMiddleware",
    "ours": "wsgifast.django.StaticFilesMiddleware",
}


def _configure(middleware: str, root: str = str(PAYLOADS)) -> None:
    from django.conf import settings

    settings.configure(
        ALLOWED_HOSTS=["*"],
        INSTALLED_APPS=["django.contrib.staticfiles"],
        MIDDLEWARE=["django.middleware.security.SecurityMiddleware", MIDDLEWARE[middleware]],
        ROOT_URLCONF=__name__,
        SECRET_KEY="a load test keeps no secrets",
        STATIC_ROOT=root,
        STATIC_URL="/static/",
    )


def wsgi(middleware: str = "ours", root: str = str(PAYLOADS), *, wrapped: bool = False) -> Any:
    """Django's WSGI application with a middleware, or ours."""
    import django.core.wsgi

    _configure(middleware, root)
    if wrapped:
        from wsgifast.django import get_wsgi_application

        return get_wsgi_application()
    return django.core.wsgi.get_wsgi_application()


def asgi() -> Any:
    """Django's own ASGI application, with WhiteNoise."""
    import django.core.asgi

    _configure("WhiteNoise")
    return django.core.asgi.get_asgi_application()


def fast_asgi() -> Any:
    """Ours, with our middleware."""
    _configure("ours")
    from wsgifast.django import get_asgi_application

    return get_asgi_application()


def _urlpatterns() -> list[Any]:
    from django.http import FileResponse, HttpResponse, StreamingHttpResponse
    from django.urls import path

    def large(request: object, size: int) -> Any:
        """A file of the run."""
        return FileResponse(Path(os.environ[LARGE_FOLDER_VARIABLE], f"{size}.bin").open("rb"))

    def csv(lines: Any) -> Any:
        return StreamingHttpResponse(lines, content_type="text/csv")

    return [
        path("file", lambda request: FileResponse(payload_file(FILE_BYTES).open("rb"))),
        path("large/<int:size>", large),
        path("lines", lambda request: csv(table_lines())),
        # A generator of half a megabyte.
        path("export", lambda request: csv(f"{n:999}\n" for n in range(500))),
        path("page", lambda request: HttpResponse("<h1>page</h1>" * 40)),
    ]


def __getattr__(name: str) -> Any:
    if name == "urlpatterns":
        return _urlpatterns()
    raise AttributeError(name)
