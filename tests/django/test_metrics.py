"""Django's URL patterns as labels of metrics."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from django.core.wsgi import get_wsgi_application as djangos_own
from django.http import FileResponse, HttpResponse, StreamingHttpResponse
from django.test import override_settings
from django.urls import path as url
from gunicorn.http.wsgi import FileWrapper

from tests.asgi.support import call, scope_of
from tests.support.notes import Notes
from tests.support.wsgi import Server, new_environ
from wsgifast import WSGIFast
from wsgifast.django import get_asgi_application, get_wsgi_application


@pytest.fixture
def urls(tmp_path: Path) -> Any:
    file = tmp_path / "file.bin"
    file.write_bytes(b"x" * 100_000)
    module = ModuleType("urls")
    module.urlpatterns = [  # type: ignore[attr-defined]
        url("items/<int:number>", lambda request, number: HttpResponse(str(number))),
        url("files/<str:name>", lambda request, name: FileResponse(file.open("rb"))),
        url("lines/<int:count>", lambda request, count: StreamingHttpResponse(["x"] * count)),
    ]
    with override_settings(ROOT_URLCONF=module):
        yield


PATHS = {
    "/items/7": "items/<int:number>",
    "/files/a.bin": "files/<str:name>",
    "/lines/3": "lines/<int:count>",
    "/nowhere": None,
}


@pytest.mark.usefixtures("urls")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("wrapper", [None, FileWrapper])
@pytest.mark.parametrize("make", [djangos_own, get_wsgi_application])
def test_requests_under_wsgi_are_recorded_by_pattern(path: str, wrapper: Any, make: Any) -> None:
    notes = Notes()
    environ = new_environ(path=path, HTTP_HOST="localhost")
    if wrapper is not None:
        environ["wsgi.file_wrapper"] = wrapper
    Server(WSGIFast(make(), metrics=notes), environ).finish()
    assert [request.pattern for request in notes.requests] == [PATHS[path]]


@pytest.mark.usefixtures("urls")
@pytest.mark.parametrize("path", PATHS)
def test_requests_under_asgi_are_recorded_by_pattern(path: str) -> None:
    notes = Notes()
    app = get_asgi_application(metrics=notes)
    call(app, scope_of(path, host="localhost"), body=b"")
    assert [request.pattern for request in notes.requests] == [PATHS[path]]
