"""Write precompressed files (.gz, .br, .zst) and deltas (.dcz) next to the files of a directory.

StaticFiles sends these files. The output is reproducible: it depends only on the original's bytes.
A precompressed file gets the modification time of its original. So all copies of a directory tree
have the same entity tags.

A manifest in the directory lists the precompressed files that this module wrote. Only the listed
files are replaced or removed. Any other file belongs to the user: a `dump.sql.gz` may be the only
copy of yesterday's `dump.sql`.

The manifest is untrusted, and other processes may change names and links at any time. So the names
of each path are opened one at a time from the root, and no link is followed. Files are opened,
created and removed relative to an open directory.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from ..checks import list_of_text
from ..compression.codings import PRECOMPRESSED_SUFFIXES, checked_codings, compress_file
from ..compression.dictionaries import (
    DELTA_SUFFIX,
    delta_suffix,
    digest_of,
    hashless_name,
    make_delta,
)
from ..errors import ConfigurationError
from .compressed_copies import MIN_SAVING
from .deltas import content_of, newest_releases
from .directory import Directory, names_of, open_folder
from .found import has_same_time, is_outdated, stat_or_none

# Each thread has one whole file in memory.
_MAX_FILE_BYTES = 256 * 1024 * 1024
# Formats that are compressed already.
_COMPRESSED_EXTENSIONS = frozenset(
    {".7z", ".avif", ".br", ".bz2", ".dcz", ".flac", ".flv", ".gif", ".gz", ".jpeg", ".jpg", ".jxl"}
    | {".m4a", ".m4v", ".mov", ".mp3", ".mp4", ".mpeg", ".ogg", ".opus", ".png", ".rar", ".tbz"}
    | {".svgz", ".tgz", ".txz", ".webm", ".webp", ".whl", ".woff", ".woff2", ".xz", ".zip", ".zst"}
)
# StaticFiles does not serve names that begin with a dot.
MANIFEST = ".wsgifast-compress.json"
_MANIFEST_VERSION = 1
_SUFFIXES = "|".join(map(re.escape, PRECOMPRESSED_SUFFIXES.values()))
_PRECOMPRESSED = re.compile(
    rf"(?P<original>[^/]+)(?:{_SUFFIXES}|\.[0-9a-f]{{16}}{re.escape(DELTA_SUFFIX)})\Z"
)
# The errors of a path whose folder was removed, or replaced by a link.
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})


@dataclass
class CompressReport:
    """The results of :func:`compress`. Paths are relative to the directory.

    :ivar written: new precompressed files and deltas.
    :ivar current: files of an earlier run that are up to date.
    :ivar removed: files of an earlier run whose original is gone or no longer compresses enough.
    :ivar left_alone: files that :func:`compress` did not write. They are outdated, or not regular.
    :ivar failed: maps paths to the reasons.
    :ivar original_bytes: the total size of the originals that have precompressed files.
    :ivar smallest_bytes: the total size of the smallest precompressed file of each original.
    """

    written: list[str] = field(default_factory=list)
    current: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    left_alone: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    original_bytes: int = 0
    smallest_bytes: int = 0


def compress(
    directory: str | os.PathLike[str],
    *,
    codings: Sequence[str] | None = None,
    jobs: int | None = None,
    overwrite: bool = False,
    skip_extensions: Iterable[str] | None = None,
    against: Iterable[str | os.PathLike[str]] = (),
    progress: Callable[[int, int, str], None] | None = None,
) -> CompressReport:
    """Write the precompressed files that save enough bytes, and remove those that no longer do.

    Links are not followed, and hidden files are skipped. A precompressed file is written under a
    temporary name and then renamed. So a running server sends the old file or the new file.

    :param codings: some of "gzip", "br" and "zstd". The default is those with an installed package.
    :param jobs: the number of threads. The default is the number of processors. The compressors
        release the GIL.
    :param overwrite: also replace precompressed files that :func:`compress` did not write.
    :param skip_extensions: extensions of files to skip, such as "jpg" or ".jpg". The default is
        those of compressed formats.
    :param against: directories of earlier releases, for StaticFiles with `dictionaries`. For each
        file with a content hash in its name, a delta from each earlier release is written (RFC
        9842). An example is `app.3f2a1b9c.js.DIGEST.dcz`. DIGEST is the first 16 hexadecimal
        digits of the SHA-256 of the earlier file. Deltas of earlier runs are removed together with
        their original.
    :param progress: called as progress(files_done, files_total, relative_path).
    :raises ConfigurationError: if the directory does not exist, its manifest is malformed, a coding
        is unknown, the package of a coding is missing, or an earlier release is not a directory.
    """
    against = list(against)
    for given in (directory, *against):
        if not os.path.isdir(given):
            raise ConfigurationError(
                f"{os.fspath(given)!r} is not a directory: name one that exists"
            )
    root = Path(directory)
    codings = checked_codings(codings)
    earlier = [Directory(path) for path in against]
    if earlier:
        checked_codings(["zstd"])
    run = _Run(root, codings, overwrite, _read_manifest(root), earlier)
    skipped = skipped_extensions(skip_extensions)
    paths = sorted(_originals(root, skipped))
    pool = ThreadPoolExecutor(jobs or os.cpu_count() or 1)
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
        run.stop()
        # Do not wait for the threads: the compression of a large file takes minutes.
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()
    run.remove_orphans()
    _write_manifest(root, run.made)
    report = run.report
    for names in (report.written, report.current, report.left_alone):
        names.sort()
    return report


def skipped_extensions(given: Iterable[str] | None) -> Collection[str]:
    """Return the extensions of files to skip, with their dots and in lower case.

    :param given: the value of `skip_extensions`. See :func:`compress`.
    :raises ConfigurationError: if the value is not a list of strings.
    """
    if given is None:
        return _COMPRESSED_EXTENSIONS
    names = list_of_text(given)
    if names is None:
        raise ConfigurationError(f"skip_extensions={given!r}: must be a list such as ['jpg']")
    own_extensions = {*PRECOMPRESSED_SUFFIXES.values(), DELTA_SUFFIX}
    return {*(f".{name.lstrip('.').lower()}" for name in names), *own_extensions}


@dataclass
class _Run:
    """One run over a directory.

    Each file is handled by one thread. Reports need no lock: list.append() and dict item assignment
    are atomic. Precompressed files are written under a lock, and never after :meth:`stop`.

    :ivar made: maps the precompressed files that :func:`compress` wrote to the digests of their
        content.
    """

    root: Path
    codings: Sequence[str]
    overwrite: bool
    made: dict[str, str]
    earlier: Sequence[Directory]
    report: CompressReport = field(default_factory=CompressReport)
    _writing: Lock = field(default_factory=Lock)
    _is_stopped: bool = False

    def stop(self) -> None:
        """Prevent further writes, and write the manifest of the files that are written."""
        with self._writing:
            self._is_stopped = True
            _write_manifest(self.root, self.made)

    def compress_one(self, path: str) -> tuple[int, int]:
        """Compress a file. Return its size and the size of its smallest precompressed file.

        Both sizes are 0 if the file has no precompressed file.
        """
        with _folder_of(self.root, path) as (folder, name):
            original = _read_file(folder, name)
            if original is None:
                return 0, 0  # no longer a regular file
            sizes = []
            for coding in self.codings:
                encode = partial(compress_file, original.content, coding)
                limit = int(len(original.content) * (1 - MIN_SAVING))
                precompressed = path + PRECOMPRESSED_SUFFIXES[coding]
                size = self._make_precompressed(folder, precompressed, encode, limit, original)
                if size is not None:
                    sizes.append(size)
            limit = min(sizes, default=len(original.content)) - 1
            for dictionary in self._dictionaries(path, original):
                encode = partial(make_delta, original.content, dictionary, best=True)
                delta = path + delta_suffix(digest_of(dictionary))
                self._make_precompressed(folder, delta, encode, limit, original)
        return (len(original.content), min(sizes)) if sizes else (0, 0)

    def remove_orphans(self) -> None:
        """Remove precompressed files without their original, and deltas of older originals."""
        for path in sorted(self.made):
            try:
                with _folder_of(self.root, path) as (folder, name):
                    original = _stat_of(_PRECOMPRESSED.sub(r"\g<original>", name), dir_fd=folder)
                    is_orphan = original is None or not _is_regular(original)
                    existing = _stat_of(name, dir_fd=folder)
                    if original and existing and name.endswith(DELTA_SUFFIX):
                        is_orphan |= not has_same_time(existing, original)
                    if is_orphan and self._is_ours(folder, path):
                        self._remove(folder, path)
            except OSError as error:
                if error.errno in _GONE:
                    del self.made[path]
                else:
                    self.report.failed[path] = error.strerror or str(error)

    def _dictionaries(self, path: str, original: _File) -> Iterator[bytes]:
        """Yield the content of the earlier releases of a file."""
        *folders, name = path.split("/")
        hashless = hashless_name(name)
        if hashless is None:
            return
        for directory in self.earlier:
            for found in newest_releases([directory], folders, hashless, _MAX_FILE_BYTES):
                content = content_of(found.root, found.names, found.identity)
                if content is not None and content != original.content:
                    yield content

    def _make_precompressed(
        self,
        folder: int,
        path: str,
        encode: Callable[[], bytes],
        max_bytes: int,
        original: _File,
    ) -> int | None:
        """Write a precompressed file, unless it is up to date. Return its size.

        :param max_bytes: a larger precompressed file would save too little.
        :returns: None if there is no usable precompressed file now.
        """
        name = path.rpartition("/")[2]
        existing = _stat_of(name, dir_fd=folder)
        is_ours = existing is not None and self._is_ours(folder, path)
        if existing is not None and not is_ours and not self.overwrite:
            if not _is_regular(existing) or is_outdated(existing, original.stat_result):
                self.report.left_alone.append(path)
                return None
            self.report.current.append(path)
            return existing.st_size
        if existing is not None and is_ours and has_same_time(existing, original.stat_result):
            self.report.current.append(path)
            return existing.st_size
        encoded = encode()
        if len(encoded) > max_bytes:
            if is_ours:
                self._remove(folder, path)
            return None
        with self._writing:
            if self._is_stopped:
                return None
            _write_file(folder, name, encoded, original.stat_result)
            self.made[path] = _digest(encoded)
        self.report.written.append(path)
        return len(encoded)

    def _is_ours(self, folder: int, path: str) -> bool:
        digest = self.made.get(path)
        if digest is None:
            return False
        try:
            existing = _read_file(folder, path.rpartition("/")[2])
        except OSError:
            return False
        return existing is not None and _digest(existing.content) == digest

    def _remove(self, folder: int, path: str) -> None:
        os.unlink(path.rpartition("/")[2], dir_fd=folder)
        del self.made[path]
        self.report.removed.append(path)


def _originals(root: Path, skipped: Collection[str]) -> Iterator[str]:
    for folder, folders, names in os.walk(root):
        below = Path(folder).relative_to(root)
        folders[:] = (name for name in folders if names_of((below / name).as_posix()))
        for name in names:
            path = (below / name).as_posix()
            if names_of(path) and Path(name).suffix.lower() not in skipped:
                stat_result = _stat_of(os.path.join(folder, name))
                if (
                    stat_result
                    and _is_regular(stat_result)
                    and 0 < stat_result.st_size <= _MAX_FILE_BYTES
                ):
                    yield path


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()


def _read_manifest(root: Path) -> dict[str, str]:
    """Return the paths of the precompressed files with their digests. Empty without a manifest.

    :raises ConfigurationError: if the manifest cannot be read, is malformed, or lists a path that
        is not that of a precompressed file below the root.
    """
    try:
        with _folder_of(root, MANIFEST) as (folder, name):
            file = _read_file(folder, name)
        content = {} if file is None else json.loads(file.content)
        if content["version"] == _MANIFEST_VERSION:
            made = {str(name): str(digest) for name, digest in content["siblings"].items()}
            if all(names_of(path) and _PRECOMPRESSED.search(path) for path in made):
                return made
    except FileNotFoundError:
        return {}
    except PermissionError as error:
        raise ConfigurationError(f"{root / MANIFEST} cannot be read: {error.strerror}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    raise ConfigurationError(
        f"{root / MANIFEST} is not a manifest of this version: delete it, and use overwrite to "
        "replace the precompressed files that it listed"
    )


def _write_manifest(root: Path, made: dict[str, str]) -> None:
    """Write the manifest, or delete it if `made` is empty."""
    with _folder_of(root, MANIFEST) as (folder, name):
        if made:
            content = {"version": _MANIFEST_VERSION, "siblings": dict(sorted(made.items()))}
            _write_file(folder, name, json.dumps(content, indent=1).encode() + b"\n")
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)


# Access to files in a directory tree that other processes may change at the same time


class _File(NamedTuple):
    content: bytes
    stat_result: os.stat_result


@contextlib.contextmanager
def _folder_of(root: Path, path: str) -> Iterator[tuple[int, str]]:
    """Open the directory of a file. Yield the directory's descriptor and the file's name."""
    *folders, name = path.split("/")
    folder = open_folder(root, folders)
    try:
        yield folder, name
    finally:
        os.close(folder)


# The lstat() of a name. None if it does not exist.
_stat_of = partial(stat_or_none, follow_symlinks=False)


def _is_regular(stat_result: os.stat_result | None) -> bool:
    return stat_result is not None and stat.S_ISREG(stat_result.st_mode)


def _read_file(folder: int, name: str) -> _File | None:
    """Read a regular file. Return None if the name is that of a link, a device and the like.

    :raises OSError: if the file does not exist, or cannot be read.
    """
    stat_result = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if not _is_regular(stat_result):
        return None  # open() of a device may have effects
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(name, flags, dir_fd=folder), "rb") as file:
        stat_result = os.fstat(file.fileno())
        if not _is_regular(stat_result) or stat_result.st_size > _MAX_FILE_BYTES:
            return None
        return _File(file.read(), stat_result)


def _write_file(folder: int, name: str, content: bytes, like: os.stat_result | None = None) -> None:
    """Write a file atomically.

    :param like: the stat result of the file from which the new file gets its owner, permissions and
        modification time. The owner changes only if this process may change it. None to use the
        owner of the folder, and permissions for the owner only.
    """
    # At most 100 characters of the name: file systems limit the length of a name, and this one gets
    # a dot and 17 more characters.
    temporary = f".{name[:100]}.{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    fd = os.open(temporary, flags, 0o600, dir_fd=folder)
    try:
        with open(fd, "wb") as file:
            file.write(content)
            file.flush()
            _change_owner(fd, os.fstat(folder) if like is None else like)
            if like is not None:
                # The owner is set before the permissions, which may allow other users to read.
                os.fchmod(fd, _permissions(like, os.fstat(fd)))
                os.utime(fd, ns=(like.st_atime_ns, like.st_mtime_ns))
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.unlink(temporary, dir_fd=folder)
        raise


def _change_owner(fd: int, like: os.stat_result) -> None:
    """Set a file's owner and group to those of another file, if this process may do so."""
    stat_result = os.fstat(fd)
    if os.geteuid() == 0 and stat_result.st_uid != like.st_uid:
        with contextlib.suppress(OSError):  # user namespaces and network file systems may refuse it
            os.fchown(fd, like.st_uid, -1)
    if stat_result.st_gid != like.st_gid:
        with contextlib.suppress(OSError):  # this process may not be in the group
            os.fchown(fd, -1, like.st_gid)


def _permissions(original_stat: os.stat_result, copy_stat: os.stat_result) -> int:
    """Return the permission bits for a copy of a file, which may have another group.

    setuid, setgid and the sticky bit are not copied. If the copy has another group, that group gets
    only the permissions that all users have.
    """
    mode = original_stat.st_mode & 0o777
    if copy_stat.st_gid != original_stat.st_gid:
        mode &= ~0o070 | (mode & 0o007) << 3
    return mode
