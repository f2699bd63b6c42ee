"""StaticFiles: a directory as a WSGI app, or as middleware in front of one."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

from .bodies.files import BLOCK_BYTES, FileSlice, SegmentedBody
from .bodies.streams import NoBody
from .file_answers import request_facts
from .files.entry import Plan
from .files.site import Answer, FileSite
from .sockets.sendfile import FileSegment

if TYPE_CHECKING:
    # WSGIApplication is named in a string, for FileSite.
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment  # noqa: F401

__all__ = ["StaticFiles"]


class StaticFiles(FileSite["WSGIApplication"]):
    """Serve files: `StaticFiles(directory="site")`, or `StaticFiles(app, directory=...)` in front.

    A small file goes out from memory, one large file or range through the server's
    `wsgi.file_wrapper` (sendfile, where the server has it), several ranges as a SegmentedBody.
    Other methods than GET and HEAD are the app's; without an app they are answered 405.
    """

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        method = environ["REQUEST_METHOD"]
        if method == "GET" or method == "HEAD":
            path = environ.get("PATH_INFO") or "/"
            if not path.isascii():
                path = path.encode("latin-1").decode("utf-8", "surrogateescape")
            if method == "GET" and _is_plain(environ):
                plan = self.quick_answer(
                    path, environ.get("HTTP_ACCEPT_ENCODING"), environ.get("HTTP_IF_NONE_MATCH")
                )
                if plan is not None:
                    start_response(plan.status_line, list(plan.headers))
                    return _in_memory(plan)
            answer = self.answer(request_facts(environ), path, environ.get("QUERY_STRING", ""))
            if answer is not None:
                return _send(answer, environ, start_response)
        if self.app is not None:
            return self.app(environ, start_response)
        return _send(Answer(self.refusal(method)), environ, start_response)


def _is_plain(environ: WSGIEnvironment) -> bool:
    """Whether no header decides about the answer but Accept-Encoding and If-None-Match."""
    return not (
        "HTTP_RANGE" in environ
        or "HTTP_IF_MATCH" in environ
        or "HTTP_IF_UNMODIFIED_SINCE" in environ
        or ("HTTP_IF_MODIFIED_SINCE" in environ and "HTTP_IF_NONE_MATCH" not in environ)
    )


def _send(
    answer: Answer, environ: WSGIEnvironment, start_response: StartResponse
) -> Iterable[bytes]:
    plan, fd = answer
    if fd is None:
        start_response(plan.status_line, list(plan.headers))
        return _in_memory(plan)
    body = _file_body(answer.segments(), fd, environ)
    try:
        start_response(plan.status_line, list(plan.headers))
    except BaseException:
        body.close()
        raise
    return cast("Iterable[bytes]", body)


def _in_memory(plan: Plan) -> Iterable[bytes]:
    """The body of a plan for which no file is open."""
    # To an empty list wsgiref would add "Content-Length: 0", which a 304 must not say of a file
    # that is not empty (RFC 9110, section 8.6).
    return cast("list[bytes]", list(plan.segments)) or NoBody()


def _file_body(segments: list[bytes | FileSegment], fd: int, environ: WSGIEnvironment) -> Any:
    file = io.FileIO(fd)  # the descriptor's owner from here on
    if len(segments) == 1 and isinstance(segments[0], FileSegment):
        slice_ = FileSlice(segments[0], file)
        wrapper = environ.get("wsgi.file_wrapper")
        return slice_ if wrapper is None else wrapper(slice_, BLOCK_BYTES)
    return SegmentedBody(segments, file.close)
