"""Find the endpoints of an app: the routes of its framework, and files in its static folders."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count, islice
from typing import Any, NamedTuple
from urllib.parse import quote

from ...files.site import StaticFilesBase
from ..loading.frameworks import is_a
from .endpoints import filled
from .model import STATIC_FILE, Endpoint, Found, Unreached


class _Route(NamedTuple):
    """A URL pattern of an app, and its methods.

    :ivar files: the files that the route serves. None if the route calls a view.
    :ivar unlimited: the methods for which a request body may have any size. None for all `methods`.
    """

    pattern: str
    methods: Iterable[str]
    files: Files | None = None
    unlimited: Iterable[str] | None = None


_Routes = Iterator[_Route]

# The app of the framework may be in wrappers. At most this number of objects are searched for it.
_MAX_LAYERS = 50

# A group of a regular expression. It may contain further groups, but only one level of them.
_GROUP = re.compile(r"\((?:\?P<(?P<name>\w+)>|\?:)?(?:[^()]|\([^()]*\))*\)")
# The names of packages that are frameworks. If an app has a class of another package, the report
# names this package.
_PACKAGES = frozenset({"django", "fastapi", "flask", "quart", "starlette", "werkzeug"})

# The methods of requests that usually have a body.
_UPLOADING = frozenset({"PATCH", "POST", "PUT"})


class Listed(NamedTuple):
    """The endpoints of an app.

    :ivar framework: the name of the framework. None if unknown.
    :ivar unlimited: the methods and patterns of endpoints that accept request bodies of any size.
    """

    framework: str | None
    found: Found
    unlimited: Sequence[tuple[str, str]]


def from_framework(app: Any, values: Mapping[str, str]) -> Listed:
    """Return the endpoints of an app.

    An ASGI app should have started, because some frameworks build routes at startup.

    :param values: maps names of URL parameters to values.
    """
    name, routes = _routes_of(app)
    unlimited = {
        (method, each.pattern): None
        for each in routes
        for method in sorted(each.methods if each.unlimited is None else each.unlimited)
        if method in _UPLOADING
    }
    found: dict[tuple[str, str], Endpoint | Unreached] = {}
    source = name or "static files"
    for pattern, methods, files, _ in routes:
        for url in largest_files(files or {}):
            found["GET", url] = Endpoint(url, url, source, evidence=STATIC_FILE)
        methods = sorted(set(methods) - {"OPTIONS"})
        if not methods or files is not None:
            continue
        method = "GET" if "GET" in methods else methods[0]
        endpoint = filled(pattern, values, source, method)
        url = endpoint.url if isinstance(endpoint, Endpoint) else pattern
        found.setdefault((method, url), endpoint)
    return Listed(name, list(found.values()), list(unlimited))


def _routes_of(app: Any, prefix: str = "") -> tuple[str | None, list[_Route]]:
    """Return the framework and the routes of an app. Include the files that its wrappers serve.

    :param prefix: the URL path where the app is mounted.
    """
    found: list[_Route] = []
    for inner in _layers(app):
        files = served_files(inner)
        if files is not None:
            found.append(_Route("/{path}", ("GET",), files))
        for reader in _READERS:
            routes = reader(inner)
            if routes is not None:
                found += routes
                names = [kind.__module__.partition(".")[0] for kind in type(inner).__mro__]
                package = next((name for name in names if name in _PACKAGES), names[0])
                return package, [_mounted(prefix, route) for route in found]
    return None, [_mounted(prefix, route) for route in found]


def _mounted(prefix: str, route: _Route) -> _Route:
    prefix = prefix.rstrip("/")
    files = route.files and {prefix + url: path for url, path in route.files.items()}
    return route._replace(pattern=prefix + route.pattern, files=files)


def _layers(app: Any) -> Iterator[Any]:
    """Yield an app, and the callables in its attributes and closures, such as a wrapped app."""
    seen: set[int] = set()
    queue = [app]
    while queue and len(seen) < _MAX_LAYERS:
        inner = queue.pop(0)
        if id(inner) in seen or not callable(inner) or isinstance(inner, type):
            continue
        seen.add(id(inner))
        yield inner
        bound = getattr(inner, "__self__", None)
        if bound is not None and not isinstance(bound, type(sys)):
            queue.append(bound)
        for cell in getattr(inner, "__closure__", None) or ():
            with contextlib.suppress(ValueError):  # the variable of the closure has no value yet
                queue.append(cell.cell_contents)
        if isinstance(attributes := getattr(inner, "__dict__", None), dict):
            queue += attributes.values()
        if is_a(inner, "channels.routing", "ProtocolTypeRouter"):
            queue.append(inner.application_mapping.get("http"))


# Each of these functions returns the routes of an app of one framework. It returns None for any
# other app. A function imports the framework only if the app belongs to it.


def _dispatcher(app: Any) -> _Routes | None:
    """Return the routes of the apps in Werkzeug's DispatcherMiddleware."""
    if not is_a(app, "werkzeug.middleware.dispatcher", "DispatcherMiddleware"):
        return None
    mounted = [("", app.app), *app.mounts.items()]
    return (route for prefix, inner in mounted for route in _routes_of(inner, prefix)[1])


