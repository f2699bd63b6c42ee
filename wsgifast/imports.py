"""Imports of optional packages, and lazy imports (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module

from .errors import MissingExtra

# Runs a module like `python -m`, which would look for its imports in the working directory first:
# a file there may have the name of a module of Python's own.
START = (
    "import sys; '' in sys.path[:1] and sys.path.pop(0); del sys.argv[0]; import runpy; "
    "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)


@contextmanager
def needs(part: str, package: str, extra: str) -> Iterator[None]:
    """Wrap the import of an optional package: if it is not installed, name the extra to install.

    :param part: what needs the package, as its users import it.
    :param package: the package's import name. The ImportError of any other package is not changed.
    :raises MissingExtra: in place of the ImportError.
    """
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] != package:
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
