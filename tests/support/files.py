"""An app that serves the folder FILES_ROOT, without support for ranges or preconditions."""

from __future__ import annotations

import functools
import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from wsgifast import WSGIFast
from wsgifast.files.app_files import _TICK_NS

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

ROOT = os.environ.get("FILES_ROOT", "/nonexistent")
DATE = "Sun, 06 Nov 1994 08:49:37 GMT"


def write_old(path: Path, content: bytes = b"") -> None:
    """Write a file that is older than any request, since only such files are offered in ranges."""
    path.write_bytes(content)
    os.utime(path, (1.7e9, 1.7e9))
    wait_until_old(path)


def wait_until_old(path: str | os.PathLike[str]) -> None:
    """Wait until the change of a file's inode is older than any request, also by the kernel's
    clock.
    """
    while time.time_ns() < os.stat(path).st_ctime_ns + 2 * _TICK_NS:
        time.sleep(_TICK_NS / 1e9)


class WholeFileWrapper:
    """A file wrapper with uWSGI's fault: it sends the whole file, whatever the descriptor's
    position is.
    """

    def __init__(self, file: Any, block_size: int = 8192) -> None:
        self.file = file
        self.block_size = block_size
        self.close = file.close

    def __iter__(self) -> Iterator[bytes]:
        if hasattr(self.file, "fileno"):
            return iter([Path(f"/proc/self/fd/{self.file.fileno()}").read_bytes()])
        return iter(lambda: self.file.read(self.block_size), b"")


def raw(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """Answer with the file that the path names.

    The query changes the response:

    etag=..., date, encoded, none   headers (the last one: Accept-Ranges: none)
    length=..., status=...          its Content-Length, its status
    temporary, named                a copy of the file without a name, with one
    read                            the file without its first ten bytes, which were read
    part                            a response to Range of the app's own, made by reading
    """
    query = parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True)
    headers = [
        ("Content-Type", "text/plain"),
        ("Access-Control-Allow-Origin", "*"),
        ("Cache-Control", "max-age=60"),
        ("X-App", "was here"),
    ]
    headers += [("ETag", value) for value in query.get("etag", ())]
    headers += [("Content-Length", value) for value in query.get("length", ())]
    if "date" in query:
        headers.append(("Last-Modified", DATE))
    if "encoded" in query:
        headers.append(("Content-Encoding", "x-made-up"))
    if "none" in query:
        headers.append(("Accept-Ranges", "none"))
    path = ROOT + environ["PATH_INFO"].encode("latin-1").decode(errors="surrogateescape")
    file = open(path, "rb")
    if "part" in query and environ.get("HTTP_RANGE"):
        file.close()
        start_response("206 Partial Content", [*headers, ("Content-Range", "bytes 0-3/9")])
        return [b"part"]
    for name, make in (
        ("temporary", tempfile.TemporaryFile),
        ("named", tempfile.NamedTemporaryFile),
    ):
        if name in query:
            copy = make()
            copy.write(file.read())
            copy.seek(0)
            file.close()
            start_response("200 OK", headers)
            return copy
    if "read" in query:
        file.read(10)
    start_response(query.get("status", ["200 OK"])[0], headers)
    return file


app = WSGIFast(raw)


def shrinking_app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """Respond with a file that is cut to 1,000 bytes between the plan and the sending."""
    body = app(environ, start_response)
    os.truncate(ROOT + environ["PATH_INFO"], 1000)
    return body


def front_served_app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """nginx sends the files of two folders."""
    return _front_served()(environ, start_response)


@functools.cache
def _front_served() -> WSGIFast:
    locations = {f"{ROOT}/shared": "/internal/", f"{ROOT}/shared/inner": "/inner"}
    return WSGIFast(raw, accel_redirect=locations)


def write_settled(path: Path, content: bytes) -> Path:
    """Write a file, and wait until its times would show another change."""
    path.write_bytes(content)
    settle(path)
    return path


def settle(*paths: Path) -> None:
    """Wait until files and their directories are old enough to be cached.

    No later request can then have begun before their last change.
    """
    newest = max(path.lstat().st_ctime_ns for path in [*paths, *(path.parent for path in paths)])
    while time.time_ns() - newest < 60_000_000:
        time.sleep(0.01)
