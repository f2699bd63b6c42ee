"""Decide whether an app is offered http.response.pathsend.

Starlette's FileResponse uses the extension if it is offered. Then middleware of the app gets a
pathsend message in place of bytes. A middleware may fail on this message, drop it, or not compress
the file. So the layers of an app are examined: its middleware, routes and mounted apps. A layer is
known if its class is a known class. A subclass of a known class is unknown, since it may behave
differently. If a layer is unknown, the extension is not offered, and the app sends files as bytes.

If one of the layers is an ASGIFast, that ASGIFast decides for its inner layers.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import FunctionType, MappingProxyType, MethodType
from typing import Any, NamedTuple

from .dispatch import code_objects, may_wrap_send, never_accesses_body
from .messages import FILE_EXTENSIONS, PATHSEND, ZEROCOPYSEND

# Wrappers that pass on messages of any type, with the attribute that contains their app.
_WRAPPERS = {
    "asgifast.instrumented.Examined": "_app",
    "asgifast.instrumented.Instrumented": "_app",
    "asgifast.static.StaticFiles": "app",
    "django.contrib.staticfiles.handlers.ASGIStaticFilesHandler": "application",
    "fastapi._body_limit.AppBodyLimitMiddleware": "app",
    "fastapi._body_limit._BodyLimitExceptionMiddleware": "app",
    "fastapi.middleware.asyncexitstack.AsyncExitStackMiddleware": "app",
    "fastapi.telemetry._asgi.ExceptionTelemetryMiddleware": "app",
    "starlette.middleware.authentication.AuthenticationMiddleware": "app",
    "starlette.middleware.body_limit.RequestBodyLimitMiddleware": "app",
    "starlette.middleware.cors.CORSMiddleware": "app",
    "starlette.middleware.errors.ServerErrorMiddleware": "app",
    "starlette.middleware.exceptions.ExceptionMiddleware": "app",
    "starlette.middleware.httpsredirect.HTTPSRedirectMiddleware": "app",
    "starlette.middleware.sessions.SessionMiddleware": "app",
    "starlette.middleware.trustedhost.TrustedHostMiddleware": "app",
    "uvicorn.middleware.message_logger.MessageLoggerMiddleware": "app",
    "uvicorn.middleware.proxy_headers.ProxyHeadersMiddleware": "app",
}
_APPS = frozenset({"fastapi.applications.FastAPI", "starlette.applications.Starlette"})
_ROUTERS = frozenset({"fastapi.routing.APIRouter", "starlette.routing.Router"})
# Routes, with the attribute that contains their app or inner routes.
_ROUTES = {
    "fastapi.routing.APIRoute": "app",
    "fastapi.routing._FrontendRoute": "app",
    "fastapi.routing._IncludedRouter": "original_router",
    "starlette.routing.Host": "app",
    "starlette.routing.Mount": "app",
    "starlette.routing.Route": "app",
}
_ROUTE_GROUP = "fastapi.routing._FrontendRouteGroup"
# Layers without inner layers. Each uses the extension if it is offered, or sends no files.
_WITHOUT_INNER_LAYERS = frozenset(
    {
        "asgifast.django._Handler",
        "django.core.handlers.asgi.ASGIHandler",
        "fastapi.routing.APIWebSocketRoute",
        "fastapi.routing._FrontendStaticFiles",
        "starlette.middleware.wsgi.WSGIMiddleware",
        "starlette.routing.WebSocketRoute",
        "starlette.staticfiles.StaticFiles",
    }
)
_ASGIFAST = "asgifast.middleware.ASGIFast"
_GZIP = "starlette.middleware.gzip.GZipMiddleware"
# The modules and names of functions that the frameworks make of endpoints that return responses.
_ENDPOINTS = frozenset(
    (module, f"{maker}.<locals>.app")
    for module in ("fastapi.routing", "starlette.routing")
    for maker in ("request_response", "websocket_session")
)
_SEND_FILES = frozenset({"starlette.responses.FileResponse", "starlette.staticfiles.StaticFiles"})
# Packages whose functions are known. If a method of a known class is from another package, it was
# replaced.
_PACKAGES = frozenset({"asgifast", "django", "fastapi", "starlette", "uvicorn"})

_NO_EXTENSIONS: Mapping[str, dict[str, Any]] = MappingProxyType({})

# If more routes and mounts than this have unknown layers, the whole app counts as unknown.
_MAX_WITHHELD = 16

_ADVICE = "If files are sent correctly with it, use ASGIFast(app, pathsend=True)"


class PathsendDecision(NamedTuple):
    """The decision about an app, and the reason for it.

    :ivar offered: whether the app is offered http.response.pathsend.
    :ivar zerocopy: whether the app is offered http.response.zerocopysend too.
    :ivar reason: a sentence for the log, with advice.
    """

    offered: bool
    zerocopy: bool
    reason: str
    # The beginnings of the paths of routes and mounts with unknown layers. If a request's path
    # contains one of them, the extensions are not offered.
    withheld: tuple[str, ...] = ()


class Offer:
    """Decides at the first request which extensions an app is offered.

    It decides again when the app has changed: a route was added, or the middleware was built.

    :param app: any ASGI app. The middleware of a Starlette app is built first, if the app has not
        built it at its startup.
    :param requested: the option `pathsend`. If it is not None, it is the decision.
    """

    def __init__(self, app: Any, requested: bool | None = None) -> None:
        self._app = app
        self._requested = requested
        self._decision: PathsendDecision | None = None
        self._extensions: Mapping[str, dict[str, Any]] = _NO_EXTENSIONS
        # If one of these differs, the app has changed: the lengths of lists, and the middleware of
        # apps.
        self._lists: Sequence[tuple[list[Any], int]] = ()
        self._stacks: Sequence[tuple[Any, Any]] = ()

    @property
    def decision(self) -> PathsendDecision:
        """Return a new decision about the current app."""
        return self._decision_about(_Layers())

    def extensions_for(self, path: str) -> Mapping[str, dict[str, Any]]:
        """Return the extensions for a request with this path. Do not change the mapping.

        A new decision is logged. It may read the source of a middleware function on the event loop,
        once for each function.
        """
        decision = self._decision
        for known, count in self._lists:
            if len(known) != count:
                decision = None
        for app, stack in self._stacks:
            if app.middleware_stack is not stack:
                decision = None
        if decision is None:
            decision = self._decide()
        if decision.withheld and any(part in path for part in decision.withheld):
            return _NO_EXTENSIONS
        return self._extensions

    def _decide(self) -> PathsendDecision:
        layers = _Layers()
        decision = self._decision_about(layers)
        self._lists, self._stacks = layers.lists, layers.stacks
        # An ASGIFast among the layers logs its own decision.
        is_logged = self._requested is None and not (decision.offered and layers.has_asgifast)
        if is_logged and decision != self._decision:
            _log(decision)
        self._decision = decision
        extensions = {**FILE_EXTENSIONS} if decision.offered else {}
        if not decision.zerocopy:
            extensions.pop(ZEROCOPYSEND, None)
        self._extensions = extensions
        return decision

    def _decision_about(self, layers: _Layers) -> PathsendDecision:
        requested = self._requested
        if requested is None:
            return layers.decide(self._app)
        return PathsendDecision(requested, requested, f"pathsend={requested} was given")


def _log(decision: PathsendDecision) -> None:
    """Log the reason of a decision, in the log of uvicorn if it is configured."""
    logger = logging.getLogger("uvicorn.error")
    if not logger.hasHandlers():
        logger = logging.getLogger("wsgifast")
    logger.info("%s", decision.reason)


class _Unknown(Exception):
    """Raised for a layer that is not known to support the extension."""


class _Layers:
    """Examines the layers of an app, each layer once."""

    def __init__(self) -> None:
        self.has_asgifast = False
        self.lists: list[tuple[list[Any], int]] = []
        self.stacks: list[tuple[Any, Any]] = []
        self._supports_zerocopy = True
        self._examined: dict[int, Any] = {}  # the references prevent that an id is reused
        # Reasons not to offer the extensions, by parts of paths.
        self._withheld: dict[str, str] = {}

    def decide(self, app: Any) -> PathsendDecision:
        try:
            self._examine(app)
            self._examine_responses()
        except Exception as error:  # noqa: BLE001 - another version may raise any error
            cause = str(error)
            if not isinstance(error, _Unknown):
                cause = (
                    f"the app could not be examined ({type(error).__name__}: {cause}). {_ADVICE}"
                )
            return PathsendDecision(False, False, f"Files are sent as bytes, because {cause}")
        reason = "The server sends the app's files (http.response.pathsend). "
        for path, cause in sorted(self._withheld.items()):
            reason += f"Files below {path} are sent as bytes, because {cause}. "
        reason += "To send all files as bytes, use ASGIFast(app, pathsend=False)"
        return PathsendDecision(
            True, self._supports_zerocopy, reason, tuple(sorted(self._withheld))
        )

    def _examine(self, app: Any) -> None:
        to_examine = [app]
        while to_examine:
            layer = to_examine.pop()
            if id(layer) not in self._examined:
                self._examined[id(layer)] = layer
                to_examine += self._inner_layers(layer)

    def _inner_layers(self, layer: Any) -> Iterable[Any]:
        """Return the inner layers of a layer.

        :raises _Unknown: if the layer is not known to support the extension.
        """
        if isinstance(layer, MethodType):
            return self._layers_of_method(layer)
        name = _name_of(layer)
        if isinstance(layer, (FunctionType, type)):
            if _is_endpoint(layer):
                return ()
            raise _unknown(f"{layer.__module__}.{layer.__qualname__}")
        if name == _ASGIFAST:
            self.has_asgifast = True
            return ()
        if not _is_original(type(layer), "__call__"):
            raise _unknown(name)
        if name in _WRAPPERS:
            return [inner] if (inner := getattr(layer, _WRAPPERS[name])) is not None else ()
        if name in _APPS:
            return self._layers_of_app(layer)
        if name in _ROUTERS:
            return [layer.middleware_stack, *self._routes_of(layer)]
        if name in _ROUTES:
            if not _is_original(type(layer), "handle"):
                raise _unknown(name)
            inner, endpoint = getattr(layer, _ROUTES[name]), getattr(layer, "endpoint", None)
            path = str(getattr(layer, "path", "")).partition("{")[0]
            if len(path) > 1 and len(self._withheld) < _MAX_WITHHELD:
                self._examine_part(inner, endpoint, path)
                return ()
            self._examine_endpoint(endpoint)
            return [inner]
        if name == _ROUTE_GROUP:
            return self._watched(layer.routes)
        if name in _WITHOUT_INNER_LAYERS:
            return ()
        if _is_base_middleware(type(layer)):
            self._examine_dispatch(layer.dispatch_func, name)
            return [layer.app]
        raise _unknown(name)

    def _examine_part(self, app: Any, endpoint: Any, path: str) -> None:
        """Examine an app that only gets requests whose path contains `path`."""
        examined = dict(self._examined)
        try:
            self._examine_endpoint(endpoint)
            self._examine(app)
        except _Unknown as unknown:
            self._withheld[path] = str(unknown)
            self._examined = examined  # another route may contain the same app

    def _examine_endpoint(self, endpoint: Any) -> None:
        functions = vars(endpoint).values() if isinstance(endpoint, type) else [endpoint]
        if any(map(may_wrap_send, functions)):
            name = getattr(endpoint, "__qualname__", endpoint)
            raise _Unknown(f"the endpoint {name} may call apps with another send(). {_ADVICE}")

    def _watched(self, known: list[Any]) -> list[Any]:
        self.lists.append((known, len(known)))
        return known

    def _layers_of_method(self, method: MethodType) -> Iterable[Any]:
        """Return the layer to which a method belongs.

        The innermost app of a router's middleware is the router's method app(). Its default app is
        not_found().
        """
        router, function = method.__self__, method.__func__
        if (
            _name_of(router) in _ROUTERS
            and isinstance(function, FunctionType)
            and _package_of(function) in _PACKAGES
        ):
            if function.__name__ == "not_found":
                return ()
            if function.__name__ == "app":
                return [router]
        raise _unknown(f"{_name_of(router)}.{getattr(function, '__name__', '?')}()")

    def _routes_of(self, router: Any) -> Iterator[Any]:
        for name in ("routes", "_low_priority_routes"):
            yield from self._watched(getattr(router, name, []))
        yield router.default

    def _layers_of_app(self, app: Any) -> Iterable[Any]:
        for handler in app.exception_handlers.values():
            self._examine_endpoint(handler)
        if app.middleware_stack is None:  # the app would build it now, at its first request
            app.middleware_stack = app.build_middleware_stack()
        self.stacks.append((app, app.middleware_stack))
        return [app.middleware_stack]

    def _examine_dispatch(self, function: Any, name: str) -> None:
        # BaseHTTPMiddleware fails on zerocopysend messages.
        self._supports_zerocopy = False
        is_method = isinstance(function, MethodType)
        if is_method:
            function = function.__func__
        if type(function) is not FunctionType or not never_accesses_body(
            function, is_method=is_method
        ):
            named = getattr(function, "__qualname__", name)
            raise _Unknown(
                f"the middleware {named}() may read or change the bodies of responses. {_ADVICE}"
            )

    def _examine_responses(self) -> None:
        """Check that no response class of the app wraps the send() of Starlette's FileResponse."""
        starlette = sys.modules.get("starlette.responses")
        if starlette is None:
            return
        if not _is_original(starlette.FileResponse, "__call__"):
            raise _unknown("starlette.responses.FileResponse.__call__()")
        to_examine: list[Any] = starlette.Response.__subclasses__()
        while to_examine:
            found = to_examine.pop()
            to_examine += found.__subclasses__()
            if "__call__" not in vars(found) or _is_original(found, "__call__"):
                continue
            if issubclass(found, starlette.FileResponse) or _uses_files(found.__call__):
                raise _unknown(f"{found.__module__}.{found.__qualname__}")


