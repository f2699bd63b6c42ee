"""StaticFiles(compress=True) compresses files on request that have no precompressed file."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import asgifast
import pytest

from tests.asgi.support import call as call_asgi
from tests.asgi.support import scope_of
from tests.static.calls import Answered, call, write_precompressed
from tests.support.calls import recorded
from tests.support.decoders import decoded
from tests.support.files import settle
from wsgifast import Compression, StaticFiles, WSGIFast
from wsgifast.errors import ConfigurationError
from wsgifast.files import RequestFacts, compressed_copies

TEXT = b"let answer = 42; // and what was the question?\n" * 5000
CODINGS = ("zstd", "br", "gzip")


@pytest.fixture
def script(site: Path) -> Path:
    """Return an old file that is too large for the cache."""
    script = site / "large.js"
    script.write_bytes(TEXT)
    settle(*site.iterdir())
    return script


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("size", [len(TEXT), 5000])
def test_file_without_precompressed_is_sent_compressed(
    script: Path, coding: str, size: int
) -> None:
    script.write_bytes(TEXT[:size])
    settle(script)
    app = StaticFiles(directory=script.parent, compress=True)
    first = call(app, "/large.js", Accept_Encoding=coding)
    for _ in range(2):
        response = call(app, "/large.js", Accept_Encoding=coding)
        assert decoded(coding, response.body) == TEXT[:size]
        assert (response.headers, response.body) == (first.headers, first.body)
    headers = response.headers
    assert headers["content-encoding"] == coding
    assert headers["vary"] == "Accept-Encoding"
    assert headers["content-length"] == str(len(response.body))
    assert len(response.names) == len(headers)
    plain = call(app, "/large.js")
    assert (plain.body, plain.headers["vary"]) == (TEXT[:size], "Accept-Encoding")
    assert plain.headers["etag"] != headers["etag"]
    assert plain.headers["last-modified"] == headers["last-modified"]
    tag = headers["etag"]

    def ask(method: str = "GET", **extra: str) -> Answered:
        return call(app, "/large.js", method, Accept_Encoding=coding, **extra)

    received = ask("HEAD")
    assert (received.headers, received.body) == (headers, b"")
    assert ask(If_None_Match=tag).status == 304
    assert ask(If_None_Match=plain.headers["etag"]).status == 200
    assert ask(If_Match=plain.headers["etag"]).status == 412
    part = ask(Range="bytes=2-8", If_Range=tag)
    assert (part.status, part.body) == (206, response.body[2:9])
    assert ask(Range="bytes=2-8", If_Range=headers["last-modified"]).status == 200


def test_compression_around_it_leaves_its_validators(script: Path) -> None:
    static = StaticFiles(directory=script.parent, compress=True)
    asgi = asgifast.StaticFiles(directory=script.parent, compress=True)
    wrapped = WSGIFast(static, compress=True)
    asgi_wrapped = asgifast.ASGIFast(asgi, compress=True)
    tag = call(wrapped, "/large.js", Accept_Encoding="br").headers["etag"]
    assert tag == call(static, "/large.js", Accept_Encoding="br").headers["etag"]
    for precondition, status in [("If_None_Match", 304), ("If_Match", 200)]:
        again = call(wrapped, "/large.js", Accept_Encoding="br", **{precondition: tag})
        assert (again.status, again.headers["etag"]) == (status, tag)
        headers = {"accept_encoding": "br", precondition.lower(): tag}
        response = call_asgi(asgi_wrapped, scope_of("/large.js", **headers))
        assert (response.status, dict(response.headers)["etag"]) == (status, tag)


def test_file_with_a_precompressed_file_is_sent_by_it(script: Path) -> None:
    packed = gzip.compress(TEXT)
    write_precompressed(script, ".gz", packed)
    settle(script)
    app = StaticFiles(directory=script.parent, compress=True)
    for _ in range(2):
        assert call(app, "/large.js", Accept_Encoding="zstd, gzip").body == packed
        response = call(app, "/large.js", Accept_Encoding="zstd")
        assert decoded("zstd", response.body) == TEXT


def test_changed_file_is_compressed_anew(script: Path) -> None:
    app = StaticFiles(directory=script.parent, compress=True)
    assert decoded("br", call(app, "/large.js", Accept_Encoding="br").body) == TEXT
    script.write_bytes(TEXT[::-1])
    for _ in range(2):
        response = call(app, "/large.js", Accept_Encoding="br")
        assert decoded(response.headers.get("content-encoding"), response.body) == TEXT[::-1]
        settle(script)


def test_other_types_and_sizes_are_left_alone(script: Path) -> None:
    (script.parent / "image.png").write_bytes(TEXT)
    (script.parent / "huge.js").touch()
    with (script.parent / "huge.js").open("wb") as huge:
        huge.truncate(compressed_copies.MAX_FILE_BYTES + 1)
    settle(script.parent / "huge.js", script.parent / "image.png")
    app = StaticFiles(directory=script.parent, compress=True)
    for path in ("/image.png", "/huge.js", "/app.js"):
        for _ in range(2):
            response = call(app, path, Accept_Encoding="gzip", Range="bytes=0-0")
            assert "content-encoding" not in response.headers, path
            assert "vary" not in response.headers, path
            assert response.headers["accept-ranges"] == "bytes"
    small = StaticFiles(directory=script.parent, compress=Compression(min_bytes=100))
    assert call(small, "/app.js", Accept_Encoding="br").headers["content-encoding"] == "br"
    assert "content-encoding" not in call(app, "/large.js", Accept_Encoding="gzip;q=0").headers

    def transforms(headers: Any, path: str, url: str) -> None:
        headers["Cache-Control"] = "no-transform"

    unchanged = StaticFiles(directory=script.parent, compress=True, add_headers=transforms)
    assert "content-encoding" not in call(unchanged, "/large.js", Accept_Encoding="br").headers


def test_page_of_a_missing_file_is_compressed(script: Path) -> None:
    (script.parent / "404.html").write_bytes(TEXT)
    settle(script.parent / "404.html")
    app = StaticFiles(directory=script.parent, compress=True)
    for _ in range(2):
        response = call(app, "/nothing", Accept_Encoding="gzip")
        assert (response.status, decoded("gzip", response.body)) == (404, TEXT)
        assert "etag" not in response.headers


def test_response_from_the_cache_compresses_nothing(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = StaticFiles(directory=script.parent, compress=True)
    made = recorded(monkeypatch, compressed_copies, "compressor")
    call(app, "/large.js")
    conditions = RequestFacts(accept_encoding="br")
    assert app.answer_from_cache(conditions, "/large.js") is None
    assert made == []
    call(app, "/large.js", Accept_Encoding="br")
    response = app.answer_from_cache(conditions, "/large.js")
    assert response is not None
    assert response[1] is None
    assert made == [("br",)]


def test_compressed_asgi_responses_equal_wsgis(script: Path) -> None:
    ours = StaticFiles(directory=script.parent, compress=True)
    theirs = asgifast.StaticFiles(directory=script.parent, compress=True)
    for coding in (*CODINGS, "identity"):
        for _ in range(2):
            wsgi = call(ours, "/large.js", Accept_Encoding=coding)
            asgi = call_asgi(theirs, scope_of("/large.js", accept_encoding=coding))
            assert (dict(asgi.headers), asgi.body) == (wsgi.headers, wsgi.body)


def test_wrong_compress_option_of_a_site_is_refused(site: Path) -> None:
    with pytest.raises(ConfigurationError, match="compress"):
        StaticFiles(directory=site, compress="gzip")  # type: ignore[arg-type]
