"""Django's responses under wsgifast.django's WSGI and ASGI applications."""

from __future__ import annotations

import asyncio
import gc
import gzip
import io
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import django
import pytest
from asgifast.messages import Message
from django.core.signals import request_finished
from django.http import FileResponse, HttpResponse, StreamingHttpResponse
from django.test import override_settings
from django.urls import path as url

from tests.asgi.support import call, scope_of
from tests.support.decoders import decoded
from tests.support.files import write_old, write_settled
from tests.support.wsgi import Server, new_environ
from wsgifast import compress_response
from wsgifast.django import get_asgi_application, get_wsgi_application

CONTENT = os.urandom(700_000)

# Return the response of a view: its status, headers in lower case, and body. The arguments may add
# headers.
Ask = Callable[..., tuple[int, dict[str, str], bytes]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_old(tmp_path / "file.bin", CONTENT)
    return tmp_path / "file.bin"


def settings_of(view: Callable[..., Any], middleware: Sequence[str] | None = None) -> Any:
    more = {} if middleware is None else {"MIDDLEWARE": middleware}
    urls = ModuleType("urls")
    urls.urlpatterns = [url("", view)]  # type: ignore[attr-defined]
    return override_settings(ROOT_URLCONF=urls, DEBUG_PROPAGATE_EXCEPTIONS=True, **more)


def ask_wsgi(
    view: Callable[..., Any],
    method: str = "GET",
    *,
    middleware: Sequence[str] | None = None,
    **headers: str,
) -> tuple[int, dict[str, str], bytes]:
    extra = {f"HTTP_{name.upper()}": value for name, value in headers.items()}
    with settings_of(view, middleware):
        environ = new_environ(method, HTTP_HOST="localhost", **extra)
        server = Server(get_wsgi_application(), environ)
        body = server.finish()
    return int(server.start[0][:3]), {k.lower(): v for k, v in server.start[1]}, body


def ask_asgi(
    view: Callable[..., Any],
    method: str = "GET",
    *,
    middleware: Sequence[str] | None = None,
    **headers: str,
) -> tuple[int, dict[str, str], bytes]:
    with settings_of(view, middleware):
        scope = scope_of("/", method, host="localhost", **headers)
        response = call(get_asgi_application(), scope, body=b"")
    return response.status, {k.lower(): v for k, v in response.headers}, response.body


@pytest.fixture(params=[ask_wsgi, ask_asgi])
def ask(request: pytest.FixtureRequest) -> Ask:
    requested: Ask = request.param
    return requested


def test_page_is_the_same(ask: Ask) -> None:
    status, headers, body = ask(lambda request: HttpResponse("page"))
    assert (status, headers["content-length"], body) == (200, "4", b"page")


def test_file_has_ranges_and_preconditions(ask: Ask, file: Path) -> None:
    def view(request: object) -> FileResponse:
        return FileResponse(file.open("rb"), as_attachment=True)

    status, headers, body = ask(view)
    assert (status, body) == (200, CONTENT)
    assert headers["content-length"] == str(len(CONTENT))
    assert headers["content-disposition"] == 'attachment; filename="file.bin"'
    status, received, body = ask(view, range="bytes=100-299999")
    assert (status, body) == (206, CONTENT[100:300_000])
    assert received["content-range"] == f"bytes 100-299999/{len(CONTENT)}"
    status, received, body = ask(view, range="bytes=0-9,500000-599999")
    assert (status, received["content-length"]) == (206, str(len(body)))
    assert CONTENT[500_000:600_000] in body
    assert ask(view, if_none_match=headers["etag"])[0] == 304
    assert ask(view, range="bytes=0-9", if_range='"other"')[0] == 200
    status, received, body = ask(view, "HEAD")
    assert (status, received["content-length"], body) == (200, str(len(CONTENT)), b"")


def test_several_static_ranges_are_sent_by_the_server(tmp_path: Path) -> None:
    write_old(tmp_path / "file.bin", CONTENT)
    ranges = "bytes=0-9,500000-599999"

    scope = scope_of("/static/file.bin", host="localhost", range=ranges)
    scope["extensions"] = {"http.response.zerocopysend": {}}
    body = b""

    def on_send(message: Message) -> None:
        nonlocal body
        if message["type"] == "http.response.zerocopysend":
            body += os.pread(message["file"].fileno(), message["count"], message["offset"])
        body += message.get("body", b"")

    with override_settings(STATIC_ROOT=tmp_path):
        messages = call(get_asgi_application(), scope, body=b"", on_send=on_send).messages
    length = dict(messages[0]["headers"])[b"Content-Length"]
    assert (messages[0]["status"], len(body)) == (206, int(length))
    sent = [message.get("count") for message in messages[1:]]
    assert sent == [None, 10, None, 100_000, None]
    assert CONTENT[500_000:600_000] in body


def test_file_read_from_is_sent_from_there(ask: Ask, file: Path) -> None:
    def view(request: object) -> FileResponse:
        opened = file.open("rb")
        opened.read(1000)
        return FileResponse(opened)

    def shorter(request: object) -> FileResponse:
        response = view(request)
        response["Content-Length"] = "5000"
        return response

    assert ask(view)[2] == CONTENT[1000:]
    assert ask(view, range="bytes=10-19")[2] == CONTENT[1010:1020]
    assert ask(shorter)[2] == CONTENT[1000:6000]
    assert ask(shorter, range="bytes=4990-")[2] == CONTENT[5990:6000]


def test_file_object_without_descriptor_is_whole(ask: Ask) -> None:
    packed = gzip.compress(CONTENT)
    for view in (
        lambda request: FileResponse(io.BytesIO(CONTENT)),
        lambda request: FileResponse(gzip.GzipFile(fileobj=io.BytesIO(packed))),
    ):
        status, _, body = ask(view)
        assert (status, body) == (200, CONTENT)


@pytest.mark.parametrize("status", [404, 299])
def test_status_of_the_view_stays(ask: Ask, file: Path, status: int) -> None:
    def view(request: object) -> FileResponse:
        return FileResponse(file.open("rb"), status=status)

    response = ask(view, range="bytes=0-1")
    assert (response[0], response[2]) == (status, CONTENT)


def test_cookies_and_middleware_stay(ask: Ask, file: Path) -> None:
    def view(request: object) -> FileResponse:
        response = FileResponse(file.open("rb"))
        response.set_cookie("name", "value")
        return response

    status, headers, _ = ask(view, range="bytes=0-1")
    assert status == 206
    assert headers["set-cookie"].strip().startswith("name=value")
    assert headers["x-frame-options"] == "DENY"


@pytest.mark.filterwarnings("error")
def test_middleware_that_wraps_the_content_stays(ask: Ask, file: Path) -> None:
    file.write_bytes(b"x" * 100_000)
    middleware = ["django.middleware.gzip.GZipMiddleware"]
    for make in (
        lambda request: FileResponse(file.open("rb")),
        lambda request: StreamingHttpResponse(b"x" * 1000 for _ in range(100)),
    ):
        _, headers, body = ask(make, middleware=middleware, accept_encoding="gzip")
        assert headers["content-encoding"] == "gzip"
        assert gzip.decompress(body) == b"x" * 100_000


@pytest.mark.parametrize("kind", ["file", "stream", "page"])
def test_response_is_closed_once_in_its_views_thread(ask: Ask, file: Path, kind: str) -> None:
    threads: list[int] = []
    finished: list[object] = []

    class Source:
        def __iter__(self) -> Iterator[bytes]:
            threads.append(threading.get_ident())
            yield b"block"
            threads.append(threading.get_ident())

        def close(self) -> None:
            threads.append(threading.get_ident())

    opened: list[Any] = []

    def view(request: object) -> Any:
        threads.append(threading.get_ident())
        opened.append(file.open("rb"))
        response = {
            "file": lambda: FileResponse(opened[0]),
            "stream": lambda: StreamingHttpResponse(Source()),
            "page": lambda: HttpResponse("page"),
        }[kind]()
        response._resource_closers.append(lambda: threads.append(threading.get_ident()))
        response._resource_closers.append(opened[0].close)
        return response

    def on_finished(**kwargs: Any) -> None:
        finished.append(kwargs["sender"])

    request_finished.connect(on_finished)
    try:
        ask(view)
    finally:
        request_finished.disconnect(on_finished)
    assert len(finished) == 1
    assert opened[0].closed
    assert len(threads) == {"file": 2, "stream": 5, "page": 2}[kind]
    assert len(set(threads)) == 1


# Iterators under ASGI


def stream(view: Callable[..., Any], on_send: Callable[[Message], None]) -> None:
    with settings_of(view):
        call(get_asgi_application(), scope_of(host="localhost"), body=b"", on_send=on_send)


@pytest.mark.filterwarnings("error")
def test_small_quick_blocks_are_sent_together(file: Path) -> None:
    sizes: list[int] = []
    stream(
        lambda request: StreamingHttpResponse(f"{number}\n" for number in range(20_000)),
        lambda message: sizes.append(len(message.get("body", b""))),
    )
    assert sum(sizes) == sum(len(f"{number}\n") for number in range(20_000))
    assert len(sizes) < 2000


def test_block_does_not_wait_for_the_next() -> None:
    arrived = threading.Event()

    def blocks() -> Iterator[bytes]:
        yield b"first"
        assert arrived.wait(60)
        yield b"second"

    bodies: list[bytes] = []

    def on_send(message: Message) -> None:
        bodies.append(message.get("body", b""))
        if bodies[-1] == b"first":
            arrived.set()

    stream(lambda request: StreamingHttpResponse(blocks()), on_send)
    assert [body for body in bodies if body] == [b"first", b"second"]


def test_iterator_waits_for_its_client() -> None:
    made = 0
    ahead: list[int] = []

    def blocks() -> Iterator[bytes]:
        nonlocal made
        for _ in range(200):
            made += 1
            yield b"x" * 16_384

    taken = 0

    def on_send(message: Message) -> None:
        nonlocal taken
        taken += len(message.get("body", b""))
        ahead.append(made * 16_384 - taken)

    stream(lambda request: StreamingHttpResponse(blocks()), on_send)
    assert taken == 200 * 16_384
    # Blocks that wait, blocks that the loop has received before, and the block that is being made.
    assert max(ahead) <= 2 * 256 * 1024 + 2 * 16_384


@pytest.mark.skipif(django.VERSION < (5, 0), reason="it does not hear of clients that leave")
def test_endless_iterator_ends_with_its_client() -> None:
    closed = threading.Event()

    def blocks() -> Iterator[bytes]:
        try:
            while True:
                yield b"x" * 100
                time.sleep(0.001)
        finally:
            closed.set()

    class Left(Exception):
        pass

    async def main() -> None:
        left = asyncio.Event()
        requests = [{"type": "http.request", "body": b""}]

        async def receive() -> Message:
            if requests:
                return requests.pop()
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if message.get("body"):
                left.set()

        await get_asgi_application()(scope_of(host="localhost"), receive, send)

    with settings_of(lambda request: StreamingHttpResponse(blocks())):
        asyncio.run(main())
    assert closed.is_set()


# In this case Django leaves the request's body to the garbage collector.
@pytest.mark.filterwarnings("ignore:Unclosed file:ResourceWarning")
def test_iterator_that_fails_cuts_the_response() -> None:
    def blocks() -> Iterator[bytes]:
        yield b"first"
        raise LookupError("in the middle")

    bodies: list[bytes] = []
    with pytest.raises(LookupError, match="in the middle"):
        stream(
            lambda request: StreamingHttpResponse(blocks()),
            lambda message: bodies.append(message.get("body", b"")),
        )
    assert b"first" in bodies
    assert b"" not in bodies[1:]
    gc.collect()


def test_response_with_its_own_aiter_is_left_alone() -> None:
    class Own(StreamingHttpResponse):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            for part in self.streaming_content:
                yield part.upper()

    async def blocks() -> AsyncIterator[str]:
        yield "a"
        yield "b"

    assert ask_asgi(lambda request: Own(["a", "b"]))[2] == b"AB"
    assert ask_asgi(lambda request: StreamingHttpResponse(blocks()))[2] == b"ab"


def test_database_connection_stays_in_its_thread(ask: Ask) -> None:
    from django.db import connection

    def rows() -> Iterator[str]:
        for number in range(50):
            with connection.cursor() as cursor:
                cursor.execute(f"SELECT {number}")
                yield f"{cursor.fetchone()[0]} "

    def view(request: object) -> StreamingHttpResponse:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        return StreamingHttpResponse(rows())

    assert ask(view)[2].split() == [b"%d" % number for number in range(50)]


@pytest.mark.parametrize("ask", [ask_wsgi, ask_asgi])
def test_setting_compresses_pages_streams_and_files(ask: Ask, tmp_path: Path) -> None:
    text = b"All work and no play makes Jack a dull boy.\n" * 500
    path = write_settled(tmp_path / "text.txt", text)

    def page(request: Any) -> HttpResponse:
        return HttpResponse(text)

    def secret(request: Any) -> HttpResponse:
        compress_response(request, False)
        return HttpResponse(text)

    def stream(request: Any) -> StreamingHttpResponse:
        return StreamingHttpResponse(iter([text, text]))

    def file(request: Any) -> FileResponse:
        return FileResponse(path.open("rb"), content_type="text/plain")

    for view, expected in ((page, text), (stream, text * 2), (file, text)):
        plain = ask(view, accept_encoding="gzip", middleware=[])
        assert "content-encoding" not in plain[1]
        with override_settings(WSGIFAST_COMPRESS={"codings": ["br", "gzip"]}):
            status, headers, body = ask(view, accept_encoding="zstd, gzip, br", middleware=[])
            assert status == 200
            assert headers["content-encoding"] == "br", view
            assert headers["vary"] == "Accept-Encoding"
            assert decoded("br", body) == expected
    with override_settings(WSGIFAST_COMPRESS=True):
        assert "content-encoding" not in ask(secret, accept_encoding="gzip", middleware=[])[1]
        tag = ask(file, accept_encoding="gzip", middleware=[])[1]["etag"]
        assert not tag.startswith("W/")
        assert ask(file, accept_encoding="gzip", if_none_match=tag, middleware=[])[0] == 304
