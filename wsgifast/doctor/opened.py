"""Which files an app opens for its body."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

from .model import FileSeen, Recording

__all__ = ["files_of_the_body", "opened_files"]

# Files smaller than this have nothing to gain.
_LEAST_FILE_BYTES = 16 * 1024
# An audit hook cannot be removed, so it is added once, and notes nothing while nobody looks.
_watched = threading.local()
_everywhere: list[str] | None = None
_adding_hook = threading.Lock()
_has_hook = False


@contextlib.contextmanager
def opened_files(*, everywhere: bool = False) -> Iterator[list[str]]:
    """Note the files that are opened for reading.

    :param everywhere: by any thread; else by this one alone.
    """
    global _everywhere, _has_hook
    with _adding_hook:
        if not _has_hook:
            sys.addaudithook(_on_audit_event)
            _has_hook = True
    paths: list[str] = []
    if everywhere:
        _everywhere = paths
    else:
        _watched.paths = paths
    try:
        yield paths
    finally:
        _everywhere = _watched.paths = None


def _on_audit_event(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open":
        return
    paths = getattr(_watched, "paths", None)
    if paths is None:
        paths = _everywhere
    if paths is None:
        return
    path, mode = arguments[0], arguments[1]
    reads = mode is None or not set(str(mode)) & set("wax+")
    if reads and isinstance(path, (str, bytes, os.PathLike)):
        paths.append(os.fsdecode(path))


def files_of_the_body(paths: list[str], recording: Recording) -> list[FileSeen]:
    """Those of the opened files that the body is made of, by their size."""
    total = recording.declared or recording.chunks.total
    found = []
    for path in dict.fromkeys(paths):
        try:
            size = os.stat(path).st_size
        except OSError:
            continue
        if size >= _LEAST_FILE_BYTES and size == total:
            found.append(FileSeen(path, size))
    return found
