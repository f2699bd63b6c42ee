"""A file as a delta to an earlier release of it that the client has (RFC 9842).

The dictionary is found by its SHA-256 among the files of the same directory whose names differ from
this one's in the hash alone: a release leaves those of the one before. Or `wsgifast compress
--against` has written the delta beside the file.

A delta is made once, by a thread of its own, and cached with the other coded copies. Requests wait
for it, but not for long: those that have waited in vain get an ordinary coding, and later ones the
delta.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from time import thread_time
from typing import NamedTuple

from ..compression.codings import TOTALS
from ..compression.dictionaries import (
    DCZ,
    HEADER_BYTES,
    HashedName,
    delta_header,
    delta_suffix,
    digest_of,
    hashed_name,
    make_delta,
)
from .coded_copies import COPIES, MAX_FILE_BYTES, MIN_SAVING, SETTLED_NS, CodedCopy
from .directory import Directory, Identity, Opened, identity_of
from .found import is_outdated
from .lookup import FoundFile

log = logging.getLogger("wsgifast.files")

# How long a request waits for a delta: 5 MB take 50 ms, with the digests of two such files.
_WAIT_S = 0.25
# Deltas that may be waited for at once: more are not begun, so that their number, and that of their
# threads, is bounded. They are made one after the other.
_MAX_WAITED_FOR = 32
# Releases of a file that are looked at, the newest first.
MAX_RELEASES = 16
# Of how many files the releases are remembered; one takes about 3 kB.
_MAX_REMEMBERED = 1000
# A smaller file fits into the first packets whatever its coding, and helps little as a dictionary.
MIN_FILE_BYTES = 500


class _Release(NamedTuple):
    name: str
    identity: Identity


class _Releases(NamedTuple):
    """What is known of the releases of a file in a directory: by digest, at one state of it."""

    folder: Identity
    by_digest: dict[bytes, _Release]

    def are_those_of(self, path: str) -> bool:
        """Whether neither the directory at a path nor one of the files has changed since."""
        releases = self.by_digest.values()
        return _identity_at(path) == self.folder and all(
            _identity_at(path + release.name) == release.identity for release in releases
        )


class Deltas:
    """Finds and makes the deltas of a process."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        # Set when the delta of that key has been made, or can not be.
        self._making: dict[str, threading.Event] = {}
        self._known: dict[tuple[str, HashedName], _Releases] = {}

    def get(self, file: FoundFile, digest: bytes) -> CodedCopy | None:
        """Return a file as a delta to the dictionary of a digest.

        :returns: None if there is none yet, or can be none.
        """
        opened = file.opened(file.path)
        identity = identity_of(opened.facts)
        hashed = hashed_name(file.names[-1])
        size = opened.facts.st_size
        if hashed is None or size < MIN_FILE_BYTES or not _is_settled(opened.facts):
            return None
        copy = COPIES.kept_delta(identity, digest, on_disk=True)
        if copy is not None:
            return copy
        written = file.open_sibling(delta_suffix(digest))
        if written is not None:
            copy = _read_delta(written, opened, digest)
            if copy is not None:
                COPIES.keep_delta(identity, digest, copy)
                return copy
        if size > MAX_FILE_BYTES:
            return None
        key = (file.path[: -len(file.names[-1])], hashed)
        known = self._known.get(key)
        if known is not None and known.are_those_of(key[0]):
            release = known.by_digest.get(digest)
            if release is None or release.name == file.names[-1]:
                return None  # as found before, in the same state of the directory
        making = self._begin(file, hashed, key, identity, digest)
        if making is None or not making.wait(_WAIT_S):
            return None
        return COPIES.kept_delta(identity, digest)

    def _begin(
        self,
        file: FoundFile,
        hashed: HashedName,
        key: tuple[str, HashedName],
        identity: Identity,
        digest: bytes,
    ) -> threading.Event | None:
        """Have a delta made, unless that goes on already; None if too many are."""
        name = f"{identity} {digest.hex()}"
        with self._lock:
            making = self._making.get(name)
            if making is not None or len(self._making) >= _MAX_WAITED_FOR:
                return making
            making = self._making[name] = threading.Event()

        def make() -> None:
            try:
                with self._turn:
                    # It may have been made between the request's look and this thread's.
                    if COPIES.kept_delta(identity, digest) is None:
                        self._make(file.directory, file.names, key, identity, digest)
            except OSError as error:
                log.warning("%s: no delta could be made: %s", file.path, error)
            finally:
                with self._lock:
                    self._making.pop(name, None)
                making.set()

        try:
            threading.Thread(target=make, name="wsgifast delta", daemon=True).start()
        except RuntimeError:  # the system allows no more threads
            with self._lock:
                self._making.pop(name, None)
            return None
        return making

    def _make(
        self,
        directory: Directory,
        names: Sequence[str],
        key: tuple[str, HashedName],
        identity: Identity,
        digest: bytes,
    ) -> None:
        releases = self._look(directory, names[:-1], key)
        release = releases.by_digest.get(digest)
        if release is None or release.name == names[-1]:
            return
        dictionary = _content(directory, [*names[:-1], release.name], release.identity)
        content = _content(directory, names, identity)
        if dictionary is None or content is None or digest_of(dictionary) != digest:
            return
        began = thread_time()
        delta = make_delta(content, dictionary)
        TOTALS.count(DCZ, 0, 0, thread_time() - began)  # its bytes each time that they are sent
        is_small = len(delta) <= len(content) * (1 - MIN_SAVING)
        copy = CodedCopy(delta if is_small else None, len(content))
        COPIES.keep_delta(identity, digest, copy)

    def _look(
        self, directory: Directory, folders: Sequence[str], key: tuple[str, HashedName]
    ) -> _Releases:
        """Find the releases of a file, and read those that are new since the last look."""
        opened = directory.open(folders)
        if opened is None:
            return _Releases((0, 0, 0, 0), {})
        try:
            folder = opened.facts
            names = os.listdir(opened.fd)
        finally:
            os.close(opened.fd)
        known = self._known.get(key)
        if known is not None and known.are_those_of(key[0]):
            return known
        digests = {} if known is None else {r: d for d, r in known.by_digest.items()}
        by_digest: dict[bytes, _Release] = {}
        settled = _is_settled(folder)
        for release in _newest(directory, folders, filter(key[1].is_of, names)):
            digest = digests.get(release)
            if digest is None:
                content = _content(directory, [*folders, release.name], release.identity)
                if content is None:
                    continue  # it may not be served
                digest = digest_of(content)
            by_digest[digest] = release
        releases = _Releases(identity_of(folder), by_digest)
        if settled:
            if len(self._known) >= _MAX_REMEMBERED:
                self._known.clear()
            self._known[key] = releases
        return releases


