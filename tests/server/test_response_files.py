"""Responses of files: each byte once, ranges, segments, and files that have changed."""

from __future__ import annotations

import errno
import io
import os
import tempfile
import threading
from pathlib import Path
from typing import Any

import flask
import pytest
from werkzeug.wsgi import ClosingIterator

from tests.server.connections import App, MakeStepped, responds_wrapped, responses
from tests.server.responses import Ask, Headers, segmented
from tests.support.calls import recorded
from wsgifast import WSGIFast
from wsgifast.bodies.files import FileSlice
from wsgifast.sockets import FileSegment


@pytest.fixture
def content(tmp_path: Path) -> Path:
    path = tmp_path / "content"
    path.write_bytes(bytes(range(256)) * 400)
    return path


SIZE = 256 * 400


def wrapped(path: Path, length: int | None, offset: int = 0) -> App:
    def opened() -> Any:
        file = path.open("rb")
        file.seek(offset)
        return file

    headers = [] if length is None else [("Content-Length", str(length))]
    return responds_wrapped(opened, *headers)


@pytest.fixture
def sent_by_kernel(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return the offset and the size of each sendfile()."""
    return recorded(monkeypatch, os, "sendfile", lambda out, source, *part: part)


@pytest.mark.parametrize("length", [0, 5, 50_000, SIZE - 1])
def test_file_longer_than_its_length_is_cut(ask: Ask, content: Path, length: int) -> None:
    received = ask(wrapped(content, length))
    assert received.body == content.read_bytes()[:length]
    assert not received.is_closed
    # A file is sent to its end, or up to the declared length (PEP 3333)
    assert not received.warnings


def test_part_given_the_whole_file_is_cut(ask: Ask, content: Path) -> None:
    headers = [("Content-Length", "5"), ("Content-Range", f"bytes 0-4/{SIZE}")]
    app = responds_wrapped(lambda: content.open("rb"), *headers, status="206 Partial Content")
    received = ask(app)
    assert received.body == content.read_bytes()[:5]
    assert not received.is_closed


def test_file_shorter_than_length_ends_connection(ask: Ask, content: Path) -> None:
    received = ask(wrapped(content, SIZE + 3))
    assert received.body == content.read_bytes()
    assert received.is_closed
    assert received.stepped.log.says(f"has {SIZE} bytes, and its Content-Length is {SIZE + 3}")


def test_file_without_descriptor_is_sent_in_blocks(ask: Ask) -> None:
    class Own:
        def __init__(self) -> None:
            self.blocks = [b"bo", b"dy", b""]

        def read(self, size: int) -> bytes:
            return self.blocks.pop(0)

    assert ask(responds_wrapped(Own)).body == b"2\r\nbo\r\n2\r\ndy\r\n0\r\n\r\n"


def test_file_slice_is_sent_by_sendfile(
    ask: Ask, content: Path, sent_by_kernel: list[tuple[int, int]]
) -> None:
    def part() -> FileSlice:
        file = content.open("rb")
        return FileSlice(FileSegment(file.fileno(), 7, 50_000), file)

    received = ask(responds_wrapped(part, ("Content-Length", "50000")))
    assert received.body == content.read_bytes()[7:50_007]
    assert sent_by_kernel == [(7, 50_000)]


@pytest.mark.parametrize("known", [True, False])
def test_segments_are_sent_in_order(
    ask: Ask, content: Path, known: bool, sent_by_kernel: list[tuple[int, int]]
) -> None:
    data = content.read_bytes()
    parts = [b"<", data[5:25], b"|", data[100:50_100], data[0:40_000], b">"]
    expected = b"".join(parts)
    with content.open("rb") as file:
        fd = file.fileno()
        body: list[bytes | FileSegment] = [
            b"<", FileSegment(fd, 5, 20), b"|", FileSegment(fd, 100, 50_000),
            FileSegment(fd, 7, 0), FileSegment(fd, 0, 40_000), b"", b">",
        ]  # fmt: skip
        headers = [("Content-Length", str(len(expected)))] if known else []
        received = ask(responses(segmented(body), *headers))
        if known:
            assert received.body == expected
        else:
            chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
            assert received.body == chunks + b"0\r\n\r\n"
        assert received.stepped.log.requests == [("GET /", "200 OK", len(expected))]
        assert sent_by_kernel == [(100, 50_000), (0, 40_000)]
        # In a framework's wrapper.
        wrapped = ClosingIterator(segmented(body))
        assert ask(responses(wrapped, *headers)).body == received.body
        assert sent_by_kernel[2:] == sent_by_kernel[:2]
        # Only a part of it fits.
        headers = [("Content-Length", "60000")]
        received = ask(responses(segmented(body), *headers))
        assert received.body == expected[:60_000]
        received = ask(responses(segmented(body), *headers), "HEAD")
        assert received.body == b""


@pytest.mark.parametrize("headers", [[], [("Content-Length", "11")]])
def test_small_file_that_has_shrunk_is_a_500(ask: Ask, content: Path, headers: Headers) -> None:
    """Nothing has been sent yet: there is a better answer than the end of the connection."""
    with content.open("rb") as file:
        body = segmented([b"a", FileSegment(file.fileno(), SIZE - 5, 10)])
        received = ask(responses(body, *headers))
    assert received.failed
    assert received.stepped.log.says("Error handling request")


@pytest.mark.parametrize("failing", [1, 2])
def test_file_without_free_descriptor_ends_connection(
    ask: Ask, content: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    duplicate = os.dup
    calls: list[int] = []

    def dup(fd: int) -> int:
        calls.append(fd)
        if len(calls) >= failing:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return duplicate(fd)

    with content.open("rb") as file:
        fd = file.fileno()
        body = segmented([FileSegment(fd, 0, 20_000), FileSegment(fd, 0, 30_000)])
        monkeypatch.setattr(os, "dup", dup)
        received = ask(responses(body, ("Content-Length", "50000")))
        monkeypatch.undo()
    assert received.is_closed
    assert received.stepped.log.says("Error handling request")
    if failing == 1:
        assert received.failed
        assert all(status.startswith("500") for _, status, _ in received.stepped.log.requests)
    else:
        assert len(received.body) == 20_000
        assert received.stepped.log.requests[0][1:] == ("200 OK", 20_000)


IN_ONE = os.urandom(24 * 1024 * 1024)


def _bytes_io(environ: dict[str, Any], start_response: Any) -> Any:
    start_response("200 OK", [("Content-Length", str(len(IN_ONE) - 3))])
    file = io.BytesIO(IN_ONE)
    file.seek(3)
    return environ["wsgi.file_wrapper"](file)


def _spooled(environ: dict[str, Any], start_response: Any) -> Any:
    start_response("200 OK", [])
    file = tempfile.SpooledTemporaryFile(max_size=1 << 30)
    file.write(IN_ONE)
    file.seek(3)
    return environ["wsgi.file_wrapper"](file)


def _repaired(environ: dict[str, Any], start_response: Any) -> Any:
    return WSGIFast(_bytes_io)(environ, start_response)


def _open_file(environ: dict[str, Any], start_response: Any) -> Any:
    start_response("200 OK", [])
    file = Path(environ["HTTP_X_FILE"]).open("rb")
    file.seek(3)
    return file


def _flask_send(environ: dict[str, Any], start_response: Any) -> Any:
    app = flask.Flask(__name__)

    @app.get("/")
    def index() -> Any:
        return flask.send_file(io.BytesIO(IN_ONE[3:]), mimetype="text/plain", conditional=False)

    return app(environ, start_response)


CLOSED: list[str] = []


def _flask_response(environ: dict[str, Any], start_response: Any) -> Any:
    app = flask.Flask(__name__)

    @app.get("/")
    def index() -> Any:
        file = Path(environ["HTTP_X_FILE"]).open("rb")
        file.seek(3)
        response = flask.Response(file)
        response.call_on_close(lambda: CLOSED.append(threading.current_thread().name))
        response.call_on_close(lambda: CLOSED.append("open" if not file.closed else "closed"))
        return response

    return app(environ, start_response)


@pytest.mark.parametrize(
    "app", [_bytes_io, _spooled, _repaired, _open_file, _flask_send, _flask_response]
)
def test_body_at_hand_is_queued_at_once(
    make_stepped: MakeStepped, app: Any, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(IN_ONE)
    CLOSED.clear()
    stepped = make_stepped(app, keepalive=5)
    client = stepped.connect()
    client.send_request(headers=[("X-File", str(tmp_path / "file"))])
    stepped.run()  # in this thread, it would wait for the client for ever
    assert client.near.output.is_waiting
    assert not CLOSED
    received = b""
    while client.near.output.is_waiting:
        received += client.receive_all_there_is()
        stepped.run()
    received += client.receive_all_there_is()
    body = received.partition(b"\r\n\r\n")[2]
    if b"\r\nTransfer-Encoding: chunked" in received[:1000]:
        size, _, body = body.partition(b"\r\n")
        assert int(size, 16) == len(IN_ONE) - 3
        assert body[len(IN_ONE) - 3 :] == b"\r\n0\r\n\r\n"
    assert body[: len(IN_ONE) - 3] == IN_ONE[3:]
    stepped.run()
    if app is _flask_response:
        assert [threading.current_thread().name, "closed"] == CLOSED


def test_file_iterated_otherwise_by_werkzeug_is_so(ask: Ask, tmp_path: Path) -> None:
    """A generator, a text file, a file whose iteration has begun: not the file's bytes."""
    path = tmp_path / "file"
    path.write_bytes(b"1\n2\n")

    def generator(environ: dict[str, Any], start_response: Any) -> Any:
        with path.open("rb") as file:
            return flask.Response(line.upper() for line in [*file, b"a"])(environ, start_response)

    def text(environ: dict[str, Any], start_response: Any) -> Any:
        return flask.Response(path.open())(environ, start_response)

    def begun(environ: dict[str, Any], start_response: Any) -> Any:
        body = flask.Response(path.open("rb"))(environ, start_response)
        next(iter(body))
        return body

    assert ask(generator).body == b"2\r\n1\n\r\n2\r\n2\n\r\n1\r\nA\r\n0\r\n\r\n"
    assert ask(text).body == b"2\r\n1\n\r\n2\r\n2\n\r\n0\r\n\r\n"
    assert ask(begun).body == b"2\r\n2\n\r\n0\r\n\r\n"
