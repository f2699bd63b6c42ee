"""Bodies in Django's responses: unwrapped, closed once, and otherwise unchanged."""

from __future__ import annotations

import io
import threading
import wsgiref.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.bodies.wrapped import CONTENT, Source, check, closed
from tests.support import django_project
from tests.support.wsgi import Server, new_environ
from wsgifast import WSGIFast
from wsgifast.bodies.files import SegmentedBody
from wsgifast.sockets import FileSegment

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication


@pytest.fixture(autouse=True, scope="module")
def data() -> Path:
    return django_project.set_up()


def django_app(make: Callable[[], Any]) -> WSGIApplication:
    from django.core.handlers.wsgi import WSGIHandler

    class Handler(WSGIHandler):
        def get_response(self, request: object) -> Any:
            response = make()
            response._resource_closers.append(lambda: closed.append("first"))
            response._resource_closers.append(lambda: closed.append(threading.get_ident()))
            return response

    return Handler()


def test_django_page_is_sent_whole() -> None:
    from django.http import HttpResponse, JsonResponse

    check(django_app(lambda: HttpResponse("page")), "as-is")
    check(django_app(lambda: HttpResponse(str(n) for n in range(9))), "as-is")
    check(django_app(lambda: JsonResponse({"a": 1})), "as-is")
    check(django_app(lambda: HttpResponse("page")), "no-body", method="HEAD")

    def written() -> Any:
        response = HttpResponse("a")
        response.write("b")
        return response

    check(django_app(written), "joined")


def test_django_template_response_is_sent_rendered() -> None:
    from django.template import engines
    from django.template.response import TemplateResponse

    def make() -> Any:
        template = engines["django"].from_string("{{ name }}")
        return TemplateResponse(None, template, {"name": "zwölf"}).render()

    server = check(django_app(make), "as-is")
    assert b"".join(server.sent) == "zwölf".encode()


def test_django_stream_is_sent_as_it_comes(path: Path) -> None:
    from django.http import FileResponse, StreamingHttpResponse

    check(django_app(lambda: StreamingHttpResponse(["a", b"b"])), "joined")
    lines = django_app(lambda: StreamingHttpResponse(Source(str(n) for n in range(99))))
    check(lines, "stream-small")
    assert closed[0] == "source"
    check(django_app(lambda: StreamingHttpResponse(path.open("rb"))), "file")
    wrapped = django_app(lambda: StreamingHttpResponse(wsgiref.util.FileWrapper(path.open("rb"))))
    check(wrapped, "file")
    for wrapper, sent_as in (wsgiref.util.FileWrapper, "file"), (None, "blocks"):
        for make in (
            lambda: FileResponse(path.open("rb")),
            lambda: FileResponse(io.BytesIO(CONTENT)),
        ):
            check(django_app(make), sent_as, server_wrapper=wrapper)


def test_django_looks_up_no_charset_for_each_chunk() -> None:
    from django.http import StreamingHttpResponse
    from django.utils.safestring import mark_safe

    class Bytes(bytes):
        pass

    chunks = ["zwölf", mark_safe("zwölf"), b"bytes", Bytes(b"more"), memoryview(b"view"), 7]
    types: list[str | None] = ["text/csv", "text/csv; charset=latin-1", None]
    for content_type in types:

        def make(content_type: str | None = content_type) -> Any:
            return StreamingHttpResponse((c for c in chunks), content_type=content_type)

        check(django_app(make), "stream-small")
    requested: list[object] = []

    class Counted(StreamingHttpResponse):
        @property
        def charset(self) -> Any:
            requested.append(self)
            return super().charset

        @charset.setter
        def charset(self, value: str) -> None: ...

    app = django_app(lambda: Counted(("zwölf" for _ in range(99)), content_type="text/csv"))
    Server(WSGIFast(app), new_environ()).finish()
    assert len(requested) == 1


def test_django_model_files_are_sent_as_they_wrap(path: Path) -> None:
    from django.core.files.storage import FileSystemStorage
    from django.http import FileResponse

    def make() -> Any:
        return FileResponse(FileSystemStorage(path.parent).open(path.name))

    for wrapper, sent_as in (wsgiref.util.FileWrapper, "file"), (None, "blocks"):
        server = check(django_app(make), sent_as, server_wrapper=wrapper)
        assert server.header("ETag") is not None


def test_several_ranges_behind_django_stay_file_runs(path: Path) -> None:
    from django.http import StreamingHttpResponse

    def make(begun: bool = False) -> Any:
        file = path.open("rb")
        runs = [FileSegment(file.fileno(), 10, 20), FileSegment(file.fileno(), 90_000, 30)]
        response = StreamingHttpResponse(SegmentedBody([b"<", runs[0], b"|", runs[1]], file.close))
        response._resource_closers.append(lambda: closed.append(file.closed))
        if begun:
            next(iter(response))
        return response

    server = check(django_app(make), "segments")
    assert closed[0] is True
    assert b"".join(server.sent) == b"<" + CONTENT[10:30] + b"|" + CONTENT[90_000:90_030]
    assert isinstance(server.result, SegmentedBody)
    check(django_app(make), "no-body", method="HEAD")
    check(django_app(lambda: make(begun=True)), "stream-small")


def test_django_subclasses_with_own_iteration_stay(path: Path) -> None:
    from django.http import FileResponse, HttpResponse, StreamingHttpResponse

    class Iterated(HttpResponse):
        def __iter__(self) -> Iterator[bytes]:
            return (chunk.upper() for chunk in super().__iter__())

    class Made(StreamingHttpResponse):
        def make_bytes(self, value: Any) -> Any:
            return super().make_bytes(value).upper()

    class Streamed(FileResponse):
        @property
        def streaming_content(self) -> Any:
            return map(bytes.upper, super().streaming_content)

        @streaming_content.setter
        def streaming_content(self, value: Any) -> None:
            self._set_streaming_content(value)

    check(django_app(lambda: Iterated("page")), "stream")
    check(django_app(lambda: Made(["a", "b"])), "stream-small")
    server = check(django_app(lambda: Made(path.open("rb"))), "stream-small")
    assert b"".join(server.sent) == CONTENT.upper()
    check(django_app(lambda: Streamed(path.open("rb"))), "stream-blocks", server_wrapper=None)
