"""Media files: what users have uploaded, behind a permission check of the project's own."""

from __future__ import annotations

import os
from functools import lru_cache

from django.conf import settings
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from django.views.decorators.http import require_safe

from ..errors import ConfigurationError
from ..file_answers import request_facts
from .responses import response_to
from .sites import Site

__all__ = ["serve_media"]


@require_safe
def serve_media(
    request: HttpRequest, path: str, document_root: str | os.PathLike[str] | None = None
) -> HttpResponseBase:
    """Answer with a file of MEDIA_ROOT: a view, as ``login_required(serve_media)``.

        path("media/<path:path>", login_required(serve_media))

    Ranges and conditions are answered. Nothing outside the folder is sent, and no hidden name. A
    shared cache may not keep it, and a browser asks again each time: ``Cache-Control: private,
    no-cache``.

    :param path: below the folder.
    :param document_root: the folder, if it is not MEDIA_ROOT.
    :raises Http404: if there is no such file.
    """
    try:
        site = _site_of(os.fspath(document_root or settings.MEDIA_ROOT))
    except ConfigurationError as error:  # nothing has been uploaded yet
        raise Http404(f"There is no {path}") from error
    facts = request_facts(request.META)
    answer = site.answer_kept(facts, f"/{path}") or site.look_up(facts, f"/{path}")
    if answer is None or answer[0].status == 403:
        raise Http404(f"There is no {path}")
    return response_to(answer)


@lru_cache(maxsize=16)
def _site_of(folder: str) -> Site:
    return Site(directory=folder, index=None, max_age=None, add_headers=_not_shared)


def _not_shared(headers: object, path: str, url: str) -> None:
    headers["Cache-Control"] = "private, no-cache"  # type: ignore[index]
