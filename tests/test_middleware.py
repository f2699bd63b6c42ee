"""WSGIFast in-process: PEP 3333 to the letter, the routes, and errors."""

from __future__ import annotations

import io
import itertools
import logging
import socket
import sys
import wsgiref.util
import wsgiref.validate
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import shapes
from tests.support.files import WholeFileWrapper
from wsgifast import BodyError, ConfigurationError, StaticFiles, WSGIFast
from wsgifast.bodies.files import FileReader, FileSlice
from wsgifast.bodies.segments import SegmentedBody
from wsgifast.errors import BodyTooShort

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

Head = tuple[str, list[tuple[str, str]]]


def new_environ(method: str = "GET", path: str = "/", **extra: object) -> dict[str, Any]:
    environ: dict[str, Any] = {
        "REQUEST_METHOD": method, "SCRIPT_NAME": "", "PATH_INFO": path, "QUERY_STRING": "",
    }  # fmt: skip
    wsgiref.util.setup_testing_defaults(environ)
    environ.update(extra)
    return environ


class Server:
    """The server's side of one request: what start_response and write() were called with."""

    def __init__(self, app: WSGIApplication, environ: dict[str, Any] | None = None) -> None:
        self.environ = new_environ() if environ is None else environ
        self.heads: list[Head] = []
        self.sent: list[bytes] = []
        self.result = app(self.environ, self.start_response)

    def start_response(
        self, status: str, headers: list[tuple[str, str]], exc_info: Any = None, /
    ) -> Callable[[bytes], object]:
        if exc_info is not None and self.sent:
            raise exc_info[1]
        self.heads.append((status, headers))
        return self.sent.append

    @property
    def head(self) -> Head:
        return self.heads[-1]

    def header(self, name: str) -> str | None:
        values = [value for key, value in self.head[1] if key.lower() == name.lower()]
        assert len(values) <= 1, self.head
        return values[0] if values else None

    def finish(self) -> bytes:
        for chunk in self.result:
            assert type(chunk) is bytes
            self.sent.append(chunk)
        close = getattr(self.result, "close", None)
        if close is not None:
            close()
        return b"".join(self.sent)


def returning(body: object, *headers: tuple[str, str], status: str = "200 OK") -> WSGIApplication:
    """An app that returns one given body."""

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        start_response(status, [("Content-Type", "text/plain"), *headers])
        return body

    return app


def serve(body: object, *headers: tuple[str, str], status: str = "200 OK", **extra: Any) -> Server:
    return Server(WSGIFast(returning(body, *headers, status=status)), new_environ(**extra))


# Every shape, with wsgiref.validate on both sides


@pytest.mark.filterwarnings("ignore:Unknown REQUEST_METHOD")
@pytest.mark.parametrize("name", shapes.SHAPES)
def test_what_the_server_gets_is_valid(name: str) -> None:
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
def test_the_middleware_is_a_valid_server_to_the_app(name: str) -> None:
    shape = shapes.SHAPES[name]
    app = WSGIFast(wsgiref.validate.validator(shape.view))
    server = Server(wsgiref.validate.validator(app), new_environ(path=f"/{name}"))
    assert server.finish() == shape.expected


# Routes


@pytest.mark.parametrize(
    ("body", "route"),
    [
        ([b"one"], "as-is"),
        ([], "as-is"),
        ([b"x" * 100_000, b"y" * 100_000], "as-is"),
        ("text", "rescued"),
        (["text"], "rescued"),
        (bytearray(b"array"), "rescued"),
        ([b"a", b"b"], "joined"),
        (("a", b"b"), "joined"),
        (io.BytesIO(b"file"), "file"),
        (iter([b"a"]), "stream"),
    ],
)
def test_the_route_is_in_the_environ(body: object, route: str) -> None:
    extra: dict[str, Any] = {"wsgi.file_wrapper": wsgiref.util.FileWrapper}
    assert serve(body, **extra).environ["wsgifast.route"] == route


