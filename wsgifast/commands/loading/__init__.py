"""Loads an app by its name, like gunicorn, uvicorn and Flask, and wraps and unwraps it.

`servers` loads it in a process of its own, as a server would with its options and configuration.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import contextvars
import difflib
import importlib
import importlib.util
import inspect
import operator
import os
import pkgutil
import re
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from ...checks import Interface, app_name, checked_interface, interface_of
from ...errors import WSGIFastError
from ...middleware import WSGIFast

__all__ = [
    "AppNotLoaded",
    "AwaitedApp",
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
# Names of apps to look for if only the module is given: Flask and FastAPI use "app", PEP 3333,
# Django and gunicorn "application". Then names of factories.
_NAMES = ("application", "app", "wsgi_app", "asgi_app")
_FACTORIES = ("create_app", "make_app")
_ATTRIBUTE = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_RETURNED_NONE = "has returned None; does it end without a return?"


@dataclass(frozen=True)
class LoadedApp:
    """An app, its interface and its name.

    :ivar app: as it was found.
    :ivar interface: "WSGI" or "ASGI".
    :ivar target: its name in messages: "module:attribute", with "()" for a factory, or Django with
        its settings.
    """

    app: Any
    interface: Interface
    target: str


class AwaitedApp:
    """The ASGI app of an asynchronous factory, made in the event loop that serves it.

    The factory's resources belong to that loop. The first event makes the app. It is most often the
    lifespan's.
    """

    def __init__(self, making: Awaitable[Any], target: str) -> None:
        self._making = making
        self._target = target
        self._task: asyncio.Future[Any] | None = None
        self._wrap: Callable[[Any], Any] = lambda app: app

    def then(self, wrap: Callable[[Any], Any]) -> AwaitedApp:
        """Have the app wrapped, once it is there."""
        self._wrap = wrap
        return self

    async def made(self) -> Any:
        """Await the app.

        :raises AppNotLoaded: if the factory fails, or gives something else.
        """
        if self._task is None:
            self._task = asyncio.ensure_future(self._made())
        return await asyncio.shield(self._task)

    async def _made(self) -> Any:
        try:
            app = await self._making
        except Exception as error:
            raise AppNotLoaded(f"{self._target} failed: {described(error)}") from error
        if app is None:
            raise AppNotLoaded(f"{self._target} {_RETURNED_NONE}")
        problem = f"{self._target} has returned {app_name(app)}, neither a WSGI nor an ASGI app"
        _interface(app, problem)
        return self._wrap(app)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            app = await self.made()
        except AppNotLoaded as error:
            if scope["type"] != "lifespan":
                raise
            # Raised, it would be taken for an app without a lifespan.
            await receive()
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await app(scope, receive, send)


def load_app(target: str, server: ServerName | None = None) -> LoadedApp:
    """Import an app.

    :param target: "module:app", "module:factory()" (arguments are literals), "module" where the app
        is called application or app, a Django settings module, or the path of a .py file, alone or
        with ":app". The working directory is looked through first, as by `python -m`.
    :param server: this process is its worker. The server has set the search path, and its own rules
        find the app. uvicorn calls an object that needs no arguments, unless it is an app. The app
        of an asynchronous factory is an :class:`AwaitedApp`. Without a server it is awaited in a
        separate loop.
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
    if inspect.isawaitable(app):
        return _awaited(AwaitedApp(app, named), server, named)
    if server == "uvicorn" and interface_of(app) is None and _needs_nothing(app):
        return load_app(f"{named}()", server)
    problem = (
        f"{target}: {app_name(app)} is neither a WSGI nor an ASGI app. If it makes one, write "
        f"'{named}()'; some frameworks, such as aiohttp and Robyn, run only on their own server; "
        "an app of ASGI 2 has to be wrapped by asgiref's guarantee_single_callable()"
    )
    return LoadedApp(app, _interface(app, problem), named)


