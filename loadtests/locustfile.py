"""Scenarios for Locust itself, web UI included.

    gunicorn -k gthread --threads 4 -b 127.0.0.1:8001 loadtests.app:app       or :wrapped
    locust -f loadtests/locustfile.py -H http://127.0.0.1:8001 Bodies Files Streams Small
    uvicorn --port 8003 loadtests.asgi_app:app                                or :fast, wrapped
    locust -f loadtests/locustfile.py -H http://127.0.0.1:8003 Asgi

Each body has its shape's name as a tag (`--tags list-of-100`). Raw, many of them fail: that is what
servers do with them. Locust is one Python process: past some 2 GB/s, or a few thousand small
answers a second, the client is what is measured; `--processes -1` uses every core, `--master` and
`--worker` other machines.
"""

from __future__ import annotations

from collections.abc import Callable

from locust import constant, tag, task

from loadtests.app import SHAPES
from loadtests.payloads import FILE_BYTES, REPORT_BYTES
from wsgifast.benchmark.downloads import DownloadUser

HOST = "http://127.0.0.1:8001"
# A list of one-byte chunks takes seconds raw: of these there are no 10 MiB.
CRUMBS = ("list-of-1", "generator-of-1")
BODIES = (
    *("str", "bytes", "bytearray", "memoryview", "str-list", "memoryview-list"),
    *("whole", "undeclared", "list-of-100", "rows", "bytesio"),
)


def _visit(path: str, size: int, *, first_byte: bool = False) -> Callable[[DownloadUser], None]:
    def visit(user: DownloadUser) -> None:
        user.download(path, expected=size, first_byte=first_byte)

    return visit


def _shape(name: str, size: int) -> Callable[[DownloadUser], None]:
    return tag(name)(task(_visit(f"/{name}/{size}", size)))


class _User(DownloadUser):
    abstract = True
    host = HOST
    wait_time = constant(0)


class Bodies(_User):
    """Payload shapes, right and wrong, at the field report's 688,128 bytes and at 10 MiB."""

    tasks = [  # noqa: RUF012 - locust reads it from the class
        *(_shape(name, REPORT_BYTES) for name in (*BODIES, *CRUMBS)),
        *(_shape(name, FILE_BYTES) for name in BODIES),
    ]


class Files(_User):
    """A 10 MiB file returned in the ways that apps return files."""

    tasks = [  # noqa: RUF012
        _shape(name, FILE_BYTES) for name in ("file", "file-wrapper", "server-wrapper", "bytesio")
    ]


class Streams(_User):
    """Large blocks, small lines, and slow events that nobody may hold back.

    The rows called "first byte" show when a stream's first bytes arrived: for the events that must
    be at once, although the whole takes a second.
    """

    tasks = {  # type: ignore[assignment]  # noqa: RUF012
        _visit(f"/{name}", SHAPES[name].size, first_byte=True): weight
        for name, weight in (("stream", 3), ("rows", 3), ("ticks", 1))
    }


class Small(_User):
    """Small answers on connections that stay open: with a length, and from a small generator."""

    tasks = {_visit("/small", 512): 4, _visit("/rows/4096", 4096): 1}  # type: ignore[assignment]  # noqa: RUF012


class Asgi(_User):
    """A Starlette app: a file, a stream of crumbs, and a small answer."""

    host = "http://127.0.0.1:8003"
    tasks = {  # type: ignore[assignment]  # noqa: RUF012
        _visit(f"/file/{FILE_BYTES}.bin", FILE_BYTES): 1,
        _visit("/stream/1048576", 1048576): 1,
        _visit("/plain", 1024): 5,
    }