def test_routes_that_depend_on_more_than_the_body() -> None:
    assert serve(io.BytesIO(b"x")).environ["wsgifast.route"] == "blocks"
    assert serve([b"x"], method="HEAD").environ["wsgifast.route"] == "no-body"
    assert serve([b"x"], status="204 No Content").environ["wsgifast.route"] == "no-body"
    coalescing = Server(WSGIFast(returning(iter([b"x"])), coalesce=True))
    coalescing.finish()
    assert coalescing.environ["wsgifast.route"] == "coalesced"


def _blocks(size: int, block: int) -> tuple[bytes, ...]:
    return tuple(bytes(min(block, size - begin)) for begin in range(0, size, block))


@pytest.mark.parametrize(
    ("body", "route", "chunks"),
    [
        ([b"one"], "as-is", 1),
        ([], "as-is", 0),
        ([b"x" * 100_000] * 3, "as-is", 3),
        ("text", "rescued", 1),
        ([b"x"] * 20_000, "joined", 20_000),
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
def test_the_log_tells_what_a_stream_was(
    body: Any, route: str, chunks: int, declared: bool
) -> None:
    if not isinstance(body, (list, str)):
        whole = list(body)
        header = ("Content-Length", str(sum(map(len, whole))))
        server = serve(iter(whole), *[header] * declared)
    else:
        server = serve(body)
    server.finish()
    assert (server.environ["wsgifast.route"], server.environ["wsgifast.chunks"]) == (route, chunks)


def test_the_log_tells_of_a_stream_that_broke_off() -> None:
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
        assert server.environ["wsgifast.route"] == "stream-small"
        assert server.environ["wsgifast.chunks"] == 10


@pytest.mark.parametrize(
    "header",
    [
        ("Content-Type", "text/event-stream; charset=utf-8"),
        ("Content-Type", "multipart/x-mixed-replace;boundary=x"),
        ("X-Accel-Buffering", "no"),
    ],
)
def test_event_streams_are_never_coalesced(header: tuple[str, str]) -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        start_response("200 OK", [header])
        return iter([b"x"] * 100)

    server = Server(WSGIFast(app, coalesce=True))
    assert len(list(server.result)) == 100
    assert server.environ["wsgifast.route"] == "stream"


@pytest.mark.parametrize(
    "header", [("X-Accel-Buffering", "yes"), ("X-Other", "no"), ("Content-Type", "text/plain")]
)
def test_other_streams_are_coalesced_when_asked(header: tuple[str, str]) -> None:
    server = Server(WSGIFast(returning(iter([b"x"] * 100), header), coalesce=True))
    server.finish()
    assert server.environ["wsgifast.route"] == "coalesced"


def test_the_event_stream_of_a_lazy_app_is_not_coalesced_either() -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        start_response("200 OK", [("Content-Type", "text/event-stream")])
        yield from [b"data: event\n\n"] * 100

    server = Server(WSGIFast(app, coalesce=True))
    assert len(list(server.result)) == 100
    assert server.environ["wsgifast.route"] == "stream"


def test_a_length_in_chunks_is_exact_or_absent() -> None:
    """Servers make a Content-Length of the first chunk where there is one."""
    for body in (
        *([b"a", b"b"], ("a",), [b"x" * 70_000] * 3, [b"x" * 1000] * 2000, "text", b"", []),
        *(iter([b"a", b"b"]), shapes.Lines(), io.BytesIO(b"file")),
    ):
        result: Any = serve(body).result
        if hasattr(result, "__len__"):
            assert len(result) == len(list(result)), body


def test_a_list_that_is_right_is_the_same_object_to_the_server() -> None:
    body = [b"one chunk"]
    assert serve(body, ("Content-Length", "9")).result is body


# Files


def test_a_file_gets_the_servers_own_wrapper(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")

    class ServersWrapper(wsgiref.util.FileWrapper):
        pass

    extra: dict[str, Any] = {"wsgi.file_wrapper": ServersWrapper}
    for make in (lambda file: file, wsgiref.util.FileWrapper, ServersWrapper):
        file = path.open("rb")
        body = make(file)
        server = serve(body, **extra)
        assert isinstance(server.result, ServersWrapper)
        assert server.environ["wsgifast.route"] == "file"
        if make is ServersWrapper:  # only its server knows what is in it
            assert server.result is body
        else:
            assert server.header("Content-Length") == "10"
        assert server.finish() == b"0123456789"
        assert file.closed
    with path.open("rb") as file:
        assert serve(ServersWrapper(file), method="HEAD", **extra).finish() == b""


def test_a_file_that_would_send_other_bytes_by_its_descriptor_has_none(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("text")
    extra: dict[str, Any] = {"wsgi.file_wrapper": wsgiref.util.FileWrapper}
    with path.open() as text:
        server = serve(text, **extra)
        assert not hasattr(server.result.filelike, "fileno")  # type: ignore[attr-defined]
    with path.open("rb") as binary:
        server = serve(binary, **extra)
        assert server.result.filelike.fileno() == binary.fileno()  # type: ignore[attr-defined]


def test_a_part_of_a_file_is_read_for_a_server_that_sends_all_of_a_descriptor(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_bytes(b"x" * 200_000 + b"the end")

    def read_from(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        start_response("200 OK", [("Content-Type", "text/plain")])
        file = (tmp_path / "file").open("rb")
        file.read(int(environ["QUERY_STRING"] or 0))
        return file

    extra: dict[str, Any] = {"wsgi.file_wrapper": WholeFileWrapper, "PATH_INFO": "/file"}
    for app in (WSGIFast(read_from), StaticFiles(directory=tmp_path)):
        whole = Server(app, new_environ(**extra))
        assert hasattr(whole.result.file, "fileno")  # type: ignore[attr-defined]
        assert len(whole.finish()) == 200_007
        part = Server(app, new_environ(HTTP_RANGE="bytes=-7", **extra))
        assert part.header("Content-Length") == "7"
        assert part.finish() == b"the end"
    rest = Server(WSGIFast(read_from), new_environ(QUERY_STRING="200000", **extra))
    assert rest.finish() == b"the end"


def test_inside_another_a_file_keeps_its_descriptor_and_its_ranges(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 200_000)

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        start_response("200 OK", [("Content-Type", "text/plain")])
        return (tmp_path / "file").open("rb")

    for inner in (WSGIFast(app), StaticFiles(directory=tmp_path)):
        for wrapper, route in ((wsgiref.util.FileWrapper, "file"), (None, "blocks")):
            extra: dict[str, Any] = {"wsgi.file_wrapper": wrapper} if wrapper else {}
            for name, value, size in (
                ("HTTP_ACCEPT", "*", 200_000),
                ("HTTP_RANGE", "bytes=5-9", 5),
            ):
                environ = new_environ(path="/file", **{name: value}, **extra)
                server = Server(WSGIFast(inner), environ)
                slice_ = server.result.filelike if wrapper else server.result  # type: ignore[attr-defined]
                assert isinstance(slice_, FileSlice)
                assert environ["wsgifast.route"] == route
                assert server.header("Content-Length") == str(size)
                assert server.finish() == b"x" * size
        environ = new_environ(path="/file", HTTP_RANGE="bytes=0-1,100000-100001")
        server = Server(WSGIFast(inner), environ)
        assert isinstance(server.result, SegmentedBody)
        assert environ["wsgifast.route"] == "segments"
        assert server.header("Content-Length") == str(len(server.finish()))


def test_no_byte_of_a_file_is_read_before_the_server_asks(tmp_path: Path) -> None:
    reads = []

    class Watched(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            reads.append(size)
            return super().read(size)

    server = serve(Watched(b"data"))
    assert reads == []
    assert server.finish() == b"data"


def test_a_length_beyond_the_file_ends_in_an_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    server = serve(path.open("rb"), ("Content-Length", "10"))
    with pytest.raises(BodyTooShort, match="5 bytes"):
        server.finish()
    server.result.close()  # type: ignore[attr-defined]


# Content-Length


def test_the_length_is_added_where_it_is_known_and_legal() -> None:
    assert serve("é").header("Content-Length") == "2"
    assert serve([b"a", b"b"]).header("Content-Length") == "2"
    assert serve([]).header("Content-Length") == "0"
    assert serve(iter([b"a"])).header("Content-Length") is None
    assert serve([b"a"], status="304 Not Modified").header("Content-Length") is None
    assert serve([b"a"], ("Transfer-Encoding", "chunked")).header("Content-Length") is None


@pytest.mark.parametrize("status", ["101 Switching", "204 No Content", "304 Not Modified"])
@pytest.mark.parametrize("make", [list, iter, lambda chunks: io.BytesIO(b"".join(chunks))])
def test_a_status_without_a_body_has_no_length_either(
    status: str, make: Callable[[list[bytes]], object]
) -> None:
    server = serve(make([b"body"]), ("Content-Length", "4"), status=status)
    assert server.header("Content-Length") is None
    assert server.finish() == b""
    assert not hasattr(server.result, "__len__"), "wsgiref would make a Content-Length of it"


def test_a_wrong_length_of_a_whole_body_is_corrected(caplog: pytest.LogCaptureFixture) -> None:
    server = serve(["é", "é"], ("content-length", "2"))
    assert server.header("Content-Length") == "4"
    assert server.finish() == "éé".encode()
    assert "declared a Content-Length of 2 for a body of 4 bytes" in caplog.text


@pytest.mark.parametrize("value", ["+5", "5 ", "-5", "5_0", "\u0665", "", "five", 5, None])
def test_a_length_that_is_no_number_is_refused(value: Any) -> None:
    with pytest.raises(BodyError, match="Content-Length"):
        serve([b"12345"], ("Content-Length", value))


def test_the_same_length_twice_is_sent_once() -> None:
    server = serve([b"12345"], ("Content-Length", "5"), ("content-length", "5"))
    assert server.finish() == b"12345"


@given(
    st.lists(st.binary(max_size=10), max_size=8),
    st.one_of(st.none(), st.integers(0, 60)),
)
def test_a_stream_never_sends_more_than_its_length_and_complains_of_less(
    chunks: list[bytes], declared: int | None
) -> None:
    whole = b"".join(chunks)
    headers = [] if declared is None else [("Content-Length", str(declared))]
    server = serve(iter(chunks), *headers)
    if declared is not None and declared > len(whole):
        with pytest.raises(BodyTooShort, match=rf"\b{declared - len(whole)} bytes"):
            server.finish()
        assert b"".join(server.sent) == whole
    else:
        assert server.finish() == whole[:declared]


@pytest.mark.parametrize("chunks", [[], [b""], [b"", b""]])
def test_an_answer_to_head_may_be_shorter_than_its_length(chunks: list[bytes]) -> None:
    """Many apps write the length of a GET, and nothing more."""

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        start_response("200 OK", [("Content-Length", "10")])
        yield from chunks

    server = Server(WSGIFast(app), new_environ("HEAD"))
    assert server.finish() == b""
    assert server.header("Content-Length") == "10"


# start_response, write(), exc_info


@pytest.mark.parametrize("chunks", [[], [b""], [b"some"]])
def test_an_app_that_never_starts_a_response_is_named(chunks: list[bytes]) -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        yield from chunks

    server = Server(WSGIFast(app))
    with pytest.raises(BodyError, match="start_response"):
        server.finish()
    assert server.head[0] == "500 Internal Server Error"
    assert server.sent == []


def test_a_lazy_app_starts_at_the_first_chunk() -> None:
    server = Server(WSGIFast(shapes.SHAPES["lazy"].view))
    assert server.heads == []
    chunks = iter(server.result)
    assert next(chunks) == b"lazy "
    assert len(server.heads) == 1


def test_a_generator_is_not_asked_for_more_than_the_server_wants() -> None:
    made = []

    def body() -> Iterator[bytes]:
        for number in range(3):
            made.append(number)
            yield b"x"

    server = serve(body())
    assert made == []
    for count, _ in enumerate(server.result, start=1):
        assert len(made) == count


def test_start_response_twice_needs_exc_info() -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        start_response("200 OK", [])
        start_response("500 No", [])
        return []

    with pytest.raises(BodyError, match="twice without exc_info"):
        Server(WSGIFast(app))


def test_exc_info_replaces_the_head_before_it_is_sent() -> None:
    server = Server(WSGIFast(shapes.SHAPES["started-again"].view))
    assert server.finish() == b"second try"
    assert [status for status, _ in server.heads] == ["200 OK"]
    assert server.header("X-First") is None


def test_exc_info_is_raised_again_once_the_head_is_sent() -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        start_response("200 OK", [])
        yield b"sent"
        try:
            raise LookupError("too late")
        except LookupError:
            start_response("500 No", [], sys.exc_info())

    server = Server(WSGIFast(app))
    with pytest.raises(LookupError, match="too late"):
        server.finish()


def test_write_goes_straight_to_the_server() -> None:
    sent_by_then = []

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        write = start_response("200 OK", [("Content-Length", "9")])
        write(b"abc")
        sent_by_then.append(list(server_sent))
        write(bytearray(b"def"))  # type: ignore[arg-type]
        return [b"ghi"]

    server_sent: list[bytes] = []

    def start(status: str, headers: Any, exc_info: Any = None, /) -> Callable[[bytes], object]:
        return server_sent.append

    result = WSGIFast(app)(new_environ(), start)
    assert sent_by_then == [[b"abc"]]
    assert [*server_sent, *result] == [b"abc", b"def", b"ghi"]


def test_write_beyond_the_length_is_an_error() -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        start_response("200 OK", [("Content-Length", "2")])(b"abc")
        return []

    with pytest.raises(BodyError, match="wrote 3 bytes, more than its Content-Length of 2"):
        Server(WSGIFast(app))


@pytest.mark.parametrize("status", ["", None, 200, b"200 OK", "103 Early Hints", "20 OK"])
def test_a_status_that_is_none(status: Any) -> None:
    with pytest.raises(BodyError, match=r"the app tests\.test_middleware.*status"):
        serve([b"x"], status=status)


def test_a_reset_content_has_none() -> None:
    """RFC 9110 15.3.6: clients look for a body after 205, so it has to say that there is none."""
    for body in ([b"x"], iter([b"x"]), io.BytesIO(b"x")):
        server = serve(body, ("Content-Length", "1"), status="205 Reset Content")
        assert server.finish() == b""
        assert server.header("Content-Length") == "0"


@pytest.mark.parametrize("empty", [b"", ""])
def test_an_empty_chunk_before_start_response_says_nothing(empty: Any) -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        yield empty
        yield empty
        start_response("200 OK", [("Content-Length", "4")])
        yield b"body"

    server = Server(WSGIFast(app))
    assert not server.heads
    assert server.finish() == b"body"
    assert server.head == ("200 OK", [("Content-Length", "4")])


def test_headers_of_any_iterable_are_sent() -> None:
    given = [("Content-Type", "text/plain"), ("X-Name", "value")]
    for headers in (tuple(given), iter(given), dict(given).items()):

        def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
            start_response("200 OK", headers)  # type: ignore[arg-type] # noqa: B023
            return [b"x"]

        assert Server(WSGIFast(app)).head[1] == [*given, ("Content-Length", "1")]


@pytest.mark.parametrize(
    "headers", [{"Content-Type": "text/plain"}, None, "a", [("A", "b", "c")], [1], [(1, "a")]]
)
def test_headers_that_are_none(headers: Any) -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        start_response("200 OK", headers)
        return [b"x"]

    with pytest.raises(BodyError, match=r"the app .* the headers are a .* list of \(name, value\)"):
        Server(WSGIFast(app))


# close()


class Closing:
    """A body that counts its close() calls; iterated or read as asked."""

    def __init__(self) -> None:
        self.closed = 0

    def __iter__(self) -> Iterator[bytes]:
        return iter([b"a", b"b"])

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("read", [0, 1, 2])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_close_is_called_once(read: int, method: str) -> None:
    body = Closing()
    server = serve(body, method=method)
    chunks = iter(server.result)
    for _ in range(read):
        next(chunks, None)
    server.result.close()  # type: ignore[attr-defined]
    server.result.close()  # type: ignore[attr-defined]
    assert body.closed == 1


def test_close_is_called_when_the_body_is_refused() -> None:
    class Refused:
        closed = 0

        def close(self) -> None:
            self.closed += 1

    body = Refused()
    with pytest.raises(BodyError):
        serve(body)
    assert body.closed == 1


def test_close_is_called_when_the_server_refuses_the_head() -> None:
    body = Closing()

    def start(status: str, headers: Any, exc_info: Any = None, /) -> Callable[[bytes], object]:
        raise ValueError("a header that the server does not like")

    with pytest.raises(ValueError, match="does not like"):
        WSGIFast(returning(body))(new_environ(), start)
    assert body.closed == 1


# TCP_NODELAY


@pytest.mark.parametrize("place", ["gunicorn.socket", "werkzeug.socket", "wsgi.input"])
def test_nodelay_is_set_once_for_a_connection(place: str) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    sock, _ = listener.accept()
    with listener, client, sock, sock.makefile("rb") as stream:
        app = WSGIFast(returning([b"x"]))
        extra: dict[str, Any] = {place: stream if place == "wsgi.input" else sock}
        Server(app, new_environ(**extra))
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
        Server(app, new_environ(**extra))
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 0, "it was set twice"


def test_no_socket_is_remembered_longer_than_it_lives() -> None:
    app = WSGIFast(returning([b"x"]))
    for _ in range(100):
        left, right = socket.socketpair()
        environ = new_environ()
        environ["gunicorn.socket"] = left
        Server(app, environ)
        del environ
        left.close()
        right.close()
        del left, right
    assert len(app._nodelay_set) <= 1


def test_a_client_that_has_gone_is_not_an_error() -> None:
    sock = socket.socket()
    sock.close()
    environ = new_environ()
    environ["gunicorn.socket"] = sock
    server = Server(WSGIFast(returning([b"x"])), environ)
    assert server.finish() == b"x"


# Options and errors


@pytest.mark.parametrize(
    ("app", "options", "message"),
    [
        ("not an app", {}, "not an app"),
        (returning([]), {"coalesce": 3}, "coalesce is True or False, not 3"),
        (returning([]), {"nodelay": None}, "nodelay is True or False, not None"),
    ],
)
def test_options_are_checked_when_the_object_is_made(
    app: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        WSGIFast(app, **options)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("none", r"returned NoneType.*\[\] for an empty body"),
        ("number", "returned int as its body: 42; return a list of bytes"),
        ("dict", "json.dumps"),
        ("set", "no order"),
        ("numbers", "with int in it: 1; yield bytes"),
        ("coroutine", "ASGIFast"),
        ("async-generator", "ASGIFast"),
        ("not-started", "without calling start_response"),
        ("unencodable", "cannot express.*utf-8"),
    ],
)
def test_errors_name_the_app_and_say_what_to_return(name: str, advice: str) -> None:
    with pytest.raises(BodyError, match=rf"(?s)the app tests\.support\.shapes\.broken .*{advice}"):
        Server(WSGIFast(shapes.broken), new_environ(path=f"/broken/{name}"))


def test_the_log_of_a_body_that_is_too_long(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "wsgifast"):
        assert serve(iter([b"12345", b"6"]), ("Content-Length", "5")).finish() == b"12345"
    assert "more than its Content-Length of 5" in caplog.text


def test_readers_are_what_the_server_wraps(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    with path.open("rb") as file:
        assert isinstance(serve(file).result, FileSlice)
    assert isinstance(serve(io.BytesIO()).result, FileReader)
