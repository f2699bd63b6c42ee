"""How WSGIFast sends bodies. wsgiref.validate checks both the app and WSGIFast."""

from __future__ import annotations

import io
import itertools
import wsgiref.util
import wsgiref.validate
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import shapes
from tests.support.wsgi import Server, answering, new_environ, returning, serve
from wsgifast import WSGIFast

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment


# Every kind of body. wsgiref.validate checks both the app and WSGIFast.


@pytest.mark.filterwarnings("ignore:Unknown REQUEST_METHOD")
@pytest.mark.parametrize("name", shapes.SHAPES)
def test_server_gets_a_valid_response(name: str) -> None:
    shape = shapes.SHAPES[name]
    for method, coalesce in itertools.product(["GET", "HEAD"], [False, True]):
        app = wsgiref.validate.validator(WSGIFast(shape.view, coalesce=coalesce))
        environ = new_environ(method, f"/{name}")
        environ["wsgi.file_wrapper"] = wsgiref.util.FileWrapper
        server = Server(app, environ)
        sent = server.finish()
        assert sent == (shape.expected if method == "GET" else b""), (method, coalesce)


@pytest.mark.parametrize(
    "name",
    [
        "one-chunk", "empty-list", "crumbs", "generator", "generator-with-empty-chunks",
        "empty-generator", "wsgiref-wrapper", "werkzeug-wrapper", "declared-length",
        "servers-own-wrapper", "sized-iterable",
    ],
)  # fmt: skip
def test_app_gets_a_valid_server(name: str) -> None:
    shape = shapes.SHAPES[name]
    app = WSGIFast(wsgiref.validate.validator(shape.view))
    server = Server(wsgiref.validate.validator(app), new_environ(path=f"/{name}"))
    assert server.finish() == shape.expected


# How bodies are sent


