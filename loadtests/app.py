"""An app that makes every mistake: each shape of body under its own URL.

/NAME sends the shape at its own size, /NAME/BYTES at another, / lists them all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from wsgifast import WSGIFast

from .shapes import SHAPES

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

__all__ = ["app", "wrapped"]

# /bytes/NUMBER comes from a URL: no request may make the app allocate more than this.
MAX_BYTES = 256 * 1024 * 1024


def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """Return the body that the path names, in its shape, right or wrong."""
    name, _, digits = environ.get("PATH_INFO", "").lstrip("/").partition("/")
    shape = SHAPES.get(name)
    sized = not digits or (digits.isascii() and digits.isdigit() and int(digits) <= MAX_BYTES)
    if shape is None or not sized:
        status = "404 Not Found" if name else "200 OK"
        listing = "".join(f"/{s.name:<16} {s.size:>10} bytes  {s.text}\n" for s in SHAPES.values())
        start_response(status, [("Content-Type", "text/plain")])
        return [listing.encode()]
    size = int(digits) if digits else shape.size
    kind = "text/plain" if name in ("str", "str-list", "rows") else "application/octet-stream"
    headers = [("Content-Type", "text/event-stream" if name == "ticks" else kind)]
    if shape.declared:
        headers.append(("Content-Length", str(size)))
    start_response("200 OK", headers)
    # That it may be no iterable of bytes is the point.
    return cast("Iterable[bytes]", shape.make(environ, size))


wrapped = WSGIFast(app)
