"""What the core is told of a worker's attributes and of gunicorn's settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..server.options import Options
from .attributes import ATTRIBUTES
from .gunicorn_parser import GunicornParser
from .gunicorn_support import Settings

__all__ = ["options", "parsers"]


def options(worker: Any, settings: Settings) -> Options:
    """The server's options."""
    # gunicorn takes what is not positive for its own limit.
    line_bytes = settings.limit_request_field_size
    fields = settings.limit_request_fields
    own = {name: getattr(worker, name) for name in ATTRIBUTES if name != "check_host"}
    return Options(
        threads=settings.threads,
        worker_connections=settings.worker_connections,
        keepalive_s=float(settings.keepalive),
        graceful_timeout_s=settings.graceful_timeout,
        # Not where each worker has its own listeners.
        has_siblings=settings.workers > 1 and not settings.reuse_port,
        sendfile=settings.sendfile is not False,
        trailer_line_bytes=line_bytes if line_bytes > 0 else 8190,
        trailer_fields=fields if fields > 0 else 32768,
        **own,
    )


def parsers(worker: Any, settings: Settings) -> Callable[[Any], GunicornParser]:
    """The parser of a peer's requests, by its address."""
    plain = GunicornParser(settings, trusted=False, checks_host=worker.check_host)
    trusted = GunicornParser(
        settings.for_trusted_peers(), trusted=True, checks_host=worker.check_host
    )
    return lambda peer: trusted if settings.trusts(peer) else plain
