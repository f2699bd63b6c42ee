"""Imports that may fail for want of an extra, and imports that wait until they are asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module

from .errors import MissingExtra

__all__ = ["exports_on_demand", "needs"]


@contextmanager
def needs(part: str, package: str, extra: str) -> Iterator[None]:
    """Around the import of a package: where it is not installed, say which extra brings it.

    :param part: what needs it, as its users import it.
    :param package: as it is imported. Where the import of another one fails, that is what is told.
    :raises MissingExtra: in place of the ImportError.
    """
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        raise MissingExtra(part, package, extra) from None


def exports_on_demand(package: str, modules: Mapping[str, str]) -> Callable[[str], object]:
    """Return a package's `__getattr__` (PEP 562): importing the package loads none of the modules.

    :param modules: exported name -> the module that has it, relative to the package.
    """

    def __getattr__(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(modules[name], package), name)
        setattr(sys.modules[package], name, value)  # the next one finds it there
        return value

    return __getattr__
