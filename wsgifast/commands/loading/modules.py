"""Imports the module or the .py file that a target names."""

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

# They open a browser, or print.
_NOT_TO_IMPORT = ("antigravity", "this")


class AppNotLoaded(WSGIFastError, RuntimeError):
    """The app could not be imported or created; the message says why."""


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


def other_file(module: ModuleType) -> str:
    """The end of a message: a file of the same name that is here, if the module is another."""
    here = Path(f"{module.__name__}.py")
    if not here.is_file() or _is_of(module, here):
        return ""
    return f" ({module.__file__ or 'built into Python'}); for the file here write {here}"


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
        package = _imported(".".join(packages), target)
        if not _is_of(package, file.parent / "__init__.py"):
            raise AppNotLoaded(
                f"{target}: its package has the name of another module, {package.__name__}"
                f"{other_file(package)}; rename its directory"
            )
    name = ".".join([*packages, own])
    while name in sys.modules and not _is_of(sys.modules[name], file):
        name += "_"
    return _imported(name, target, file)


def _import_pythons_own(name: str) -> None:
    """Import a module of Python's own before one of its name: others of its own import it."""
    if name in _NOT_TO_IMPORT:
        return
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
            raise AppNotLoaded(f"{target}: {_missing(missing, name, str(error))}") from None
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
        sys.modules.pop(name, None)
        raise
    return module


def _missing(missing: str, name: str, text: str) -> str:
    """What to do about a module of the target's own name, or its package, that is not there."""
    if text.endswith("is not a package"):
        parent = missing.rpartition(".")[0]
        of = getattr(sys.modules.get(parent), "__file__", None) or "built into Python"
        return f"there is no module {missing!r}: {parent} ({of}) is a module and not a package"
    folders = [".", *(path or "." for path in sys.path[:2])]
    hint = did_you_mean(name, [module.name for module in pkgutil.iter_modules(folders)])
    if Path(f"{name}.py").is_file():
        hint = f" (did you mean the file {name}.py?)"
    return (
        f"there is no module {missing!r} here{hint}; run this in the directory that contains it, "
        "with the Python of its environment"
    )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message: the known name that is the most similar, if there is one."""
    similar = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {similar[0]!r}?)" if similar else ""


def described(error: BaseException) -> str:
    """An exception, and the innermost line of code behind it that is not Python's own; one line."""
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