def _unknown(name: str) -> _Unknown:
    if name == _GZIP:
        return _Unknown(
            f"{name} compresses them. With ASGIFast(app, pathsend=True) the server sends them "
            "uncompressed"
        )
    return _Unknown(f"{name} is not known to support http.response.pathsend. {_ADVICE}")


def _name_of(layer: object) -> str:
    return f"{type(layer).__module__}.{type(layer).__qualname__}"


def _package_of(function: Any) -> str:
    """Return the package in which a function is defined. functools.wraps() changes `__module__`."""
    return str(getattr(function, "__globals__", {}).get("__name__", "")).partition(".")[0]


def _is_original(cls: type, name: str) -> bool:
    """Return whether a method of a known class is the original, and not replaced."""
    method = getattr(cls, name, None)
    return method is None or _package_of(method) in _PACKAGES


def _is_base_middleware(cls: type) -> bool:
    """Return whether a class is BaseHTTPMiddleware, or a subclass with its __call__()."""
    module = sys.modules.get("starlette.middleware.base")
    base: Any = None if module is None else module.BaseHTTPMiddleware
    if base is None or not issubclass(cls, base) or not _is_original(base, "__call__"):
        return False
    # Old versions of Starlette do not support pathsend.
    codes = code_objects(base.__call__.__code__)
    return cls.__call__ is base.__call__ and any(PATHSEND in code.co_consts for code in codes)


