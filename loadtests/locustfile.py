"""Define scenarios for Locust, with or without its web UI.

    gunicorn -k gthread --threads 4 -b 127.0.0.1:8001 loadtests.app:app       or :wrapped
    locust -f loadtests/locustfile.py -H http://127.0.0.1:8001 Shapes
    uvicorn --port 8003 loadtests.asgi_app:app                                or :fast, wrapped
    locust -f loadtests/locustfile.py -H http://127.0.0.1:8003 Asgi

Each task has the name of a body's shape as its tag (`--tags list-of-100`). Many shapes are invalid,
and fail without WSGIFast. By default, Locust is one Python process, which receives at most 2 GB/s,
or a few thousand small responses a second. `--processes -1` uses all cores. `--master` and
`--worker` use other machines.
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
    """A user that requests all shapes of bodies, right and wrong, in their default sizes."""

    host = "http://127.0.0.1:8001"
    wait_time = constant(0)
    tasks = [  # noqa: RUF012 - Locust reads this list from the class
        tag(name)(task(_visit(f"/{name}", shape.size)))
        for name, shape in SHAPES.items()
        if shape.size
    ]


class Asgi(DownloadUser):
    """A user of a Starlette app: a file, a stream of small messages, a small response."""

    host = "http://127.0.0.1:8003"
    wait_time = constant(0)
    tasks = {  # type: ignore[assignment]  # noqa: RUF012
        _visit(f"/file/{FILE_BYTES}.bin", FILE_BYTES): 1,
        _visit("/stream/1048576", 1048576): 1,
        _visit("/plain", 1024): 5,
    }