@pytest.mark.parametrize("charset", ["utf-16", "utf-32", "utf-8-sig", "utf-16-le", "utf-8"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: ["", "one, ", "", "two, ", b"", "three"],
        lambda: iter(["", "one, ", "", "two, ", "three"]),
        lambda: ("one, two, ", "three"),
        lambda: io.StringIO("one, two, three"),
        lambda: "one, two, three",
    ],
    ids=["list", "generator", "tuple", "file", "bare"],
)
def test_text_of_many_chunks_has_one_byte_order_mark(charset: str, make: Callable[[], Any]) -> None:
    content_type = ("Content-Type", f"text/plain; charset={charset}")

    def writing(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        write: Any = start_response("200 OK", [content_type])
        write("one, ")
        write("two, ")
        return ["three"]

    for each in (answering(lambda _: make(), headers=[content_type]), writing):
        assert Server(WSGIFast(each)).finish() == "one, two, three".encode(charset)


def test_sent_as_depends_on_more_than_the_body() -> None:
    extra: dict[str, Any] = {"wsgi.file_wrapper": wsgiref.util.FileWrapper}
    assert serve(io.BytesIO(b"x"), **extra).environ["wsgifast.sent_as"] == "file"
    assert serve(("a", b"b")).environ["wsgifast.sent_as"] == "joined"
    assert serve(io.BytesIO(b"x")).environ["wsgifast.sent_as"] == "blocks"
    assert serve([b"x"], method="HEAD").environ["wsgifast.sent_as"] == "no-body"
    assert serve([b"x"], status="204 No Content").environ["wsgifast.sent_as"] == "no-body"
    coalescing = Server(WSGIFast(returning(iter([b"x"])), coalesce=True))
    coalescing.finish()
    assert coalescing.environ["wsgifast.sent_as"] == "coalesced"


def _blocks(size: int, block: int) -> tuple[bytes, ...]:
    return tuple(bytes(min(block, size - begin)) for begin in range(0, size, block))


@pytest.mark.parametrize(
    ("body", "sent_as", "chunks"),
    [
        ([b"one"], "as-is", 1),
        ([], "as-is", 0),
        ([b"x" * 100_000] * 3, "as-is", 3),
        ("text", "rescued", 1),
        (["text"], "rescued", 1),
        (bytearray(b"array"), "rescued", 1),
        ([b"x"] * 20_000, "joined", 20_000),
        (["a", b"b"], "joined", 2),
        ((), "stream", 0),
        ((b"", b"page" * 5000), "stream", 1),
        ((b"x" * 50_000, b"y" * 30_000, b"z" * 70_000), "stream", 3),
        ((b"x",) * 20_000, "stream-small", 20_000),
        (_blocks(10 << 20, 8192), "stream-blocks", 1280),
        (_blocks((10 << 20) + 1, 8192), "stream-blocks", 1281),
        (_blocks(8193, 4096), "stream-blocks", 3),
        (_blocks(100_000, 10_000), "stream", 10),
        ((bytes(4096), bytes(8192)), "stream", 2),
    ],
)
@pytest.mark.parametrize("declared", [False, True])
def test_body_is_named_by_its_chunks_at_its_end(
    body: Any, sent_as: str, chunks: int, declared: bool
) -> None:
    if isinstance(body, tuple):
        whole = list(body)
        header = ("Content-Length", str(sum(map(len, whole))))
        server = serve(iter(whole), *[header] * declared)
    else:
        server = serve(body)
    server.finish()
    assert (server.environ["wsgifast.sent_as"], server.environ["wsgifast.chunks"]) == (
        sent_as,
        chunks,
    )


def test_stream_that_broke_off_is_named_by_its_chunks() -> None:
    def broken() -> Iterator[bytes]:
        yield from [b"crumb"] * 10
        raise LookupError

    for client_leaves in (False, True):
        server = serve(broken())
        chunks = iter(server.result)
        for _ in range(10):
            next(chunks)
        if client_leaves:
            chunks.close()  # type: ignore[attr-defined]
        else:
            with pytest.raises(LookupError):
                next(chunks)
        assert server.environ["wsgifast.sent_as"] == "stream-small"
        assert server.environ["wsgifast.chunks"] == 10


@pytest.mark.parametrize(
    "header",
    [
        ("Content-Type", "text/event-stream; charset=utf-8"),
        ("Content-Type", "multipart/x-mixed-replace;boundary=x"),
        ("X-Accel-Buffering", "no"),
    ],
)
def test_event_stream_is_never_coalesced(header: tuple[str, str]) -> None:
    app = answering(lambda _: iter([b"x"] * 100), headers=[header])
    server = Server(WSGIFast(app, coalesce=True))
    assert len(list(server.result)) == 100
    assert server.environ["wsgifast.sent_as"] == "stream"


@pytest.mark.parametrize(
    "header", [("X-Accel-Buffering", "yes"), ("X-Other", "no"), ("Content-Type", "text/plain")]
)
def test_other_stream_is_coalesced_by_the_option(header: tuple[str, str]) -> None:
    server = Server(WSGIFast(returning(iter([b"x"] * 100), header), coalesce=True))
    server.finish()
    assert server.environ["wsgifast.sent_as"] == "coalesced"


def test_event_stream_of_a_lazy_app_is_not_coalesced() -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        start_response("200 OK", [("Content-Type", "text/event-stream")])
        yield from [b"data: event\n\n"] * 100

    server = Server(WSGIFast(app, coalesce=True))
    assert len(list(server.result)) == 100
    assert server.environ["wsgifast.sent_as"] == "stream"


def test_length_in_chunks_is_that_of_lists_and_tuples() -> None:
    """A server declares the size of an only chunk as the Content-Length.

    pywsgi iterates over a whole body twice.
    """
    for body in (
        *([b"a", b"b"], ("a",), [b"x" * 70_000] * 3, [b"x" * 1000] * 2000, "text", b"", []),
        *(iter([b"a", b"b"]), shapes.Lines(), io.BytesIO(b"file")),
    ):
        result: Any = serve(body).result
        assert hasattr(result, "__len__") == (type(result) in (list, tuple))
        if hasattr(result, "__len__"):
            assert len(result) == len(list(result)), body


def test_right_list_is_passed_on_as_it_is() -> None:
    body = [b"one chunk"]
    assert serve(body, ("Content-Length", "9")).result is body
