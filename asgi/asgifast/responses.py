"""FileResponse: a faster replacement for Starlette's class of the same name."""

from __future__ import annotations

import os
import time

from wsgifast.checks import needs
from wsgifast.files import Plan, RequestFacts, describe, stat_etag
from wsgifast.hosts import STARLETTE
from wsgifast.sockets.sending import NotAFile, open_regular

from .file_blocks import SharedReceive
from .files import FileSender, file_request_from
from .loops import in_thread
from .messages import Receive, Scope, Send, response_start, text_headers

with needs("asgifast.FileResponse", "starlette", "asgi"):
    from starlette import responses

STARLETTE.check(
    "asgifast.FileResponse", way_out="install a newer wsgifast, or use Starlette's own FileResponse"
)

# Paths of recently opened files, with monotonic seconds. Their next open() does not read a disk.
_opened: dict[str, float] = {}
_REMEMBERED_PATHS = 4096
_REMEMBERED_S = 60.0
# Headers that are computed again from the opened file, which may have changed since the response
# was made.
_SIZE_HEADERS = frozenset({b"content-length", b"accept-ranges"})


class FileResponse(responses.FileResponse):
    """A faster FileResponse with Starlette's parameters.

    It follows RFC 9110 for ranges and conditions. It handles preconditions (304, 412) and several
    ranges. The file is sent by sendfile if the server uses asgifast's protocols or has
    http.response.zerocopysend. Otherwise the file is read, in a thread if its bytes are not in the
    page cache. `chunk_size` and `max_ranges` have no effect.

    For a GET or HEAD with status 200, only the handling of Range differs from Starlette's (section
    14.2):

    - HEAD ignores Range, because Range is only defined for GET.
    - A Range that is malformed or has another unit than bytes is ignored (200). Starlette responds
      with 400, or ignores only the part that it cannot parse.
    - Several ranges are sent in the client's order. Unsatisfiable ranges are omitted. If the ranges
      together are longer than the file, the whole file is sent (200).

    :raises RuntimeError: from Starlette, if the file is missing or is not a file.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (
            scope["type"] != "http"
            or self.status_code != 200
            or scope["method"] not in ("GET", "HEAD")
        ):
            await super().__call__(scope, receive, send)
            return
        fd, stat_result = await _open(self.path)
        try:
            plan = self._plan(file_request_from(scope), stat_result)
            await send(response_start(plan.status, plan.raw_headers))
            segments = plan.segments
            del plan  # frees a kilobyte of headers before a slow client reads
            await FileSender(scope, SharedReceive(receive), send).send_segments(
                segments, fd, os.path.abspath(os.fsdecode(self.path))
            )
        finally:
            os.close(fd)
        if self.background is not None:
            await self.background()

    def _plan(self, request: RequestFacts, stat_result: os.stat_result) -> Plan:
        size, mtime_ns = stat_result.st_size, stat_result.st_mtime_ns
        representation = describe(
            size=size,
            mtime_ns=mtime_ns,
            now=time.time(),
            etag=stat_etag(size, mtime_ns),
            headers=text_headers(
                header for header in self.raw_headers if header[0] not in _SIZE_HEADERS
            ),
        )
        return representation.plan(request)


async def _open(path: str | os.PathLike[str]) -> tuple[int, os.stat_result]:
    key = os.fspath(path)
    now = time.monotonic()
    try:
        if now - _opened.get(key, -_REMEMBERED_S) < _REMEMBERED_S:
            found = open_regular(key)
        else:
            found = await in_thread(open_regular, key)
            if len(_opened) >= _REMEMBERED_PATHS:
                _opened.clear()
    except FileNotFoundError:  # Starlette raises the same two errors
        raise RuntimeError(f"File at path {path} does not exist.") from None
    except NotAFile:
        raise RuntimeError(f"File at path {path} is not a file.") from None
    _opened[key] = now
    return found
