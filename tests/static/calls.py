"""Calls of StaticFiles, like those of a server."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from wsgiref.util import FileWrapper

EPOCH = "Thu, 01 Jan 1970 00:00:00 GMT"
LARGE = bytes(range(256)) * 2048  # 512 KiB: too large for the memory cache


@dataclass
class Answered:
    """The response that a server would send."""

    line: str  # the number of the status
    headers: dict[str, str]
    body: bytes
    # The iterable that the app returned. It has been closed.
    iterable: Any
    names: list[str]
    environ: dict[str, Any]

    @property
    def status(self) -> int:
        return int(self.line[:3])


def environ_of(path: str, method: str = "GET", **headers: str) -> dict[str, Any]:
    """Return a request's environ, with headers such as Accept_Encoding="gzip"."""
    environ: dict[str, Any] = {
        "REQUEST_METHOD": method,
        "PATH_INFO": path.encode("utf-8", "surrogateescape").decode("latin-1"),
        "QUERY_STRING": "",
        "wsgi.file_wrapper": FileWrapper,
    }
    environ.update({f"HTTP_{name.upper()}": value for name, value in headers.items()})
    return environ


def call(app: Any, path: str, method: str = "GET", **headers: str) -> Answered:
    return call_with(app, environ_of(path, method, **headers))


def call_with(app: Any, environ: dict[str, Any]) -> Answered:
    started: list[tuple[str, list[tuple[str, str]]]] = []
    iterable = app(
        environ, lambda status, headers, exc_info=None: started.append((status, headers))
    )
    try:
        body = b"".join(iterable)
    finally:
        if hasattr(iterable, "close"):
            iterable.close()
    [(status, fields)] = started
    names = [name.lower() for name, _ in fields]
    headers = {name.lower(): value for name, value in fields}
    return Answered(status, headers, body, iterable, names, environ)


def app_behind(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """The app behind StaticFiles."""
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"the app: " + environ["REQUEST_METHOD"].encode()]


def write_precompressed(original: Path, suffix: str, content: bytes, *, age_s: float = 0) -> Path:
    """Write a precompressed file with the time of its original, or some seconds older."""
    precompressed = original.with_name(original.name + suffix)
    precompressed.write_bytes(content)
    mtime = original.stat().st_mtime_ns - int(age_s * 1e9)
    os.utime(precompressed, ns=(mtime, mtime))
    return precompressed
