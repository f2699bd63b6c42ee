"""Small answers on connections that stay open.

locust -f loadtests/locustfiles/keepalive.py -H http://127.0.0.1:8002 -u 8 --processes 2
"""

from __future__ import annotations

from locust import constant, task

from loadtests.downloads import DownloadUser
from loadtests.shapes import SMALL_BYTES


class SmallAnswers(DownloadUser):
    """512 bytes, with a Content-Length; and a small generator, as a template is rendered."""

    host = "http://127.0.0.1:8001"
    wait_time = constant(0)

    @task(4)
    def small(self) -> None:
        self.download("/small", expected=SMALL_BYTES)

    @task(1)
    def page(self) -> None:
        self.download("/rows/4096", expected=4096)
