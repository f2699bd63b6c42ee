"""An app to measure: a page, a list of small chunks, a file, and unusable responses."""

from __future__ import annotations

import gzip
import itertools
import os
from typing import Any

ELSEWHERE = "http://192.0.2.1/"  # no machine has this address (RFC 5737)
_GZIP = ("Content-Encoding", "gzip")
_numbers = itertools.count()


def app(environ: Any, start_response: Any) -> Any:
    path = environ["PATH_INFO"]
    if path == "/away":
        start_response("302 Found", [("Location", ELSEWHERE), ("Content-Length", "0")])
        return []
    if path == "/none" or (path == "/secret" and "HTTP_COOKIE" not in environ):
        start_response("404 Not Found", [("Content-Length", "0")])
        return []
    if path == "/coded":
        body, headers = b"a body" * 100, []
        if "gzip" in environ.get("HTTP_ACCEPT_ENCODING", ""):
            # Each response has a different time in its headers.
            body, headers = gzip.compress(body, mtime=next(_numbers)), [_GZIP]
        start_response("200 OK", headers)
        return [body]
    length = [("Content-Length", "6")] if path == "/" else []
    start_response("200 OK", [("Content-Type", "text/plain"), *length])
    if path == "/crumbs":
        return [b"x"] * 2000
    if path == "/str":
        return "a str"
    if path == "/new":
        return [b"%d" % next(_numbers)]
    if path == "/process":
        return [b"%d" % os.getpid()]
    if path == "/read":  # the kind, the length and the end of a POST's body
        body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        kind = environ.get("CONTENT_TYPE", "").partition(";")[0]
        return [f"{kind} {len(body)} {body.count(bytes(100))} {body[-13:]!r}".encode()]
    if path == "/bodiless":  # the headers that frame the body of a request
        return [
            environ.get(key, "").encode() for key in ("HTTP_TRANSFER_ENCODING", "CONTENT_LENGTH")
        ]
    if path == "/forever":
        return itertools.repeat(b"x")
    return [b"a page"]
