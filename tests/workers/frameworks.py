"""Small apps of real frameworks, written as in their documentation."""

from __future__ import annotations

import os
import sqlite3
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import django.conf
import django.core.handlers.wsgi
import django.http
import django.urls
import django.views.decorators.csrf
import falcon
import flask

_database = Path(tempfile.gettempdir(), f"wsgifast-{os.getppid()}.sqlite")

flask_app = flask.Flask(__name__)


@flask_app.post("/upload")
def upload() -> str:
    stored = flask.request.files["file"].read()
    return f"{len(stored)} {flask.request.form['name']}"


@flask_app.get("/stream")
def stream() -> flask.Response:
    def lines() -> Iterator[str]:
        for number in range(1000):
            yield f"{number} {flask.request.args['word']}\n"

    return flask.Response(flask.stream_with_context(lines()))


BURST = [f"line {number}\n" for number in range(1000)]
_go = threading.Event()


def burst() -> Iterator[str]:
    """Send lines in quick succession, and then nothing until a client requests /go."""
    _go.clear()
    yield from BURST
    _go.wait(60)
    yield "end"


def go() -> str:
    _go.set()
    return "gone"


flask_app.get("/burst")(lambda: flask.Response(burst()))
flask_app.get("/go")(go)


@flask_app.get("/send")
def send() -> flask.Response:
    return flask.send_file(__file__, conditional=True)


class FalconResource:
    def on_post(self, req: Any, resp: Any) -> None:
        resp.media = {"got": req.media, "length": req.content_length}

    def on_get(self, req: Any, resp: Any) -> None:
        resp.stream = Path(__file__).open("rb")
        resp.content_length = Path(__file__).stat().st_size


falcon_app = falcon.App()
falcon_app.add_route("/", FalconResource())


django.conf.settings.configure(
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    SECRET_KEY="test",
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": str(_database),
            "CONN_MAX_AGE": None,  # a persistent connection for each thread
        }
    },
)
django.setup()


def insert(request: Any) -> Any:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT 7")
        (value,) = cursor.fetchone()
    raw: sqlite3.Connection = connection.connection
    return django.http.JsonResponse(
        {"value": value, "connection": id(raw), "thread": threading.get_ident()}
    )


def django_stream(request: Any) -> Any:
    from django.db import connection

    def rows() -> Iterator[bytes]:
        # The connection belongs to the thread: Django itself rejects another thread's connection.
        for number in range(50):
            with connection.cursor() as cursor:
                cursor.execute(f"SELECT {number}")
                yield b"%d\n" % cursor.fetchone()

    return django.http.StreamingHttpResponse(rows())


def echo(request: Any) -> Any:
    return django.http.HttpResponse(request.body)


def django_file(request: Any) -> Any:
    return django.http.FileResponse(Path(__file__).open("rb"))


urlpatterns = [
    django.urls.path("db", insert),
    django.urls.path("stream", django_stream),
    django.urls.path("file", django_file),
    django.urls.path("burst", lambda request: django.http.StreamingHttpResponse(burst())),
    django.urls.path("echo", django.views.decorators.csrf.csrf_exempt(echo)),
    django.urls.path("go", lambda request: django.http.HttpResponse(go())),
]
django_app = django.core.handlers.wsgi.WSGIHandler()
