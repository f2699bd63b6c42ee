"""Django's static files and downloads: wsgifast.django beside WhiteNoise, ServeStatic and Django.

    python -m loadtests.django_files [static | wsgi | asgi | start] [--profile release]

gunicorn, one process, four threads; uvicorn, one process. The same project each time, with another
middleware or another application around it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .bench import (
    BYTES,
    REQUESTS,
    Client,
    Contender,
    Load,
    Row,
    Server,
    Table,
    Task,
    gunicorn,
    raw,
    wrk,
)
from .command import main
from .peers import FAST, uvicorn
from .shapes import FILE_BYTES, LARGE_FOLDER_VARIABLE, PAYLOADS, payload_file, payload_files
from .static_files import MILLISECONDS

__all__ = ["TABLES", "asgi", "fast_asgi", "wsgi"]

MIDDLEWARE = {
    "WhiteNoise": "whitenoise.middleware.WhiteNoiseMiddleware",
    "ServeStatic": "servestatic.middleware.ServeStaticMiddleware",
    "ours": "wsgifast.django.StaticFilesMiddleware",
}
MANY_FILES = 10_000


def configure(middleware: str, root: str) -> None:
    """Make the project's settings."""
    from django.conf import settings

    settings.configure(
        ALLOWED_HOSTS=["*"],
        INSTALLED_APPS=["django.contrib.staticfiles"],
        MIDDLEWARE=["django.middleware.security.SecurityMiddleware", MIDDLEWARE[middleware]],
        ROOT_URLCONF="loadtests.django_files",
        SECRET_KEY="a load test keeps no secrets",
        STATIC_ROOT=root,
        STATIC_URL="/static/",
    )


def wsgi(middleware: str = "ours", root: str = str(PAYLOADS), *, wrapped: bool = False) -> Any:
    """Django's WSGI application with a middleware, or ours."""
    import django.core.wsgi

    configure(middleware, root)
    if wrapped:
        from wsgifast.django import get_wsgi_application

        return get_wsgi_application()
    return django.core.wsgi.get_wsgi_application()


def asgi() -> Any:
    """Django's own ASGI application, with WhiteNoise."""
    import django.core.asgi

    configure("WhiteNoise", str(PAYLOADS))
    return django.core.asgi.get_asgi_application()


def fast_asgi() -> Any:
    """Ours, with our middleware."""
    configure("ours", str(PAYLOADS))
    from wsgifast.django import get_asgi_application

    return get_asgi_application()


def file(request: object) -> Any:
    """A download."""
    from django.http import FileResponse

    return FileResponse(payload_file(FILE_BYTES).open("rb"))


def large(request: object, size: int) -> Any:
    """A download of a file of the run."""
    from django.http import FileResponse

    return FileResponse(Path(os.environ[LARGE_FOLDER_VARIABLE], f"{size}.bin").open("rb"))


def lines(request: object) -> Any:
    """An export: a generator of 1,000 lines."""
    from django.http import StreamingHttpResponse

    def made() -> Iterator[str]:
        for number in range(1000):
            yield f"{number},the price of it,{number * 7}\n"

    return StreamingHttpResponse(made(), content_type="text/csv")


def export(request: object) -> Any:
    """A large export: a generator of half a megabyte."""
    from django.http import StreamingHttpResponse

    return StreamingHttpResponse((f"{n:999}\n" for n in range(500)), content_type="text/csv")


def page(request: object) -> Any:
    """A small page."""
    from django.http import HttpResponse

    return HttpResponse("<h1>page</h1>" * 40)


def __getattr__(name: str) -> Any:
    if name == "urlpatterns":
        from django.urls import path

        return [
            path("file", file),
            path("large/<int:size>", large),
            path("lines", lines),
            path("export", export),
            path("page", page),
        ]
    raise AttributeError(name)


NAME = "loadtests.django_files"


def _static(path: str) -> tuple[Contender, ...]:
    beside = [Contender(n, gunicorn(f"{NAME}:wsgi({n!r})"), path) for n in MIDDLEWARE]
    fast = gunicorn(f"{NAME}:wsgi(wrapped=True)", worker_class=FAST)
    return (*beside, Contender("ours, FastWorker", fast, path))


def _sides(key: str, raw_server: Server, ours: Server) -> list[Row]:
    cases: list[tuple[str, str, Any, Client]] = [
        ("file", "FileResponse, 10 MiB", BYTES, raw()),
        ("lines", "a generator of 1,000 lines", REQUESTS, raw()),
        ("page", "a small page", REQUESTS, wrk(8)),
    ]
    return [
        Row(
            f"django.{key}.{path}",
            f"{key}: {title}",
            (Contender("Django", raw_server, f"/{path}"), Contender("ours", ours, f"/{path}")),
            client,
            unit,
        )
        for path, title, unit, client in cases
    ]


_START_UP = """
import sys, time, warnings
warnings.simplefilter("ignore")
from loadtests.django_files import wsgi
import django.core.handlers.wsgi, django.contrib.staticfiles, whitenoise.middleware
import servestatic.middleware, wsgifast.files.site
start = time.perf_counter()
wsgi(*sys.argv[1:])
print(time.perf_counter() - start)
"""


def _start_up(middleware: str) -> Client:
    """Seconds to make the application in a process of its own."""

    def run(task: Task) -> Load:
        command = [sys.executable, "-c", _START_UP, middleware, str(task.folder)]
        ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        return Load(1, 0, 0, float(ran.stdout))

    return run


def prepare_tree(folder: Path) -> None:
    for number in range(MANY_FILES):
        path = folder / str(number // 1000) / f"{number % 1000}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * 1024)


ROWS = [
    Row("django.static.small", "static file, 1 KiB", _static("/static/1024.bin"), wrk(8)),
    Row(
        "django.static.large", "static file, 10 MiB",
        _static(f"/static/{FILE_BYTES}.bin"), raw(), BYTES,
    ),
    *_sides(
        "wsgi", gunicorn(f"{NAME}:wsgi()"),
        gunicorn(f"{NAME}:wsgi(wrapped=True)", worker_class=FAST),
    ),
    *_sides(
        "asgi", uvicorn(f"{NAME}:asgi", "--factory"),
        uvicorn(f"{NAME}:fast_asgi", "--factory", ours=True),
    ),
]  # fmt: skip
STARTS = [
    Row(
        "django.start", f"start with {MANY_FILES:,} files",
        tuple(Contender(name, client=_start_up(name)) for name in MIDDLEWARE),
        _start_up("ours"), MILLISECONDS, http=False,
    )
]  # fmt: skip
TABLES = [
    Table("django-files", "Django", ROWS, payload_files(1024, FILE_BYTES)),
    Table("django-start", "Django's start", STARTS, prepare_tree),
]

if __name__ == "__main__":
    raise SystemExit(main(NAME, __doc__, TABLES))
