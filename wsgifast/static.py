"""StaticFiles: a directory as a WSGI app, or as middleware in front of one."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .delivery import BLOCK_BYTES, FileSlice, Segment, SegmentedBody
from .environ import request_facts
from .files.site import Answer, StaticFilesBase
from .sockets.sendfile import FileSegment
from .streams import NoBody

if TYPE_CHECKING:
    # WSGIApplication is named in a string, for StaticFilesBase.
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment  # noqa: F401

__all__ = ["StaticFiles"]


class StaticFiles(StaticFilesBase["WSGIApplication"]):
    """Serve files: `StaticFiles(directory="site")`, or `StaticFiles(app, directory=...)` in front.

    A small file goes out from memory, one large file or range through the server's
    `wsgi.file_wrapper` (sendfile, where the server has it), several ranges as a SegmentedBody.
    Other methods than GET and HEAD are the app's; without an app they are answered 405.
    """

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        method = environ["REQUEST_METHOD"]
        if method == "GET" or method == "HEAD":
            path = environ.get("PATH_INFO") or "/"
            if not path.isascii() and max(path) <= "\xff":
                path = path.encode("latin-1").decode("utf-8", "surrogateescape")
            answer = self.answer(request_facts(environ), path, environ.get("QUERY_STRING", ""))
            if answer is not None:
                return _send(answer, environ, start_response)
        if self.app is not None:
            return self.app(environ, start_response)
        return _send((self.refusal(method), None), environ, start_response)


def _send(
    answer: Answer, environ: WSGIEnvironment, start_response: StartResponse
) -> Iterable[bytes]:
    plan, fd = answer
    if fd is None:
        start_response(plan.status_line, list(plan.headers))
        # To an empty list wsgiref would add "Content-Length: 0", which a 304 must not say of a file
        # that is not empty (RFC 9110, section 8.6).
        return list(plan.segments) or NoBody()  # type: ignore[arg-type]  # bytes, without a file
    body = _file_body(plan.segments_of(fd), fd, environ)
    try:
        start_response(plan.status_line, list(plan.headers))
    except BaseException:
        body.close()
        raise
    sent: Iterable[bytes] = body
    return sent


def _file_body(segments: list[Segment], fd: int, environ: WSGIEnvironment) -> Any:
    file = io.FileIO(fd)  # the descriptor's owner from here on
    if len(segments) == 1 and isinstance(segments[0], FileSegment):
        slice_ = FileSlice(segments[0], file)
        wrapper = environ.get("wsgi.file_wrapper")
        return slice_ if wrapper is None else wrapper(slice_, BLOCK_BYTES)
    return SegmentedBody(segments, file.close)
