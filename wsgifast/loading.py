"""Loads an app by its name, like gunicorn, uvicorn and Flask; wraps and unwraps it."""

from __future__ import annotations

import ast
import contextlib
import difflib
import importlib
import importlib.util
import inspect
import os
import pkgutil
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .apps import Interface, app_name, check_app, interface_of
from .errors import WSGIFastError
from .middleware import WSGIFast

# Names of apps to look for if only the module is given: Flask and FastAPI use "app", PEP 3333,
# Django and gunicorn "application". Then names of factories.
_NAMES = ("application", "app", "wsgi_app", "asgi_app")
_FACTORIES = ("create_app", "make_app")
_ATTRIBUTE = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")


class AppNotLoaded(WSGIFastError, RuntimeError):
    """The app could not be imported or created; the message says why."""


@dataclass(frozen=True)
class LoadedApp:
    """An app, its interface and its name.

    :ivar app: as it was found.
    :ivar interface: "WSGI" or "ASGI".
    :ivar target: "module:attribute", as gunicorn and uvicorn take it; a factory keeps its "()".
    """

    app: Any
    interface: Interface
    target: str


def load_app(target: str) -> LoadedApp:
    """Import an app.

    :param target: "module:app", "module:factory()" (arguments are literals), "module" where the app
        is called application or app, a Django settings module, or the path of a .py file, alone or
        with ":app". The working directory is looked through first, as by `python -m`.
    :raises AppNotLoaded: if it does not exist, raises, or is not an app.
    """
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    name, colon, expression = target.partition(":")
    if not name or (colon and not expression):
        raise AppNotLoaded(f"{target!r}: write module:app, such as shop.wsgi:application")
    if "/" in name and os.path.isdir(name):
        raise AppNotLoaded(f"{target}: {name} is a directory; name a module or a .py file in it")
    if "/" in name and not name.endswith(".py"):
        raise AppNotLoaded(f"{target}: {name} is neither a module nor a .py file")
    module_name = _file_as_module(name) if name.endswith(".py") else name
    module = _imported(module_name, target)
    if not expression:
        if hasattr(module, "ROOT_URLCONF"):
            return _django(module_name)
        expression = _only_app(module, target)
    app = _evaluated(module, expression, target)
    interface = interface_of(app)
    if interface is None:
        try:
            check_app(app, "WSGI")
        except WSGIFastError:
            raise AppNotLoaded(
                f"{target}: {app_name(app)} is neither a WSGI nor an ASGI app. If it makes one, "
                f"write '{module_name}:{expression}()'; some frameworks, such as aiohttp and "
                "Robyn, run only on their own server"
            ) from None
        interface = "WSGI"
    return LoadedApp(app, interface, f"{module_name}:{expression}")


def unwrapped(app: Any) -> tuple[Any, bool]:
    """The app inside WSGIFast or ASGIFast, and whether it was wrapped."""
    was_wrapped = False
    wrappers: tuple[type[Any], ...] = (WSGIFast,)
    if asgifast := sys.modules.get("asgifast"):  # an app in ASGIFast has imported it
        wrappers += (asgifast.ASGIFast,)
    while True:
        inner = vars(app).get("wsgi_app") if hasattr(app, "__dict__") else None
        if isinstance(app, wrappers):
            app = app.app
        elif isinstance(inner, WSGIFast):  # Flask's way: app.wsgi_app = WSGIFast(app.wsgi_app)
            app = inner.app
        else:
            return app, was_wrapped
        was_wrapped = True


def wrapped(app: Any, interface: Interface, **options: Any) -> Any:
    """An app in WSGIFast or ASGIFast, if it is not wrapped already.

    :param options: theirs.
    """
    if unwrapped(app)[1]:
        return app
    wrap: Any = WSGIFast
    if interface == "ASGI":
        from asgifast import ASGIFast as wrap
    return wrap(app, **options)


