"""The response on a stream that hooks and loggers get; see :mod:`wsgifast.server.open_response`."""

from __future__ import annotations

from .response import HTTP2Response


class OpenHTTP2Response(HTTP2Response):
    """A :class:`.HTTP2Response` that takes what others add to it."""
