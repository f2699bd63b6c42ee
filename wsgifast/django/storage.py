"""Storages for STORAGES["staticfiles"] that compress the files during collectstatic.

:func:`wsgifast.files.compress.compress` writes the precompressed files, with several threads. It
writes only those that save enough, and replaces them only if the original has changed. With
verbosity 2, collectstatic prints the path of each precompressed file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

from django.contrib.staticfiles.storage import ManifestStaticFilesStorage, StaticFilesStorage

from ..files.compress import compress
from .settings import static_options

__all__ = ["CompressedManifestStaticFilesStorage", "CompressedStaticFilesStorage"]

# Django's error for a style sheet or script that refers to a missing file.
_MISSING_FILE = re.compile(r"The file '(.+?)' could not be found")

# A tuple for each processed file, for collectstatic: (path of the original, path of the new file,
# True or an exception).
_Processed = Iterator[tuple[str, str | None, Any]]


class CompressedStaticFilesStorage(StaticFilesStorage):
    """Django's StaticFilesStorage, which also writes .gz, .br and .zst files."""

    def post_process(
        self, paths: dict[str, Any], dry_run: bool = False, **options: Any
    ) -> _Processed:
        if not dry_run:
            yield from _compressed(self.location)


class CompressedManifestStaticFilesStorage(ManifestStaticFilesStorage):
    """Django's ManifestStaticFilesStorage, which also writes .gz, .br and .zst files.

    The option `keep_only_hashed` (WHITENOISE_KEEP_ONLY_HASHED_FILES) removes the files without a
    hash in their name. The option `manifest_strict` sets the attribute of that name.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        strict = static_options()["manifest_strict"]
        if strict is not None:
            self.manifest_strict = strict
        super().__init__(*args, **kwargs)

    def post_process(
        self, paths: dict[str, Any], dry_run: bool = False, **options: Any
    ) -> _Processed:
        files_before = set(_files_below(self.location))
        failed = False
        for name, hashed_name, processed in super().post_process(paths, dry_run=dry_run, **options):
            if isinstance(processed, Exception):
                failed = True
                _add_referrer(processed, name)
            yield name, hashed_name, processed
        if dry_run or failed:
            return
        if static_options()["keep_only_hashed"]:
            # Django may also have made intermediate files, which it does not report.
            made = set(_files_below(self.location)) - files_before
            to_keep = {os.path.normpath(name) for name in self.hashed_files.values()}
            to_keep.add(self.manifest_name)
            for name in ({os.path.normpath(path) for path in paths} | made) - to_keep:
                self.delete(name)
        yield from _compressed(self.location)


def _compressed(directory: str) -> _Processed:
    options = static_options()
    # With overwrite: STATIC_ROOT contains only collected files and precompressed files of them. If
    # WhiteNoise has made the latter, they may be older than their originals, and then are not sent.
    report = compress(
        directory,
        codings=options["codings"],
        skip_extensions=options["skip_extensions"],
        overwrite=True,
    )
    for precompressed in report.written:
        yield precompressed.rpartition(".")[0], precompressed, True
    for path, why in report.failed.items():
        yield path, None, OSError(f"{path}: {why}")


def _add_referrer(error: Exception, name: str) -> None:
    """Add the name of the referring file to Django's error about a missing file."""
    text = str(error.args[0]) if error.args else ""
    missing = _MISSING_FILE.match(text)
    if missing:
        error.args = (
            f"{name} refers to {missing[1]!r}, which is not among the collected files: correct the "
            f"path in {name} (it is relative to that file), or add the file. {text}",
        )


def _files_below(directory: str) -> Iterator[str]:
    for folder, _, names in os.walk(directory):
        for name in names:
            yield os.path.relpath(os.path.join(folder, name), directory)
