"""What a StaticFiles serves, whichever protocol asks: URL path and request facts in, answer out.

A file is looked up once and kept: its facts, the headers of every answer for it, and the bytes of a
small one. A kept file is served after a stat() has found it unchanged (and, for a client that takes
encodings, its directory, where encoded siblings come and go). What is not kept is opened, and
described by what fstat() says of the descriptor that is sent.
"""

from __future__ import annotations

import errno
import logging
import os
import posixpath
import re
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar
from urllib.parse import quote

from ..errors import ConfigurationError
from ..sockets.sendfile import FileSegment
from .conditions import content_etag, stat_etag
from .directory import Directory, Identity, Opened, identity_of, names_of
from .entry import Entry, Header, Plan, Representation, describe
from .listing import Listed, listing_plan
from .memory import Kept, MemoryCache
from .plan import RequestFacts, plan_representation
from .rules import AddHeaders, HeaderRules, ImmutableTest

__all__ = ["DEFAULT_CACHE_BYTES", "SIBLING_SUFFIXES", "Answer", "FileSite"]

log = logging.getLogger("wsgifast.files")

DEFAULT_CACHE_BYTES = 32 * 1024 * 1024
# Up to this size a copy from memory costs a server less than opening the file and a sendfile of its
# own, and beyond it the copy starts to count.
_MEMORY_FILE_BYTES = 128 * 1024
# No file may take more than this share of the cache: it would drive out too many others.
_MEMORY_FILE_SHARE = 8
# What is not a file's body: the objects kept for it in each encoding, when all answers that they
# remember have been asked for. Measured with tracemalloc: up to 9 KB; a test holds it to that.
_REPRESENTATION_COST_BYTES = 10_000
# Each header's text is in memory at most this often: as made, and again as ASGI's bytes, in the
# answers to GET, HEAD, a range, and those without a body.
_HEADER_COPIES = 6
# A file that was changed less than this ago may change again without a sign: the kernel's file
# times move in steps of 1 to 10 ms (one tick). It is served, but not kept until it is older.
_SETTLED_NS = 50_000_000
# Lookups for one request. A file that has changed between a lookup and its opening is looked up
# again; one that always has (a log) is then sent as it is found, without its siblings.
_LOOKUPS = 2
_READ_BYTES = 1 << 20

SIBLING_SUFFIXES: Mapping[str, str] = {"zstd": ".zst", "br": ".br", "gzip": ".gz"}

AppT = TypeVar("AppT")


class Answer(NamedTuple):
    """What to send: see :meth:`segments`. Whoever takes the answer closes `fd`, if there is one."""

    plan: Plan
    fd: int | None = None

    def segments(self) -> list[bytes | FileSegment]:
        """The body in order: bytes, or runs of the file that is open as `fd`."""
        return [
            segment
            if isinstance(segment, bytes)
            else _resolved(segment.file, segment.offset, segment.size, self.fd)
            for segment in self.plan.segments
        ]


