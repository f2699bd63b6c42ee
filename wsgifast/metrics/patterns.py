"""The URL pattern of a request, as its framework has matched it; never the path itself.

Clients invent any number of paths. Patterns are few, and say which part of the app has answered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from functools import partial
from sys import modules
from typing import TYPE_CHECKING, Any

from ..bodies.access_log import PATTERN
from ..bodies.wrappers import known_file

if TYPE_CHECKING:
    from _typeshed import OptExcInfo
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

_FLASK, _BOTTLE, _DJANGO = "flask", "bottle", "django.core.handlers.base"
# The modules of the frameworks whose patterns are noted by us.
FRAMEWORKS = frozenset({_FLASK, _BOTTLE, _DJANGO})


def call_noting_pattern(
    app: Callable[..., Any], environ: WSGIEnvironment, start_response: StartResponse
) -> Any:
    """Call a WSGI app, and put the URL pattern of its framework into the environ.

    Needed only if one of FRAMEWORKS is loaded.
    """
    if _FLASK in modules:
        start_response = partial(_start_noting, environ, start_response)
    body = app(environ, start_response)
    if PATTERN not in environ:
        if _BOTTLE in modules and "bottle.route" in environ:
            environ[PATTERN] = getattr(environ["bottle.route"], "rule", None)
        note_django_pattern(environ, body)
    return body


def _start_noting(
    environ: dict[str, Any],
    start_response: StartResponse,
    status: str,
    headers: list[tuple[str, str]],
    exc_info: OptExcInfo | None = None,
) -> Callable[[bytes], object]:
    """Call start_response, and note the pattern that Flask forgets when it returns the body."""
    request = environ.get("werkzeug.request")
    if request is not None:
        try:
            environ.setdefault(PATTERN, request.url_rule.rule)
        except AttributeError:  # another framework's request, or it has matched nothing
            pass
    if exc_info is None:
        return start_response(status, headers)
    try:
        return start_response(status, headers, exc_info)
    finally:
        exc_info = None  # it holds this frame


def note_django_pattern(environ: MutableMapping[str, Any], body: Any) -> None:
    """Put the pattern that Django has matched into the environ or the scope.

    A response closes its request with itself, and the request has the match.

    :param body: a response, or a file that one has opened.
    """
    if PATTERN in environ or _DJANGO not in modules:
        return
    response = body
    if not hasattr(response, "_resource_closers"):
        # A file in the server's wrapper: Django puts the response's close() on the file.
        close = getattr(known_file(body), "close", None)
        response = getattr(close, "__self__", None)
    for closer in getattr(response, "_resource_closers", ()):
        match = getattr(getattr(closer, "__self__", None), "resolver_match", None)
        if match is not None:
            environ[PATTERN] = match.route
            return


def asgi_pattern(scope: Mapping[str, Any], root_path: str) -> str | None:
    """The pattern that Starlette or FastAPI has matched.

    :param scope: the app's, after routing.
    :param root_path: the server's; what a Mount has added to it belongs to the pattern.
    """
    pattern = scope.get(PATTERN)
    if pattern is not None:
        return str(pattern)
    route = scope.get("route")
    if route is None:
        return None
    own_notes = scope.get("fastapi")
    if isinstance(own_notes, Mapping):
        # A newer FastAPI puts a route there without the prefixes of include_router().
        included = own_notes.get("effective_route_context")
        if getattr(included, "original_route", None) is route:
            route = included
    path = getattr(route, "path_format", None)
    if not isinstance(path, str):
        return None
    mounted = str(scope.get("root_path", ""))
    # A Mount's own route has its path in the root path already.
    if getattr(route, "routes", None) is not None:
        path = ""
    prefix = mounted.removeprefix(root_path).rstrip("/")
    if prefix:
        own = getattr(route, "param_convertors", {})
        for name, value in scope.get("path_params", {}).items():
            if name not in own or not path:
                prefix = f"{prefix}/".replace(f"/{value}/", f"/{{{name}}}/")[:-1]
    return prefix + path or "/"
