"""A folder for the files of a benchmark."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator

from .children import orderly_end

__all__ = ["temporary_folder"]


@contextlib.contextmanager
def temporary_folder(name: str) -> Iterator[str]:
    """A new folder, removed at the end of the block: by Ctrl-C and SIGTERM too."""
    with orderly_end(), tempfile.TemporaryDirectory(prefix=f"wsgifast-{name}-") as folder:
        yield folder
