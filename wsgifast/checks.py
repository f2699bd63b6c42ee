"""Checks for all packages: of option values, of apps, and of optional packages.

The module also formats sizes for messages, and lets packages import their modules on first use.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any, Literal

from .errors import ConfigurationError, MissingExtra

# The name of the module that gunicorn makes from a configuration file.
_CONFIGURATION_FILE = "__config__"
_MODULE_PREFIX = "python:"
# The longest timeout of a socket and of poll(): 2**31 - 1 ms, about 24 days.
LONGEST_S = (2**31 - 1) / 1000
# The units of sizes. Each is 1024 times the previous one.
_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")
# For each interface: the arguments with which a server calls an app, and the middleware class.
_ARGUMENTS = {"WSGI": ("environ", "start_response"), "ASGI": ("scope", "receive", "send")}
_WRAPPERS = {"WSGI": "wsgifast.WSGIFast", "ASGI": "asgifast.ASGIFast"}

Interface = Literal["WSGI", "ASGI"]


def check_switches(**switches: object) -> None:
    """Check that options are True or False.

    :raises ConfigurationError: for the first option with another value.
    """
    for name, value in switches.items():
        # Other values are rejected, because "no" and "false" from an environment variable are true
        # in Python.
        if not isinstance(value, bool):
            raise ConfigurationError(f"{name} is True or False, not {value!r}")


def is_count(value: object, *, least: int = 0) -> bool:
    """Return whether a value is an integer of at least `least`. True and False do not count."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_number(value: object, *, least: float, most: float) -> bool:
    """Return whether a value is a number within bounds. NaN, True and False do not count.

    An integer that is too large for a float does not count, because it cannot be added to a time.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    if isinstance(value, int):
        most = min(most, sys.float_info.max)
    return least <= value <= most


def list_of_text(value: object) -> list[str] | None:
    """Return the strings of an iterable.

    Return None for any other value, such as a str, and if one of the strings is empty.
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
    """Return the variables of gunicorn's configuration file. gunicorn ignores unknown ones.

    :param config: gunicorn's setting `config`: a file, or python:MODULE.
    """
    name = _CONFIGURATION_FILE
    if config is not None and config.startswith(_MODULE_PREFIX):
        name = config.removeprefix(_MODULE_PREFIX)
    module = sys.modules.get(name)
    return {} if module is None else vars(module)


def check_app(app: object, interface: Interface) -> None:
    """Check that an object can be an app of an interface.

    Only objects that would fail at every request are rejected: objects that cannot be called with
    the interface's arguments and, for WSGI, coroutine functions. A callable whose signature is
    unknown is accepted.

    :raises ConfigurationError: with the app and the way to correct it.
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
    """Return an app's interface, or None if its signature fits neither interface or both."""
    wsgi, asgi = callable(app) and _fits(app, "WSGI"), callable(app) and _fits(app, "ASGI")
    if wsgi == asgi:
        return None
    return "WSGI" if wsgi else "ASGI"


def checked_interface(app: object) -> Interface:
    """Return an app's interface. It is WSGI for a callable whose signature is unknown.

    :raises ConfigurationError: if the object is not an app.
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
    import inspect  # imported here, because not all processes need it

    while isinstance(app, partial):
        app = app.func
    called = app if inspect.isroutine(app) else type(app).__call__
    return inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called)


def _takes(app: object, count: int) -> bool:
    """Return whether an app can be called with `count` arguments, or True if this is unknown."""
    import inspect

    try:
        # The signature of the callable, even if a decorator has set that of the wrapped function.
        signature = inspect.signature(app, follow_wrapped=False)  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001 - a proxy or a builtin, which may be an app
        return True
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


@contextmanager
def needs(part: str, package: str, extra: str) -> Iterator[None]:
    """Wrap the import of an optional package. The error for a missing package names the extra.

    :param part: the name that users import, and that needs the package.
    :param package: the package's import name. Import errors of other modules are not changed.
    :raises MissingExtra: in place of the ImportError, if the package is not installed.
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
        setattr(sys.modules[package], name, value)
        return value

    return __getattr__
