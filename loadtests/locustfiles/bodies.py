"""Payload shapes, right and wrong, at the field report's 688,128 bytes and at 10 MiB.

    locust -f loadtests/locustfiles/bodies.py -H http://127.0.0.1:8002 --tags report

Raw, many of them fail: that is what servers do with them. A list of one-byte chunks takes seconds
raw, so its 10 MiB are left out.
"""

from __future__ import annotations

from collections.abc import Callable

from locust import constant, tag, task

from loadtests.downloads import DownloadUser
from loadtests.shapes import FILE_BYTES, REPORT_BYTES

HOST = "http://127.0.0.1:8001"
RESCUED = ("str", "bytes", "bytearray", "memoryview", "str-list", "memoryview-list")
WHOLE = ("whole", "undeclared")
CHUNKED = ("list-of-100", "rows", "bytesio")
CRUMBS = ("list-of-1", "generator-of-1")


def _download(shape: str, size: int) -> Callable[[DownloadUser], None]:
    def visit(user: DownloadUser) -> None:
        user.download(f"/{shape}/{size}", expected=size)

    return visit


class ReportSized(DownloadUser):
    """688,128 bytes, in every shape."""

    host = HOST
    wait_time = constant(0)
    tasks = [  # noqa: RUF012 - locust reads it from the class
        tag("report", shape)(task(_download(shape, REPORT_BYTES)))
        for shape in (*RESCUED, *WHOLE, *CHUNKED, *CRUMBS)
    ]


class TenMebibytes(DownloadUser):
    """10 MiB, in every shape but one-byte chunks."""

    host = HOST
    wait_time = constant(0)
    tasks = [  # noqa: RUF012
        tag("large", shape)(task(_download(shape, FILE_BYTES)))
        for shape in (*RESCUED, *WHOLE, *CHUNKED)
    ]
