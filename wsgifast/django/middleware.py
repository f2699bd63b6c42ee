"""Serve files with Django: StaticFilesMiddleware for static files, and serve_media for media files.

StaticFilesMiddleware replaces that of WhiteNoise. Media files are uploads by users. The view
serve_media sends them after a permission check of the project.
"""

from __future__ import annotations

import io
import os
import posixpath
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import lru_cache
from typing import Any
from urllib.parse import unquote, urlsplit

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.conf import settings
from django.contrib.staticfiles import finders
from django.contrib.staticfiles.storage import staticfiles_storage
from django.core.exceptions import ImproperlyConfigured
from django.http import FileResponse, Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.http import require_safe

from ..bodies.files import file_body, file_for_wrapper, file_request_from
from ..errors import ConfigurationError
from ..files import Plan, RequestFacts
from ..files.app_files import FrontServer
from ..files.directory import Directory, names_of
from ..files.lookup import FoundDirectory, FoundFile, Lookup
from ..files.site import DEFAULT_CACHE_BYTES, Response, StaticFilesBase
from ..sockets.sending import BLOCK_BYTES, file_segment
from .settings import SITE_OPTIONS, media_front_server, static_options


class _Planned(HttpResponseBase):
    """A Django response with the status and headers of a plan."""

    def has_header(self, header: str) -> bool:
        """Return whether a header is set. Return True for Content-Encoding of a 206.

        So GZipMiddleware and similar middleware do not compress a 206. Its Content-Range is for the
        uncompressed bytes (RFC 9110, section 14.4).
        """
        is_part: bool = self.status_code == 206
        if is_part and header.lower() == "content-encoding":
            return True
        return bool(super().has_header(header))


class _WholeResponse(_Planned, HttpResponse):
    """A response with a body in memory."""


class PlannedResponse(_Planned, FileResponse):
    """A response with a file, or with parts of a file.

    Under WSGI, Django passes the file to the `wsgi.file_wrapper` of the server. Under ASGI, Django
    would read a FileResponse completely into memory. This class reads the file block by block.

    :ivar plan: the plan of the response. It no longer applies if middleware has replaced
        `streaming_content`.
    """

    block_size = BLOCK_BYTES

    def __init__(self, plan: Plan, fd: int, file_wrapper: object = None) -> None:
        self.plan = plan
        body = file_body(plan.segments_of(fd), io.FileIO(fd))
        super().__init__(file_for_wrapper(file_wrapper, body), status=plan.status)

    def set_headers(self, filelike: object) -> None:
        """Do nothing: response_to() sets the headers of the plan."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        blocks: AsyncIterator[bytes] = super().__aiter__() if self.is_async else self._read()
        return blocks

    async def _read(self) -> AsyncIterator[bytes]:
        blocks = iter(self.streaming_content)
        read = sync_to_async(lambda: next(blocks, None), thread_sensitive=False)
        while (block := await read()) is not None:
            yield block


def response_to(request: HttpRequest, planned: Response) -> HttpResponseBase:
    """Return a Django response for a plan. Closing the response closes the descriptor."""
    plan, fd = planned
    if fd is None:
        content = b"".join(plan.segments)  # type: ignore[arg-type]  # no ranges
        response: HttpResponseBase = _WholeResponse(content, status=plan.status)
    else:
        response = PlannedResponse(plan, fd, request.META.get("wsgi.file_wrapper"))
    del response["Content-Type"]  # the default of Django
    headers: dict[str, tuple[str, str]] = {}  # a dict is faster than Django's mapping
    for name, value in plan.headers:
        key = name.lower()
        headers[key] = (name, f"{headers[key][1]}, {value}" if key in headers else value)
    for name, value in headers.values():
        response[name] = value
    return response


class StaticFilesMiddleware:
    """Middleware that serves static files like :class:`wsgifast.StaticFiles`.

    Put it right after SecurityMiddleware and before all other middleware. SecurityMiddleware then
    adds its headers to static files. Requests without a static file are passed to the next
    middleware. Under ASGI, cached files are served on the event loop, and other files are looked up
    in a thread.

    See :mod:`wsgifast.django.settings` for the settings.

    :raises ConfigurationError: if a setting has an invalid value.
    """

    sync_capable = True
    async_capable = True

    def __init__(
        self, get_response: Callable[[HttpRequest], HttpResponseBase | Awaitable[HttpResponseBase]]
    ) -> None:
        self.get_response = get_response
        self._sites = static_sites()
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        if self._is_async:
            return self._answer_async(request)
        for site in self._sites_for(request):
            file_request = file_request_from(request.META)
            planned = site.answer_from_cache(file_request, request.path_info) or site.look_up(
                file_request, request.path_info, *_query_and_mount(request)
            )
            if planned is not None:
                return response_to(request, planned)
        return self.get_response(request)

    async def _answer_async(self, request: HttpRequest) -> HttpResponseBase:
        for site in self._sites_for(request):
            file_request = file_request_from(request.META)
            planned = site.answer_from_cache(file_request, request.path_info)
            if planned is None:
                look_up = sync_to_async(site.look_up, thread_sensitive=False)
                planned = await look_up(file_request, request.path_info, *_query_and_mount(request))
            if planned is not None:
                return response_to(request, planned)
        return await self.get_response(request)

    def _sites_for(self, request: HttpRequest) -> list[Site]:
        if request.method not in ("GET", "HEAD"):
            return []
        path = request.path_info
        return [site for prefix, site in self._sites if path.startswith(prefix)]


def _query_and_mount(request: HttpRequest) -> tuple[str, str]:
    """Return the query string, and the URL path of Django's mount point."""
    return request.META.get("QUERY_STRING", ""), request.META.get("SCRIPT_NAME", "")


