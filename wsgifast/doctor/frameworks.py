"""The endpoints that an app's framework lists."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from typing import Any

from .endpoints import filled, needs
from .model import Endpoint, Found, Unreached

# (pattern, methods) of each route.
_Routes = Iterator[tuple[str, Iterable[str]]]

# How many objects an app's wrappers may put around it before the search for the framework ends.
_MAX_LAYERS = 50

# A group of a regular expression, with one level of groups in it.
_GROUP = re.compile(r"\((?:\?P<(?P<name>\w+)>|\?:)?(?:[^()]|\([^()]*\))*\)")
# {name}, {int:name} and :name.
_BLACKSHEEP_PARAMETER = re.compile(r"\{([^{}]+)\}|:(\w+)")
# Frameworks that are told apart by the package of an app's class, since their routes look alike.
_PACKAGES = frozenset({"esmerald", "fastapi", "flask", "litestar", "quart", "starlette"})


def from_framework(app: Any, values: Mapping[str, str]) -> tuple[str | None, Found]:
    """The name of an app's framework, and the endpoints that it lists.

    An ASGI app should have been started: some frameworks build their routes at startup.

    :param values: for the parameters of patterns, by name.
    """
    for inner in _layers(app):
        for name, routes in _FRAMEWORKS:
            found = routes(inner)
            if found is not None:
                name = name or _package(inner)
                return name, _endpoints(name, found, values)
    return None, ([], [])


def _package(app: Any) -> str:
    names = [kind.__module__.partition(".")[0] for kind in type(app).__mro__]
    return next((name for name in names if name in _PACKAGES), names[0])


def _endpoints(source: str, routes: _Routes, values: Mapping[str, str]) -> Found:
    endpoints: dict[tuple[str, str], Endpoint] = {}
    unreached: dict[tuple[str, str], Unreached] = {}
    for pattern, methods in routes:
        methods = sorted(set(methods) - {"OPTIONS"})
        if not methods:
            continue
        method = "GET" if "GET" in methods else methods[0]
        url = filled(pattern, values)
        if isinstance(url, str):
            endpoints.setdefault((method, url), Endpoint(url, pattern, source, method))
        else:
            unreached.setdefault((method, pattern), Unreached(pattern, needs(url), method))
    return list(endpoints.values()), list(unreached.values())


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
        for kind in type(inner).__mro__:
            slots = vars(kind).get("__slots__", ())
            names = (slots,) if isinstance(slots, str) else slots
            waiting += (getattr(inner, name, None) for name in names)
        if _is_a(inner, "channels.routing", "ProtocolTypeRouter"):
            waiting.append(inner.application_mapping.get("http"))


# Frameworks. None is imported here: an app of one has imported it.


def _is_a(app: Any, module: str, name: str) -> bool:
    loaded = sys.modules.get(module)
    kind = getattr(loaded, name, None)
    return isinstance(kind, type) and isinstance(app, kind)


def _werkzeug(app: Any) -> _Routes | None:
    """Flask and Quart."""
    if not _is_a(getattr(app, "url_map", None), "werkzeug.routing", "Map"):
        return None
    return ((rule.rule, rule.methods or {"GET"}) for rule in app.url_map.iter_rules())


def _django(app: Any) -> _Routes | None:
    if not _is_a(app, "django.core.handlers.base", "BaseHandler"):
        return None
    from django.urls import get_resolver

    return ((f"/{pattern}", ("GET",)) for pattern in _django_patterns(get_resolver(), ""))


def _django_patterns(resolver: Any, prefix: str) -> Iterator[str]:
    for entry in resolver.url_patterns:
        pattern = prefix + _django_pattern(entry.pattern)
        if hasattr(entry, "url_patterns"):
            yield from _django_patterns(entry, pattern)
        else:
            yield pattern


def _django_pattern(pattern: Any) -> str:
    """A route as it is; a regular expression, as far as it can be read as one."""
    text = str(pattern)
    if hasattr(pattern, "_route"):
        return text
    number = count(1)
    text = _GROUP.sub(lambda m: f"<{m['name'] or next(number)}>", text.removeprefix("^"))
    return text.removesuffix("$").removesuffix("\\Z").replace("\\", "").removesuffix("/?")


def _routes_with_paths(app: Any) -> _Routes | None:
    """Starlette, FastAPI, Litestar and Esmerald."""
    routes = getattr(app, "routes", None)
    if not isinstance(routes, (list, tuple)):
        return None
    if routes and not _with_paths(routes):
        return None
    return _path_routes(routes, "")


def _with_paths(routes: Sequence[Any]) -> list[Any]:
    """Those that have a path.

    Among those of a newer FastAPI are included routers, which have their routes inside; a Host of
    Starlette's has no path.
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
            yield path, route.methods or ("GET",)
        elif hasattr(original, "app") and not hasattr(original, "endpoint"):
            yield from _mounted(original.app, path)


