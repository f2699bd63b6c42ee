"""The common part of StaticFiles for WSGI and ASGI: find the response to a request for a file.

After the first request for a file, the cache contains its metadata, the headers of its responses,
and its bytes if it is small. Before each use of the cache, stat() checks that the file is
unchanged. If the client accepts content codings, the directory must be unchanged too, since it may
have new precompressed files. A file that is not cached is opened, and fstat() describes it.
Its bytes are sent from the same descriptor.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from inspect import Signature
from typing import Generic, TypeVar, Unpack
from urllib.parse import quote

from ..checks import Interface, check_app
from ..compression.codings import CODING_PACKAGES, available_codings
from ..compression.policy import Compression, compression_for
from ..errors import ConfigurationError
from ..http.headers import Header
from ..sockets.sending import FileSegment
from .compressed_copies import COPIES, copy_key, delta_key
from .deltas import DELTAS
from .directory import Directory
from .found import Found, MemoryCache, Source
from .listing import listing_plan
from .lookup import FoundFile, Lookup, Unreadable
from .plan import NO_TEXT, Plan, RequestFacts
from .rules import HeaderRules
from .site_options import OPTIONS, Arguments, checked_options, signature

DEFAULT_CACHE_BYTES: int = OPTIONS["cache_bytes"].default
# For files up to this size, a copy from memory costs less than open() and sendfile().
_MEMORY_FILE_BYTES = 128 * 1024
# One file may use at most an eighth of the cache, so that it does not evict too many other files.
_MEMORY_FILE_DIVISOR = 8
# The page for missing files. GitHub Pages, Netlify and Cloudflare Pages use the same name.
_MISSING_PAGE = "404.html"

AppT = TypeVar("AppT")

# A plan, and the descriptor of the file whose ranges it sends. The caller closes the descriptor.
Response = tuple[Plan, int | None]


class StaticFilesBase(Generic[AppT]):
    """Serves files from one or several directories. Subclasses implement WSGI or ASGI.

    :cvar interface: the interface of the app. None to accept any app.
    :cvar lookup_class: finds the files. A subclass may find files in another way.
    """

    interface: Interface | None = None
    lookup_class: type[Lookup] = Lookup

    def __init__(
        self,
        app: AppT | None = None,
        *,
        directory: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        **options: Unpack[Arguments],
    ) -> None:
        """Check the options. Files are looked up when they are requested.

        See :mod:`.site_options` for the options.

        :raises ConfigurationError: if a directory does not exist or cannot be read, or an option
            has an invalid value.
        """
        if app is not None and self.interface is not None:
            check_app(app, self.interface)
        self.app = app
        values = checked_options(options)
        if values["dictionaries"] and "zstd" not in available_codings():
            package = CODING_PACKAGES["zstd"]
            raise ConfigurationError(f"dictionaries=True needs {package}: pip install {package}")
        compression = compression_for(values["compress"])
        paths = _directories(directory)
        fallback, cache_bytes = values["fallback"], values["cache_bytes"]
        if fallback is not None and app is not None:
            raise ConfigurationError(
                f"fallback={fallback!r} and app={app!r} exclude each other: the fallback would "
                "answer the requests for the app. Set one of the two"
            )
        prefix = values["prefix"].rstrip("/") + "/"
        follow_symlinks = values["follow_symlinks"]
        self._lookup = self.lookup_class(
            directories=[Directory(path, follow_symlinks=follow_symlinks) for path in paths],
            prefix=prefix,
            index=values["index"],
            hidden_files=values["hidden_files"],
            rules=HeaderRules(
                max_age=values["max_age"],
                immutable=values["immutable"],
                mimetypes=values["mimetypes"],
                charset=values["charset"],
                add_headers=values["add_headers"],
                allow_all_origins=values["allow_all_origins"],
                dictionaries=(compression or Compression()) if values["dictionaries"] else None,
            ),
            etag=values["etag"],
            body_bytes=min(_MEMORY_FILE_BYTES, cache_bytes // _MEMORY_FILE_DIVISOR),
            listing=values["listing"],
            has_bare_prefix=app is None,
            compression=compression,
        )
        self._missing_page = prefix + _MISSING_PAGE
        self._cache: MemoryCache[Found] = MemoryCache(cache_bytes)
        self._fallback = None if fallback is None else prefix + fallback
        if self._fallback is not None:
            try:
                # describe() is not called yet. It calls the option `add_headers`, a function that
                # may need values that the program sets later.
                found = self._lookup.locate(self._fallback)
            except Unreadable:
                found = None
            if not isinstance(found, FoundFile):
                raise ConfigurationError(
                    f"fallback={fallback!r}: there is no such file in {directory!r} that may be "
                    "served. Name an existing file, relative to the directory, or use None"
                )
            found.close()

    def answer_from_cache(self, file_request: RequestFacts, path: str) -> Response | None:
        """Answer a GET or HEAD from the cache. Return None if the cache is not enough.

        The caller then calls :meth:`look_up`. This method reads no file. It calls stat() and open()
        only for recently used paths, which the kernel has usually cached. So an event loop may call
        it.

        :param path: the decoded URL path below the mount point. Bytes that are not UTF-8 are
            surrogates, like those of os.fsdecode().
        """
        cached = self._cache.get(path)
        source = cached and cached.unchanged(file_request.accept_encoding)
        return _answer(file_request, cached, source) if cached and source else None

    def look_up(
        self, file_request: RequestFacts, path: str, query: str = "", mount: str = ""
    ) -> Response | None:
        """Answer a GET or HEAD from the disk. Return None if there is no such file.

        :param path: the decoded URL path below the mount point. "" is the mount point without a
            slash.
        :param query: the undecoded query string, for redirects.
        :param mount: the URL path of the mount point.
        :raises OSError: if the system fails. A missing or unreadable file is not such an error.
        """
        try:
            found = self._lookup.locate(path)
            if isinstance(found, FoundFile):
                return self._answer_found(file_request, path, found, mount)
        except Unreadable:
            return _in_memory(_FORBIDDEN, file_request)
        if found is None:
            return self._answer_fallback(file_request, path, query, mount)
        if found.lacks_slash:
            return _in_memory(_redirect(path or mount, query), file_request)
        hidden_files = self._lookup.hidden_files
        page = listing_plan(path, found.names, found.roots, hidden_files=hidden_files)
        return _in_memory(page, file_request)

    def look_up_or_miss(
        self, file_request: RequestFacts, path: str, query: str = "", mount: str = ""
    ) -> Response | None:
        """Answer a GET or HEAD like :meth:`look_up`. Without an app, a missing file gets 404."""
        response = self.look_up(file_request, path, query, mount)
        if response is None and self.app is None:
            return self._answer_missing(file_request)
        return response

    def _answer_missing(self, file_request: RequestFacts) -> Response:
        """Answer a GET or HEAD with 404, and with the site's 404.html as the page if it exists."""
        # Range and preconditions are removed: they apply only to successful responses (RFC 9110,
        # sections 13.2.1 and 14.2).
        page_request = RequestFacts(file_request.method, file_request.accept_encoding)
        page = self._missing_page
        response = self.answer_from_cache(page_request, page) or self.look_up(page_request, page)
        if response is None or response[0].status != 200:
            return _in_memory(_MISSING, file_request)
        plan, fd = response
        return plan.as_missing(), fd

    def _answer_found(
        self, file_request: RequestFacts, path: str, file: FoundFile, mount: str
    ) -> Response | None:
        """Describe an open file, cache the description, and answer with this file."""
        try:
            found = self._lookup.describe(file, path, mount)
            if found.cost:
                self._cache.put(path, found)
            source = found.select(file_request.accept_encoding)
            return _answer(file_request, found, source, file)
        finally:
            file.close()

    def _answer_fallback(
        self, file_request: RequestFacts, path: str, query: str, mount: str
    ) -> Response | None:
        fallback = self._fallback
        if fallback is None or path == fallback:
            return None
        if self._lookup.is_bare_prefix(path):
            return _redirect(path or mount, query), None
        if not path.startswith(self._lookup.prefix) or "." in path.rpartition("/")[2]:
            return None
        cached = self.answer_from_cache(file_request, fallback)
        return cached or self.look_up(file_request, fallback)


