"""From a worker's attributes and gunicorn's settings to the options of wsgifast.server."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import fields
from importlib.util import find_spec
from typing import Any

from ..checks import needs
from ..server.options import HTTP2Options, Options
from ..server.receiving import Parser
from ..sockets.client_limits import limits_of_environment
from .attributes import ATTRIBUTES
from .gunicorn_parser import GunicornParser
from .gunicorn_support import Settings

# A setting has 32 bits (RFC 9113 section 6.5.1).
_MOST_HTTP2_VALUE = 2**32 - 1
# Attributes of the worker that are options of the server.
_OF_THE_SERVER = [field.name for field in fields(Options) if field.name in ATTRIBUTES]


def options(worker: Any, settings: Settings) -> Options:
    """Return the server's options."""
    own = {name: getattr(worker, name) for name in _OF_THE_SERVER} | limits_of_environment()
    return Options(
        threads=settings.threads,
        worker_connections=settings.worker_connections,
        max_keepalived=settings.worker_connections - settings.threads,  # as gthread's
        max_requests=getattr(worker, "max_requests", sys.maxsize),  # with its jitter
        keepalive_s=float(settings.keepalive),
        graceful_timeout_s=settings.graceful_timeout,
        # Not where each worker has its own listeners.
        has_siblings=settings.workers > 1 and not settings.reuse_port,
        sendfile=settings.sendfile is not False,
        trailer_line_bytes=settings.most_field_bytes,
        trailer_fields=settings.most_fields,
        **own,
    )


def parsers(worker: Any, settings: Settings) -> Callable[[Any], Parser]:
    """Return a function that chooses the parser for a peer by its address."""
    checks_host = worker.check_host

    def make(settings: Settings, *, trusted: bool) -> Parser:
        parser = GunicornParser(settings, trusted=trusted, checks_host=checks_host)
        if not _uses_httptools(settings):
            return parser
        from .httptools_parser import HttptoolsParser

        return HttptoolsParser(settings, parser, trusted=trusted, checks_host=checks_host)

    plain = make(settings, trusted=False)
    trusted = make(settings.for_trusted_peers(), trusted=True)
    return lambda peer: trusted if settings.trusts(peer) else plain


def http2(settings: Settings) -> HTTP2Options:
    """Return the HTTP/2 settings that are sent to clients.

    :raises MissingExtra: if HTTP/2 is enabled, and h2 is not installed.
    """
    if "h2" in settings.http_protocols:
        with needs("HTTP/2 on FastWorker", "h2", "http2"):
            import h2  # noqa: F401
    return HTTP2Options(
        max_concurrent_streams=min(settings.http2_max_concurrent_streams, _MOST_HTTP2_VALUE),
        initial_window_bytes=settings.http2_initial_window_size,
        max_frame_bytes=settings.http2_max_frame_size,
        max_header_list_bytes=min(settings.http2_max_header_list_size, _MOST_HTTP2_VALUE),
        max_header_fields=settings.most_fields,
    )


def _uses_httptools(settings: Settings) -> bool:
    # A user who has set http_parser wants one of gunicorn's own.
    chosen = getattr(settings, "http_parser", "auto") != "auto"
    return not (chosen or settings.uses_uwsgi) and find_spec("httptools") is not None
