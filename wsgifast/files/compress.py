"""Write encoded siblings (.gz, .br, .zst) beside the files of a directory, for StaticFiles to send.

The same bytes in give the same bytes out: no names, no times, no thread's luck goes into a sibling,
and it gets the modification time of its original, so that copies of a tree agree on their entity
tags. A manifest in the directory says which siblings were made here. Others are somebody's own
files: a `dump.sql.gz` may be all that is left of yesterday's `dump.sql`.
"""

from __future__ import annotations

import importlib
import json
import os
import stat
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from ..errors import ConfigurationError
from .lookup import SIBLING_SUFFIXES

__all__ = ["CODING_PACKAGES", "MANIFEST", "CompressReport", "available_codings", "compress"]

# Hidden, so that it is not served.
MANIFEST = ".wsgifast-compress.json"
_MANIFEST_VERSION = 1
# A sibling has to save this share of the original: below it, unpacking costs the client more than
# the transfer did.
_MIN_SAVING = 0.05
# What is compressed already; trying would cost time and never pay.
_COMPRESSED_EXTENSIONS = frozenset(
    {".7z", ".avif", ".br", ".bz2", ".flac", ".flv", ".gif", ".gz", ".jpeg", ".jpg", ".jxl"}
    | {".m4a", ".m4v", ".mov", ".mp3", ".mp4", ".mpeg", ".ogg", ".opus", ".png", ".rar", ".tbz"}
    | {".tgz", ".txz", ".webm", ".webp", ".whl", ".woff", ".woff2", ".xz", ".zip", ".zst"}
)
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
    # Older than its original, but not made here.
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
    progress: Callable[[int, int, str], None] | None = None,
) -> CompressReport:
    """Make every sibling that pays, and remove those made earlier that do so no more.

    Links are not followed, hidden files are left out. A sibling is written beside its place and
    then moved there, so that a server meanwhile sends the old one or the new one.

    :param codings: of "gzip", "br" and "zstd"; by default those whose package is installed.
    :param jobs: threads; by default one for each processor. The compressors leave the GIL.
    :param overwrite: also replace older siblings that were not made here.
    :param progress: called as (files done, files in all, relative path).
    :raises ConfigurationError: if the directory does not exist, a coding is unknown, or its package
        is not installed.
    """
    root = Path(directory)
    if not root.is_dir():
        raise ConfigurationError(f"{root} is not a directory: name the one to compress")
    codings = _checked(codings)
    if jobs is not None and jobs < 1:
        raise ConfigurationError(f"jobs={jobs}: a number of threads from 1 on")
    run = _Run(root, codings, overwrite, _read_manifest(root))
    paths = sorted(_originals(root))
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
        original = self.root / path
        with original.open("rb") as file:
            facts = os.fstat(file.fileno())
            content = file.read()
        sizes = [
            size
            for coding in self.codings
            if (size := self._make_sibling(path, coding, content, facts)) is not None
        ]
        return (len(content), min(sizes)) if sizes else (0, 0)

    def remove_orphans(self) -> None:
        for name in sorted(self.made):
            original = self.root / _original_of(name)
            if self._is_ours(name) and not original.is_file():
                self._remove(name)

    def _make_sibling(
        self, path: str, coding: str, content: bytes, facts: os.stat_result
    ) -> int | None:
        """Return the sibling's size, or None if it has none in the end."""
        name = path + SIBLING_SUFFIXES[coding]
        there = _facts_of(self.root / name)
        ours = there is not None and self._is_ours(name)
        if there is not None and not ours and not self.overwrite:
            if there.st_mtime_ns < facts.st_mtime_ns:
                self.report.left_alone.append(name)
                return None
            self.report.current.append(name)
            return there.st_size
        if there is not None and ours and there.st_mtime_ns == facts.st_mtime_ns:
            self.report.current.append(name)
            return there.st_size
        encoded = _ENCODERS[coding](content)
        if len(encoded) > len(content) * (1 - _MIN_SAVING):
            if ours:
                self._remove(name)
            return None
        _write(self.root / name, encoded, facts)
        self.made[name] = _digest(encoded)
        self.report.written.append(name)
        return len(encoded)

    def _is_ours(self, name: str) -> bool:
        digest = self.made.get(name)
        if digest is None:
            return False
        try:
            return _digest((self.root / name).read_bytes()) == digest
        except OSError:
            return False

    def _remove(self, name: str) -> None:
        (self.root / name).unlink(missing_ok=True)
        del self.made[name]
        self.report.removed.append(name)


def _originals(root: Path) -> Iterator[str]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in names:
            if name.startswith(".") or Path(name).suffix.lower() in _COMPRESSED_EXTENSIONS:
                continue
            path = Path(folder, name)
            facts = _facts_of(path)
            if facts is not None and 0 < facts.st_size <= _MAX_FILE_BYTES:
                yield path.relative_to(root).as_posix()


def _facts_of(path: Path) -> os.stat_result | None:
    """Of a regular file; None for anything else, a link too."""
    try:
        facts = path.lstat()
    except OSError:
        return None
    return facts if stat.S_ISREG(facts.st_mode) else None


def _original_of(name: str) -> str:
    for suffix in SIBLING_SUFFIXES.values():
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return name


def _write(path: Path, content: bytes, like: os.stat_result | None = None) -> None:
    """Write a file in one step.

    :param like: of a file whose permissions and modification time it gets.
    """
    fd, temporary = tempfile.mkstemp(prefix=f".{path.name[:100]}.", dir=path.parent)
    try:
        with open(fd, "wb") as file:
            file.write(content)
            file.flush()
            if like is not None:
                os.fchmod(fd, stat.S_IMODE(like.st_mode))
                os.utime(fd, ns=(like.st_atime_ns, like.st_mtime_ns))
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _read_manifest(root: Path) -> dict[str, str]:
    try:
        content = json.loads((root / MANIFEST).read_bytes())
        if content["version"] == _MANIFEST_VERSION:
            return {str(name): str(digest) for name, digest in content["siblings"].items()}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise ConfigurationError(
        f"{root / MANIFEST} is not a manifest of this version: delete it, and name overwrite to "
        "replace the siblings that it spoke of"
    )


def _write_manifest(root: Path, made: dict[str, str]) -> None:
    path = root / MANIFEST
    if not made:
        path.unlink(missing_ok=True)
        return
    content = {"version": _MANIFEST_VERSION, "siblings": dict(sorted(made.items()))}
    _write(path, json.dumps(content, indent=1).encode() + b"\n")


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