def _uses_files(function: Any) -> bool:
    """Return whether a function names a class that sends files."""
    if not isinstance(function, FunctionType):
        return False
    names = {name for code in code_objects(function.__code__) for name in code.co_names}
    return any(_sends_files(function.__globals__.get(name)) for name in names)


def _sends_files(value: object) -> bool:
    names = {f"{each.__module__}.{each.__qualname__}" for each in getattr(value, "__mro__", ())}
    return not names.isdisjoint(_SEND_FILES)


def _is_endpoint(endpoint: FunctionType | type) -> bool:
    """Return whether this is the function or the class of an endpoint that returns responses."""
    if isinstance(endpoint, FunctionType):
        return (endpoint.__globals__.get("__name__"), endpoint.__qualname__) in _ENDPOINTS
    module = sys.modules.get("starlette.endpoints")
    if module is None:
        return False
    for base in (module.HTTPEndpoint, module.WebSocketEndpoint):
        if issubclass(endpoint, base):
            return all(
                getattr(endpoint, name) is getattr(base, name)
                for name in ("__init__", "__await__", "dispatch")
            )
    return False


def without_files(offered: dict[str, Any]) -> dict[str, Any]:
    """Return a server's extensions without those for files."""
    return {name: options for name, options in offered.items() if name not in FILE_EXTENSIONS}
