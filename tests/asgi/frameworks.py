"""The file responses of frameworks and other packages, each of them inside ASGIFast.

Each app serves the folder in ASGIFAST_TEST_FILES below /framework/NAME/.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable
from typing import Any

import asgifast
from asgifast import ASGIFast
from asgifast.messages import ASGIApp, Receive, Scope, Send

__all__ = ["FRAMEWORKS", "serve"]

_FOLDER = os.environ.get("ASGIFAST_TEST_FILES", "")


def _file_response(*, ours: bool) -> ASGIApp:
    from starlette import responses
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.routing import Route

    kind = asgifast.FileResponse if ours else responses.FileResponse

    async def file(request: Request) -> responses.FileResponse:
        return kind(_FOLDER + request.url.path)

    return Starlette(routes=[Route("/{path:path}", file)])


def _starlette_static_files() -> ASGIApp:
    from starlette.staticfiles import StaticFiles

    return StaticFiles(directory=_FOLDER)


def _servestatic() -> ASGIApp:
    from servestatic import ServeStaticASGI

    async def missing(scope: Scope, receive: Receive, send: Send) -> None:
        raise LookupError(f"ServeStatic has no {scope['path']}")

    app: ASGIApp = ServeStaticASGI(missing, root=_FOLDER)
    return app


def _django(**settings: Any) -> ASGIApp:
    import django.conf
    import django.core.asgi

    if not django.conf.settings.configured:
        django.conf.settings.configure(
            ALLOWED_HOSTS=["*"],
            ROOT_URLCONF=__name__,
            STATIC_URL="/static/",
            STATIC_ROOT=_FOLDER,
            MIDDLEWARE=["whitenoise.middleware.WhiteNoiseMiddleware"],
        )
        # Django reads the blocks of a file in a thread then, and warns about it.
        warnings.filterwarnings("ignore", message="StreamingHttpResponse must consume synchronous")
    app: ASGIApp = django.core.asgi.get_asgi_application()
    return app


def _below(prefix: str, make: Callable[[], ASGIApp]) -> ASGIApp:
    app = make()

    async def below(scope: Scope, receive: Receive, send: Send) -> None:
        path = prefix + scope["path"]
        await app({**scope, "path": path, "raw_path": path.encode()}, receive, send)

    return below


def _urlpatterns() -> list[Any]:
    from django.urls import path
    from django.views.static import serve

    return [path("media/<path:path>", serve, {"document_root": _FOLDER})]


def __getattr__(name: str) -> Any:
    # Django requires this name. The import is late, since only Django needs it.
    if name == "urlpatterns":
        return _urlpatterns()
    raise AttributeError(name)


# name -> the function that makes the app, and whether it supports ranges
FRAMEWORKS: dict[str, tuple[Callable[[], ASGIApp], bool]] = {
    "starlette-file-response": (functools.partial(_file_response, ours=False), True),
    "asgifast-file-response": (functools.partial(_file_response, ours=True), True),
    "starlette-static-files": (_starlette_static_files, True),
    "servestatic": (_servestatic, True),
    "django-whitenoise": (functools.partial(_below, "/static", _django), True),
    "django-serve": (functools.partial(_below, "/media", _django), False),
}

_apps: dict[str, ASGIApp] = {}


async def serve(scope: Scope, receive: Receive, send: Send) -> None:
    """Serve /framework/NAME/... by the app NAME of FRAMEWORKS."""
    _, _, name, path = scope["path"].split("/", 3)
    if name not in _apps:
        make, _ = FRAMEWORKS[name]
        _apps[name] = ASGIFast(make())
    path = f"/{path}"
    await _apps[name]({**scope, "path": path, "raw_path": path.encode()}, receive, send)
