"""WSGIFast and files: the server's wrapper, ranges, and the code that reads the file."""

from __future__ import annotations

import io
import wsgiref.util
import wsgiref.validate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.files import WholeFileWrapper, write_old
from tests.support.wsgi import Server, answering, new_environ, serve
from wsgifast import StaticFiles, WSGIFast
from wsgifast.bodies.files import FileReader, FileSlice, SegmentedBody
from wsgifast.errors import BodyTooShort

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment


def test_file_gets_the_servers_own_wrapper(tmp_path: Path) -> None:
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
        assert server.environ["wsgifast.sent_as"] == "file"
        if make is ServersWrapper:  # only its server knows its content
            assert server.result is body
        else:
            assert server.header("Content-Length") == "10"
        assert server.finish() == b"0123456789"
        assert file.closed
    with path.open("rb") as file:
        assert serve(ServersWrapper(file), method="HEAD", **extra).finish() == b""


def test_file_of_other_bytes_has_no_descriptor(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("text")
    extra: dict[str, Any] = {"wsgi.file_wrapper": wsgiref.util.FileWrapper}
    with path.open() as text:
        server = serve(text, **extra)
        assert not hasattr(server.result.filelike, "fileno")  # type: ignore[attr-defined]
    with path.open("rb") as binary:
        server = serve(binary, **extra)
        assert server.result.filelike.fileno() == binary.fileno()  # type: ignore[attr-defined]


def test_part_of_a_file_is_read_for_whole_senders(
    tmp_path: Path,
) -> None:
    write_old(tmp_path / "file", b"x" * 200_000 + b"the end")

    def opened(environ: WSGIEnvironment) -> Any:
        file = (tmp_path / "file").open("rb")
        file.read(int(environ["QUERY_STRING"] or 0))
        return file

    read_from = answering(opened)
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


def test_inside_another_a_file_keeps_its_ranges(tmp_path: Path) -> None:
    write_old(tmp_path / "file", b"x" * 200_000)

    app = answering(lambda _: (tmp_path / "file").open("rb"))
    for inner in (WSGIFast(app), StaticFiles(directory=tmp_path)):
        for wrapper, sent_as in ((wsgiref.util.FileWrapper, "file"), (None, "blocks")):
            extra: dict[str, Any] = {"wsgi.file_wrapper": wrapper} if wrapper else {}
            for name, value, size in (
                ("HTTP_ACCEPT", "*", 200_000),
                ("HTTP_RANGE", "bytes=5-9", 5),
            ):
                environ = new_environ(path="/file", **{name: value}, **extra)
                server = Server(WSGIFast(inner), environ)
                slice_ = server.result.filelike if wrapper else server.result  # type: ignore[attr-defined]
                assert isinstance(slice_, FileSlice)
                assert environ["wsgifast.sent_as"] == sent_as
                assert server.header("Content-Length") == str(size)
                assert server.finish() == b"x" * size
        environ = new_environ(path="/file", HTTP_RANGE="bytes=0-1,100000-100001")
        server = Server(WSGIFast(inner), environ)
        assert isinstance(server.result, SegmentedBody)
        assert environ["wsgifast.sent_as"] == "segments"
        assert server.header("Content-Length") == str(len(server.finish()))


def test_file_is_not_read_before_the_server_asks(tmp_path: Path) -> None:
    reads = []

    class Watched(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            reads.append(size)
            return super().read(size)

    server = serve(Watched(b"data"))
    assert reads == []
    assert server.finish() == b"data"


def test_length_beyond_the_file_ends_in_an_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    server = serve(path.open("rb"), ("Content-Length", "10"))
    with pytest.raises(BodyTooShort, match="5 bytes"):
        server.finish()
    server.result.close()  # type: ignore[attr-defined]


def test_file_without_server_wrapper_is_a_reader(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    with path.open("rb") as file:
        assert isinstance(serve(file).result, FileSlice)
    assert isinstance(serve(io.BytesIO()).result, FileReader)
