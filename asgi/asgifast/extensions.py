"""The ASGI extensions for files: what servers have, and what asgifast offers to apps."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, NamedTuple

from wsgifast.files import ByteRange

from .messages import PATHSEND, ZEROCOPYSEND

# By this extension asgifast's protocols say that they coalesce small messages themselves.
COALESCING = "asgifast.coalescing"
# By this extension asgifast's middleware and protocols say that a pathsend message may carry a
# PlannedBody under this key, which then takes precedence over the path. Middleware in between knows
# pathsend but not zerocopysend: Starlette's BaseHTTPMiddleware fails on that, and its
# GZipMiddleware drops it.
PLANNED = "asgifast.planned"
# Under this key a pathsend message for asgifast's protocols carries the instrumented.Request, which
# is recorded when its file is sent: that may be long after the app has returned.
RECORDING = "asgifast.recording"
# What ASGIFast offers to an app that is known to bear it.
FILE_EXTENSIONS: dict[str, dict[str, Any]] = {
    PATHSEND: {"ranges": True},
    ZEROCOPYSEND: {},
    PLANNED: {},
}


class PlannedBody(NamedTuple):
    """A complete body: bytes, and ranges of an open file.

    Whoever sends the body closes the file. That may be long after its sender has gone on:
    BaseHTTPMiddleware passes messages through a queue.
    """

    file: io.FileIO
    segments: Sequence[bytes | ByteRange]
    # The file's absolute path, if a server that has pathsend alone may open it.
    path: str | None = None