class _ClassSignature:
    """The `__signature__` of the class, with all options. Instances have no such attribute."""

    def __get__(self, instance: object, owner: type) -> Signature:
        if instance is not None:
            raise AttributeError("__signature__")
        return signature()


# inspect, editors and the documentation read this attribute.
StaticFilesBase.__signature__ = _ClassSignature()  # type: ignore[attr-defined]


def _directories(
    directory: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
) -> Sequence[str | os.PathLike[str]]:
    paths = [directory] if isinstance(directory, (str, os.PathLike)) else directory
    if not isinstance(paths, Sequence) or isinstance(paths, (bytes, bytearray)) or not paths:
        raise ConfigurationError(
            f"directory={directory!r}: a path, or a list with at least one path"
        )
    return paths


def _answer(
    file_request: RequestFacts, found: Found, source: Source, file: FoundFile | None = None
) -> Response | None:
    """Answer with an open file, or with a cached file.

    :param source: the file or precompressed file that was selected for the request.
    :param file: the open file. None for a cached file.
    :returns: None if a cached file has changed, or if its compressed copy or delta is not cached.
    """
    digest = None if file_request.dictionary is None else found.dictionary_digest(file_request)
    if digest is not None:
        if file is None:
            copy = COPIES.cached(delta_key(found.original.identity, digest))
            assert found.hashed_file is not None
            if copy is None and not DELTAS.is_known_missing(found.hashed_file, digest):
                return None
        else:
            copy = DELTAS.get(file, digest)
        if copy is not None and copy.body is not None:
            original = found.original.representation
            return copy.plan(file_request, original.headers, original.etag), None
    wanted = source.representation
    coding = found.copy_coding(source, file_request.accept_encoding)
    if coding is not None:
        if file is None:
            copy = COPIES.cached(copy_key(source.identity, 0, wanted.size, coding))
            if copy is None:
                return None
        else:
            copy = COPIES.get(FileSegment(file.opened(source.path).fd, 0, wanted.size), coding)
        if copy is not None and copy.body is not None:
            return copy.plan(file_request, wanted.headers, wanted.etag), None
    plan = wanted.plan(file_request)
    if plan.is_in_memory:
        return plan, None
    fd = source.reopen() if file is None else file.detach(source.path)
    return None if fd is None else (plan, fd)


def _in_memory(plan: Plan, file_request: RequestFacts) -> Response:
    return (plan if file_request.method == "GET" else Plan(plan.status, plan.headers)), None


def _redirect(path: str, query: str) -> Plan:
    """Redirect to the path with a trailing slash.

    The location is relative, since a proxy may serve the site under a prefix.
    """
    last = path.rpartition("/")[2].encode("utf-8", "surrogateescape")
    # Without "./", the name "a:b" would be a URL with the scheme "a".
    location = f"./{quote(last)}/"
    if query:
        # PEP 3333 requires a query decoded as latin-1. Some servers decode it as UTF-8.
        encoding = "latin-1" if max(query) <= "\xff" else "utf-8"
        location += "?" + quote(query, "%/?:@!$&'()*+,;=[]", encoding, "surrogateescape")
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
_FORBIDDEN = _text_plan(403, "Forbidden\n")
# The response to methods other than GET and HEAD, without an app.
NOT_ALLOWED = _text_plan(405, "Method Not Allowed\n", ("Allow", "GET, HEAD"))
