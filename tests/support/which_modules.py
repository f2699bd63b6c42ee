"""An app that tells where its server's modules are from."""

from __future__ import annotations

from typing import Any

from wsgifast.server import server


def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    body = server.__file__.encode()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]
