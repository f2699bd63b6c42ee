"""The endpoints that an app's framework lists, and a few files of the folders that it serves."""

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
from .model import OF_A_FILE, OF_FASTAPI, Endpoint, Found, Unreached


class _Route(NamedTuple):
    """A pattern and its methods.

    :ivar files: that it serves, if it serves some.
    :ivar evidence: the reason why a GET changes nothing, or empty.
    :ivar unlimited: the methods with bodies of any size. None for each that takes one.
    """

    pattern: str
    methods: Iterable[str]
    files: Files | None = None
    evidence: str = ""
    unlimited: Iterable[str] | None = None


_Routes = Iterator[_Route]

# How many objects an app's wrappers may put around it before the search for the framework ends.
_MAX_LAYERS = 50

# A group of a regular expression, with one level of groups in it.
_GROUP = re.compile(r"\((?:\?P<(?P<name>\w+)>|\?:)?(?:[^()]|\([^()]*\))*\)")
# The packages of frameworks. An app of another package is named by its own.
_PACKAGES = frozenset({"django", "fastapi", "flask", "quart", "starlette", "werkzeug"})


# Methods with a body that an app reads.
_UPLOADING = frozenset({"PATCH", "POST", "PUT"})


class Listed(NamedTuple):
    """The routes of an app, as its framework lists them.

    :ivar framework: its name. None if it is unknown.
    :ivar unlimited: method and pattern of the endpoints that take request bodies of any size, as
        far as the framework is queried.
    """

    framework: str | None
    found: Found
    unlimited: Sequence[tuple[str, str]]


def from_framework(app: Any, values: Mapping[str, str]) -> Listed:
    """The endpoints that an app's framework lists.

    An ASGI app should have been started: some frameworks build their routes at startup.

    :param values: for the parameters of patterns, by name.
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
    for pattern, methods, files, evidence, _ in routes:
        for url in sample(files or {}):
            found["GET", url] = Endpoint(url, url, source, evidence=OF_A_FILE)
        methods = sorted(set(methods) - {"OPTIONS"})
        if not methods or files is not None:
            continue
        method = "GET" if "GET" in methods else methods[0]
        one = filled(pattern, values, source, method, evidence)
        found.setdefault((method, one.url if isinstance(one, Endpoint) else pattern), one)
    return Listed(name, list(found.values()), list(unlimited))


def _routes_of(app: Any, prefix: str = "") -> tuple[str | None, list[_Route]]:
    """The framework of an app, and its routes, with those of the layers in front of it.

    :param prefix: where it is mounted.
    """
    found: list[_Route] = []
    for inner in _layers(app):
        files = files_served_by(inner)
        if files is not None:
            found.append(_Route("/{path}", ("GET",), files))
        for reader in _READERS:
            routes = reader(inner)
            if routes is not None:
                found += routes
                names = [kind.__module__.partition(".")[0] for kind in type(inner).__mro__]
                package = next((name for name in names if name in _PACKAGES), names[0])
                return package, [_below(prefix, route) for route in found]
    return None, [_below(prefix, route) for route in found]


def _below(prefix: str, route: _Route) -> _Route:
    prefix = prefix.rstrip("/")
    files = route.files and {prefix + url: path for url, path in route.files.items()}
    return route._replace(pattern=prefix + route.pattern, files=files)


def _layers(app: Any) -> Iterator[Any]:
    """An app and the apps that it keeps: wrappers hide them in attributes and closures."""
    seen: set[int] = set()
    waiting = [app]
    while waiting and len(seen) < _MAX_LAYERS:
        inner = waiting.pop(0)
        if id(inner) in seen or not callable(inner) or isinstance(inner, type):
            continue
        seen.add(id(inner))
        yield inner
        bound = getattr(inner, "__self__", None)
        if bound is not None and not isinstance(bound, type(sys)):
            waiting.append(bound)
        for cell in getattr(inner, "__closure__", None) or ():
            with contextlib.suppress(ValueError):  # not filled yet
                waiting.append(cell.cell_contents)
        if isinstance(own := getattr(inner, "__dict__", None), dict):
            waiting += own.values()
        if is_a(inner, "channels.routing", "ProtocolTypeRouter"):
            waiting.append(inner.application_mapping.get("http"))


# Frameworks. None is imported here: an app of one has imported it.


def _dispatcher(app: Any) -> _Routes | None:
    """Werkzeug's DispatcherMiddleware: apps under prefixes, and one for the rest."""
    if not is_a(app, "werkzeug.middleware.dispatcher", "DispatcherMiddleware"):
        return None
    mounted = [("", app.app), *app.mounts.items()]
    return (route for prefix, inner in mounted for route in _routes_of(inner, prefix)[1])


def _werkzeug(app: Any) -> _Routes | None:
    """Flask and Quart."""
    if not is_a(getattr(app, "url_map", None), "werkzeug.routing", "Map"):
        return None
    limit = getattr(app, "config", {}).get("MAX_CONTENT_LENGTH")
    unlimited = None if limit is None else ()
    return (
        _Route(rule.rule, rule.methods or {"GET"}, _flask_files(app, rule), unlimited=unlimited)
        for rule in app.url_map.iter_rules()
    )


def _flask_files(app: Any, rule: Any) -> Files | None:
    """The files of a rule that the app, or a blueprint, has for its static folder."""
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


# Middleware that serves STATIC_ROOT under STATIC_URL. Then views of files.
_DJANGO_STATIC = frozenset(
    {"whitenoise.middleware.WhiteNoiseMiddleware", "servestatic.middleware.ServeStaticMiddleware"}
    | {"wsgifast.django.StaticFilesMiddleware"}
)
_DJANGO_VIEWS = ("django.views.static", "django.contrib.staticfiles.views")


