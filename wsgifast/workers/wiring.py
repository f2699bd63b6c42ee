"""What the core is told of a worker's attributes and of gunicorn's settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..server.connection import Limits
from ..server.disk import DiskThreads
from ..server.disk_budget import DiskBudget
from ..server.output_memory import OutputMemory
from ..server.output_rules import Coalescing, OutputRules
from .gunicorn_parser import GunicornParser
from .gunicorn_support import Settings

__all__ = ["limits", "output_rules", "parsers"]


def limits(worker: Any, settings: Settings) -> Limits:
    """What a client may take of the worker."""
    # gunicorn takes what is not positive for its own limit.
    line_bytes = settings.limit_request_field_size
    fields = settings.limit_request_fields
    return Limits(
        is_tls=settings.is_ssl,
        buffer_bodies=worker.buffer_bodies,
        body_memory_bytes=worker.body_memory_bytes,
        body_limit_bytes=worker.body_limit_bytes,
        body_timeout_s=worker.body_timeout_s,
        head_timeout_s=worker.head_timeout_s,
        trailer_line_bytes=line_bytes if line_bytes > 0 else 8190,
        trailer_fields=fields if fields > 0 else 32768,
    )


def output_rules(worker: Any, settings: Settings, coalescing: Coalescing) -> OutputRules:
    """How responses are sent."""

    def on_disk_error(error: BaseException) -> None:
        worker.log.error("Error in a disk thread", exc_info=error)

    return OutputRules(
        ahead_bytes=worker.output_ahead_bytes,
        timeout_s=worker.send_timeout_s,
        least_bytes_per_s=worker.send_least_bytes_per_s,
        sendfile=settings.sendfile is not False,
        response_on_disk_bytes=worker.response_on_disk_bytes,
        memory=OutputMemory(
            worker.output_memory_bytes,
            DiskBudget(worker.responses_on_disk_bytes),
            worker.log.warning,
        ),
        disk=DiskThreads(on_disk_error),
        coalescing=coalescing,
    )


def parsers(worker: Any, settings: Settings) -> Callable[[Any], GunicornParser]:
    """The parser of a peer's requests, by its address."""
    plain = GunicornParser(settings, trusted=False, checks_host=worker.check_host)
    trusted = GunicornParser(
        settings.for_trusted_peers(), trusted=True, checks_host=worker.check_host
    )
    return lambda peer: trusted if settings.trusts(peer) else plain
