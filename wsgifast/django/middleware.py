"""Serves files under Django: StaticFilesMiddleware, in WhiteNoise's place, and serve_media.

Media files are users' uploads, behind the project's own permission check.
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

from ..bodies.files import file_body, request_conditions, suited_to
from ..errors import ConfigurationError
from ..files import Plan, RequestFacts
from ..files.app_files import FrontServer
from ..files.directory import Directory, names_of
from ..files.lookup import FoundDirectory, FoundFile, Lookup
from ..files.site import DEFAULT_CACHE_BYTES, Response, StaticFilesBase
from ..sockets.sending import BLOCK_BYTES, file_segment
from .settings import SITE_OPTIONS, media_front_server, static_options


class _Planned(HttpResponseBase):
    """A response with a plan's status and headers."""

    def has_header(self, header: str) -> bool:
        """Report a Content-Encoding for a 206.

        GZipMiddleware and its like then do not compress it: its Content-Range is of the bytes as
        they are (RFC 9110, section 14.4).
        """
        is_part: bool = self.status_code == 206
        if is_part and header.lower() == "content-encoding":
            return True
        return bool(super().has_header(header))


class _WholeResponse(_Planned, HttpResponse):
    """A body in memory."""


class PlannedResponse(_Planned, FileResponse):
    """A file, or parts of it, with the headers of its plan.

    Django passes its file to the server's `wsgi.file_wrapper`. Under ASGI, Django's own handler
    would read all of it into memory. Here asynchronous iteration reads it block by block.

    :ivar plan: the plan. If middleware has replaced the body since, `streaming_content` is another.
    """

    block_size = BLOCK_BYTES

    def __init__(self, plan: Plan, fd: int, file_wrapper: object = None) -> None:
        self.plan = plan
        body = file_body(plan.segments_of(fd), io.FileIO(fd))
        super().__init__(suited_to(file_wrapper, body), status=plan.status)

    def set_headers(self, filelike: object) -> None:
        """Do nothing: the plan has the headers."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        blocks: AsyncIterator[bytes] = super().__aiter__() if self.is_async else self._read()
        return blocks

    async def _read(self) -> AsyncIterator[bytes]:
        blocks = iter(self.streaming_content)
        read = sync_to_async(lambda: next(blocks, None), thread_sensitive=False)
        while (block := await read()) is not None:
            yield block


def response_to(request: HttpRequest, planned: Response) -> HttpResponseBase:
    """Return a planned response. It closes the plan's descriptor."""
    plan, fd = planned
    if fd is None:
        content = b"".join(plan.segments)  # type: ignore[arg-type]  # no runs
        response: HttpResponseBase = _WholeResponse(content, status=plan.status)
    else:
        response = PlannedResponse(plan, fd, request.META.get("wsgi.file_wrapper"))
    del response["Content-Type"]  # Django's default
    headers: dict[str, tuple[str, str]] = {}  # Django's own mapping is slow
    for name, value in plan.headers:
        key = name.lower()
        headers[key] = (name, f"{headers[key][1]}, {value}" if key in headers else value)
    for name, value in headers.values():
        response[name] = value
    return response


class StaticFilesMiddleware:
    """Middleware that serves static files like :class:`wsgifast.StaticFiles`.

    Put it right after SecurityMiddleware, which then adds its headers to static files, and before
    all others. Other requests are passed on. Under ASGI, cached files are served on the event
    loop, and others are looked up in a thread.

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
            conditions = request_conditions(request.META)
            planned = site.answer_from_cache(conditions, request.path_info) or site.look_up(
                conditions, request.path_info, *_place(request)
            )
            if planned is not None:
                return response_to(request, planned)
        return self.get_response(request)

    async def _answer_async(self, request: HttpRequest) -> HttpResponseBase:
        for site in self._sites_for(request):
            conditions = request_conditions(request.META)
            planned = site.answer_from_cache(conditions, request.path_info)
            if planned is None:
                look_up = sync_to_async(site.look_up, thread_sensitive=False)
                planned = await look_up(conditions, request.path_info, *_place(request))
            if planned is not None:
                return response_to(request, planned)
        return await self.get_response(request)

    def _sites_for(self, request: HttpRequest) -> list[Site]:
        if request.method not in ("GET", "HEAD"):
            return []
        path = request.path_info
        return [site for prefix, site in self._sites if path.startswith(prefix)]


def _place(request: HttpRequest) -> tuple[str, str]:
    """The query string, and the URL path of Django's mount point."""
    return request.META.get("QUERY_STRING", ""), request.META.get("SCRIPT_NAME", "")


