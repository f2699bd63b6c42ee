"""The fixtures of the server's tests. Each is defined beside the objects that it makes."""

from __future__ import annotations

from tests.server.connections import clock, stepped
from tests.server.http2_peer import begin
from tests.server.output_harness import content, file, in_quick_succession, make_near, near, tls
from tests.server.pool_harness import harness, monitored
from tests.server.responses import ask
from tests.workers.stepped_worker import make_stepped

__all__ = [
    "ask",
    "begin",
    "clock",
    "content",
    "file",
    "harness",
    "in_quick_succession",
    "make_near",
    "make_stepped",
    "monitored",
    "near",
    "stepped",
    "tls",
]  # fmt: skip