def _newest(directory: Directory, folders: Sequence[str], names: Iterator[str]) -> list[_Release]:
    """Return the newest releases that can be dictionaries."""
    found: list[tuple[int, _Release]] = []
    for name in names:
        try:
            facts = os.stat(directory.full_path([*folders, name]))
        except OSError:
            continue
        if stat.S_ISREG(facts.st_mode) and MIN_FILE_BYTES <= facts.st_size <= MAX_FILE_BYTES:
            found.append((facts.st_mtime_ns, _Release(name, identity_of(facts))))
    found.sort(reverse=True)
    return [release for _, release in found[:MAX_RELEASES]]


def _content(directory: Directory, names: Sequence[str], identity: Identity) -> bytes | None:
    """Read a file that may be served; None if it has another identity by now."""
    try:
        opened = directory.open(names)
    except PermissionError:
        return None
    if opened is None:
        return None
    with open(opened.fd, "rb") as file:
        if opened.is_directory or identity_of(opened.facts) != identity:
            return None
        content = file.read(opened.facts.st_size + 1)
        is_whole = len(content) == opened.facts.st_size
        return content if is_whole and identity_of(os.fstat(opened.fd)) == identity else None


def _read_delta(written: Opened, original: Opened, digest: bytes) -> CodedCopy | None:
    """Read a delta that was written beside its file; None if it is none of these two."""
    size = written.facts.st_size
    if (
        not stat.S_ISREG(written.facts.st_mode)
        or not HEADER_BYTES < size < min(original.facts.st_size, MAX_FILE_BYTES)
        or is_outdated(written.facts, original.facts)
    ):
        return None
    body = os.pread(written.fd, size, 0)
    if len(body) != size or not body.startswith(delta_header(digest)):
        return None
    return CodedCopy(body, original.facts.st_size)


def _is_settled(facts: os.stat_result) -> bool:
    """Whether a later change would be seen by the file's identity."""
    return time.time_ns() - facts.st_ctime_ns > SETTLED_NS


def _identity_at(path: str) -> Identity | None:
    try:
        return identity_of(os.stat(path))
    except OSError:
        return None


# Of the whole process, as the cache is.
DELTAS = Deltas()
# The threads of its parent are not there in a forked worker.
os.register_at_fork(after_in_child=DELTAS.reset)