# One or several directories of static files.
Site = StaticFilesBase[None]


def static_sites() -> list[tuple[str, Site]]:
    """Return the sites of the settings with their URL paths. The first that has a file wins.

    :raises ConfigurationError: if an option has an invalid value.
    """
    options = static_options()
    prefix = options["prefix"]
    chosen = {name: options[name] for name in SITE_OPTIONS if name in options}
    if chosen.get("immutable") is None:
        chosen["immutable"] = HashedNames(prefix)
    sites: list[tuple[str, Site]] = []
    if options["finders"]:
        found: dict[str, Any] = {**chosen, "directory": os.sep}
        if settings.DEBUG:
            found["cache_bytes"] = 0  # a new file may take precedence at any time
        sites.append((prefix, _FinderSite(**found)))
    if options["root"]:
        sites.append(("/", Site(**{**chosen, "directory": options["root"], "prefix": "/"})))
    # It may not exist before the first collectstatic. `manage.py check` warns of that.
    if settings.STATIC_ROOT and os.path.isdir(settings.STATIC_ROOT):
        sites.append((prefix, Site(**chosen, directory=settings.STATIC_ROOT)))
    if not sites:
        Site(**chosen, directory=os.sep)  # checks the options
    return sites


class _FinderLookup(Lookup):
    """Asks Django's finders for each file."""

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
        # With any links: a finder's directories are the developer's own.
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
    """Whether a URL contains the hash of its file's content, as made by the storage.

    :param prefix: the URL path below which the storage's files are served.
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
        except (ValueError, ImproperlyConfigured):  # not in the manifest, or there is no storage
            return False
        return posixpath.basename(unquote(hashed)) == posixpath.basename(url)


@require_safe
def serve_media(
    request: HttpRequest, path: str, document_root: str | os.PathLike[str] | None = None
) -> HttpResponseBase:
    """Serve a file of MEDIA_ROOT. It is a view, to be put behind a permission check::

        path("media/<path:path>", login_required(serve_media))

    Range and preconditions are supported. Hidden files and files outside the folder are not served.
    ``Cache-Control: private, no-cache`` prevents storage in shared caches and makes browsers
    revalidate. With ``WSGIFAST_MEDIA = {"accel_redirect": {MEDIA_ROOT: "/protected/"}}`` nginx
    sends the files. See :mod:`wsgifast.files.app_files`.

    :param path: relative to the folder.
    :param document_root: the folder. The default is MEDIA_ROOT.
    :raises Http404: if there is no such file.
    :raises ConfigurationError: if WSGIFAST_MEDIA cannot work.
    """
    folder = os.fspath(document_root or settings.MEDIA_ROOT)
    try:
        site = _site_of(folder)
    except ConfigurationError as error:  # no folder: nothing was uploaded yet
        raise Http404(f"There is no {path}") from error
    front_server = media_front_server()
    if front_server is not None:
        handed_over = _hand_over(front_server, request, folder, path)
        if handed_over is not None:
            return handed_over
    conditions = request_conditions(request.META)
    planned = site.answer_from_cache(conditions, f"/{path}") or site.look_up(conditions, f"/{path}")
    if planned is None or planned[0].status == 403:
        raise Http404(f"There is no {path}")
    return response_to(request, planned)


def _hand_over(
    front_server: FrontServer, request: HttpRequest, folder: str, path: str
) -> HttpResponseBase | None:
    """Answer with the name of a file, for the front server to send. Return None if it cannot."""
    site = _site_of(folder, cache_bytes=0)  # a cached file has no descriptor
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
        add_headers=_not_shared,
        cache_bytes=cache_bytes,
    )


def _not_shared(headers: object, path: str, url: str) -> None:
    headers["Cache-Control"] = "private, no-cache"  # type: ignore[index]