def _awaited(app: AwaitedApp, server: ServerName | None, target: str) -> LoadedApp:
    if server == "uvicorn":
        return LoadedApp(app, "ASGI", target)
    # In a thread: this one may run a loop, or have none yet that the app's own code looks for.
    pool = ThreadPoolExecutor(1)
    making = pool.submit(contextvars.copy_context().run, asyncio.run, app.made())
    pool.shutdown(wait=False)  # it ends after this. Ctrl-C does not wait for it
    made = making.result()
    return LoadedApp(made, interface_of(made) or "WSGI", target)


def _interface(app: Any, problem: str) -> Interface:
    """:raises AppNotLoaded: with the problem, if it is no app."""
    try:
        return checked_interface(app)
    except WSGIFastError:
        raise AppNotLoaded(problem) from None


def _needs_nothing(app: Any) -> bool:
    """Whether it can be called without arguments."""
    try:
        inspect.signature(app).bind()
    except (TypeError, ValueError):
        return False
    return True


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


def adds_asgifast(app: Any) -> bool:
    """Return whether Starlette's `add_middleware()` was called with ASGIFast."""
    asgifast = sys.modules.get("asgifast")
    added = getattr(app, "user_middleware", None)
    return (
        asgifast is not None
        and isinstance(added, list)
        and any(getattr(each, "cls", None) is asgifast.ASGIFast for each in added)
    )


def wrapped(app: Any, interface: Interface, **options: Any) -> Any:
    """An app in WSGIFast or ASGIFast, if it is not wrapped already.

    :param options: theirs.
    """
    if isinstance(app, AwaitedApp):
        return app.then(lambda made: wrapped(made, interface, **options))
    if unwrapped(app)[1]:
        return app
    wrap: Any = WSGIFast
    if interface == "ASGI":
        from asgifast import ASGIFast as wrap
    return wrap(app, **options)


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
        f"{target}: {module} has no {', '.join(_NAMES)} or {' or '.join(_FACTORIES)}; "
        f"{_file_here(module) or f'name the app, as in {target}:my_app'}"
    )


def _evaluated(module: Any, expression: str, target: str) -> Any:
    """Attributes joined by dots, and at most one call with literal arguments."""
    name, arguments, keywords, is_call = _parsed(expression, target)
    try:
        app = operator.attrgetter(name)(module)
    except AttributeError as error:
        here = _file_here(module)
        hint = f"; {here}" if here else did_you_mean(error.name or name, dir(error.obj))
        raise AppNotLoaded(f"{target}: {module} has no {name!r}{hint}") from None
    if not is_call:
        return app
    try:
        app = app(*arguments, **keywords)
    except Exception as error:
        raise AppNotLoaded(f"{target}: {name}() failed: {described(error)}") from error
    if app is None:
        raise AppNotLoaded(f"{target}: {name}() {_RETURNED_NONE}")
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
    return LoadedApp(app, "WSGI", f"Django with the settings {settings_module}")


def django_settings() -> Any:
    """Django's settings. None where no app has configured them."""
    settings = getattr(sys.modules.get("django.conf"), "settings", None)
    return settings if settings is not None and settings.configured else None


class AppNotLoaded(WSGIFastError, RuntimeError):
    """The app could not be imported or created. The message says why."""


def search_here() -> None:
    """Have imports look through the working directory first, as by `python -m`."""
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())


def absolute(target: str) -> str:
    """A target with its file's path from anywhere: a server may change the working directory."""
    path, colon, expression = target.partition(":")
    is_file = path.endswith(".py") and os.path.isfile(path)
    return f"{os.path.abspath(path)}{colon}{expression}" if is_file else target


