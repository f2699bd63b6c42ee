"""The apps under attack. They respond with the request as they received it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

# Keys that describe the server, and not the request.
_OWN = ("HTTP_EXPECT", "HTTP_TRANSFER_ENCODING")


def wsgi_app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Respond with the request as the server passed it to the app."""
    body = environ["wsgi.input"].read()
    declared = environ.get("CONTENT_LENGTH")
    if declared and len(body) != int(declared):
        raise ValueError("the body was cut short")
    if declared and "HTTP_TRANSFER_ENCODING" in environ:
        raise ValueError("the body's length is said twice")
    fields = {
        key: value for key, value in environ.items() if key.startswith("HTTP_") and key not in _OWN
    }
    method = environ["REQUEST_METHOD"]
    understood = [
        method,
        environ["SCRIPT_NAME"],
        environ["PATH_INFO"],
        environ.get("QUERY_STRING", ""),
        environ["SERVER_PROTOCOL"],
        environ.get("CONTENT_TYPE", ""),
        sorted(fields.items()),
        len(body),
        hashlib.sha256(body).hexdigest(),
    ]
    data = json.dumps(understood).encode()
    headers = [
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(data))),
        ("X-Method", "HEAD" if method == "HEAD" else "other"),
    ]
    start_response("200 OK", headers)
    return [data]


async def asgi_app(scope: Any, receive: Any, send: Any) -> None:
    """Do the same for ASGI."""
    if scope["type"] != "http":
        raise ValueError(f"{scope['type']} is not spoken here")
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    data = json.dumps(
        [
            scope["method"],
            scope["root_path"],
            scope["path"],
            scope["query_string"].decode("latin-1"),
            scope["http_version"],
            [[name.decode("latin-1"), value.decode("latin-1")] for name, value in scope["headers"]],
            len(body),
            hashlib.sha256(body).hexdigest(),
        ]
    ).encode()
    method = b"HEAD" if scope["method"] == "HEAD" else b"other"
    headers = [(b"content-length", b"%d" % len(data)), (b"x-method", method)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": data})
