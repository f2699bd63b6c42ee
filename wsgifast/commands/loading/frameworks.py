"""Reads from the framework of an app: its static files, its debug setting, and its free URLs."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable
from typing import Any

from . import django_settings


def configured_static(app: Any) -> dict[str, str]:
    """Return directories of static files that may be served beside an app, by URL prefixes.

    STATIC_ROOT is left out if Django's middleware or one of its URLs serves the files. Flask's
    static folder is left out if functions around each request may restrict it or add headers.
    """
    found: dict[str, Any] = {}
    settings = django_settings()
    if settings is not None:
        serves = any(
            word in name.lower()
            for name in [*settings.MIDDLEWARE, *settings.INSTALLED_APPS]
            for word in ("whitenoise", "servestatic", "wsgifast")
        )
        serves = serves or _has_url(settings.STATIC_URL)
        if "django.contrib.staticfiles" in settings.INSTALLED_APPS and not serves:
            found[settings.STATIC_URL] = settings.STATIC_ROOT
    app = _framework_of(app)
    if is_a(app, "flask", "Flask") and app.has_static_folder:
        around = (app.before_request_funcs, app.after_request_funcs, app.teardown_request_funcs)
        if not any(any(functions.values()) for functions in around):
            found[f"{app.static_url_path}/"] = app.static_folder
    return {
        prefix: str(folder)
        for prefix, folder in found.items()
        if str(prefix).startswith("/") and folder and os.path.isdir(folder)
    }


def _has_url(prefix: str | None) -> bool:
    """Return whether a URL of Django begins with a prefix. A URL for all paths does not."""
    from django.urls import resolve

    if not prefix:
        return False
    with contextlib.suppress(Exception):  # the app's own URLs may raise any exception
        route: str = resolve(f"/{prefix.strip('/')}/x").route
        return route.lstrip("^/").startswith(prefix.strip("/"))
    return False


def debug_setting(app: Any) -> str:
    """Return the setting by which a framework debugs, or "" if it does not."""
    settings = django_settings()
    if settings is not None and settings.DEBUG:
        return "Django's DEBUG is True"
    is_debug = getattr(_framework_of(app), "debug", None) is True
    return f"{type(app).__name__}.debug is True" if is_debug else ""


def free_paths(app: Any, paths: Iterable[str], django: bool) -> list[str]:
    """Return the paths that no URL of an app matches.

    :param django: whether it is an app of Django.
    :returns: no path if the framework does not list its URLs.
    """
    app = _framework_of(app)
    try:
        return [path for path in paths if not _is_matched(app, path, django)]
    except Exception:  # noqa: BLE001 - the app's own URLs may raise any exception
        return []


def _is_matched(app: Any, path: str, django: bool) -> bool:
    if django:
        from django.urls import Resolver404, resolve

        with contextlib.suppress(Resolver404):
            resolve(path)
            return True
        return False
    if is_a(app, "flask", "Flask"):
        from werkzeug.exceptions import HTTPException, NotFound

        try:
            app.url_map.bind("localhost").match(path, method="GET")
        except HTTPException as error:  # others are a redirect, or another method
            return not isinstance(error, NotFound)
        return True
    if is_a(app, "starlette.applications", "Starlette"):
        from starlette.routing import Match

        scope = {
            "type": "http", "method": "GET", "path": path, "root_path": "", "path_params": {},
            "headers": [],
        }  # fmt: skip
        return any(route.matches(scope)[0] is not Match.NONE for route in app.routes)
    return True


def _framework_of(app: Any) -> Any:
    """Return the object of Flask, if the app is its method `wsgi_app`."""
    return getattr(app, "__self__", app)


def is_a(app: Any, module: str, name: str) -> bool:
    """Return whether an object is of a class. Nothing is imported: the app has imported it."""
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(app, kind)
