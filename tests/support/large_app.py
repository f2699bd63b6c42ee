"""WSGI and ASGI apps with large responses. Each path is a kind of body."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

from asgifast import ASGIFast
from werkzeug.wsgi import ClosingIterator

from wsgifast import WSGIFast

SIZE = 8_000_000
# Compression reduces it to a half.
_PAGE = os.urandom(SIZE // 2).hex().encode()
_BLOCKS = [_PAGE[at : at + 1000] for at in range(0, SIZE, 1000)]
_path = tempfile.NamedTemporaryFile()  # open for as long as the process runs
_path.write(_PAGE)
_path.flush()


def _page(environ: dict[str, Any]) -> Iterable[bytes]:
    """A framework's response, which refers to its bytes until close()."""
    page = [bytes(memoryview(_PAGE))]  # a separate copy, as a framework renders it
    return ClosingIterator(page, page.clear)


KINDS: dict[str, Callable[[dict[str, Any]], Iterable[bytes]]] = {
    "page": _page,
    "blocks": lambda environ: _BLOCKS,
    "own-blocks": lambda environ: [b"%b." % block[1:] for block in _BLOCKS],
    "generator": lambda environ: (block for block in _BLOCKS),
    "file": lambda environ: environ["wsgi.file_wrapper"](open(_path.name, "rb")),
}


def _app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    kind = environ["PATH_INFO"].strip("/").removeprefix("compressed-")
    if kind not in KINDS:
        start_response("200 OK", [("Content-Length", "0")])
        return []
    start_response("200 OK", [("Content-Type", "text/plain")])
    return KINDS[kind](environ)


_compressed = WSGIFast(_app, compress=True)


def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    if environ["PATH_INFO"].startswith("/compressed-"):
        environ["HTTP_ACCEPT_ENCODING"] = "gzip"  # a crowd of slow clients does not send it
    served = _compressed if environ["PATH_INFO"].startswith("/compressed-") else _app
    return served(environ, start_response)


async def _asgi(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    kind = scope["path"].strip("/").removeprefix("compressed-")
    size = SIZE if kind in (*KINDS, "own-page") else 0
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % size)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    if kind == "page":
        await send({"type": "http.response.body", "body": _PAGE})
        return
    if kind == "own-page":  # as a framework renders it
        await send({"type": "http.response.body", "body": bytes(memoryview(_PAGE))})
        return
    for block in _BLOCKS if size else ():
        await send({"type": "http.response.body", "body": block, "more_body": True})
    await send({"type": "http.response.body"})


_asgi_compressed = ASGIFast(_asgi, compress=True)


async def asgi_app(scope: Any, receive: Any, send: Any) -> None:
    is_compressed = scope.get("path", "").startswith("/compressed-")
    if is_compressed:
        scope = {**scope, "headers": [(b"accept-encoding", b"gzip")]}
    await (_asgi_compressed if is_compressed else _asgi)(scope, receive, send)
