"""Provide a WSGI and an ASGI app, whose import computes for IMPORT_S seconds in every process."""

from __future__ import annotations

import os
import time
from typing import Any

from .payloads import payload

_BODY = payload(1024)
_end = time.monotonic() + float(os.environ.get("IMPORT_S", "0"))
while time.monotonic() < _end:
    sum(range(10_000))


def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    start_response("200 OK", [("Content-Length", str(len(_BODY)))])
    return [_BODY]


async def asgi_app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        raise RuntimeError(f"{scope['type']} is not supported")
    headers = [(b"content-length", str(len(_BODY)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": _BODY})
