"""Django's static files and downloads: wsgifast.django beside WhiteNoise, ServeStatic and Django.

    python -m loadtests.django_files [static | wsgi | asgi | start] [--profile release]

gunicorn, one process, four threads; uvicorn, one process. The same project each time, with another
middleware or another application around it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from .bench import (
    BYTES,
    REQUESTS,
    Case,
    Client,
    Contender,
    Row,
    Table,
    case_rows,
    gunicorn,
    raw,
    wrk,
)
from .command import main
from .peers import FAST, uvicorn
from .shapes import (
    FILE_BYTES,
    LARGE_FOLDER_VARIABLE,
    PAYLOADS,
    payload_file,
    payload_files,
    table_lines,
)
from .static_files import MILLISECONDS, start_up

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

    return StreamingHttpResponse(table_lines(), content_type="text/csv")


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


CASES: list[Case] = [
    ("file", "FileResponse, 10 MiB", "/file", BYTES, raw()),
    ("lines", "a generator of 1,000 lines", "/lines", REQUESTS, raw()),
    ("page", "a small page", "/page", REQUESTS, wrk(8)),
]
_START_UP = """
import json, sys, time, warnings
warnings.simplefilter("ignore")
from loadtests.django_files import wsgi
import django.core.handlers.wsgi, django.contrib.staticfiles, whitenoise.middleware
import servestatic.middleware, wsgifast.files.site
start = time.perf_counter()
wsgi(*sys.argv[1:])
print(json.dumps([time.perf_counter() - start, {}]))
"""


def _start_up(middleware: str) -> Client:
    return start_up(_START_UP, lambda folder: (middleware, str(folder)))


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
    *case_rows(
        "django.wsgi", "wsgi",
        {"Django": gunicorn(f"{NAME}:wsgi()"),
         "ours": gunicorn(f"{NAME}:wsgi(wrapped=True)", worker_class=FAST)},
        CASES,
    ),
    *case_rows(
        "django.asgi", "asgi",
        {"Django": uvicorn(f"{NAME}:asgi", "--factory"),
         "ours": uvicorn(f"{NAME}:fast_asgi", "--factory", ours=True)},
        CASES,
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
