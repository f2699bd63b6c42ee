"""Records which files an app opens for its body."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

from .model import FileSeen, Recording

__all__ = ["files_of_the_body", "opened_files"]

# Smaller files gain nothing from sendfile.
_LEAST_FILE_BYTES = 16 * 1024
# An audit hook cannot be removed, so it is added once and does nothing most of the time.
_watched = threading.local()
_everywhere: list[str] | None = None
_adding_hook = threading.Lock()
_has_hook = False


@contextlib.contextmanager
def opened_files(*, everywhere: bool = False) -> Iterator[list[str]]:
    """Record the files that are opened for reading.

    :param everywhere: by any thread; otherwise only by this one.
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
    """The opened files that have the size of the body."""
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