def django_refuses_host(host: str) -> bool | None:
    """Whether the Django of this process refuses a Host. None without Django."""
    requests = sys.modules.get("django.http.request")
    if requests is None:
        return None
    request = requests.HttpRequest()
    request.META["HTTP_HOST"] = host
    try:
        request.get_host()
    except requests.DisallowedHost:
        return True
    return False


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
        # A view does not say which methods it takes.
        limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        yield _Route(pattern, ("GET",), files, unlimited=("POST",) if limit is None else ())


def _django_pattern(pattern: Any) -> str:
    """Return a route, and a regular expression as far as it can be read as one."""
    text = str(pattern)
    if hasattr(pattern, "_route"):
        return text
    number = count(1)
    text = _GROUP.sub(lambda m: f"<{m['name'] or next(number)}>", text.removeprefix("^"))
    return text.removesuffix("$").removesuffix("\\Z").replace("\\", "").removesuffix("/?")


def _starlette(app: Any) -> _Routes | None:
    """Starlette and FastAPI."""
    kinds = (("starlette.applications", "Starlette"), ("starlette.routing", "Router"))
    if not any(is_a(app, *kind) for kind in kinds):
        return None
    routes = _path_routes(app.routes, "")
    if getattr(app, "max_body_size", None) is None:
        return routes
    return (route._replace(unlimited=()) for route in routes)


# FastAPI's own pages, by the functions that it makes for them. They read the routes.
_FASTAPIS_OWN = {
    f"FastAPI.setup.<locals>.{name}"
    for name in ("redoc_html", "swagger_ui_html", "swagger_ui_redirect")
}


def _is_fastapis_own(route: Any) -> bool:
    view: Any = getattr(route, "endpoint", None)
    if getattr(view, "__module__", "") != "fastapi.applications":
        return False
    if not view.__qualname__.endswith(".openapi"):
        return view.__qualname__ in _FASTAPIS_OWN
    # It calls the app's openapi(), which may be code of the app's own.
    (app,) = (cell.cell_contents for cell in view.__closure__)
    return bool(app.openapi.__module__ == view.__module__)


def _with_paths(routes: Sequence[Any]) -> list[Any]:
    """Those that have a path.

    A newer FastAPI lists included routers, which have their routes inside. Starlette's Host has no
    path.
    """
    unfolded = getattr(sys.modules.get("fastapi.routing"), "iter_route_contexts", list)
    return [each for each in unfolded(routes) if isinstance(getattr(each, "path", None), str)]


def _path_routes(routes: Sequence[Any], prefix: str) -> _Routes:
    for route in _with_paths(routes):
        path = prefix + route.path
        inner = getattr(route, "routes", None)
        # FastAPI's view of any route has the attributes of its own.
        original = getattr(route, "original_route", route)
        if inner:
            yield from _path_routes(inner, path)
        elif hasattr(original, "methods"):
            own = OF_FASTAPI if _is_fastapis_own(original) else ""
            yield _Route(path, route.methods or ("GET",), evidence=own)
        elif hasattr(original, "app") and not hasattr(original, "endpoint"):
            name, mounted = _routes_of(original.app, path)
            yield from mounted
            if name is None and not mounted:
                yield _Route(f"{path}/{{path}}", ("GET",))


# Each returns the routes of an app that is of its framework, or None.
_READERS: Sequence[Callable[[Any], _Routes | None]] = (_dispatcher, _werkzeug, _django, _starlette)


# Of a folder that are requested, and that are looked at.
_MOST_FILES = 3
_MOST_SEEN = 5000

# The files of a folder: their URL paths, each with the path of the file.
Files = Mapping[str, str]


def files_served_by(app: Any) -> Files | None:
    """The files of an app or middleware that serves static files. None if it serves none."""
    if isinstance(app, StaticFilesBase):
        return files_below(app._lookup.prefix, [each.path for each in app._lookup.directories])
    if is_a(app, "starlette.staticfiles", "StaticFiles"):
        return files_below("/", app.all_directories)
    kinds = (("whitenoise.base", "WhiteNoise"), ("servestatic.base", "ServeStaticBase"))
    if not any(is_a(app, *kind) for kind in kinds):
        return None
    found = {
        quote(url, safe="/"): served.alternatives[-1][1]  # the largest
        for url, served in app.files.items()
        if hasattr(served, "alternatives") and _is_shown(url)  # not a redirect
    }
    for directory, prefix in app.directories:
        found |= files_below(prefix, [directory])
    return found


def files_below(prefix: str, directories: Iterable[str | os.PathLike[str]]) -> Files:
    """The files in directories, under a prefix that ends with a slash. Hidden ones left out."""
    return {
        prefix + quote(os.path.relpath(path, top), safe="/"): path
        for top in [str(os.fspath(each)) for each in directories]
        for path in islice(_files(top), _MOST_SEEN)
    }


def _files(top: str) -> Iterator[str]:
    for folder, folders, names in os.walk(top):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = os.path.join(folder, name)
            if _is_shown(name) and os.path.isfile(path) and not os.path.islink(path):
                yield path


def _is_shown(path: str) -> bool:
    """Whether a file is not hidden, nor the precompressed file of another one."""
    return "/." not in f"/{path}" and not path.endswith((".gz", ".br", ".zst"))


def sample(files: Files) -> list[str]:
    """URL paths of a few files: the largest of each kind, and of these the largest."""
    largest: dict[str, tuple[int, str]] = {}
    for url, path in files.items():
        try:
            size = os.path.getsize(path)
        except OSError:
            continue
        kind = os.path.splitext(path)[1].lower()
        largest[kind] = max(largest.get(kind, (0, "")), (size, url))
    return [url for _, url in sorted(largest.values(), reverse=True)[:_MOST_FILES] if url]
