"""StaticFiles for WSGI: serve a directory as an app, or as middleware around an app."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import TYPE_CHECKING

from .bodies.files import SegmentedBody, file_body, file_request_from, in_file_wrapper
from .files import Plan
from .files.site import NOT_ALLOWED, StaticFilesBase

if TYPE_CHECKING:
    # WSGIApplication is named in a string, for StaticFilesBase.
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment  # noqa: F401


class StaticFiles(StaticFilesBase["WSGIApplication"]):
    """A WSGI app that serves files: `StaticFiles(directory="site")`.

    As middleware, it serves files and passes other requests to an app:
    `StaticFiles(app, directory="site")`.

    Small files are sent from memory. Large files and single ranges are sent by the server's
    `wsgi.file_wrapper`, which uses sendfile() on many servers. Several ranges are sent as a
    SegmentedBody. Requests with other methods than GET and HEAD go to the app. Without an app, they
    get 405.
    """

    interface = "WSGI"

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        method = environ["REQUEST_METHOD"]
        response = None
        if method == "GET" or method == "HEAD":
            path = environ.get("PATH_INFO") or _mount_point(environ)
            if not path.isascii():
                path = _decoded(path)
            file_request = file_request_from(environ)
            response = self.answer_from_cache(file_request, path)
            if response is None:
                mount = _decoded(environ.get("SCRIPT_NAME", ""))
                response = self.look_up_or_miss(
                    file_request, path, environ.get("QUERY_STRING", ""), mount
                )
        if response is None:
            if self.app is not None:
                return self.app(environ, start_response)
            response = NOT_ALLOWED, None
        plan, fd = response
        if fd is not None:
            return _send_file(plan, fd, environ, start_response)
        start_response(plan.status_line, list(plan.headers))
        # For an empty list or [b""], wsgiref would add "Content-Length: 0". A 304 must not have
        # that for a file with content (RFC 9110, section 8.6).
        return list(plan.segments) or iter((b"",))  # type: ignore[arg-type]  # no ranges


def _mount_point(environ: WSGIEnvironment) -> str:
    """Return the path for an empty PATH_INFO: "" if the app is mounted below a path, else "/"."""
    mount = environ.get("SCRIPT_NAME")
    return "" if mount and not mount.endswith("/") else "/"


def _decoded(path: str) -> str:
    """Return a path decoded as UTF-8.

    PEP 3333 requires bytes decoded as latin-1. Some servers decode the path as UTF-8.
    """
    if path.isascii() or max(path) > "\xff":
        return path
    return path.encode("latin-1").decode("utf-8", "surrogateescape")


def _send_file(
    plan: Plan, fd: int, environ: WSGIEnvironment, start_response: StartResponse
) -> Iterable[bytes]:
    body = file_body(plan.segments_of(fd), io.FileIO(fd))  # closing the body closes the descriptor
    try:
        start_response(plan.status_line, list(plan.headers))
    except BaseException:
        body.close()
        raise
    if isinstance(body, SegmentedBody):
        return body
    return in_file_wrapper(body, environ.get("wsgi.file_wrapper"))
