"""Folders of files that apps serve, and a few files of each."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from ...files.site import StaticFilesBase

# Of a folder that are requested, and of its entries that are looked at.
_MOST_FILES = 3
_MOST_ENTRIES = 5000

# The files of a folder: their URL paths, each with the path of the file.
Files = Mapping[str, str]


def is_a(app: Any, module: str, name: str) -> bool:
    """Whether an app is of a class; nothing is imported, for an app of it has imported it."""
    loaded = sys.modules.get(module)
    kind = getattr(loaded, name, None)
    return isinstance(kind, type) and isinstance(app, kind)


def files_served_by(app: Any) -> Files | None:
    """The files of an app, or of a middleware, that serves static files; None if it is none."""
    if isinstance(app, StaticFilesBase):
        return files_below(app._prefix, [each.path for each in app._lookup.directories])
    if is_a(app, "starlette.staticfiles", "StaticFiles"):
        return files_below("/", app.all_directories)
    for package in ("whitenoise", "servestatic"):
        for name in ("WhiteNoise", "ServeStaticBase"):
            if is_a(app, f"{package}.base", name):
                found = {
                    quote(url, safe="/"): served.alternatives[-1][1]  # the largest
                    for url, served in app.files.items()
                    if hasattr(served, "alternatives") and _is_shown(url)  # not a redirect
                }
                for directory, prefix in app.directories:
                    found |= files_below(prefix, [directory])
                return found
    return None


def files_below(prefix: str, directories: Iterable[str | os.PathLike[str]]) -> Files:
    """The files in directories, under a prefix that ends with a slash; hidden ones left out."""
    return {
        prefix + quote(os.path.relpath(path, top).replace(os.sep, "/"), safe="/"): path
        for top in [str(os.fspath(each)) for each in directories]
        for path in _files(top)
    }


def _files(top: str) -> Iterator[str]:
    entries = 0
    for folder, folders, names in os.walk(top):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            entries += 1
            if entries > _MOST_ENTRIES:
                return
            path = os.path.join(folder, name)
            if _is_shown(name) and os.path.isfile(path) and not os.path.islink(path):
                yield path


def _is_shown(path: str) -> bool:
    """Whether a file is not hidden, nor the compressed sibling of another one."""
    return "/." not in f"/{path}" and not path.endswith((".gz", ".br", ".zst"))


def sample(files: Files) -> list[str]:
    """URL paths of a few files: the largest of each kind, and of these the largest."""
    largest: dict[str, tuple[int, str]] = {}
    for url, path in files.items():
        try:
            size = os.path.getsize(path)
        except OSError:
            continue
        kind = os.path.splitext(path)[1].lower()
        largest[kind] = max(largest.get(kind, (0, "")), (size, url))
    return [url for _, url in sorted(largest.values(), reverse=True)[:_MOST_FILES] if url]
