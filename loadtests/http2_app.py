"""Provide the app of the HTTP/2 rows, for WSGI and for ASGI.

The paths are /small/BYTES, /list (1 MB in blocks of 64 KiB), /page.html (60 kB, compressed by
wsgifast), and those of the payload files, such as /10485760.bin.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import asgifast
from asgifast.messages import Receive, Scope, Send

from wsgifast import StaticFiles, WSGIFast

from .compress_app import HTML
from .payloads import PAYLOADS, chunks, files, payload, payload_file

LIST_BYTES, BLOCK_BYTES = 1_000_000, 64 * 1024
# The files of a page load: images, scripts and styles.
BURST_BYTES = range(1000, 21_000, 200)
PAGE = "page.html"


def prepare(folder: Path) -> None:
    """Write the files that nginx serves: the bodies of the app, and the files of a page load."""
    files(folder)
    for size in (LIST_BYTES, *BURST_BYTES):
        payload_file(size)
    (PAYLOADS / PAGE).write_bytes(HTML)


def _blocks(path: str) -> tuple[str, list[bytes]]:
    """Return the content type and the blocks of a body in memory."""
    if path.endswith(PAGE):
        return "text/html", [HTML]
    if path == "/list":
        return "application/octet-stream", chunks(LIST_BYTES, BLOCK_BYTES)
    return "application/octet-stream", [payload(int(path.removeprefix("/small/")))]


def _wsgi(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    kind, blocks = _blocks(environ["PATH_INFO"])
    length = str(sum(map(len, blocks)))
    start_response("200 OK", [("Content-Type", kind), ("Content-Length", length)])
    return blocks


PAYLOADS.mkdir(parents=True, exist_ok=True)  # missing in a new checkout
_static, _compressed = StaticFiles(directory=PAYLOADS), WSGIFast(_wsgi, compress=True)


def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    path = environ["PATH_INFO"]
    if path.endswith(".bin"):
        return _static(environ, start_response)
    return (_compressed if path.endswith(PAGE) else _wsgi)(environ, start_response)


async def _asgi(scope: Scope, receive: Receive, send: Send) -> None:
    kind, blocks = _blocks(scope["path"])
    headers = [
        (b"content-type", kind.encode()),
        (b"content-length", b"%d" % sum(map(len, blocks))),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for number, block in enumerate(blocks, 1):
        more = number < len(blocks)
        await send({"type": "http.response.body", "body": block, "more_body": more})


_asgi_static = asgifast.StaticFiles(directory=PAYLOADS)
_asgi_compressed = asgifast.ASGIFast(_asgi, compress=True)


async def asgi_app(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] != "http":
        return  # lifespan is not supported
    path = scope["path"]
    served = _asgi_compressed if path.endswith(PAGE) else _asgi
    await (_asgi_static if path.endswith(".bin") else served)(scope, receive, send)
