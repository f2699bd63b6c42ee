"""Provide a Django project with static files, downloads and exports, for WSGI and ASGI.

The functions return the project with different middleware, in Django's applications or in those of
wsgifast.django.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any

from asgiref.sync import markcoroutinefunction

from .payloads import FIELD, FILE_BYTES, PAYLOADS, blocks, payload, payload_file, table_lines

MIDDLEWARE = {
    "WhiteNoise": "whitenoise.middleware.WhiteNoiseMiddleware",
    "ServeStatic": "servestatic.middleware.ServeStaticMiddleware",
    "ours": "wsgifast.django.StaticFilesMiddleware",
}


_SECURITY = "django.middleware.security.SecurityMiddleware"


class Mark:
    """A minimal asynchronous middleware."""

    sync_capable, async_capable = False, True

    def __init__(self, get_response: Callable[[Any], Awaitable[Any]]) -> None:
        self._get_response = get_response
        markcoroutinefunction(self)

    async def __call__(self, request: Any) -> Any:
        response = await self._get_response(request)
        response["X-Middleware"] = "passed"
        return response


def _configure(*middleware: str, root: str = str(PAYLOADS)) -> None:
    from django.conf import settings

    settings.configure(
        ALLOWED_HOSTS=["*"],
        DATA_UPLOAD_MAX_MEMORY_SIZE=None,
        INSTALLED_APPS=["django.contrib.staticfiles"],
        MIDDLEWARE=middleware,
        ROOT_URLCONF=__name__,
        SECRET_KEY="a load test keeps no secrets",
        STATIC_ROOT=root,
        STATIC_URL="/static/",
    )


def wsgi(middleware: str = "ours", root: str = str(PAYLOADS), *, wrapped: bool = False) -> Any:
    """Return Django's WSGI application with a middleware.

    :param wrapped: whether to return wsgifast.django's application.
    """
    import django.core.wsgi

    _configure(_SECURITY, MIDDLEWARE[middleware], root=root)
    if wrapped:
        from wsgifast.django import get_wsgi_application

        return get_wsgi_application()
    return django.core.wsgi.get_wsgi_application()


def asgi(*middleware: str, module: str = "django.core.asgi") -> Any:
    """Return the ASGI application of a module. The default middleware includes WhiteNoise."""
    _configure(*(middleware or (_SECURITY, MIDDLEWARE["WhiteNoise"])))
    return import_module(module).get_asgi_application()


def fast_asgi() -> Any:
    """Return wsgifast.django's ASGI application with its middleware."""
    return asgi(_SECURITY, MIDDLEWARE["ours"], module="wsgifast.django")


def uploads(interface: str) -> Any:
    """Return Django's WSGI or ASGI application without middleware."""
    _configure()
    return getattr(import_module(f"django.core.{interface}"), f"get_{interface}_application")()


def _urlpatterns() -> list[Any]:
    from django.http import FileResponse, HttpResponse, StreamingHttpResponse
    from django.urls import path

    def csv(lines: Any) -> Any:
        return StreamingHttpResponse(lines, content_type="text/csv")

    def upload(request: Any) -> Any:
        file = request.FILES.get(FIELD)
        return HttpResponse(f"{file.size if file else 0} 0", content_type="text/plain")

    return [
        path("file", lambda request: FileResponse(payload_file(FILE_BYTES).open("rb"))),
        path("lines", lambda request: csv(table_lines())),
        # A generator of half a megabyte.
        path("export", lambda request: csv(f"{n:999}\n" for n in range(500))),
        path("page", lambda request: HttpResponse("<h1>page</h1>" * 40)),
        path("stream", lambda request: StreamingHttpResponse(blocks())),
        path("small", lambda request: HttpResponse(payload(1024))),
        path("upload", upload),
    ]


def __getattr__(name: str) -> Any:
    if name == "urlpatterns":
        return _urlpatterns()
    raise AttributeError(name)