# A StaticFiles without an app and without a protocol.
Site = StaticFilesBase[None]


def static_sites() -> list[tuple[str, Site]]:
    """Return the sites that the settings define, each with its URL path.

    The first site that has a file sends it.

    :raises ConfigurationError: if an option has an invalid value.
    """
    options = static_options()
    prefix = options["prefix"]
    site_options = {name: options[name] for name in SITE_OPTIONS if name in options}
    if site_options.get("immutable") is None:
        site_options["immutable"] = HashedNames(prefix)
    sites: list[tuple[str, Site]] = []
    if options["finders"]:
        finder_options: dict[str, Any] = {**site_options, "directory": os.sep}
        if settings.DEBUG:
            # No cache: a new file in another directory may take precedence at any time.
            finder_options["cache_bytes"] = 0
        sites.append((prefix, _FinderSite(**finder_options)))
    if options["root"]:
        root_options = {**site_options, "directory": options["root"], "prefix": "/"}
        sites.append(("/", Site(**root_options)))
    # Before the first collectstatic, STATIC_ROOT may not exist. `manage.py check` warns about that.
    if settings.STATIC_ROOT and os.path.isdir(settings.STATIC_ROOT):
        sites.append((prefix, Site(**site_options, directory=settings.STATIC_ROOT)))
    if not sites:
        Site(**site_options, directory=os.sep)  # to check the options
    return sites


class _FinderLookup(Lookup):
    """Finds files with Django's finders."""

    def locate(self, path: str) -> FoundFile | FoundDirectory | None:
        if not path.startswith(self.prefix):
            return None
        relative = path[len(self.prefix) :]
        names = names_of(relative, hidden_files=self.hidden_files)
        if names is None:
            return None
        if not relative or relative.endswith("/"):
            return None if self.index is None else self._find(relative + self.index)
        file = self._find(relative)
        if file is not None or self.index is None:
            return file
        index = self._find(f"{relative}/{self.index}")
        if index is None:
            return None
        index.close()
        return FoundDirectory(names, [index.directory], lacks_slash=True)

    def _find(self, relative: str) -> FoundFile | None:
        found = finders.find(relative)
        if not found:
            return None
        # All links are followed, since the directories of a finder belong to the project.
        directory = Directory(os.path.dirname(found), follow_symlinks=True)
        name = os.path.basename(found)
        opened = directory.open([name])
        if opened is None:
            return None
        if opened.is_directory:
            os.close(opened.fd)
            return None
        return FoundFile(directory, [name], opened, [])


