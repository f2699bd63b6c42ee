"""Find parts of gunicorn that other code has replaced, although FastWorker never calls them.

FastWorker does not use gthread's input, output and responses. A subclass may override a method of
gthread, for example to check or limit requests. FastWorker would not call that method, so
FastWorker refuses the subclass. If other code replaced a part of gunicorn's modules, such as
Response, FastWorker logs its name.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

from gunicorn.http import message, wsgi
from gunicorn.workers import gthread

from ..bodies.line_log import is_defined_in

# Methods that FastWorker inherits from gthread and calls.
_CALLED = frozenset({"is_parent_alive"})
# The classes and functions that gthread uses. FastWorker uses those of `message` only for requests
# that are not plain.
_PARTS: tuple[tuple[ModuleType, tuple[str, ...]], ...] = (
    (gthread, ("ThreadWorker", "TConn")),
    (wsgi, ("Response", "create", "default_environ", "base_environ", "proxy_environ")),
    (message, ("Message", "Request")),
)
# The names of parts that were logged, in this process or in the arbiter before the fork.
_named: set[str] = set()


def uncalled_methods(worker: type, base: type) -> list[str]:
    """Return the overridden methods of gthread that FastWorker does not call.

    :param worker: a subclass of FastWorker, or FastWorker.
    :param base: FastWorker.
    """
    ignored = _uncalled(base)
    return [
        f"{kind.__name__}.{name}()"
        for kind in worker.__mro__[: worker.__mro__.index(base)]
        for name in vars(kind)
        if name in ignored
    ]


def _uncalled(base: type) -> set[str]:
    """Return the names of gthread's methods that FastWorker does not call."""
    methods = {name for name, value in vars(gthread.ThreadWorker).items() if callable(value)}
    return methods - (vars(base).keys() | _CALLED)


def name_replaced_methods(worker: Any, base: type) -> None:
    """Log each method of gthread that a hook replaced on a worker, and FastWorker does not call.

    :param base: FastWorker.
    """
    for name in sorted(vars(worker).keys() & _uncalled(base)):
        worker.log.warning(
            "A hook has set worker.%s: FastWorker does not call it, so the change has no effect. "
            "Use the hooks pre_request and post_request, or middleware, or -k gthread",
            name,
        )


def name_replaced_parts(log: Any) -> None:
    """Log once the name of each part of gunicorn that other code replaced."""
    for name in replaced_parts():
        if name not in _named:
            _named.add(name)
            log.warning(
                "%s is not gunicorn's own: FastWorker does not call it, so the change has no "
                "effect. Set headers in the app or in middleware, or use -k gthread",
                name,
            )


def replaced_parts() -> list[str]:
    """Return the names of gunicorn's classes and functions that other code replaced."""
    return list(_replaced())


def _replaced() -> Iterator[str]:
    for module, names in _PARTS:
        for name in names:
            part = getattr(module, name)
            if not isinstance(part, type):
                if not is_defined_in(module, part):
                    yield f"{module.__name__}.{name}"
            elif part.__module__ != module.__name__:
                yield f"{module.__name__}.{name}"
            else:
                yield from _replaced_methods(part, module)


def _replaced_methods(kind: type, module: ModuleType) -> Iterator[str]:
    for name, value in vars(kind).items():
        function = getattr(value, "__func__", value)
        if isinstance(function, FunctionType) and not is_defined_in(module, function):
            yield f"{module.__name__}.{kind.__name__}.{name}"
