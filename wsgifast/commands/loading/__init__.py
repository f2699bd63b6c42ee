"""Loads an app by its name, like gunicorn, uvicorn and Flask, and wraps and unwraps it.

This process imports the app. The module `servers` has another process import it, as a server would.
"""

from __future__ import annotations

import ast
import inspect
import operator
import os
import sys
from dataclasses import dataclass
from typing import Any, Literal

from ...checks import Interface, app_name, checked_interface, interface_of
from ...errors import WSGIFastError
from ...middleware import WSGIFast
from .modules import (
    AppNotLoaded,
    described,
    did_you_mean,
    file_hint,
    named_module,
    search_here,
)

__all__ = [
    "AppNotLoaded",
    "LoadedApp",
    "ServerName",
    "absolute",
    "adds_asgifast",
    "described",
    "did_you_mean",
    "django_settings",
    "load_app",
    "unwrapped",
    "wrapped",
]

# The server that decides how to find an app.
ServerName = Literal["gunicorn", "uvicorn"]
# Names of apps and factories to look for in a module. Flask and FastAPI use "app". PEP 3333,
# Django and gunicorn use "application".
_NAMES = ("application", "app", "wsgi_app", "asgi_app")
_FACTORIES = ("create_app", "make_app")


@dataclass(frozen=True)
class LoadedApp:
    """An app, its interface and its name.

    :ivar target: its name in messages: "module:attribute", with "()" for a factory, or Django with
        its settings.
    """

    app: Any
    interface: Interface
    target: str


def load_app(target: str, server: ServerName | None = None) -> LoadedApp:
    """Import an app.

    :param target: "module:app", "module:factory()" (arguments are literals), "module" if the app
        is called application or app, a Django settings module, or the path of a .py file, alone or
        with ":app".
    :param server: the server whose worker this process is. The server has set the search path.
        With "uvicorn", an object that is not an app is called if it needs no arguments. Without a
        server, imports look in the working directory first.
    :raises AppNotLoaded: if it does not exist, raises, or is not an app.
    """
    if server is None:
        search_here()
    name, colon, expression = target.partition(":")
    if not name or (colon and not expression):
        raise AppNotLoaded(f"{target!r}: write module:app, such as shop.wsgi:application")
    module = named_module(name, target)
    if not expression:
        if hasattr(module, "ROOT_URLCONF"):
            return _django(module.__name__)
        expression = _only_app(module, target)
    app = _evaluated(module, expression, target)
    named = f"{name}:{expression}"
    if inspect.iscoroutine(app):
        app.close()
        raise AppNotLoaded(
            f"{target}: the factory is asynchronous, and no server awaits it. Make the app in a "
            "function without async, and open its resources in the lifespan"
        )
    if server == "uvicorn" and interface_of(app) is None and _needs_no_arguments(app):
        return load_app(f"{named}()", server)
    problem = (
        f"{target}: {app_name(app)} is neither a WSGI nor an ASGI app. If it makes one, write "
        f"'{named}()'; some frameworks, such as aiohttp and Robyn, run only on their own server; "
        "an app of ASGI 2 has to be wrapped by asgiref's guarantee_single_callable()"
    )
    try:
        return LoadedApp(app, checked_interface(app), named)
    except WSGIFastError:
        raise AppNotLoaded(problem) from None


def _needs_no_arguments(app: Any) -> bool:
    try:
        inspect.signature(app).bind()
    except (TypeError, ValueError):
        return False
    return True


def _only_app(module: Any, target: str) -> str:
    for name in (*_NAMES, *_FACTORIES):
        if callable(getattr(module, name, None)):
            return name if name in _NAMES else f"{name}()"
    if getattr(module, "__file__", None) is None:
        raise AppNotLoaded(f"{target}: {target} is a directory; name a module or a .py file in it")
    raise AppNotLoaded(
        f"{target}: {module} has no {', '.join(_NAMES)} or {' or '.join(_FACTORIES)}; "
        f"{file_hint(module) or f'name the app, as in {target}:my_app'}"
    )


