"""WSGIFast(app, compress=True) and files: compressed copies, with validators and ranges."""

from __future__ import annotations

import gzip
import io
import random
import tempfile
import threading
import wsgiref.util
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import flask
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.calls import recorded
from tests.support.decoders import decoded
from tests.support.files import write_settled
from tests.support.wsgi import Server, answering, ask_compressed, new_environ
from wsgifast import StaticFiles, WSGIFast
from wsgifast.files import compressed_copies

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

TEXT = b"All work and no play makes Jack a dull boy.\n" * 2000
CODINGS = ("zstd", "br", "gzip")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write_settled(tmp_path / "text.txt", TEXT)


def sending(
    make: Callable[[], object],
    *headers: tuple[str, str],
    status: str = "200 OK",
    kind: str = "text/plain",
) -> WSGIApplication:
    return answering(lambda _: make(), status, [("Content-Type", kind), *headers])


@pytest.mark.parametrize("coding", CODINGS)
def test_environ_names_a_compressed_copy(text: Path, coding: str) -> None:
    server, body = ask_compressed(sending(lambda: text.open("rb")), coding)
    assert server.environ["wsgifast.sent_as"] == "copy"
    assert server.environ["wsgifast.coding"] == coding
    assert server.environ["wsgifast.uncoded_bytes"] == len(TEXT)
    assert server.environ["wsgifast.coded_bytes"] == len(body)


def test_if_range_by_a_date_does_not_hold_for_a_copy(text: Path) -> None:
    date = "Tue, 15 Nov 1994 12:45:26 GMT"
    app = sending(lambda: text.open("rb"), ("Last-Modified", date))
    server, body = ask_compressed(app, HTTP_RANGE="bytes=0-4", HTTP_IF_RANGE=date)
    assert (server.start[0][:3], decoded("gzip", body)) == ("200", TEXT)
    server, body = ask_compressed(app, "identity", HTTP_RANGE="bytes=0-4", HTTP_IF_RANGE=date)
    assert (server.start[0][:3], body) == ("206", TEXT[:5])


def test_304_of_the_app_has_the_tag_of_the_copy(text: Path) -> None:
    app = flask.Flask(__name__)

    @app.get("/")
    def view() -> flask.Response:
        return flask.send_file(text)

    server, body = ask_compressed(app.wsgi_app, "br")
    tag = server.header("ETag")
    assert decoded("br", body) == TEXT
    again, nothing = ask_compressed(app.wsgi_app, "br", HTTP_IF_NONE_MATCH=tag)
    assert (again.start[0][:3], nothing, again.header("ETag")) == ("304", b"", tag)
    part, sent = ask_compressed(app.wsgi_app, "br", HTTP_IF_RANGE=tag, HTTP_RANGE="bytes=0-9")
    assert (part.start[0][:3], sent) == ("206", body[:10])
    start, _ = ask_compressed(app.wsgi_app, "br", "HEAD")  # Flask drops the file
    assert start.header("Content-Encoding") is None
    assert start.header("ETag") is None
    assert start.header("Content-Length") is None
    assert start.header("Vary") == "Accept-Encoding"


def test_changed_file_gets_a_new_copy(text: Path) -> None:
    app = sending(lambda: text.open("rb"))
    first, _ = ask_compressed(app)
    write_settled(text, TEXT.replace(b"Jack", b"Jill"))
    second, body = ask_compressed(app)
    assert b"Jill" in decoded("gzip", body)
    assert first.header("ETag") != second.header("ETag")


def filled(file: Any) -> Any:
    file.write(TEXT)
    file.seek(0)
    return file


@pytest.mark.parametrize(
    "make",
    [
        lambda: filled(tempfile.TemporaryFile()),
        lambda: filled(tempfile.NamedTemporaryFile()),
        lambda: gzip.GzipFile(fileobj=io.BytesIO(gzip.compress(TEXT))),
        lambda: io.BytesIO(TEXT),
    ],
)
@pytest.mark.parametrize("wraps", [False, True])
def test_files_without_a_copy_are_compressed(make: Callable[[], Any], wraps: bool) -> None:
    made: list[Any] = []

    def body() -> object:
        made.append(make())
        return wsgiref.util.FileWrapper(made[-1]) if wraps else made[-1]

    for headers in ((), (("Content-Length", str(len(TEXT))),)):
        server, sent = ask_compressed(sending(body, *headers))
        assert server.header("Content-Encoding") == "gzip"
        assert decoded("gzip", sent) == TEXT
        assert server.header("Content-Length") in (None, str(len(sent)))
        assert made[-1].closed
        start, nothing = ask_compressed(sending(body, *headers), method="HEAD")
        assert nothing == b""
        assert start.header("Content-Encoding") in (None, "gzip")
        assert start.header("Content-Length") is None
        assert made[-1].closed