def _file_as_module(path: str) -> str:
    """Make a file importable; returns its module's name, which includes its packages."""
    file = Path(path).resolve()
    if not file.is_file():
        raise AppNotLoaded(f"{path}: there is no such file")
    folder = str(file.parent)
    parts = [file.stem]
    while (Path(folder) / "__init__.py").is_file():
        parts.insert(0, Path(folder).name)
        folder = str(Path(folder).parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return ".".join(parts)


def _imported(name: str, target: str) -> Any:
    try:
        return importlib.import_module(name)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        missing = getattr(error, "name", None)
        if isinstance(error, ModuleNotFoundError) and missing and name.startswith(missing):
            hint = _did_you_mean(name, [module.name for module in pkgutil.iter_modules(["."])])
            raise AppNotLoaded(
                f"{target}: there is no module {missing!r} here{hint}; run this in the directory "
                "that contains it, with the Python of its environment"
            ) from None
        raise AppNotLoaded(f"{target}: importing {name} failed: {described(error)}") from error


def _only_app(module: Any, target: str) -> str:
    for name in _NAMES:
        if callable(getattr(module, name, None)):
            return name
    for name in _FACTORIES:
        if callable(getattr(module, name, None)):
            return f"{name}()"
    if getattr(module, "__file__", None) is None:
        raise AppNotLoaded(f"{target}: {target} is a directory; name a module or a .py file in it")
    raise AppNotLoaded(
        f"{target}: {module.__name__} has no {', '.join(_NAMES)} or "
        f"{' or '.join(_FACTORIES)}; name the app, as in {target}:my_app"
    )


def _evaluated(module: Any, expression: str, target: str) -> Any:
    """Attributes joined by dots, and at most one call with literal arguments."""
    name, arguments, keywords, is_call = _parsed(expression, target)
    app: Any = module
    for part in name.split("."):
        try:
            app = getattr(app, part)
        except AttributeError:
            hint = _did_you_mean(part, dir(app))
            raise AppNotLoaded(f"{target}: {module.__name__} has no {name!r}{hint}") from None
    if not is_call:
        return app
    function = app
    try:
        app = function(*arguments, **keywords)
    except Exception as error:
        hint = ""
        if isinstance(error, TypeError) and not arguments and not keywords:
            with contextlib.suppress(TypeError, ValueError):
                if inspect.signature(function).parameters:
                    hint = f"; it may need arguments, as in '{module.__name__}:{name}(\"value\")'"
        raise AppNotLoaded(f"{target}: {name}() failed: {described(error)}{hint}") from error
    if app is None:
        raise AppNotLoaded(f"{target}: {name}() has returned None; does it end without a return?")
    return app


def _parsed(expression: str, target: str) -> tuple[str, list[Any], dict[str, Any], bool]:
    if _ATTRIBUTE.fullmatch(expression):
        return expression, [], {}, False
    try:
        call = ast.parse(expression, mode="eval").body
        if not isinstance(call, ast.Call):
            raise ValueError
        arguments = [ast.literal_eval(argument) for argument in call.args]
        keywords = {word.arg or "": ast.literal_eval(word.value) for word in call.keywords}
        name = ast.unparse(call.func)
        if not _ATTRIBUTE.fullmatch(name):
            raise ValueError
    except (SyntaxError, ValueError):
        raise AppNotLoaded(
            f"{target}: {expression!r} is neither a name nor a call of one with literal arguments"
        ) from None
    return name, arguments, keywords, True


def _django(settings_module: str) -> LoadedApp:
    os.environ["DJANGO_SETTINGS_MODULE"] = settings_module
    try:
        from django.core.wsgi import get_wsgi_application

        app = get_wsgi_application()
    except Exception as error:
        raise AppNotLoaded(f"{settings_module}: Django failed: {described(error)}") from error
    return LoadedApp(app, "WSGI", "django.core.wsgi:get_wsgi_application()")


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    similar = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {similar[0]!r}?)" if similar else ""


def described(error: BaseException) -> str:
    """An exception, and the innermost line of code behind it that is not Python's own; one line."""
    library = sysconfig.get_path("stdlib")
    packages = ("site-packages", "dist-packages")
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename not in (__file__, "<string>")
        and not frame.filename.startswith("<frozen ")
        and (not frame.filename.startswith(library) or any(p in frame.filename for p in packages))
    ]
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())}{where}"
