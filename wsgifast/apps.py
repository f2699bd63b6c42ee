"""Apps: their interface, their names in messages, and a check that they can be called at all."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any, Literal

from .errors import ConfigurationError

# The arguments with which each interface calls an app, and the class that wraps its apps.
_ARGUMENTS = {"WSGI": ("environ", "start_response"), "ASGI": ("scope", "receive", "send")}
_WRAPPERS = {"WSGI": "wsgifast.WSGIFast", "ASGI": "asgifast.ASGIFast"}

Interface = Literal["WSGI", "ASGI"]


def check_app(app: object, interface: Interface) -> None:
    """Refuse an object that cannot be an app of an interface.

    Only what would fail at every request is refused: what cannot be called with the interface's
    arguments and, for WSGI, coroutine functions. A callable without a known signature passes.

    :raises ConfigurationError: naming the app and what to do instead.
    """
    if not callable(app):
        why = "a factory has returned nothing" if app is None else "it cannot be called"
        raise ConfigurationError(f"{app!r} is no {interface} app: {why}")
    if _fits(app, interface):
        return
    other: Interface = "ASGI" if interface == "WSGI" else "WSGI"
    arguments = f"({', '.join(_ARGUMENTS[interface])})"
    if _takes(app, len(_ARGUMENTS[interface])):
        why = "is asynchronous"
    else:
        why = f"cannot be called with {arguments}"
    if _fits(app, other):
        way_out = f"{_WRAPPERS[other]} wraps {other} apps"
    elif _takes(app, 0):
        way_out = "call it first, if it is a factory"
    else:
        way_out = f"give a callable that takes {arguments}"
    raise ConfigurationError(f"{app_name(app)} is no {interface} app, since it {why}; {way_out}")


def interface_of(app: object) -> Interface | None:
    """Return an app's interface; None if its signature fits neither, or both."""
    wsgi, asgi = callable(app) and _fits(app, "WSGI"), callable(app) and _fits(app, "ASGI")
    if wsgi == asgi:
        return None
    return "WSGI" if wsgi else "ASGI"


def is_asgi2(app: Any) -> bool:
    """Whether an app is a class of ASGI's first version: App(scope), then (receive, send)."""
    return inspect.isclass(app) and _takes(app, 1) and inspect.iscoroutinefunction(app.__call__)


def app_name(app: object) -> str:
    """Return an app's name for messages: its module and function, or its module and class."""
    named = app if hasattr(app, "__qualname__") else type(app)
    name = getattr(named, "__qualname__", "?")
    return f"the app {getattr(named, '__module__', '?')}.{name}"


def _fits(app: object, interface: Interface) -> bool:
    fits = _takes(app, len(_ARGUMENTS[interface]))
    return fits and not (interface == "WSGI" and _is_async(app))


def _is_async(app: Any) -> bool:
    while isinstance(app, partial):
        app = app.func
    called = app if inspect.isroutine(app) else type(app).__call__
    return inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called)


def _takes(app: object, count: int) -> bool:
    """Whether an app can be called with `count` arguments; True where that is not known."""
    try:
        # The callable's own: a decorator may have copied that of the function that it wraps.
        signature = inspect.signature(app, follow_wrapped=False)  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001 - a proxy, or a builtin: it may be right
        return True
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True
