"""Media files: users' uploads, behind the project's own permission check."""

from __future__ import annotations

import os
from functools import lru_cache

from django.conf import settings
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from django.views.decorators.http import require_safe

from ..bodies.files import request_facts
from ..errors import ConfigurationError
from ..files import Plan, RequestFacts
from ..files.front_server import FrontServer
from ..files.site import DEFAULT_CACHE_BYTES
from ..sockets.sending import file_segment
from .middleware import Site
from .responses import response_to
from .settings import media_front_server


@require_safe
def serve_media(
    request: HttpRequest, path: str, document_root: str | os.PathLike[str] | None = None
) -> HttpResponseBase:
    """Serve a file of MEDIA_ROOT. It is a view, to be put behind a permission check::

        path("media/<path:path>", login_required(serve_media))

    Range and preconditions are supported. Hidden files and files outside the folder are not served.
    ``Cache-Control: private, no-cache`` keeps files out of shared caches and makes browsers
    revalidate. With ``WSGIFAST_MEDIA = {"accel_redirect": {MEDIA_ROOT: "/protected/"}}`` nginx
    sends the files; see :mod:`wsgifast.files.front_server`.

    :param path: relative to the folder.
    :param document_root: the folder; by default MEDIA_ROOT.
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
    facts = request_facts(request.META)
    answer = site.answer_kept(facts, f"/{path}") or site.look_up(facts, f"/{path}")
    if answer is None or answer[0].status == 403:
        raise Http404(f"There is no {path}")
    return response_to(request, answer)


def _hand_over(
    front_server: FrontServer, request: HttpRequest, folder: str, path: str
) -> HttpResponseBase | None:
    """Answer with the name of a file, for the front server to send; None if it cannot."""
    site = _site_of(folder, cache_bytes=0)  # a cached file has no descriptor
    answer = site.look_up(RequestFacts(), f"/{path}")
    if answer is None:
        return None
    plan, fd = answer
    if fd is None:
        return None
    with open(os.path.join(folder, path), "rb", buffering=0, opener=lambda *_: fd) as file:
        segment = file_segment(file)
        headers = segment and front_server.hand_over(plan.headers, file, segment)
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
