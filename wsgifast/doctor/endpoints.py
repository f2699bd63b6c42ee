"""What an app can be asked for: from its framework, or from files that say it."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from ..errors import ConfigurationError
from .model import Endpoint, Unreached

__all__ = [
    "Found",
    "from_access_log",
    "from_framework",
    "from_har",
    "from_openapi",
    "from_paths",
    "from_urls_file",
]

# Endpoints that were found, and those that cannot be asked for.
Found = tuple[list[Endpoint], list[Unreached]]
# What the routes of a framework come as: (pattern, methods).
_Routes = Iterator[tuple[str, Iterable[str]]]

# Wrappers keep what they wrap under one of these names.
_WRAPPED = ("app", "wsgi_app", "application", "asgi_app", "_app", "wrapped")
_MAX_WRAPPERS = 20

# A parameter in a pattern: {name}, {name:path}, <name>, <int:name>, <path:name>, <name:re:...>.
_PARAMETER = re.compile(r"\{\*?(?P<curly>\w+)(?::[^}]*)?\}|<(?P<angle>[^<>]+)>")
# Kinds of parameters, which stand beside the name in one place or the other.
_KINDS = frozenset(
    {"int", "float", "path", "str", "string", "slug", "uuid", "any", "re", "filter", "default"}
)

# NCSA's common and combined log formats.
_LOG_LINE = re.compile(
    r'(?P<host>\S+) \S+ .*?\[[^]]*\] "(?P<method>[A-Z]+) (?P<url>\S+)(?: HTTP/[0-9.]+)?" '
    r"(?P<status>[0-9]{3}) "
)


def from_paths(paths: Iterable[str]) -> Found:
    """Paths as they are written on a command line.

    :raises ConfigurationError: for one that is no path.
    """
    endpoints = []
    for path in paths:
        if not path.startswith("/"):
            raise ConfigurationError(f"{path!r} is no path: it begins with a slash, as /report?y=1")
        endpoints.append(Endpoint(path, path, "command line"))
    return endpoints, []


def from_urls_file(path: str) -> Found:
    """A file with a path or URL in each line; empty lines and those with # are skipped."""
    lines = [line.strip() for line in _text(path).splitlines()]
    urls = [_path_of(line) for line in lines if line and not line.startswith("#")]
    return [Endpoint(url, url, "urls file") for url in dict.fromkeys(urls)], []


def from_access_log(path: str, *, most: int = 200) -> Found:
    """The paths of an access log in the common or combined format, and how often each was asked.

    :param most: of the paths, the most frequent ones.
    :raises ConfigurationError: if no line of it is in either format.
    """
    counts: Counter[tuple[str, str]] = Counter()
    lines = 0
    for line in _text(path).splitlines():
        match = _LOG_LINE.match(line)
        if match is None:
            continue
        lines += 1
        if match["status"][0] in "23":
            counts[match["method"], _path_of(match["url"])] += 1
    if not lines:
        raise ConfigurationError(
            f"--access-log {path}: no line is in the common or the combined log format"
        )
    endpoints = [
        Endpoint(url, url.partition("?")[0], "access log", method, requests=count)
        for (method, url), count in counts.most_common(most)
    ]
    left = [
        Unreached(url, f"the log has {len(counts)} paths; the {most} most frequent are asked for")
        for (_, url), _ in counts.most_common()[most : most + 1]
    ]
    return endpoints, left


def from_openapi(source: str, values: Mapping[str, str], fetch: Callable[[str], bytes]) -> Found:
    """The operations of an OpenAPI description.

    :param source: a JSON file, or a path of the app that answers with one.
    :param fetch: asks the app for a path.
    :raises ConfigurationError: if it is no such description.
    """
    data = fetch(source) if source.startswith("/") and not Path(source).is_file() else None
    try:
        described = json.loads(_text(source) if data is None else data)
        paths = described["paths"]
        operations = [
            (pattern, method.upper(), operation, item.get("parameters", []))
            for pattern, item in paths.items()
            for method, operation in item.items()
            if method in ("get", "head", "post", "put", "patch", "delete", "options")
        ]
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ConfigurationError(f"--openapi {source}: it has no paths ({error!r})") from None
    endpoints, unreached = [], []
    for pattern, method, operation, shared in operations:
        known = {**_examples([*shared, *operation.get("parameters", [])]), **values}
        url = _filled(pattern, known)
        if isinstance(url, str):
            endpoints.append(Endpoint(url, pattern, "openapi", method))
        else:
            unreached.append(Unreached(pattern, _needs(url), method))
    return endpoints, unreached


def from_har(path: str) -> Found:
    """The requests of a browser's recording (HTTP Archive), without its cookies and hosts."""
    try:
        entries = json.loads(_text(path))["log"]["entries"]
        asked = [(entry["request"]["method"], entry["request"]["url"]) for entry in entries]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"--har {path}: it is no HTTP Archive ({error!r})") from None
    counts = Counter((method, _path_of(url)) for method, url in asked)
    return [
        Endpoint(url, url.partition("?")[0], "har", method, requests=count)
        for (method, url), count in counts.items()
    ], []


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
        url = _filled(pattern, values)
        if isinstance(url, str):
            endpoints.setdefault((method, url), Endpoint(url, pattern, source, method))
        else:
            unreached.setdefault((method, pattern), Unreached(pattern, _needs(url), method))
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


# Patterns


def _filled(pattern: str, values: Mapping[str, str]) -> str | list[str]:
    """A pattern with its parameters' values in it, or the names of those that have none."""
    missing: list[str] = []

    def value(match: re.Match[str]) -> str:
        name = match["curly"] or _angle_name(match["angle"])
        if name not in values:
            missing.append(name)
            return ""
        return quote(values[name], safe="/")

    url = _PARAMETER.sub(value, pattern)
    return missing or url


def _angle_name(text: str) -> str:
    """The name in <int:name> and <any(a, b):name> (Flask, Django) or <name:re:...> (Bottle)."""
    first, _, rest = text.partition(":")
    if not rest:
        return first
    is_kind = first.partition("(")[0] in _KINDS or (":" not in rest and "(" in first)
    return rest if is_kind else first


def _needs(names: list[str]) -> str:
    told = " ".join(f"--value {name}=..." for name in names)
    fields = ", ".join(f"{{{name}}}" for name in names)
    return f"needs a value for {fields}: {told}"


def _examples(parameters: Iterable[Any]) -> dict[str, str]:
    """What an OpenAPI description gives as examples and defaults of path parameters."""
    found = {}
    for parameter in parameters:
        if not isinstance(parameter, dict) or parameter.get("in") != "path":
            continue
        schema = parameter.get("schema", {})
        for value in (parameter.get("example"), schema.get("example"), schema.get("default")):
            if value is not None:
                found[parameter["name"]] = str(value)
                break
    return found


def _path_of(url: str) -> str:
    parts = urlsplit(url)
    path = parts.path or "/"
    return f"{path}?{parts.query}" if parts.query else path


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None
