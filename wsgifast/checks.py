"""Checks that all packages share: of option values, of apps, and of packages that may be missing.

Beside them: how a size is written in a message, and packages that import their modules on first
use.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any, Literal

from .errors import ConfigurationError, MissingExtra

# The module that gunicorn makes of a configuration file.
_CONFIGURATION_FILE = "__config__"
_MODULE_PREFIX = "python:"
# The longest time that a socket's timeout, and poll(), may be: 2**31 - 1 ms, some 24 days.
LONGEST_S = (2**31 - 1) / 1000
# Of sizes: each is 1024 of the one before it, the first 1024 bytes.
_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")
# The arguments with which each interface calls an app, and the class that wraps its apps.
_ARGUMENTS = {"WSGI": ("environ", "start_response"), "ASGI": ("scope", "receive", "send")}
_WRAPPERS = {"WSGI": "wsgifast.WSGIFast", "ASGI": "asgifast.ASGIFast"}

Interface = Literal["WSGI", "ASGI"]


def check_switches(**switches: object) -> None:
    """:raises ConfigurationError: naming the first option that is not True or False."""
    for name, value in switches.items():
        # Not just any truthy value: "no" and "false" from an environment variable are truthy too.
        if not isinstance(value, bool):
            raise ConfigurationError(f"{name} is True or False, not {value!r}")


def is_count(value: object, *, least: int = 0) -> bool:
    """Return whether a value is an integer of at least `least`. True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_number(value: object, *, least: float, most: float) -> bool:
    """Return whether a value is a number within these bounds. NaN, True and False are not.

    An integer that is too large for a float is not either, because adding it to a time would fail.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    if isinstance(value, int):
        most = min(most, sys.float_info.max)
    return least <= value <= most


def list_of_text(value: object) -> list[str] | None:
    """Return the strings of an iterable, or None for anything else, such as a str.

    An iterable with "" is refused too.
    """
    if isinstance(value, (str, Mapping)) or not isinstance(value, Iterable):
        return None
    items = list(value)
    return items if all(isinstance(item, str) and item for item in items) else None


def checked_timeout(value: Any) -> float | None:
    """Return a time limit in seconds, or None for no limit.

    math.inf and all values above LONGEST_S mean no limit.

    :raises ConfigurationError: for NaN, a negative number, or a value that is not a number.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        text = "seconds from 0 on; math.inf or None for no limit"
        raise ConfigurationError(f"timeout={value!r}: {text}")
    return None if value > LONGEST_S else float(value)


def size_text(size: float) -> str:
    """Return a size as "1023 B", "8 KiB" or "1.5 MiB".

    :param size: in bytes.
    """
    if size < 1024:
        return f"{size:.0f} B"
    power = 0
    while size >= 1024**2 and power < len(_UNITS) - 1:
        size /= 1024
        power += 1
    return f"{size / 1024:.1f}".removesuffix(".0") + f" {_UNITS[power]}"


def configuration_names(config: str | None) -> Mapping[str, Any]:
    """Return the names in gunicorn's configuration, which has run. gunicorn ignores unknown ones.

    :param config: gunicorn's setting `config`: a file, or python:MODULE.
    """
    name = _CONFIGURATION_FILE
    if config is not None and config.startswith(_MODULE_PREFIX):
        name = config.removeprefix(_MODULE_PREFIX)
    module = sys.modules.get(name)
    return {} if module is None else vars(module)


def check_app(app: object, interface: Interface) -> None:
    """Refuse an object that cannot be an app of an interface.

    Only objects that would fail at every request are refused. These are objects that cannot be
    called with the interface's arguments and, for WSGI, coroutine functions. A callable without a
    known signature passes.

    :raises ConfigurationError: naming the app and the way out.
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
    """Return an app's interface, or None if its signature fits neither or both."""
    wsgi, asgi = callable(app) and _fits(app, "WSGI"), callable(app) and _fits(app, "ASGI")
    if wsgi == asgi:
        return None
    return "WSGI" if wsgi else "ASGI"


def checked_interface(app: object) -> Interface:
    """Return an app's interface. It is WSGI for a callable without a known signature.

    :raises ConfigurationError: if it is not an app.
    """
    interface = interface_of(app)
    if interface is None:
        check_app(app, "WSGI")
    return interface or "WSGI"


def app_name(app: object) -> str:
    """Return an app's name for messages: its module and function, or its module and class."""
    named = app if hasattr(app, "__qualname__") else type(app)
    name = getattr(named, "__qualname__", "?")
    return f"the app {getattr(named, '__module__', '?')}.{name}"


def _fits(app: object, interface: Interface) -> bool:
    fits = _takes(app, len(_ARGUMENTS[interface]))
    return fits and not (interface == "WSGI" and _is_async(app))


def _is_async(app: Any) -> bool:
    import inspect  # not for processes that wrap no app

    while isinstance(app, partial):
        app = app.func
    called = app if inspect.isroutine(app) else type(app).__call__
    return inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called)


def _takes(app: object, count: int) -> bool:
    """Return whether an app can be called with `count` arguments. True where that is unknown."""
    import inspect

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


@contextmanager
def needs(part: str, package: str, extra: str) -> Iterator[None]:
    """Wrap the import of an optional package: if it is not installed, name the extra to install.

    :param part: the name that needs the package, as its users import it.
    :param package: the package's import name. Other errors, such as a module that a newer version
        does not have, are not changed.
    :raises MissingExtra: in place of the ImportError.
    """
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] != package or sys.modules.get(package) is not None:
            raise
        raise MissingExtra(part, package, extra) from None


def exports_on_demand(package: str, modules: Mapping[str, str]) -> Callable[[str], object]:
    """Return a package's `__getattr__` (PEP 562), which imports its modules on first use.

    :param modules: maps exported names to their modules, relative to the package.
    """

    def __getattr__(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(modules[name], package), name)
        setattr(sys.modules[package], name, value)  # so that this is called once for each name
        return value

    return __getattr__
