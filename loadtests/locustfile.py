"""Scenarios for Locust itself, web UI included.

    gunicorn -k gthread --threads 4 -b 127.0.0.1:8001 loadtests.app:app       or :wrapped
    locust -f loadtests/locustfile.py -H http://127.0.0.1:8001 Shapes
    uvicorn --port 8003 loadtests.asgi_app:app                                or :fast, wrapped
    locust -f loadtests/locustfile.py -H http://127.0.0.1:8003 Asgi

Each body has its shape's name as a tag (`--tags list-of-100`). Raw, many of them fail, as they do
on servers. Locust is one Python process. Past some 2 GB/s, or a few thousand small responses a
second, the client is the limit. `--processes -1` uses every core, `--master` and `--worker` other
machines.
"""

from __future__ import annotations

from collections.abc import Callable

from locust import constant, tag, task

from loadtests.app import SHAPES
from loadtests.payloads import FILE_BYTES
from wsgifast.commands.bench.locust_process import DownloadUser


def _visit(path: str, size: int) -> Callable[[DownloadUser], None]:
    def visit(user: DownloadUser) -> None:
        user.download(path, expected=size)

    return visit


class Shapes(DownloadUser):
    """Every shape of a body, right and wrong, at its own size."""

    host = "http://127.0.0.1:8001"
    wait_time = constant(0)
    tasks = [  # noqa: RUF012 - locust reads it from the class
        tag(name)(task(_visit(f"/{name}", shape.size)))
        for name, shape in SHAPES.items()
        if shape.size
    ]


class Asgi(DownloadUser):
    """A Starlette app: a file, a stream of crumbs, and a small response."""

    host = "http://127.0.0.1:8003"
    wait_time = constant(0)
    tasks = {  # type: ignore[assignment]  # noqa: RUF012
        _visit(f"/file/{FILE_BYTES}.bin", FILE_BYTES): 1,
        _visit("/stream/1048576", 1048576): 1,
        _visit("/plain", 1024): 5,
    }
