"""Django responses that carry out a plan of wsgifast.files: its status, headers and file."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator

from asgiref.sync import sync_to_async
from django.http import FileResponse, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from ..bodies.files import file_body, suited_to
from ..files import Plan
from ..files.site import Answer
from ..sockets.sending import BLOCK_BYTES


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
    would read all of it into memory; here asynchronous iteration reads it block by block.

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


def response_to(request: HttpRequest, answer: Answer) -> HttpResponseBase:
    """Return an answer as a response, which closes the answer's descriptor."""
    plan, fd = answer
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