def _mounted(app: Any, prefix: str) -> _Routes:
    for inner in _layers(app):
        routes = _routes_with_paths(inner)
        if routes is not None:
            for path, methods in routes:
                yield prefix + path, methods
            return
    yield f"{prefix}/{{path}}", ("GET",)  # such as static files


def _connexion(app: Any) -> _Routes | None:
    """Its AsyncApp has a router in each of several middlewares; its FlaskApp keeps a Flask app."""
    if not _is_a(app, "connexion.apps.asynchronous", "AsyncApp"):
        return None
    return chain.from_iterable(_routes_with_paths(inner) or () for inner in _layers(app))


def _blacksheep(app: Any) -> _Routes | None:
    if not _is_a(app, "blacksheep.server.application", "Application"):
        return None
    routes = ((method, route.pattern.decode()) for method, route in app.router.iter_with_methods())
    return (
        ("/" + _BLACKSHEEP_PARAMETER.sub(_angled, pattern).lstrip("/"), (method,))
        for method, pattern in routes
        if method != "*"  # the fallback
    )


def _angled(match: re.Match[str]) -> str:
    return f"<{match[1] or match[2]}>"


def _sanic(app: Any) -> _Routes | None:
    if not _is_a(app, "sanic.app", "Sanic"):
        return None
    return ((f"/{route.path}", route.methods) for route in app.router.routes_all.values())


def _falcon(app: Any) -> _Routes | None:
    if not (_is_a(app, "falcon", "App") or _is_a(app, "falcon.asgi", "App")):
        return None
    return _falcon_nodes(app._router._roots)


def _falcon_nodes(nodes: Iterable[Any]) -> _Routes:
    for node in nodes:
        if node.method_map:
            own = [
                method
                for method, responder in node.method_map.items()
                if getattr(responder, "__name__", "").startswith("on_")
            ]
            yield node.uri_template, own or ("GET",)
        yield from _falcon_nodes(node.children)


def _bottle(app: Any) -> _Routes | None:
    if not _is_a(app, "bottle", "Bottle"):
        return None
    return ((route.rule, (route.method,)) for route in app.routes)


def _pyramid(app: Any) -> _Routes | None:
    if not _is_a(app, "pyramid.router", "Router"):
        return None
    from pyramid.interfaces import IRoutesMapper  # type: ignore[import-not-found,unused-ignore]

    mapper = app.registry.queryUtility(IRoutesMapper)
    routes = [] if mapper is None else mapper.get_routes()
    return (("/" + route.pattern.lstrip("/"), ("GET",)) for route in routes)


# The routes of an app that is of the framework, or None; a name of None is the app's own package.
_FRAMEWORKS: Sequence[tuple[str | None, Callable[[Any], _Routes | None]]] = (
    (None, _werkzeug),
    ("django", _django),
    ("falcon", _falcon),
    ("bottle", _bottle),
    ("pyramid", _pyramid),
    ("blacksheep", _blacksheep),
    ("connexion", _connexion),
    ("sanic", _sanic),
    (None, _routes_with_paths),
)
