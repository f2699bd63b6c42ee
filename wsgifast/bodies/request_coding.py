"""Request bodies that are compressed: decoded before the app sees the request."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from ..compression.decoding import RefusedBody, request_decoder
from ..http.head import parse_length

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

_READ_BYTES = 64 * 1024


def decode_request(environ: WSGIEnvironment, max_bytes: int) -> RefusedBody | None:
    """Put the decoded body, and its length, in place of a request's own.

    It is decoded ahead of the app: most frameworks read as many bytes as CONTENT_LENGTH says.

    :param environ: has HTTP_CONTENT_ENCODING.
    :param max_bytes: of the decoded body, which is in memory.
    :returns: why the request is to be refused.
    """
    try:
        decoder = request_decoder(environ["HTTP_CONTENT_ENCODING"], max_bytes)
        if decoder is None:
            return None
        decoded = io.BytesIO()
        read = environ["wsgi.input"].read
        missing = parse_length(environ.get("CONTENT_LENGTH") or "")
        if missing is None:
            missing = -1 if environ.get("wsgi.input_terminated") else 0
        while missing:
            block = read(_READ_BYTES if missing < 0 else min(_READ_BYTES, missing))
            if not block:
                break
            missing -= len(block) if missing > 0 else 0
            for piece in decoder.decode(block):
                decoded.write(piece)
        decoder.end()
    except RefusedBody as refused:
        return refused
    environ["CONTENT_LENGTH"] = str(decoded.tell())
    decoded.seek(0)
    environ["wsgi.input"] = decoded
    environ["wsgi.input_terminated"] = True
    for name in ("HTTP_CONTENT_ENCODING", "HTTP_TRANSFER_ENCODING", "HTTP_CONTENT_LENGTH"):
        environ.pop(name, None)
    return None