class _FinderSite(Site):
    lookup_class = _FinderLookup


class HashedNames:
    """The default of the option `immutable`: whether the storage has put a hash into the file name.

    :param prefix: the URL path of the storage's files.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def __call__(self, path: str, url: str) -> bool:
        name = url[len(self._prefix) :]
        stem, extension = posixpath.splitext(name)
        plain, digest = posixpath.splitext(stem)
        if not digest or not url.startswith(self._prefix):
            return False
        try:
            hashed = urlsplit(staticfiles_storage.url(plain + extension)).path
        # The file is not in the manifest, or there is no storage.
        except (ValueError, ImproperlyConfigured):
            return False
        return posixpath.basename(unquote(hashed)) == posixpath.basename(url)


@require_safe
def serve_media(
    request: HttpRequest, path: str, document_root: str | os.PathLike[str] | None = None
) -> HttpResponseBase:
    """Serve a file of MEDIA_ROOT. Wrap this view in a permission check::

        path("media/<path:path>", login_required(serve_media))

    Range and preconditions are supported. Hidden files and files outside the folder are not served.
    ``Cache-Control: private, no-cache`` is sent: shared caches do not store the response, and
    browsers revalidate it. With ``WSGIFAST_MEDIA = {"accel_redirect": {MEDIA_ROOT:
    "/protected/"}}``, nginx sends the files. See :mod:`wsgifast.files.app_files`.

    :param path: the path of the file, relative to the folder.
    :param document_root: the folder. The default is MEDIA_ROOT.
    :raises Http404: if there is no such file.
    :raises ConfigurationError: if WSGIFAST_MEDIA is invalid.
    """
    folder = os.fspath(document_root or settings.MEDIA_ROOT)
    try:
        site = _site_of(folder)
    except ConfigurationError as error:  # the folder may not exist before the first upload
        raise Http404(f"There is no {path}") from error
    front_server = media_front_server()
    if front_server is not None:
        delegated = _delegate(front_server, request, folder, path)
        if delegated is not None:
            return delegated
    file_request = file_request_from(request.META)
    planned = site.answer_from_cache(file_request, f"/{path}") or site.look_up(
        file_request, f"/{path}"
    )
    if planned is None or planned[0].status == 403:
        raise Http404(f"There is no {path}")
    return response_to(request, planned)


def _delegate(
    front_server: FrontServer, request: HttpRequest, folder: str, path: str
) -> HttpResponseBase | None:
    """Answer with the path of a file, so that the front server sends the file.

    :returns: None if the front server cannot send it.
    """
    # Without a cache, the response of a small file has a descriptor too.
    site = _site_of(folder, cache_bytes=0)
    planned = site.look_up(RequestFacts(), f"/{path}")
    if planned is None:
        return None
    plan, fd = planned
    if fd is None:
        return None
    with open(os.path.join(folder, path), "rb", buffering=0, opener=lambda *_: fd) as file:
        segment = file_segment(file)
        headers = segment and front_server.delegate(plan.headers, file, segment)
    return response_to(request, (Plan(200, headers), None)) if headers else None


@lru_cache(maxsize=16)
def _site_of(folder: str, cache_bytes: int = DEFAULT_CACHE_BYTES) -> Site:
    return Site(
        directory=folder,
        index=None,
        max_age=None,
        add_headers=_forbid_shared_caches,
        cache_bytes=cache_bytes,
    )


def _forbid_shared_caches(headers: object, path: str, url: str) -> None:
    headers["Cache-Control"] = "private, no-cache"  # type: ignore[index]
