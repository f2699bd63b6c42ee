"""A 10 MiB file returned in the ways that apps return files.

locust -f loadtests/locustfiles/files.py -H http://127.0.0.1:8002 -u 2
"""

from __future__ import annotations

from locust import constant, task

from loadtests.downloads import DownloadUser
from loadtests.shapes import FILE_BYTES


class Files(DownloadUser):
    """Each way in turn, as the weights have it."""

    host = "http://127.0.0.1:8001"
    wait_time = constant(0)

    @task
    def open_file(self) -> None:
        self.download("/file", expected=FILE_BYTES)

    @task
    def file_wrapper(self) -> None:
        self.download("/file-wrapper", expected=FILE_BYTES)

    @task
    def server_wrapper(self) -> None:
        self.download("/server-wrapper", expected=FILE_BYTES)

    @task
    def bytes_io(self) -> None:
        self.download("/bytesio", expected=FILE_BYTES)
