"""Streams: large blocks, small lines, and slow events that nobody may hold back.

    locust -f loadtests/locustfiles/streams.py -H http://127.0.0.1:8002 -u 3

The rows called "first byte" show when a stream's first bytes arrived: for the events that must be
at once, although the whole takes a second.
"""

from __future__ import annotations

from locust import constant, task

from loadtests.downloads import DownloadUser
from loadtests.shapes import SHAPES


class Streams(DownloadUser):
    """Each kind of stream."""

    host = "http://127.0.0.1:8001"
    wait_time = constant(0)

    @task(3)
    def blocks(self) -> None:
        self.download("/stream", expected=SHAPES["stream"].size, first_byte=True)

    @task(3)
    def lines(self) -> None:
        self.download("/rows", expected=SHAPES["rows"].size, first_byte=True)

    @task(1)
    def events(self) -> None:
        self.download("/ticks", expected=SHAPES["ticks"].size, first_byte=True)