def _werkzeug(app: Any) -> _Routes | None:
    """Return the routes of an app of Flask or Quart."""
    if not is_a(getattr(app, "url_map", None), "werkzeug.routing", "Map"):
        return None
    limit = getattr(app, "config", {}).get("MAX_CONTENT_LENGTH")
    unlimited = None if limit is None else ()
    return (
        _Route(rule.rule, rule.methods or {"GET"}, _flask_files(app, rule), unlimited=unlimited)
        for rule in app.url_map.iter_rules()
    )


def _flask_files(app: Any, rule: Any) -> Files | None:
    """Return the files of a static folder of the app or of a blueprint.

    None if a rule serves no such folder.
    """
    name, _, view = str(rule.endpoint).rpartition(".")
    owner = app if not name else getattr(app, "blueprints", {}).get(name)
    prefix, is_static, _ = rule.rule.partition("<path:filename>")
    folder = getattr(owner, "static_folder", None)
    if view != "static" or not is_static or folder is None:
        return None
    return files_below(prefix, [folder])


def _django(app: Any) -> _Routes | None:
    if not is_a(app, "django.core.handlers.base", "BaseHandler"):
        return None
    from django.conf import settings
    from django.urls import get_resolver

    routes = _django_routes(get_resolver(), "/")
    root, prefix = settings.STATIC_ROOT, settings.STATIC_URL or ""
    if root and prefix.startswith("/") and _DJANGO_STATIC & set(settings.MIDDLEWARE):
        routes = chain([_Route(f"{prefix}{{path}}", ("GET",), files_below(prefix, [root]))], routes)
    return routes


# Middleware that serves the files of STATIC_ROOT under STATIC_URL.
_DJANGO_STATIC = frozenset(
    {"whitenoise.middleware.WhiteNoiseMiddleware", "servestatic.middleware.ServeStaticMiddleware"}
    | {"wsgifast.django.StaticFilesMiddleware"}
)
# The modules of Django's serve(), a view that serves the files of a folder.
_DJANGO_VIEWS = ("django.views.static", "django.contrib.staticfiles.views")


def _django_routes(resolver: Any, prefix: str) -> _Routes:
    from django.conf import settings

    for entry in resolver.url_patterns:
        pattern = prefix + _django_pattern(entry.pattern)
        if hasattr(entry, "url_patterns"):
            yield from _django_routes(entry, pattern)
            continue
        files = None
        view, root = entry.callback, (entry.default_args or {}).get("document_root")
        if root and (view.__module__, view.__name__) in ((m, "serve") for m in _DJANGO_VIEWS):
            files = files_below(pattern.partition("<path>")[0], [root])
        # A URL pattern of Django does not list the methods of its view.
        limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        yield _Route(pattern, ("GET",), files, unlimited=("POST",) if limit is None else ())


def _django_pattern(pattern: Any) -> str:
    """Return a URL pattern. A regular expression is converted approximately."""
    text = str(pattern)
    if hasattr(pattern, "_route"):
        return text
    number = count(1)
    text = _GROUP.sub(lambda m: f"<{m['name'] or next(number)}>", text.removeprefix("^"))
    return text.removesuffix("$").removesuffix("\\Z").replace("\\", "").removesuffix("/?")


