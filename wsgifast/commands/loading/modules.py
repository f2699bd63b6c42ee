"""Imports the module of an app, by its name or by the path of its file."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.util
import os
import pkgutil
import re
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from ...errors import WSGIFastError


class AppNotLoaded(WSGIFastError, RuntimeError):
    """The app could not be imported or created. The message says why."""


def search_here() -> None:
    """Look in the working directory first during imports, like `python -m`."""
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())


def named_module(name: str, target: str) -> ModuleType:
    """Import the module of a target.

    :param name: the name of the module, or the path of a .py file.
    :raises AppNotLoaded: if it does not exist, or raises.
    """
    if name.endswith(".py"):
        return _of_file(name, target)
    if "/" in name:
        raise AppNotLoaded(
            f"{target}: {name} is a directory; name a module or a .py file in it"
            if os.path.isdir(name)
            else f"{target}: {name} is neither a module nor a .py file"
        )
    return _imported(name, target)


def file_hint(module: ModuleType) -> str:
    """Return how to name the file here, if the import found another module of its name."""
    file = Path(f"{module.__name__}.py")
    return f"for the file here write {file}" if file.is_file() and not _is_of(module, file) else ""


def _of_file(path: str, target: str) -> ModuleType:
    """Import a file under its own name, or with underscores if that name is not possible."""
    # A server may look for the app in another directory.
    places = [Path(path), *(Path(place, path) for place in sys.path[:1])]
    file = next((each for each in places if each.is_file()), None)
    if file is None:
        raise AppNotLoaded(f"{target}: there is no file {path}")
    file = file.resolve()
    folder = file.parent
    parts = [] if file.stem == "__init__" else [file.stem]
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    if parts[0] in sys.stdlib_module_names:
        _import_from_stdlib(parts[0])
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    *packages, last = parts
    if packages:
        _imported(".".join(packages), target)
    name = ".".join([*packages, re.sub(r"\W", "_", last)])
    while name in sys.modules and not _is_of(sys.modules[name], file):
        name += "_"
    return _imported(name, target, file)


def _import_from_stdlib(name: str) -> None:
    """Import a module of Python's own before a file of the same name hides it."""
    before = sys.path[:]
    own = sysconfig.get_path("stdlib")
    sys.path[:] = [p for p in before if p.startswith(own) and not p.endswith("-packages")]
    try:
        with contextlib.suppress(ImportError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(name)
    finally:
        sys.path[:] = before


def _is_of(module: ModuleType, file: Path) -> bool:
    try:
        return os.path.samefile(getattr(module, "__file__", None) or "", file)
    except OSError:
        return False


def _imported(name: str, target: str, file: Path | None = None) -> ModuleType:
    """:param file: the module's file. None to find the module by its name."""
    try:
        return importlib.import_module(name) if file is None else _executed(name, file)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if not missing or (name != missing and not name.startswith(f"{missing}.")):
            raise AppNotLoaded(f"{target}: importing {name} failed: {described(error)}") from error
        folders = [".", *(path or "." for path in sys.path[:2])]
        known = [] if "." in missing else [each.name for each in pkgutil.iter_modules(folders)]
        raise AppNotLoaded(
            f"{target}: {error}{did_you_mean(missing, known)}; run this in the directory that "
            "contains it, with the Python of its environment"
        ) from None


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
    package, _, last = name.rpartition(".")
    if package:  # like an import
        setattr(sys.modules[package], last, module)
    return module


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint with the most similar known name, or "" if no name is similar."""
    similar = difflib.get_close_matches(name, known, n=1)
    # A module of this very name may be in a directory that the server does not search.
    return f" (did you mean {similar[0]!r}?)" if similar and similar[0] != name else ""


def described(error: BaseException) -> str:
    """Return an exception, and the innermost line of code outside of Python's library."""
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
