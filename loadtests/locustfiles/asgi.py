"""A Starlette app on uvicorn: a file, a stream of crumbs, and a small answer.

python -m loadtests.serving uvicorn loadtests.asgi_shapes:app 8003
python -m loadtests.serving uvicorn loadtests.asgi_shapes:wrapped 8004
locust -f loadtests/locustfiles/asgi.py -H http://127.0.0.1:8004 -u 2
"""

from __future__ import annotations

from locust import constant, task

from loadtests.asgi_shapes import CRUMBS_BYTES
from loadtests.downloads import DownloadUser
from loadtests.shapes import FILE_BYTES, SMALL_BYTES


class Asgi(DownloadUser):
    """Each in turn, as the weights have it."""

    host = "http://127.0.0.1:8003"
    wait_time = constant(0)

    @task
    def file(self) -> None:
        self.download("/file", expected=FILE_BYTES)

    @task
    def crumbs(self) -> None:
        self.download("/crumbs", expected=CRUMBS_BYTES)

    @task(5)
    def small(self) -> None:
        self.download("/small", expected=SMALL_BYTES)