def named_module(name: str, target: str) -> ModuleType:
    """The module of a target.

    :param name: of the module, or a .py file's path.
    :raises AppNotLoaded: if it does not exist, or raises.
    """
    if name.endswith(".py"):
        return _of_file(name, target)
    if "/" in name:
        is_folder = os.path.isdir(name)
        raise AppNotLoaded(
            f"{target}: {name} is a directory; name a module or a .py file in it"
            if is_folder
            else f"{target}: {name} is neither a module nor a .py file"
        )
    return _imported(name, target)


def _file_here(module: ModuleType) -> str:
    """The way out where another module than the file of its name here was imported."""
    file = Path(f"{module.__name__}.py")
    return f"for the file here write {file}" if file.is_file() and not _is_of(module, file) else ""


def _of_file(path: str, target: str) -> ModuleType:
    """The module of a file, by its own name where that leads to it, and else under another."""
    # A server may have been given another place to look for the app.
    places = [Path(path), *(Path(place, path) for place in sys.path[:1])]
    file = next((each for each in places if each.is_file()), Path(path)).resolve()
    if not file.is_file():
        raise AppNotLoaded(f"{target}: there is no file {path}")
    folder = file.parent
    parts = [] if file.stem == "__init__" else [file.stem]
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    if parts[0] in sys.stdlib_module_names:
        _import_pythons_own(parts[0])
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    first = folder / parts[0] / "__init__.py" if file.parent != folder else file
    if "." not in file.stem and _leads_to(parts[0], first):
        return _imported(".".join(parts), target)
    *packages, own = [*parts[:-1], re.sub(r"\W", "_", parts[-1])]
    if packages:
        _imported(".".join(packages), target)
    name = ".".join([*packages, own])
    while name in sys.modules and not _is_of(sys.modules[name], file):
        name += "_"
    return _imported(name, target, file)


def _import_pythons_own(name: str) -> None:
    """Import a module of Python's own before one of its name: others of its own import it."""
    before = sys.path[:]
    own = sysconfig.get_path("stdlib")
    sys.path[:] = [p for p in before if p.startswith(own) and not p.endswith("-packages")]
    try:
        with contextlib.suppress(ImportError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(name)
    finally:
        sys.path[:] = before


def _leads_to(name: str, file: Path) -> bool:
    """Whether to import a name without a dot is to import this file."""
    if name in sys.modules:
        return _is_of(sys.modules[name], file)
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return False
    return spec is not None and _same(spec.origin, file)


def _is_of(module: ModuleType, file: Path) -> bool:
    return _same(getattr(module, "__file__", None), file)


def _same(origin: str | None, file: Path) -> bool:
    try:
        return origin is not None and os.path.samefile(origin, file)
    except OSError:
        return False


def _imported(name: str, target: str, file: Path | None = None) -> ModuleType:
    """:param file: the module's, where its name does not lead to it."""
    try:
        return importlib.import_module(name) if file is None else _executed(name, file)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and (name == missing or name.startswith(f"{missing}.")):
            folders = [".", *(path or "." for path in sys.path[:2])]
            known = (
                [] if "." in missing else [module.name for module in pkgutil.iter_modules(folders)]
            )
            hint = did_you_mean(missing, known)
            raise AppNotLoaded(
                f"{target}: {error}{hint}; run this in the directory that contains it, with the "
                "Python of its environment"
            ) from None
        raise AppNotLoaded(f"{target}: importing {name} failed: {described(error)}") from error


def _executed(name: str, file: Path) -> ModuleType:
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None  # the file's name ends in .py
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # frameworks look there for the app's folder
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message: the known name that is the most similar, if there is one."""
    similar = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {similar[0]!r}?)" if similar else ""


def described(error: BaseException) -> str:
    """Return an exception, and the innermost line of code that is not Python's, in one line."""
    library = sysconfig.get_path("stdlib")
    packages = ("site-packages", "dist-packages")
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if os.path.dirname(frame.filename) != os.path.dirname(__file__)
        and not frame.filename.startswith("<")
        and (not frame.filename.startswith(library) or any(p in frame.filename for p in packages))
    ]
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())}{where}"
