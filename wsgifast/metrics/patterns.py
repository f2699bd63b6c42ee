"""The URL pattern of a request: its framework's, never the path itself.

A path has as many values as clients invent. What a framework has matched is one of a few, and says
which part of the app has answered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from sys import modules
from typing import TYPE_CHECKING, Any

from ..bodies.wrappers import known_file

if TYPE_CHECKING:
    from _typeshed import OptExcInfo
    from _typeshed.wsgi import StartResponse

__all__ = [
    "BOTTLE",
    "DJANGO",
    "FLASK",
    "PATTERN",
    "asgi_pattern",
    "note_django_pattern",
    "start_noting",
    "wsgi_pattern",
]

# The modules that bring them, without which nobody has anything to note.
FLASK, BOTTLE, DJANGO = "flask", "bottle", "django.core.handlers.base"
# Where an app, or a middleware of its, may say the pattern by itself, in the environ or the scope:
# under Falcon `req.env["wsgifast.pattern"] = req.uri_template`.
PATTERN = "wsgifast.pattern"


def start_noting(
    environ: dict[str, Any],
    start_response: StartResponse,
    status: str,
    headers: list[tuple[str, str]],
    exc_info: OptExcInfo | None = None,
    /,
) -> Callable[[bytes], object]:
    """Call start_response, and note in the environ what Flask has matched.

    Flask forgets it as soon as it has returned the body. A partial() of it is the start_response
    that an app is given; where FLASK is not among the modules nobody has anything to note.
    """
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


def wsgi_pattern(environ: Mapping[str, Any]) -> str | None:
    """What was noted, or Bottle has matched; asked when the app has returned.

    :returns: None where nothing was matched, or where nobody tells.
    """
    pattern = environ.get(PATTERN)
    if pattern is None and BOTTLE in modules:
        pattern = getattr(environ.get("bottle.route"), "rule", None)
    return pattern


def note_django_pattern(environ: MutableMapping[str, Any], body: Any) -> None:
    """Note, in the environ or the scope, what Django has matched for a body.

    The body is a response, or a file that one has opened.

    A response closes its request with itself, and the request has the match.
    """
    if PATTERN in environ or DJANGO not in modules:
        return
    response = body
    if not hasattr(response, "_resource_closers"):
        # A file in the server's wrapper: Django has put the response's close() on the file.
        close = getattr(known_file(body), "close", None)
        response = getattr(close, "__self__", None)
    for closer in getattr(response, "_resource_closers", ()):
        match = getattr(getattr(closer, "__self__", None), "resolver_match", None)
        if match is not None:
            environ[PATTERN] = match.route
            return


def asgi_pattern(scope: Mapping[str, Any], root_path: str) -> str | None:
    """What Starlette or FastAPI has matched.

    :param scope: that of the app, once it has routed.
    :param root_path: the server's; what a Mount has added to it belongs to the pattern.
    """
    pattern = scope.get(PATTERN)
    if pattern is not None:
        return str(pattern)
    route = scope.get("route")
    if route is None:
        return None
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
