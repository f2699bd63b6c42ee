"""A Django project in one file. Its last line adds wsgifast.

gunicorn -k gthread --threads 4 examples.django_app:app
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import FileResponse, HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import path

from wsgifast import WSGIFast

settings.configure(
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["localhost", "127.0.0.1"],
    SECRET_KEY="an example keeps no secrets",
    MIDDLEWARE=["django.middleware.http.ConditionalGetMiddleware"],
)


def index(request: HttpRequest) -> HttpResponse:
    return HttpResponse("<h1>Grüße</h1>")


def download(request: HttpRequest) -> FileResponse:
    """Send a file. Django passes it to the server's wsgi.file_wrapper, or reads 4 KiB at a time."""
    return FileResponse(Path(__file__).open("rb"), content_type="text/x-python")


def report(request: HttpRequest) -> StreamingHttpResponse:
    """Send a generator with a chunk for each row."""

    def rows() -> Iterator[str]:
        for row in range(20_000):
            yield f"{row},{row * row}\n"

    return StreamingHttpResponse(rows(), content_type="text/csv")


urlpatterns = [
    path("", index),
    path("download", download),
    path("report.csv", report),
]

app = WSGIFast(get_wsgi_application(), coalesce=True)
