"""What loadtests.leaks leaves in the middle, as a WSGI `app` and as an ASGI `asgi_app`.

/file is a file, /stream a generator, /upload takes a body, /blocks tells how many blocks of memory
Python's objects have in this process; anything else is a short answer.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

# Far more than the buffers between a server and a client that stops reading.
FILE_BYTES = 16 * 1024 * 1024
CHUNK = bytes(16 * 1024)
CHUNKS = FILE_BYTES // len(CHUNK)
FILE_VARIABLE = "WSGIFAST_LEAKS_FILE"


def _file() -> Path:
    return Path(os.environ[FILE_VARIABLE])


def _blocks() -> bytes:
    gc.collect()
    return b"%d" % sys.getallocatedblocks()


def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    path = environ["PATH_INFO"]
    if path == "/file":
        start_response("200 OK", [("Content-Length", str(FILE_BYTES))])
        wrapped: Iterable[bytes] = environ["wsgi.file_wrapper"](_file().open("rb"))
        return wrapped
    if path == "/stream":
        start_response("200 OK", [])
        return _chunks()
    if path == "/upload":
        environ["wsgi.input"].read()
    body = _blocks() if path == "/blocks" else b"ok"
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]


def _chunks() -> Iterator[bytes]:
    for _ in range(CHUNKS):
        yield CHUNK


async def asgi_app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    path = scope["path"]
    if path == "/file":
        headers = [(b"content-length", b"%d" % FILE_BYTES)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.pathsend", "path": str(_file())})
        return
    if path == "/stream":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(CHUNKS):
            await send({"type": "http.response.body", "body": CHUNK, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        return
    if path == "/upload":
        while (message := await receive())["type"] == "http.request":
            if not message.get("more_body"):
                break
        else:  # the client has left
            return
    body = _blocks() if path == "/blocks" else b"ok"
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
