"""Write encoded siblings (.gz, .br, .zst) beside the files of a directory, for StaticFiles to send.

The same bytes in give the same bytes out: no names, no times, no thread's luck goes into a sibling,
and it gets the modification time of its original, so that copies of a tree agree on their entity
tags. A manifest in the directory says which siblings were made here. Others are somebody's own
files: a `dump.sql.gz` may be all that is left of yesterday's `dump.sql`.

Whoever may write into the directory may have written the manifest, and may rename and link while
this runs. So each name is walked from the directory on, no link is followed, and what is read,
written and removed is named relative to a directory that is open.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import json
import os
import re
import secrets
import stat
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from ..errors import ConfigurationError
from .directory import names_of, open_folder
from .lookup import SIBLING_SUFFIXES

__all__ = ["CODING_PACKAGES", "MANIFEST", "CompressReport", "available_codings", "compress"]

# Hidden, so that it is not served.
MANIFEST = ".wsgifast-compress.json"
_MANIFEST_VERSION = 1
_SIBLING = re.compile(rf"[^/](?:{'|'.join(map(re.escape, SIBLING_SUFFIXES.values()))})\Z")
# A sibling has to save this share of the original: below it, unpacking costs the client more than
# the transfer did.
_MIN_SAVING = 0.05
# What is compressed already; trying would cost time and never pay.
_COMPRESSED_EXTENSIONS = frozenset(
    {".7z", ".avif", ".br", ".bz2", ".flac", ".flv", ".gif", ".gz", ".jpeg", ".jpg", ".jxl"}
    | {".m4a", ".m4v", ".mov", ".mp3", ".mp4", ".mpeg", ".ogg", ".opus", ".png", ".rar", ".tbz"}
    | {".tgz", ".txz", ".webm", ".webp", ".whl", ".woff", ".woff2", ".xz", ".zip", ".zst"}
)
# What says that a sibling's folder has gone, or is a link now.
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
# Files are compressed in memory, one in each thread.
_MAX_FILE_BYTES = 256 * 1024 * 1024
# A decoder of the zstd content coding need not take a larger window than 8 MB (RFC 9659).
_ZSTD_LEVEL = 19
_ZSTD_WINDOW_LOG = 23
# What each coding needs that Python does not bring.
CODING_PACKAGES = {"br": "brotli", "zstd": "zstandard"}


@dataclass
class CompressReport:
    """What was done; paths are relative to the directory."""

    written: list[str] = field(default_factory=list)
    # Made earlier, and still right.
    current: list[str] = field(default_factory=list)
    # Made here for a file that has gone, or no longer saves enough.
    removed: list[str] = field(default_factory=list)
    # Not made here, and older than its original or no regular file.
    left_alone: list[str] = field(default_factory=list)
    # Path -> why.
    failed: dict[str, str] = field(default_factory=dict)
    # Of the originals that have siblings, and of the smallest sibling of each.
    original_bytes: int = 0
    smallest_bytes: int = 0


def available_codings() -> tuple[str, ...]:
    """The content codings whose package is installed; gzip always is."""
    return tuple(
        c for c in SIBLING_SUFFIXES if c not in CODING_PACKAGES or _has(CODING_PACKAGES[c])
    )


def compress(
    directory: str | os.PathLike[str],
    *,
    codings: Sequence[str] | None = None,
    jobs: int | None = None,
    overwrite: bool = False,
    skip_extensions: Iterable[str] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> CompressReport:
    """Make every sibling that pays, and remove those made earlier that do so no more.

    Links are not followed, names that StaticFiles hides are left out. A sibling is written beside
    its place and then moved there, so that a server meanwhile sends the old one or the new one.

    :param codings: of "gzip", "br" and "zstd"; by default those whose package is installed.
    :param jobs: threads; by default one for each processor. The compressors leave the GIL.
    :param overwrite: also replace such siblings that were not made here.
    :param skip_extensions: of files that are left alone, such as "jpg" or ".jpg"; by default those
        of formats that are compressed already.
    :param progress: called as (files done, files in all, relative path).
    :raises ConfigurationError: if the directory does not exist, its manifest cannot be one, a
        coding is unknown, or its package is not installed.
    """
    root = Path(directory)
    if not root.is_dir():
        raise ConfigurationError(f"{root} is not a directory: name the one to compress")
    codings = _checked(codings)
    if jobs is not None and jobs < 1:
        raise ConfigurationError(f"jobs={jobs}: a number of threads from 1 on")
    run = _Run(root, codings, overwrite, _read_manifest(root))
    skipped = _COMPRESSED_EXTENSIONS
    if skip_extensions is not None:
        given = (f".{extension.lstrip('.').lower()}" for extension in skip_extensions)
        skipped = frozenset((*given, *SIBLING_SUFFIXES.values()))
    paths = sorted(_originals(root, skipped))
    with ThreadPoolExecutor(jobs or os.cpu_count() or 1) as pool:
        futures = {pool.submit(run.compress_one, path): path for path in paths}
        try:
            for done, future in enumerate(as_completed(futures), 1):
                path = futures[future]
                try:
                    original_bytes, smallest_bytes = future.result()
                    run.report.original_bytes += original_bytes
                    run.report.smallest_bytes += smallest_bytes
                except OSError as error:
                    run.report.failed[path] = error.strerror or str(error)
                if progress is not None:
                    progress(done, len(paths), path)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            _write_manifest(root, run.made)
            raise
    run.remove_orphans()
    _write_manifest(root, run.made)
    for names in (run.report.written, run.report.current, run.report.left_alone):
        names.sort()
    return run.report


class _Run:
    """One run over a directory; each file is one thread's, and append() and item setting atomic."""

    def __init__(
        self, root: Path, codings: Sequence[str], overwrite: bool, made: dict[str, str]
    ) -> None:
        self.root = root
        self.codings = codings
        self.overwrite = overwrite
        # Sibling -> digest, of those made here.
        self.made = made
        self.report = CompressReport()

    def compress_one(self, path: str) -> tuple[int, int]:
        """Return the size of the file and of its smallest sibling; 0 and 0 if it has none."""
        with _folder_of(self.root, path) as (folder, name):
            original = _read(folder, name)
            if original is None:
                return 0, 0  # another kind of file by now
            sizes = [
                size
                for coding in self.codings
                if (size := self._make_sibling(folder, path, coding, original)) is not None
            ]
        return (len(original.content), min(sizes)) if sizes else (0, 0)

    def remove_orphans(self) -> None:
        for path in sorted(self.made):
            try:
                with _folder_of(self.root, path) as (folder, name):
                    original = _facts_of(name.rpartition(".")[0], folder)
                    if not _is_regular(original) and self._is_ours(folder, path):
                        self._remove(folder, path)
            except OSError as error:
                if error.errno in _GONE:
                    del self.made[path]
                else:
                    self.report.failed[path] = error.strerror or str(error)

    def _make_sibling(self, folder: int, path: str, coding: str, original: _File) -> int | None:
        """Return the sibling's size, or None if it has none in the end."""
        path += SIBLING_SUFFIXES[coding]
        name = path.rpartition("/")[2]
        there = _facts_of(name, folder)
        ours = there is not None and self._is_ours(folder, path)
        if there is not None and not ours and not self.overwrite:
            if not _is_regular(there) or there.st_mtime_ns < original.facts.st_mtime_ns:
                self.report.left_alone.append(path)
                return None
            self.report.current.append(path)
            return there.st_size
        if there is not None and ours and there.st_mtime_ns == original.facts.st_mtime_ns:
            self.report.current.append(path)
            return there.st_size
        encoded = _ENCODERS[coding](original.content)
        if len(encoded) > len(original.content) * (1 - _MIN_SAVING):
            if ours:
                self._remove(folder, path)
            return None
        _write(folder, name, encoded, original.facts)
        self.made[path] = _digest(encoded)
        self.report.written.append(path)
        return len(encoded)

    def _is_ours(self, folder: int, path: str) -> bool:
        digest = self.made.get(path)
        if digest is None:
            return False
        try:
            there = _read(folder, path.rpartition("/")[2])
        except OSError:
            return False
        return there is not None and _digest(there.content) == digest

    def _remove(self, folder: int, path: str) -> None:
        os.unlink(path.rpartition("/")[2], dir_fd=folder)
        del self.made[path]
        self.report.removed.append(path)


