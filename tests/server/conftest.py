"""The fixtures of the server's tests, each of which stands beside what it builds."""

from __future__ import annotations

from tests.server.connections import bench, clock
from tests.server.http2_peer import begin
from tests.server.outputs import content, file, in_quick_succession, make_near, near, tls
from tests.server.pools import harness, monitored
from tests.server.responses import ask
from tests.workers.bench import make_bench

__all__ = [
    "ask", "begin", "bench", "clock", "content", "file", "harness", "in_quick_succession",
    "make_bench", "make_near", "monitored", "near", "tls",
]  # fmt: skip
