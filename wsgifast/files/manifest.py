"""The manifest of a directory: the siblings that `wsgifast compress` has made there.

It is untrusted: anyone who can write to the directory can have written it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from pathlib import Path

from ..errors import ConfigurationError
from .codings import SIBLING_SUFFIXES
from .directory import names_of
from .tree import folder_of, read_file, write_file

# Hidden, so that it is not served.
MANIFEST = ".wsgifast-compress.json"
_MANIFEST_VERSION = 1
_SIBLING = re.compile(rf"[^/](?:{'|'.join(map(re.escape, SIBLING_SUFFIXES.values()))})\Z")


def read_manifest(root: Path) -> dict[str, str]:
    """Return the paths of the siblings with their digests; empty without a manifest.

    :raises ConfigurationError: if it is malformed, or names anything but siblings below the root.
    """
    try:
        with folder_of(root, MANIFEST) as (folder, name):
            file = read_file(folder, name)
        content = {} if file is None else json.loads(file.content)
        if content["version"] == _MANIFEST_VERSION:
            made = {str(name): str(digest) for name, digest in content["siblings"].items()}
            if all(map(_may_be_made, made)):
                return made
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    raise ConfigurationError(
        f"{root / MANIFEST} is not a manifest of this version: delete it, and use overwrite to "
        "replace the siblings that it listed"
    )


def _may_be_made(path: str) -> bool:
    names = names_of(path)
    return bool(names) and "/".join(names or ()) == path and _SIBLING.search(path) is not None


def write_manifest(root: Path, made: dict[str, str]) -> None:
    """Write the manifest, or delete it if `made` is empty."""
    with folder_of(root, MANIFEST) as (folder, name):
        if made:
            content = {"version": _MANIFEST_VERSION, "siblings": dict(sorted(made.items()))}
            write_file(folder, name, json.dumps(content, indent=1).encode() + b"\n")
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
