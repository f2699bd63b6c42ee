"""What an app's framework tells of its endpoints."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from .model import Endpoint, Found, Unreached
from .patterns import filled, needs

__all__ = ["from_framework"]

# What the routes of a framework come as: (pattern, methods).
_Routes = Iterator[tuple[str, Iterable[str]]]

# Wrappers keep what they wrap under one of these names.
_WRAPPED = ("app", "wsgi_app", "application", "asgi_app", "_app", "wrapped")
_MAX_WRAPPERS = 20


def from_framework(app: Any, values: Mapping[str, str]) -> tuple[str | None, Found]:
    """What the app's framework tells: its name, and its endpoints.

    :param values: for the parameters of patterns, by name.
    """
    for inner in _layers(app):
        for name, routes in _FRAMEWORKS.items():
            found = routes(inner)
            if found is not None:
                return name, _endpoints(name, found, values)
    return None, ([], [])


def _endpoints(source: str, routes: _Routes, values: Mapping[str, str]) -> Found:
    endpoints: dict[tuple[str, str], Endpoint] = {}
    unreached: dict[tuple[str, str], Unreached] = {}
    for pattern, methods in routes:
        methods = sorted(methods)
        method = "GET" if "GET" in methods or not methods else methods[0]
        url = filled(pattern, values)
        if isinstance(url, str):
            endpoints.setdefault((method, url), Endpoint(url, pattern, source, method))
        else:
            unreached.setdefault((method, pattern), Unreached(pattern, needs(url), method))
    return list(endpoints.values()), list(unreached.values())


def _layers(app: Any) -> Iterator[Any]:
    """An app, and what it wraps, as far as wrappers keep it where one can look."""
    seen: set[int] = set()
    waiting = [app]
    while waiting and len(seen) < _MAX_WRAPPERS:
        inner = waiting.pop(0)
        if id(inner) in seen or isinstance(inner, (str, bytes, int)):
            continue
        seen.add(id(inner))
        yield inner
        own = getattr(inner, "__dict__", None) or {}
        waiting += [own[name] for name in _WRAPPED if callable(own.get(name))]
        bound = getattr(inner, "__self__", None)
        if bound is not None and not isinstance(bound, type(sys)):
            waiting.append(bound)


# Frameworks. None is imported here: an app of one has imported it.


def _is_a(app: Any, module: str, name: str) -> bool:
    loaded = sys.modules.get(module)
    kind = getattr(loaded, name, None)
    return isinstance(kind, type) and isinstance(app, kind)


def _flask(app: Any) -> _Routes | None:
    if not _is_a(app, "flask", "Flask"):
        return None
    return ((rule.rule, rule.methods - {"OPTIONS"}) for rule in app.url_map.iter_rules())


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
    text = re.sub(r"\(\?P<(\w+)>(?:[^()]|\([^()]*\))*\)", r"<\1>", text.removeprefix("^"))
    return text.removesuffix("$").removesuffix("\\Z").replace("\\", "").removesuffix("/?")


def _starlette(app: Any) -> _Routes | None:
    is_one = _is_a(app, "starlette.applications", "Starlette")
    if not is_one and not _is_a(app, "starlette.routing", "Router"):
        return None
    return _starlette_routes(app.routes, "")


def _starlette_routes(routes: Iterable[Any], prefix: str) -> _Routes:
    for route in routes:
        path = prefix + getattr(route, "path", "")
        inner = getattr(route, "routes", None)
        if inner:
            yield from _starlette_routes(inner, path)
        elif hasattr(route, "methods"):
            yield path, route.methods or ("GET",)
        elif hasattr(route, "app") and not hasattr(route, "endpoint"):
            yield f"{path}/{{path}}", ("GET",)  # a mount, such as of static files


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


_FRAMEWORKS: Mapping[str, Callable[[Any], _Routes | None]] = {
    "flask": _flask,
    "django": _django,
    "starlette": _starlette,
    "falcon": _falcon,
    "bottle": _bottle,
    "pyramid": _pyramid,
}
