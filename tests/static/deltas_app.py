"""A site for both interfaces, with a page of the latest release."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asgifast

from wsgifast import Compression, StaticFiles

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

FOLDER = Path(os.environ["TEST_SITE"])
OPTIONS: dict[str, Any] = {
    "directory": FOLDER / "files",
    "prefix": "/static/",
    "compress": Compression(codings=["br", "gzip"]),
    "dictionaries": True,
}


def page(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "text/html; charset=utf-8")])
    return [(FOLDER / "page.html").read_bytes()]


async def asgi_page(scope: Any, receive: Any, send: Any) -> None:
    headers = [(b"content-type", b"text/html; charset=utf-8")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": (FOLDER / "page.html").read_bytes()})


wsgi = StaticFiles(page, **OPTIONS)
asgi = asgifast.StaticFiles(asgi_page, **OPTIONS)
