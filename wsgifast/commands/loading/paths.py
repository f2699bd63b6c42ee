"""Finds out which paths of an app are free, by the URLs that its framework lists."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

# Where `wsgifast run` has the health checks, by the names of FastWorker's options.
PROBE_PATHS = {"health_path": "/livez", "ready_path": "/readyz"}


def free_paths(app: Any, paths: Iterable[str], django: bool) -> list[str]:
    """Return those of some paths that no URL of the app matches.

    :param app: a WSGI or ASGI app.
    :param django: whether it is Django's.
    :returns: nothing if its framework does not list its URLs.
    """
    app = getattr(app, "__self__", app)  # Flask's app.wsgi_app, if that was wrapped
    return [path for path in paths if _is_free(app, path, django)]


def _is_free(app: Any, path: str, django: bool) -> bool:
    try:
        if django:
            return _is_free_in_django(path)
        if _is_a(app, "flask", "Flask"):
            return _is_free_in_flask(app, path)
        if _is_a(app, "starlette.applications", "Starlette"):
            return _is_free_in_starlette(app, path)
    except Exception:  # noqa: BLE001 - of the app's own, so that nothing is known of its URLs
        return False
    return False


def _is_a(app: Any, module: str, name: str) -> bool:
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(app, kind)


def _is_free_in_django(path: str) -> bool:
    from django.urls import Resolver404, resolve

    try:
        resolve(path)
    except Resolver404:
        return True
    return False


def _is_free_in_flask(app: Any, path: str) -> bool:
    from werkzeug.exceptions import HTTPException, NotFound

    try:
        app.url_map.bind("localhost").match(path, method="GET")
    except NotFound:
        return True
    except HTTPException:  # a redirect, or another method
        return False
    return False


def _is_free_in_starlette(app: Any, path: str) -> bool:
    from starlette.routing import Match

    scope = {
        "type": "http", "method": "GET", "path": path, "root_path": "", "path_params": {},
        "headers": [],
    }  # fmt: skip
    return all(route.matches(scope)[0] is Match.NONE for route in app.routes)