@pytest.mark.parametrize("kind", ["text/plain", "image/png", "application/zip"])
def test_uncompressed_files_keep_their_descriptor(tmp_path: Path, kind: str) -> None:
    """These files are too large, do not shrink, or have another type."""
    noise = random.Random(1).randbytes(20_000)
    file = write_settled(tmp_path / "noise", noise)
    server, body = ask_compressed(sending(lambda: file.open("rb"), kind=kind))
    assert body == noise
    large = tmp_path / "large"
    with large.open("wb") as opened:
        opened.truncate(compressed_copies.MAX_FILE_BYTES + 1)
    write_settled(tmp_path / "later", b"")
    other, body = ask_compressed(
        sending(lambda: large.open("rb"), kind=kind), HTTP_RANGE="bytes=0-9"
    )
    assert body == bytes(10)
    for each in (server, other):
        assert each.header("Vary") == ("Accept-Encoding" if kind == "text/plain" else None)
        assert each.header("Content-Encoding") is None
        assert each.header("Accept-Ranges") == "bytes"
        assert each.environ["wsgifast.sent_as"] == "file"


def test_file_of_other_status_or_place_is_compressed(text: Path) -> None:
    server, body = ask_compressed(sending(lambda: text.open("rb"), status="404 Not Found"))
    assert (server.start[0], decoded("gzip", body)) == ("404 Not Found", TEXT)

    def rest() -> object:
        file = text.open("rb")
        file.read(44)
        return file

    _, body = ask_compressed(sending(rest))
    assert decoded("gzip", body) == TEXT[44:]
    _, body = ask_compressed(sending(rest, ("Content-Length", "1100")))
    assert decoded("gzip", body) == TEXT[44:1144]


def test_file_behind_written_data_is_compressed_too(text: Path) -> None:
    app = answering(lambda _: text.open("rb"), written=b"<file>")
    server = Server(WSGIFast(app, compress=True), new_environ(HTTP_ACCEPT_ENCODING="gzip"))
    assert server.header("Content-Encoding") == "gzip"
    assert decoded("gzip", server.finish()) == b"<file>" + TEXT


def test_hundred_requests_at_once_compress_once(
    text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_wait = threading.Barrier(100)
    made = recorded(monkeypatch, compressed_copies, "compressor")
    app = WSGIFast(sending(lambda: text.open("rb")), compress=True)

    def one(_: int) -> bytes:
        all_wait.wait(30)
        return Server(app, new_environ(HTTP_ACCEPT_ENCODING="br")).finish()

    with ThreadPoolExecutor(100) as pool:
        bodies = set(pool.map(one, range(100)))
    assert len(bodies) == 1
    assert decoded("br", bodies.pop()) == TEXT
    assert made == [("br",)]


def test_unknown_wrapper_keeps_uncompressed_bodies(text: Path) -> None:
    class ServersWrapper(wsgiref.util.FileWrapper):
        pass

    def get(kind: str) -> tuple[Server, Iterable[bytes]]:
        body = ServersWrapper(text.open("rb"))
        environ = new_environ(HTTP_ACCEPT_ENCODING="gzip")
        environ["wsgi.file_wrapper"] = ServersWrapper
        return Server(WSGIFast(sending(lambda: body, kind=kind), compress=True), environ), body

    server, body = get("image/png")
    assert server.result is body
    server.finish()
    server, body = get("text/plain")
    assert decoded("gzip", server.finish()) == TEXT


VALUES = st.none() | st.text(st.characters(max_codepoint=255, categories=["L", "N", "P", "S"]))
COMPRESSED = VALUES | st.sampled_from(
    [
        "gzip",
        "br;q=0.5, zstd;q=0",
        "*",
        "*;q=0",
        "identity;q=0",
        "x-gzip",
        "",
        "gzip;q=2",
        "," * 500,
    ]
)
TAGGED = VALUES | st.sampled_from(
    ['"own"', 'W/"own+gzip"', '"own+br-00000000"', "*", 'W/"own~zstd"', '"a", "own+gzip-"', '"']
)
RANGED = st.none() | st.sampled_from(["bytes=0-9", "bytes=-1", "bytes=5-2", "bytes=0-0,5-9", "x"])


@given(accepted=COMPRESSED, none_match=TAGGED, match=TAGGED, if_range=TAGGED, range_=RANGED)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_header_gets_a_response_that_decodes(
    text: Path,
    accepted: str | None,
    none_match: str | None,
    match: str | None,
    if_range: str | None,
    range_: str | None,
) -> None:
    get = {
        "HTTP_ACCEPT_ENCODING": accepted, "HTTP_IF_NONE_MATCH": none_match, "HTTP_RANGE": range_,
        "HTTP_IF_MATCH": match, "HTTP_IF_RANGE": if_range,
    }  # fmt: skip
    given_ = {name: value for name, value in get.items() if value is not None}
    for app in (
        WSGIFast(sending(lambda: text.open("rb"), ("ETag", '"own"')), compress=True),
        StaticFiles(directory=text.parent, compress=True),
        WSGIFast(sending(lambda: [TEXT], ("ETag", '"own"')), compress=True),
    ):
        server = Server(app, new_environ(path="/text.txt", **given_))
        body = server.finish()
        status = server.start[0][:3]
        assert status in ("200", "206", "304", "412", "416")
        length = server.header("Content-Length")
        assert status == "304" or length == str(len(body))
        if status == "200":
            assert decoded(server.header("Content-Encoding"), body) == TEXT
        if status != "412":
            assert server.header("Vary") == "Accept-Encoding"