def _starlette(app: Any) -> _Routes | None:
    """Return the routes of an app of Starlette or FastAPI."""
    kinds = (("starlette.applications", "Starlette"), ("starlette.routing", "Router"))
    if not any(is_a(app, *kind) for kind in kinds):
        return None
    routes = _path_routes(app.routes, "")
    if getattr(app, "max_body_size", None) is None:
        return routes
    return (route._replace(unlimited=()) for route in routes)


def _routes_with_path(routes: Sequence[Any]) -> list[Any]:
    """Return the routes that have a path. Starlette's Host, for example, has no path.

    In newer releases of FastAPI, an included router is one item, which contains its routes.
    """
    flatten = getattr(sys.modules.get("fastapi.routing"), "iter_route_contexts", list)
    return [each for each in flatten(routes) if isinstance(getattr(each, "path", None), str)]


def _path_routes(routes: Sequence[Any], prefix: str) -> _Routes:
    for route in _routes_with_path(routes):
        path = prefix + route.path
        inner = getattr(route, "routes", None)
        # Newer releases of FastAPI wrap each route in an object with other attributes.
        original = getattr(route, "original_route", route)
        if inner:
            yield from _path_routes(inner, path)
        elif hasattr(original, "methods"):
            yield _Route(path, route.methods or ("GET",))
        elif hasattr(original, "app") and not hasattr(original, "endpoint"):
            name, mounted = _routes_of(original.app, path)
            yield from mounted
            if name is None and not mounted:
                yield _Route(f"{path}/{{path}}", ("GET",))


_READERS: Sequence[Callable[[Any], _Routes | None]] = (_dispatcher, _werkzeug, _django, _starlette)


# The maximum number of files to request from a folder, and of files to choose from.
_MAX_FILES = 3
_MAX_LISTED = 5000

# Maps URL paths to the paths of files.
Files = Mapping[str, str]


def served_files(app: Any) -> Files | None:
    """Return the files of an app or middleware that serves static files. None for other apps."""
    if isinstance(app, StaticFilesBase):
        return files_below(app._lookup.prefix, [each.path for each in app._lookup.directories])
    if is_a(app, "starlette.staticfiles", "StaticFiles"):
        return files_below("/", app.all_directories)
    kinds = (("whitenoise.base", "WhiteNoise"), ("servestatic.base", "ServeStaticBase"))
    if not any(is_a(app, *kind) for kind in kinds):
        return None
    found = {
        # The largest file, which is not compressed.
        quote(url, safe="/"): served.alternatives[-1][1]
        for url, served in app.files.items()
        if hasattr(served, "alternatives") and _is_shown(url)  # not a redirect
    }
    for directory, prefix in app.directories:
        found |= files_below(prefix, [directory])
    return found


def files_below(prefix: str, directories: Iterable[str | os.PathLike[str]]) -> Files:
    """Return the files in directories, without hidden files.

    :param prefix: the start of the URL paths. It ends with a slash.
    """
    return {
        prefix + quote(os.path.relpath(path, top), safe="/"): path
        for top in [str(os.fspath(each)) for each in directories]
        for path in islice(_walk(top), _MAX_LISTED)
    }


def _walk(top: str) -> Iterator[str]:
    for folder, folders, names in os.walk(top):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = os.path.join(folder, name)
            if _is_shown(name) and os.path.isfile(path) and not os.path.islink(path):
                yield path


def _is_shown(path: str) -> bool:
    """Return whether a file is neither hidden nor precompressed."""
    return "/." not in f"/{path}" and not path.endswith((".gz", ".br", ".zst"))


def largest_files(files: Files) -> list[str]:
    """Return the URL paths of the largest files.

    For each file name extension, return at most one.
    """
    largest: dict[str, tuple[int, str]] = {}
    for url, path in files.items():
        try:
            size = os.path.getsize(path)
        except OSError:
            continue
        kind = os.path.splitext(path)[1].lower()
        largest[kind] = max(largest.get(kind, (0, "")), (size, url))
    return [url for _, url in sorted(largest.values(), reverse=True)[:_MAX_FILES] if url]