class _File(NamedTuple):
    content: bytes
    facts: os.stat_result


def _originals(root: Path, skipped: Collection[str]) -> Iterator[str]:
    for folder, folders, names in os.walk(root):
        below = Path(folder).relative_to(root)
        folders[:] = (name for name in folders if names_of((below / name).as_posix()))
        for name in names:
            path = (below / name).as_posix()
            if names_of(path) and Path(name).suffix.lower() not in skipped:
                facts = _facts_of(os.path.join(folder, name))
                if facts and _is_regular(facts) and 0 < facts.st_size <= _MAX_FILE_BYTES:
                    yield path


@contextlib.contextmanager
def _folder_of(root: Path, path: str) -> Iterator[tuple[int, str]]:
    """Open the directory that a file is in; what comes is its descriptor and the file's name."""
    *folders, name = path.split("/")
    folder = open_folder(root, folders)
    try:
        yield folder, name
    finally:
        os.close(folder)


def _facts_of(name: str, folder: int | None = None) -> os.stat_result | None:
    """Of the name itself, where it is a link; None if there is nothing."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return None


def _is_regular(facts: os.stat_result | None) -> bool:
    return facts is not None and stat.S_ISREG(facts.st_mode)


def _read(folder: int, name: str) -> _File | None:
    """Read a regular file; None for anything else, a link too.

    :raises OSError: if it is not there, or cannot be read.
    """
    facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if not _is_regular(facts):
        return None  # opening a device can do something
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(name, flags, dir_fd=folder), "rb") as file:
        facts = os.fstat(file.fileno())
        if not _is_regular(facts) or facts.st_size > _MAX_FILE_BYTES:
            return None
        return _File(file.read(), facts)


def _write(folder: int, name: str, content: bytes, like: os.stat_result | None = None) -> None:
    """Write a file in one step.

    :param like: of a file whose permissions and modification time it gets.
    """
    # 100 characters: with its suffix it is to stay shorter than a name can be.
    temporary = f".{name[:100]}.{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    fd = os.open(temporary, flags, 0o600, dir_fd=folder)
    try:
        with open(fd, "wb") as file:
            file.write(content)
            file.flush()
            if like is not None:
                os.fchmod(fd, stat.S_IMODE(like.st_mode))
                os.utime(fd, ns=(like.st_atime_ns, like.st_mtime_ns))
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.unlink(temporary, dir_fd=folder)
        raise


def _read_manifest(root: Path) -> dict[str, str]:
    """Sibling -> digest of those made here.

    :raises ConfigurationError: if it is no manifest, or names what is no sibling below the root.
    """
    try:
        with _folder_of(root, MANIFEST) as (folder, name):
            file = _read(folder, name)
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
        f"{root / MANIFEST} is not a manifest of this version: delete it, and name overwrite to "
        "replace the siblings that it spoke of"
    )


def _may_be_made(path: str) -> bool:
    names = names_of(path)
    return bool(names) and "/".join(names or ()) == path and _SIBLING.search(path) is not None


def _write_manifest(root: Path, made: dict[str, str]) -> None:
    with _folder_of(root, MANIFEST) as (folder, name):
        if made:
            content = {"version": _MANIFEST_VERSION, "siblings": dict(sorted(made.items()))}
            _write(folder, name, json.dumps(content, indent=1).encode() + b"\n")
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)


def _checked(codings: Sequence[str] | None) -> Sequence[str]:
    if codings is None:
        return available_codings()
    for coding in codings:
        if coding not in SIBLING_SUFFIXES:
            raise ConfigurationError(
                f"{coding!r} is no coding known here: {', '.join(SIBLING_SUFFIXES)}"
            )
        if coding in CODING_PACKAGES and not _has(CODING_PACKAGES[coding]):
            package = CODING_PACKAGES[coding]
            raise ConfigurationError(
                f"{coding} needs the package {package}, which is not installed: "
                f"pip install {package}"
            )
    return list(dict.fromkeys(codings))


def _has(package: str) -> bool:
    try:
        importlib.import_module(package)
    except ImportError:
        return False
    return True


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()


def _gzip(content: bytes) -> bytes:
    # 16 + 15: a gzip frame, whose header zlib writes without a name and with the time 0.
    compressor = zlib.compressobj(9, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    return compressor.compress(content) + compressor.flush()


def _brotli(content: bytes) -> bytes:
    import brotli

    encoded: bytes = brotli.compress(content, quality=11)
    return encoded


def _zstd(content: bytes) -> bytes:
    import zstandard

    parameters = zstandard.ZstdCompressionParameters.from_level(
        _ZSTD_LEVEL, source_size=len(content), window_log=_ZSTD_WINDOW_LOG
    )
    return zstandard.ZstdCompressor(compression_params=parameters).compress(content)


_ENCODERS: dict[str, Callable[[bytes], bytes]] = {"gzip": _gzip, "br": _brotli, "zstd": _zstd}