class FileSite(Generic[AppT]):
    """A directory, or several, that files are served from.

    :param app: asked for everything that is no file here; None to answer 404 instead.
    :param directory: one directory or a sequence of them; the first that has a file wins.
    :param prefix: the URL path under which the directory's files are.
    :param index: the file that stands for its directory. `/docs` is redirected to `/docs/` (302)
        if there is an index (or a listing); `/docs/index.html` is served as well. None for none.
    :param max_age: seconds for which caches may use a file unasked; None sends no Cache-Control.
    :param immutable: which files never change under their name, so that caches need not ask for a
        year: a regular expression searched in the URL path, or a function of (path, url).
    :param mimetypes: types by extension (".js") or by a file's whole name, before the built-in ones.
    :param charset: of every `text/` type; None sends none.
    :param add_headers: called as (headers, path, url) when a file is looked up, to change the
        headers of its answers; `headers` is a wsgiref.headers.Headers. What it raises, the request
        raises.
    :param allow_all_origins: send `Access-Control-Allow-Origin: *`.
    :param follow_symlinks: follow links out of the directory. Those that stay in it always work.
    :param hidden_files: serve names that begin with a dot. `/.well-known/` is never hidden.
    :param fallback: a file below the directory, such as "index.html", that answers 200 for every
        path without a file and without a dot in its last segment (a single-page app's routes).
    :param listing: show a directory without an index as a page of links.
    :param cache_bytes: bound on the memory for small files and everything kept about files; 0 to
        keep nothing.
    :param etag: "stat" makes entity tags of size and modification time; "content" of the bytes,
        which are read once a lookup, for hosts whose copies have different times; None sends none.
    :param recheck: seconds for which a look at the disk is good; 0 looks at each request. For file
        systems on which stat() is slow.
    :raises ConfigurationError: if a directory does not exist or cannot be read, or an option has
        a value that cannot work.
    """

    def __init__(
        self,
        app: AppT | None = None,
        *,
        directory: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        prefix: str = "/",
        index: str | None = "index.html",
        max_age: int | None = 60,
        immutable: ImmutableTest | str | re.Pattern[str] | None = None,
        mimetypes: Mapping[str, str] | None = None,
        charset: str | None = "utf-8",
        add_headers: AddHeaders | None = None,
        allow_all_origins: bool = False,
        follow_symlinks: bool = False,
        hidden_files: bool = False,
        fallback: str | None = None,
        listing: bool = False,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
        etag: str | None = "stat",
        recheck: float = 0,
    ) -> None:
        if app is not None and not callable(app):
            raise ConfigurationError(f"app={app!r}: an application, or None")
        self.app = app
        paths = [directory] if isinstance(directory, (str, os.PathLike)) else list(directory)
        if not paths:
            raise ConfigurationError("directory=[]: name at least one directory")
        self._directories = [Directory(path, follow_symlinks=follow_symlinks) for path in paths]
        if not isinstance(prefix, str) or not prefix.startswith("/"):
            raise ConfigurationError(f"prefix={prefix!r}: a URL path that begins with '/'")
        self._prefix = prefix.rstrip("/") + "/"
        if index is not None and (not index or "/" in index or names_of(index) is None):
            raise ConfigurationError(f"index={index!r}: a file's name, or None")
        self._index = index
        self._rules = HeaderRules(
            max_age=max_age,
            immutable=immutable,
            mimetypes=mimetypes,
            charset=charset,
            add_headers=add_headers,
            allow_all_origins=allow_all_origins,
        )
        self._hidden_files = hidden_files
        if fallback is not None:
            if app is not None:
                raise ConfigurationError(
                    f"fallback={fallback!r} leaves nothing for app={app!r}: give one of the two"
                )
            if not fallback or fallback.endswith("/") or not names_of(fallback, hidden_files=True):
                raise ConfigurationError(
                    f"fallback={fallback!r}: a file's path relative to the directory, or None"
                )
        self._fallback = None if fallback is None else self._prefix + fallback
        self._listing = listing
        if not isinstance(cache_bytes, int) or cache_bytes < 0:
            raise ConfigurationError(f"cache_bytes={cache_bytes!r}: bytes, from 0 on")
        self._cache: MemoryCache[_Found] = MemoryCache(cache_bytes)
        self._memory_file_bytes = min(_MEMORY_FILE_BYTES, cache_bytes // _MEMORY_FILE_SHARE)
        if etag not in ("stat", "content", None):
            raise ConfigurationError(f"etag={etag!r}: 'stat', 'content' or None")
        self._etag = etag
        if not recheck >= 0:
            raise ConfigurationError(f"recheck={recheck!r}: seconds, from 0 on")
        self._recheck = recheck

    @property
    def cached_bytes(self) -> int:
        """Memory that the cache accounts for at this moment; never more than `cache_bytes`."""
        return self._cache.used_bytes

    def answer(self, facts: RequestFacts, path: str, query: str = "") -> Answer | None:
        """Answer a GET or HEAD; None if there is no such file.

        :param path: the URL path, decoded; bytes of it that are no UTF-8 as surrogates, as
            os.fsdecode makes them.
        :param query: the query string, as sent, for a redirect to carry on.
        :raises OSError: if the system fails; not for a file that is missing or may not be read.
        """
        encodings = facts.accept_encoding
        for _ in range(_LOOKUPS):
            found = self._cache.get(path)
            if found is not None:
                representation = found.entry.select(encodings)
                if not self._is_fresh(found, representation, encodings is not None):
                    self._cache.drop(path, found)
                    found = None
            if found is None:
                looked_up = self._look_up(path)
                if not isinstance(looked_up, _Found):
                    return self._without_file(facts, path, query, looked_up)
                found = looked_up
                representation = found.entry.select(encodings)
            if (
                facts.if_none_match is not None
                and facts.if_none_match == representation.etag
                and facts.if_match is None
                and facts.if_unmodified_since is None
            ):
                plan = representation.not_modified  # as plan_representation says, at half the cost
            else:
                plan = plan_representation(facts, representation)
            source: _Source = representation.file
            if source.body is not None or not plan.segments:
                return Answer(plan)
            fd = source.directory.reopen(source.path, source.identity)
            if fd is not None:
                return Answer(plan, fd)
            self._cache.drop(path, found)
        return self._answer_as_found(facts, path)

    def missing(self, method: str) -> Plan:
        """404, for a site without an app behind it."""
        return _MISSING_HEAD if method == "HEAD" else _MISSING

    @property
    def not_allowed(self) -> Plan:
        """405, for methods other than GET and HEAD."""
        return _NOT_ALLOWED

    def _is_fresh(self, found: _Found, representation: Representation, negotiates: bool) -> bool:
        if not self._recheck:
            return found.is_unchanged(representation, negotiates)
        now = time.monotonic()
        if now < found.good_until:
            return True
        found.good_until = now + self._recheck
        return found.is_unchanged(representation, negotiates)

    def _without_file(
        self, facts: RequestFacts, path: str, query: str, instead: Plan | _Redirect | None
    ) -> Answer | None:
        if isinstance(instead, _Redirect):
            instead = instead.plan(path, query)
        if instead is None:
            last = path.rpartition("/")[2]
            if self._fallback is None or path == self._fallback or "." in last:
                return None
            return self.answer(facts, self._fallback) if path.startswith(self._prefix) else None
        if facts.method == "HEAD" and instead.segments:
            instead = Plan(instead.status, instead.headers)
        return Answer(instead)

    # Looking things up on the disk.

    def _look_up(self, path: str) -> _Found | _Redirect | Plan | None:
        candidate = self._locate(path)
        if not isinstance(candidate, _Candidate):
            return candidate
        try:
            found = self._describe_all(candidate, path)
        finally:
            os.close(candidate.opened.fd)
        if found.cost:
            self._cache.put(path, found)
        return found

    def _locate(self, path: str) -> _Candidate | _Redirect | Plan | None:
        """Open the file that a path stands for, or tell what is answered instead."""
        if not path.startswith(self._prefix):
            return None
        relative = path[len(self._prefix) :]
        names = names_of(relative, hidden_files=self._hidden_files or path == self._fallback)
        if names is None:
            return None
        wants_directory = not relative or relative.endswith("/")
        absent: list[str] = []
        listed: list[Directory] = []
        for directory in self._directories:
            try:
                opened = directory.open(names)
                if opened is not None and opened.is_directory:
                    os.close(opened.fd)
                    listed.append(directory)
                    if self._index is None:
                        continue
                    index_names = [*names, self._index]
                    opened = directory.open(index_names)
                    if opened is None or opened.is_directory:
                        if opened is not None:
                            os.close(opened.fd)
                        absent.append(directory.full_path(index_names))
                        continue
                    if not wants_directory:
                        os.close(opened.fd)
                        return _Redirect()
                    return _Candidate(directory, index_names, opened, tuple(absent))
            except PermissionError as error:
                log.warning("%s may not be read: %s", directory.full_path(names), error.strerror)
                return _FORBIDDEN
            if opened is None or wants_directory:
                if opened is not None:
                    os.close(opened.fd)
                below = [*names, self._index] if wants_directory and self._index else names
                absent.append(directory.full_path(below))
                continue
            return _Candidate(directory, names, opened, tuple(absent))
        if self._listing and listed:
            return self._list(path, names, listed) if wants_directory else _Redirect()
        return None

    def _describe_all(self, candidate: _Candidate, url: str) -> _Found:
        """Describe a file and its encoded siblings."""
        directory, names, opened, absent = candidate
        full_path = directory.full_path(names)
        folder = posixpath.dirname(full_path)
        # Looked at before the siblings: one that comes meanwhile changes the directory's identity.
        folder_facts = os.stat(folder)
        headers = self._rules.headers(full_path, url)
        siblings = list(self._siblings(directory, names, opened.facts))
        try:
            now = time.time()
            identity = self._described(
                directory, full_path, opened, headers, now, negotiated=bool(siblings)
            )
            encoded = {}
            siblings.sort(key=lambda sibling: sibling[1].facts.st_size)
            for coding, sibling in siblings:
                encoded[coding] = self._described(
                    directory,
                    full_path + SIBLING_SUFFIXES[coding],
                    sibling,
                    headers,
                    now,
                    coding=coding,
                    negotiated=True,
                )
        finally:
            for _, sibling in siblings:
                os.close(sibling.fd)
        looks = [folder_facts, opened.facts, *(sibling.facts for _, sibling in siblings)]
        entry = Entry(identity, encoded)
        return _Found(
            entry,
            folder,
            identity_of(folder_facts),
            absent,
            cost=_cost(entry, url, absent) if _all_settled(looks) else 0,
            good_until=time.monotonic() + self._recheck if self._recheck else 0.0,
        )

    def _siblings(
        self, directory: Directory, names: list[str], original: os.stat_result
    ) -> Iterator[tuple[str, Opened]]:
        for coding, suffix in SIBLING_SUFFIXES.items():
            try:
                sibling = directory.open([*names[:-1], names[-1] + suffix])
            except PermissionError:
                continue
            if sibling is None:
                continue
            facts = sibling.facts
            if (
                stat.S_ISREG(facts.st_mode)
                and 0 < facts.st_size < original.st_size
                # An older one was made from an earlier content.
                and facts.st_mtime_ns >= original.st_mtime_ns
            ):
                yield coding, sibling
            else:
                os.close(sibling.fd)

    def _described(
        self,
        directory: Directory,
        full_path: str,
        opened: Opened,
        headers: Sequence[Header],
        now: float,
        *,
        coding: str | None = None,
        negotiated: bool = False,
    ) -> Representation:
        fd, facts = opened
        body = self._small_body(fd, facts)
        size, mtime_ns = facts.st_size, facts.st_mtime_ns
        etag = None
        if self._etag == "stat":
            etag = stat_etag(size, mtime_ns, coding)
        elif self._etag == "content":
            etag = content_etag(_blocks(fd, size) if body is None else [body], coding)
        source = _Source(full_path, directory, identity_of(facts), body)
        representation = describe(
            source,
            size=size,
            mtime_ns=mtime_ns,
            now=now,
            etag=etag,
            content_type=None,  # among the headers
            coding=coding,
            negotiated=negotiated,
            headers=headers,
        )
        if body:
            # Ready to send: no look at a segment's kind for the most frequent answer.
            representation.__dict__["whole"] = Plan(200, representation.headers, (body,))
        return representation

    def _small_body(self, fd: int, facts: os.stat_result) -> bytes | None:
        size = facts.st_size
        if size > self._memory_file_bytes:
            return None
        body = os.pread(fd, size + 1, 0)
        if len(body) != size or identity_of(os.fstat(fd)) != identity_of(facts):
            return None  # it is being written to: what is sent is what the descriptor says then
        return body

    def _answer_as_found(self, facts: RequestFacts, path: str) -> Answer | None:
        """Answer from one descriptor, for a file that changes faster than it is looked at."""
        candidate = self._locate(path)
        if not isinstance(candidate, _Candidate):
            return self._without_file(facts, path, "", candidate)
        directory, names, opened, _ = candidate
        full_path = directory.full_path(names)
        try:
            representation = describe(
                _Source(full_path, directory, identity_of(opened.facts), None),
                size=opened.facts.st_size,
                mtime_ns=opened.facts.st_mtime_ns,
                now=time.time(),
                etag=None,  # the next answer's bytes may differ under the same one
                content_type=None,  # among the headers
                headers=self._rules.headers(full_path, path),
            )
            return Answer(plan_representation(facts, representation), opened.fd)
        except BaseException:
            os.close(opened.fd)
            raise

    def _list(self, path: str, names: list[str], directories: list[Directory]) -> Plan:
        entries: dict[str, Listed] = {}
        for directory in reversed(directories):  # the first one's names win
            opened = directory.open(names)
            if opened is None:
                continue
            try:
                for entry in os.scandir(opened.fd):
                    if entry.name.startswith(".") and not self._hidden_files:
                        if names or entry.name != ".well-known":
                            continue
                    listed = _listed(directory, names, entry)
                    if listed is not None:
                        entries[entry.name] = listed
            finally:
                os.close(opened.fd)
        return listing_plan(path, entries.values(), is_root=not names)


class _Candidate(NamedTuple):
    directory: Directory
    names: list[str]
    opened: Opened
    # Paths in directories before this one; a file that appears there goes before this one.
    absent: tuple[str, ...]


class _Source:
    """Where a representation's bytes are."""

    __slots__ = ("body", "directory", "identity", "path")

    def __init__(
        self, path: str, directory: Directory, identity: Identity, body: bytes | None
    ) -> None:
        self.path = path
        self.directory = directory
        self.identity = identity
        self.body = body


class _Found(Kept):
    """A file that was looked up: all that its answers need, and what shows that it has changed.

    `cost` is 0 for what may not be kept. The path is looked at by stat(), which follows links: it
    only has to tell the same file from another, and the same was let through when it was opened.
    """

    __slots__ = ("absent", "entry", "folder", "folder_identity", "good_until", "identity", "path")

    def __init__(
        self,
        entry: Entry,
        folder: str,
        folder_identity: Identity,
        absent: tuple[str, ...],
        *,
        cost: int,
        good_until: float,
    ) -> None:
        super().__init__(cost)
        self.entry = entry
        source: _Source = entry.identity.file
        self.path = source.path
        self.identity = source.identity
        self.folder = folder
        self.folder_identity = folder_identity
        self.absent = absent
        self.good_until = good_until

    def is_unchanged(self, representation: Representation, negotiates: bool) -> bool:
        try:
            if identity_of(os.stat(self.path)) != self.identity:
                return False
            if negotiates:
                if identity_of(os.stat(self.folder)) != self.folder_identity:
                    return False
                if representation is not self.entry.identity:
                    source: _Source = representation.file
                    if identity_of(os.stat(source.path)) != source.identity:
                        return False
        except OSError:
            return False
        return not any(map(os.path.lexists, self.absent))


class _Redirect:
    """To the same path with a slash: relative, since a proxy may serve the site elsewhere."""

    def plan(self, path: str, query: str) -> Plan:
        last = path.rpartition("/")[2].encode("utf-8", "surrogateescape")
        location = f"./{quote(last)}/"
        if query:
            location += "?" + quote(query, safe="%/?:@!$&'()*+,;=[]", encoding="latin-1")
        return Plan(302, [("Location", location), ("Content-Length", "0")])


def _resolved(source: _Source, offset: int, size: int, fd: int | None) -> bytes | FileSegment:
    if source.body is not None:
        return source.body[offset : offset + size]
    if fd is None:
        raise OSError(errno.EBADF, "the answer's file has not been opened")
    return FileSegment(fd, offset, size)


def _listed(directory: Directory, names: list[str], entry: os.DirEntry[str]) -> Listed | None:
    """None for what is not served."""
    try:
        if entry.is_symlink():
            opened = directory.open([*names, entry.name])
            if opened is None:
                return None
            os.close(opened.fd)
            facts = opened.facts
        else:
            facts = entry.stat()
    except OSError:
        return None
    is_directory = stat.S_ISDIR(facts.st_mode)
    if not is_directory and not stat.S_ISREG(facts.st_mode):
        return None
    return Listed(entry.name, is_directory, facts.st_size, int(facts.st_mtime))


def _all_settled(looks: Sequence[os.stat_result]) -> bool:
    now = time.time_ns()
    return all(abs(now - facts.st_ctime_ns) > _SETTLED_NS for facts in looks)


def _cost(entry: Entry, url: str, absent: Sequence[str]) -> int:
    total = 4 * len(url) + sum(4 * len(path) for path in absent)
    for representation in (entry.identity, *entry.encoded.values()):
        source: _Source = representation.file
        total += _REPRESENTATION_COST_BYTES + 4 * len(source.path) + len(source.body or b"")
        total += _HEADER_COPIES * sum(len(n) + len(v) for n, v in representation.headers)
    return total


def _blocks(fd: int, size: int) -> Iterator[bytes]:
    offset = 0
    while offset < size and (block := os.pread(fd, min(_READ_BYTES, size - offset), offset)):
        offset += len(block)
        yield block


def _text_plan(status: int, text: str, *headers: Header) -> Plan:
    body = text.encode()
    return Plan(
        status,
        [
            ("Content-Type", "text/plain; charset=utf-8"),
            ("Content-Length", str(len(body))),
            *headers,
        ],
        (body,),
    )


_MISSING = _text_plan(404, "Not Found\n")
_MISSING_HEAD = Plan(404, _MISSING.headers)
_FORBIDDEN = _text_plan(403, "Forbidden\n")
_NOT_ALLOWED = _text_plan(405, "Method Not Allowed\n", ("Allow", "GET, HEAD"))
