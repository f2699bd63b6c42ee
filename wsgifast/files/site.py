"""What a StaticFiles serves, whichever protocol asks: URL path and request facts in, answer out.

A file is looked up once and kept: its facts, the headers of every answer for it, and the bytes of a
small one. A kept file is served after a stat() has found it unchanged (and, for a client that takes
encodings, its directory, where encoded siblings come and go). What is not kept is opened, and
described by what fstat() says of the descriptor that is sent.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar
from urllib.parse import quote

from ..errors import ConfigurationError
from ..options import check_switches, is_count, is_number
from ..sockets.sendfile import FileSegment
from .directory import Directory, names_of
from .entry import NO_TEXT, FilePart, Header, Plan, Representation
from .listing import listed, listing_plan
from .lookup import Found, FoundDirectory, Located, Lookup, Refused, Source
from .memory import MemoryCache
from .plan import RequestFacts, plan_representation
from .rules import AddHeaders, HeaderRules, ImmutableTest

__all__ = ["DEFAULT_CACHE_BYTES", "Answer", "FileSite"]

DEFAULT_CACHE_BYTES = 32 * 1024 * 1024
# Up to this size a copy from memory costs a server less than opening the file and a sendfile of its
# own, and beyond it the copy starts to count.
_MEMORY_FILE_BYTES = 128 * 1024
# No file may take more than this share of the cache: it would drive out too many others.
_MEMORY_FILE_SHARE = 8
# Lookups for one request. A file that has changed between a lookup and its opening is looked up
# again; one that always has (a log) is then sent as it is found, without its siblings.
_LOOKUPS = 2

AppT = TypeVar("AppT")


class Answer(NamedTuple):
    """What to send: its plan's segments are bytes, or parts of the file that is open as `fd`.

    Whoever takes the answer closes `fd`, if there is one.
    """

    plan: Plan
    fd: int | None = None

    def segments(self) -> list[bytes | FileSegment]:
        """The body in order, for whoever sends by descriptor."""
        if self.fd is None:
            return [segment for segment in self.plan.segments if isinstance(segment, bytes)]
        return [
            segment
            if isinstance(segment, bytes)
            else FileSegment(self.fd, segment.offset, segment.size)
            for segment in self.plan.segments
        ]


class FileSite(Generic[AppT]):
    """A directory, or several, that files are served from; protocols are added by subclasses."""

    def __init__(
        self,
        app: AppT | None = None,
        *,
        directory: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = "",
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
        """Check the options; nothing is read from the directory before it is asked for.

        :param app: asked for everything that is no file here; None to answer 404 instead.
        :param directory: must be given: one directory or a sequence of them; the first that has a
            file wins.
        :param prefix: the URL path under which the directory's files are.
        :param index: the file that stands for its directory. `/docs` is redirected to `/docs/`
            (302) if there is an index (or a listing); `/docs/index.html` is served as well. None
            for none.
        :param max_age: seconds for which caches may use a file unasked; None sends no
            Cache-Control.
        :param immutable: which files never change under their name, so that caches need not ask for
            a year: a regular expression searched in the URL path, or a function of (path, url).
        :param mimetypes: types by extension (".js") or by a file's whole name; they go before the
            built-in ones.
        :param charset: of every `text/` type; None sends none.
        :param add_headers: called as (headers, path, url) when a file is looked up, to change the
            headers of its answers; `headers` is a wsgiref.headers.Headers. If it raises, the
            request fails.
        :param allow_all_origins: send `Access-Control-Allow-Origin: *`.
        :param follow_symlinks: follow links out of the directory. Those that stay in it always
            work.
        :param hidden_files: serve names that begin with a dot. `/.well-known/` is never hidden.
        :param fallback: a file below the directory, such as "index.html", that answers 200 for
            every path without a file and without a dot in its last segment (a single-page app's
            routes).
        :param listing: show a directory without an index as a page of links.
        :param cache_bytes: bound on the memory for small files and everything kept about files; 0
            to keep nothing.
        :param etag: "stat" makes entity tags of size and modification time; "content" of the bytes,
            which are read once a lookup, for hosts whose copies have different times; None sends
            none.
        :param recheck: seconds for which a look at the disk is good; 0 looks at each request. For
            file systems on which stat() is slow.
        :raises ConfigurationError: if a directory does not exist or cannot be read, or an option
            has a value that cannot work.
        """
        if app is not None and not callable(app):
            raise ConfigurationError(
                f"app={app!r}: an application, or None; a directory goes by its name, as in "
                "StaticFiles(directory='site')"
            )
        self.app = app
        check_switches(
            allow_all_origins=allow_all_origins,
            follow_symlinks=follow_symlinks,
            hidden_files=hidden_files,
            listing=listing,
        )
        paths = _directories(directory)
        if not isinstance(prefix, str) or not prefix.startswith("/"):
            raise ConfigurationError(f"prefix={prefix!r}: a URL path that begins with '/'")
        if index is not None and (
            not isinstance(index, str) or not index or "/" in index or not names_of(index)
        ):
            raise ConfigurationError(f"index={index!r}: a file's name, or None")
        if not is_count(cache_bytes):
            raise ConfigurationError(f"cache_bytes={cache_bytes!r}: bytes, from 0 on")
        if etag not in ("stat", "content", None):
            raise ConfigurationError(f"etag={etag!r}: 'stat', 'content' or None")
        if not is_number(recheck, least=0, most=math.inf):
            raise ConfigurationError(f"recheck={recheck!r}: seconds, from 0 on")
        if fallback is not None:
            if app is not None:
                raise ConfigurationError(
                    f"fallback={fallback!r} leaves nothing for app={app!r}: give one of the two"
                )
            if (
                not isinstance(fallback, str)
                or fallback.endswith("/")
                or not names_of(fallback, hidden_files=hidden_files)
            ):
                raise ConfigurationError(
                    f"fallback={fallback!r}: a file's path relative to the directory, or None"
                )
        prefix = prefix.rstrip("/") + "/"
        self._lookup = Lookup(
            directories=[Directory(path, follow_symlinks=follow_symlinks) for path in paths],
            prefix=prefix,
            index=index,
            hidden_files=hidden_files,
            rules=HeaderRules(
                max_age=max_age,
                immutable=immutable,
                mimetypes=mimetypes,
                charset=charset,
                add_headers=add_headers,
                allow_all_origins=allow_all_origins,
            ),
            etag=etag,
            body_bytes=min(_MEMORY_FILE_BYTES, cache_bytes // _MEMORY_FILE_SHARE),
            listing=listing,
        )
        self._prefix = prefix
        self._fallback = None if fallback is None else prefix + fallback
        self._cache: MemoryCache[Found] = MemoryCache(cache_bytes)
        self._recheck = recheck

    # What Python's own errors about arguments call it: both subclasses have this name.
    __init__.__qualname__ = "StaticFiles.__init__"

    @property
    def cached_bytes(self) -> int:
        """Memory that the cache accounts for at this moment; never more than `cache_bytes`."""
        return self._cache.used_bytes

    def quick_answer(
        self, path: str, accept_encoding: str | None, if_none_match: str | None
    ) -> Plan | None:
        """What :meth:`answer` says to most requests, from memory and at a third of its cost.

        Only for a GET without Range and without any condition but If-None-Match (which overrules
        If-Modified-Since).

        :returns: None to ask :meth:`answer`.
        """
        found = self._cache.get(path)
        if found is None:
            return None
        representation = found.entry.select(accept_encoding)
        if not self._is_fresh(found, representation, accept_encoding is not None):
            self._cache.drop(path, found)
            return None
        if if_none_match is not None:
            return representation.not_modified if if_none_match == representation.etag else None
        source: Source = representation.file
        return None if source.body is None else representation.whole

    def answer(self, facts: RequestFacts, path: str, query: str = "") -> Answer | None:
        """Answer a GET or HEAD; None if there is no such file.

        :param path: the URL path, decoded; bytes that are not UTF-8 as surrogates, as os.fsdecode
            makes them.
        :param query: the query string, as sent, for a redirect to carry on.
        :raises OSError: if the system fails; not for a file that is missing or may not be read.
        """
        answer = self.kept_answer(facts, path)
        if answer is not None:
            return answer
        for _ in range(_LOOKUPS):
            located = self._lookup.locate(path)
            if not isinstance(located, Located):
                return self._without_file(facts, path, query, located)
            found = self._described(located, path)
            answer = self._answer_by(found.entry.select(facts.accept_encoding), facts)
            if answer is not None:
                return answer
            self._cache.drop(path, found)
        return self._answer_as_found(facts, path)

    def kept_answer(self, facts: RequestFacts, path: str) -> Answer | None:
        """What :meth:`answer` says about a file that is kept and unchanged; None to ask it.

        Nothing is read here, and the system has in memory what is looked at: for an event loop.
        """
        found = self._cache.get(path)
        if found is None:
            return None
        encodings = facts.accept_encoding
        representation = found.entry.select(encodings)
        if self._is_fresh(found, representation, encodings is not None):
            answer = self._answer_by(representation, facts)
            if answer is not None:
                return answer
        self._cache.drop(path, found)
        return None

    def refusal(self, method: str) -> Plan:
        """What a site without an app says where it has no file: 404, to other methods 405."""
        if method == "GET":
            return _MISSING
        return _MISSING_HEAD if method == "HEAD" else _NOT_ALLOWED

    def _is_fresh(self, found: Found, representation: Representation, negotiates: bool) -> bool:
        if not self._recheck:
            return found.is_unchanged(representation, negotiates)
        now = time.monotonic()
        if now < found.good_until:
            return True
        found.good_until = now + self._recheck
        return found.is_unchanged(representation, negotiates)

    def _answer_by(self, representation: Representation, facts: RequestFacts) -> Answer | None:
        """The answer for a file that was looked up; None if it is another by now."""
        plan = plan_representation(facts, representation)
        source: Source = representation.file
        if source.body is not None:
            return Answer(_from_memory(plan, source.body))
        if not plan.segments:
            return Answer(plan)
        fd = source.open()
        return None if fd is None else Answer(plan, fd)

    def _described(self, located: Located, path: str) -> Found:
        try:
            found = self._lookup.describe(located, path)
        finally:
            os.close(located.opened.fd)
        if found.cost:
            found.good_until = time.monotonic() + self._recheck
            self._cache.put(path, found)
        return found

    def _answer_as_found(self, facts: RequestFacts, path: str) -> Answer | None:
        located = self._lookup.locate(path)
        if not isinstance(located, Located):
            return self._without_file(facts, path, "", located)
        try:
            plan = plan_representation(facts, self._lookup.describe_as_found(located, path))
        except BaseException:
            os.close(located.opened.fd)
            raise
        if plan.segments:
            return Answer(plan, located.opened.fd)
        os.close(located.opened.fd)
        return Answer(plan)

    def _without_file(
        self,
        facts: RequestFacts,
        path: str,
        query: str,
        instead: FoundDirectory | Refused | None,
    ) -> Answer | None:
        if instead is None:
            return self._answer_fallback(facts, path)
        if instead == "refused":
            plan = _FORBIDDEN
        elif instead.lacks_slash:
            plan = _redirect(path, query)
        else:
            entries = listed(instead.names, instead.roots, hidden_files=self._lookup.hidden_files)
            plan = listing_plan(path, entries, is_root=not instead.names)
        if facts.method == "HEAD":
            plan = Plan(plan.status, plan.headers)
        return Answer(plan)

    def _answer_fallback(self, facts: RequestFacts, path: str) -> Answer | None:
        fallback = self._fallback
        if fallback is None or path == fallback or not path.startswith(self._prefix):
            return None
        return None if "." in path.rpartition("/")[2] else self.answer(facts, fallback)


def _directories(
    given: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
) -> list[str | os.PathLike[str]]:
    if isinstance(given, (str, os.PathLike)):
        paths = [given]
    elif isinstance(given, Sequence) and not isinstance(given, (bytes, bytearray)):
        paths = list(given)
    else:
        raise ConfigurationError(f"directory={given!r}: a path, or a list of paths")
    if not paths:
        raise ConfigurationError("directory=[]: name at least one directory")
    if "" in paths:
        # The system would take it for the working directory: all of the project, by a variable
        # that is not set.
        raise ConfigurationError(
            "directory='': name one, as in StaticFiles(directory='site'); '.' is the working one"
        )
    return paths


def _from_memory(plan: Plan, body: bytes) -> Plan:
    """The plan with bytes for every part of the file."""
    if not any(isinstance(segment, FilePart) for segment in plan.segments):
        return plan
    segments = [
        segment
        if isinstance(segment, bytes)
        else body[segment.offset : segment.offset + segment.size]
        for segment in plan.segments
    ]
    return Plan(plan.status, plan.headers, segments)


def _redirect(path: str, query: str) -> Plan:
    """To the same path with a slash: relative, since a proxy may serve the site elsewhere."""
    last = path.rpartition("/")[2].encode("utf-8", "surrogateescape")
    location = f"./{quote(last)}/"  # "./": "a:b" would be taken for a scheme
    if query:
        location += "?" + quote(query, safe="%/?:@!$&'()*+,;=[]", encoding="latin-1")
    return Plan(302, [("Location", location), *NO_TEXT])


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