def _evaluated(module: Any, expression: str, target: str) -> Any:
    """Evaluate attributes joined by dots, and a call at the end if its arguments are literals."""
    try:
        node = ast.parse(expression, mode="eval").body
        call = node if isinstance(node, ast.Call) else None
        name = ast.unparse(call.func if call else node)
        if not all(map(str.isidentifier, name.split("."))):
            raise ValueError
        arguments = [ast.literal_eval(each) for each in call.args] if call else []
        words = call.keywords if call else []
        keywords = {word.arg or "": ast.literal_eval(word.value) for word in words}
    except (SyntaxError, ValueError):
        raise AppNotLoaded(
            f"{target}: {expression!r} is neither a name nor a call of one with literal arguments"
        ) from None
    try:
        app = operator.attrgetter(name)(module)
    except AttributeError as error:
        hint = file_hint(module)
        hint = f"; {hint}" if hint else did_you_mean(error.name or name, dir(error.obj))
        raise AppNotLoaded(f"{target}: {module} has no {name!r}{hint}") from None
    if call is None:
        return app
    try:
        app = app(*arguments, **keywords)
    except Exception as error:
        raise AppNotLoaded(f"{target}: {name}() failed: {described(error)}") from error
    if app is None:
        raise AppNotLoaded(f"{target}: {name}() has returned None; does it end without a return?")
    return app


def _django(settings_module: str) -> LoadedApp:
    os.environ["DJANGO_SETTINGS_MODULE"] = settings_module
    try:
        from django.core.wsgi import get_wsgi_application

        app = get_wsgi_application()
    except Exception as error:
        raise AppNotLoaded(f"{settings_module}: Django failed: {described(error)}") from error
    return LoadedApp(app, "WSGI", f"Django with the settings {settings_module}")


def django_settings() -> Any:
    """Return Django's settings, or None if no app has configured them."""
    settings = getattr(sys.modules.get("django.conf"), "settings", None)
    return settings if settings is not None and settings.configured else None


def absolute(target: str) -> str:
    """Make the file of a target absolute, because a server may change the working directory."""
    path, colon, expression = target.partition(":")
    is_file = path.endswith(".py") and os.path.isfile(path)
    return f"{os.path.abspath(path)}{colon}{expression}" if is_file else target


def unwrapped(app: Any) -> tuple[Any, bool]:
    """Return the app inside WSGIFast or ASGIFast, and whether it was wrapped."""
    was_wrapped = False
    wrappers: tuple[type[Any], ...] = (WSGIFast,)
    if asgifast := sys.modules.get("asgifast"):  # an app in ASGIFast has imported it
        wrappers += (asgifast.ASGIFast,)
    while True:
        inner = vars(app).get("wsgi_app") if hasattr(app, "__dict__") else None
        if isinstance(app, wrappers):
            app = app.app
        elif isinstance(inner, WSGIFast):  # Flask: app.wsgi_app = WSGIFast(app.wsgi_app)
            app = inner.app
        else:
            return app, was_wrapped
        was_wrapped = True


def adds_asgifast(app: Any) -> bool:
    """Return whether Starlette's `add_middleware()` was called with ASGIFast."""
    asgifast = sys.modules.get("asgifast")
    added = getattr(app, "user_middleware", None)
    if asgifast is None or not isinstance(added, list):
        return False
    return any(getattr(each, "cls", None) is asgifast.ASGIFast for each in added)


def wrapped(app: Any, interface: Interface, **options: Any) -> Any:
    """Wrap an app in WSGIFast or ASGIFast, unless it is wrapped already.

    :param options: of WSGIFast or ASGIFast.
    """
    if unwrapped(app)[1]:
        return app
    wrap: Any = WSGIFast
    if interface == "ASGI":
        from asgifast import ASGIFast as wrap
    return wrap(app, **options)
