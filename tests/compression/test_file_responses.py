"""Files under WSGIFast and ASGIFast with compress=True: compressed copies, validators, ranges."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asgifast
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

import wsgifast
from tests.support.decoders import decoded
from tests.support.files import settle, write_settled
from wsgifast.compression.policy import compressed_tag
from wsgifast.files import compressed_copies

from .interfaces import TEXT, Ask, Received, Site, ask_asgi, ask_wsgi

CODINGS = ("zstd", "br", "gzip")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write_settled(tmp_path / "text.txt", TEXT)


def responding(kind: Callable[..., Response]) -> Callable[..., Starlette]:
    def made(path: Path, *headers: tuple[str, str]) -> Starlette:
        async def respond(request: Request) -> Response:
            return kind(path, headers=dict(headers))

        return Starlette(routes=[Route("/text.txt", respond)])

    return made


# The way to send the file, and the code that sends it.
WAYS: dict[str, tuple[Ask, Callable[..., Any]]] = {
    "wsgi": (ask_wsgi, Site),
    "asgi": (ask_asgi, Site),
    "starlette": (ask_asgi, responding(FileResponse)),
    "ours": (ask_asgi, responding(asgifast.FileResponse)),
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def get(way: str, text: Path) -> Ask:
    ask, make = WAYS[way]

    def get(coding: str, method: str = "GET", *own: tuple[str, str], **headers: str) -> Received:
        app = make(text, *own)
        response = ask(app, path="/text.txt", method=method, accept_encoding=coding, **headers)
        assert response.status == 412 or response.headers["vary"] == "Accept-Encoding"
        return response

    return get


@pytest.mark.parametrize("coding", CODINGS)
def test_file_is_sent_from_compressed_copy_with_tag(get: Ask, way: str, coding: str) -> None:
    plain, response = get("identity"), get(coding)
    assert plain.body == TEXT
    assert decoded(coding, response.body) == TEXT
    assert response.headers["content-encoding"] == coding
    assert response.headers["content-length"] == str(len(response.body))
    assert response.headers["accept-ranges"] == "bytes"
    tag = response.headers["etag"]
    assert not tag.startswith("W/")
    assert tag != plain.headers["etag"]
    assert get(coding).body == response.body
    again = get(coding, if_none_match=tag)
    assert (again.status, again.body, again.headers["etag"]) == (304, b"", tag)
    part = get(coding, range="bytes=5-9", if_range=tag)
    assert (part.status, part.body) == (206, response.body[5:10])
    assert part.headers["content-encoding"] == coding
    full = get(coding, range="bytes=5-9", if_range=plain.headers["etag"])
    assert (full.status, full.body) in ((200, response.body), (206, TEXT[5:10]))
    received = get(coding, "HEAD")
    assert received.body == b""
    if way == "wsgi":
        assert received.headers == response.headers
    for name in ("content-encoding", "etag", "content-length"):
        assert received.headers.get(name) in (None, response.headers[name])


OWN = ("ETag", '"own"'), ("X-Kept", "yes")


@pytest.mark.parametrize("coding", CODINGS)
def test_preconditions_use_the_tag_of_the_copy(get: Ask, coding: str) -> None:
    whole = get(coding, "GET", *OWN)
    tag = whole.headers["etag"]
    assert tag.startswith(f'"own+{coding}-')
    not_modified = get(coding, "GET", *OWN, if_none_match=tag)
    assert (not_modified.status, not_modified.body) == (304, b"")
    assert not_modified.headers["etag"] == tag
    assert not_modified.headers["x-kept"] == "yes"
    other_coding = next(each for each in CODINGS if each != coding)
    for requested, header, value, status in (
        (coding, "if_none_match", f'"other", W/{tag}', 304),
        (coding, "if_none_match", '"other"', 200),
        (coding, "if_match", tag, 200),
        (coding, "if_match", '"other"', 412),
        (other_coding, "if_none_match", tag, 200),
    ):
        response = get(requested, "GET", *OWN, **{header: value})
        assert response.status == status, (requested, header, value)
        assert status != 200 or requested != coding or response.body == whole.body


@pytest.mark.parametrize("way", ["wsgi", "asgi"], indirect=True)
@pytest.mark.parametrize("coding", CODINGS)
def test_own_tag_does_not_match_ranges_are_of_the_copy(get: Ask, coding: str) -> None:
    """The app evaluates no preconditions. The two file responses evaluate them."""
    whole = get(coding, "GET", *OWN)
    tag, body = whole.headers["etag"], whole.body

    def requested(**headers: str) -> tuple[int, bytes]:
        response = get(coding, "GET", *OWN, **headers)
        return response.status, response.body

    assert requested(if_none_match='"own"') == (200, body)
    assert requested(if_match='"own"')[0] == 412
    part = get(coding, "GET", *OWN, range="bytes=5-9", if_range=tag)
    assert (part.status, part.body) == (206, body[5:10])
    assert part.headers["content-encoding"] == coding
    assert part.headers["content-range"] == f"bytes 5-9/{len(body)}"
    assert requested(range="bytes=5-9") == (206, body[5:10])
    assert requested(range="bytes=5-9", if_range='"own"') == (200, body)
    assert requested(range=f"bytes={len(body)}-")[0] == 416


def test_file_being_written_is_compressed_uncopied(ask: Ask, tmp_path: Path) -> None:
    path = tmp_path / "report"
    site = Site(path, ("ETag", '"own"'), before=lambda: path.write_bytes(TEXT))
    response = ask(site, accept_encoding="gzip", range="bytes=0-9")
    assert (response.status, decoded("gzip", response.body)) == (200, TEXT)
    compressed = compressed_tag('"own"', "gzip")
    assert response.headers["etag"] == compressed
    assert "accept-ranges" not in response.headers
    response = ask(site, accept_encoding="gzip", if_none_match=compressed)
    assert (response.status, response.headers["etag"]) == (304, compressed)
    if ask is ask_asgi:
        whole, received = (
            ask(site, accept_encoding="gzip", method=name) for name in ("GET", "HEAD")
        )
        assert received.headers == whole.headers


@pytest.mark.parametrize(("interface", "halves"), [(ask_wsgi, wsgifast), (ask_asgi, asgifast)])
def test_static_files_inside_are_compressed_once(text: Path, interface: Ask, halves: Any) -> None:
    app = halves.StaticFiles(directory=text.parent, cache_bytes=0)

    def get(**headers: str) -> Received:
        return interface(app, path="/text.txt", accept_encoding="zstd", **headers)

    response = get()
    assert decoded("zstd", response.body) == TEXT
    tag = response.headers["etag"]
    assert "+zstd-" in tag
    assert not tag.startswith("W/")
    again = get(if_none_match=tag)
    assert (again.status, again.headers["etag"]) == (304, tag)
    part = get(if_range=tag, range="bytes=3-8")
    assert (part.status, part.body) == (206, response.body[3:9])


@pytest.mark.parametrize(
    ("name", "kind", "vary"),
    [
        ("large", "text/plain", True),
        ("text.txt", "image/png", False),
        ("text.txt", "application/zip", False),
    ],
)
def test_large_file_and_other_type_are_uncompressed(
    ask: Ask, text: Path, name: str, kind: str, vary: bool
) -> None:
    with (text.parent / "large").open("wb") as opened:
        opened.truncate(compressed_copies.MAX_FILE_BYTES + 1)
    write_settled(text.parent / "later", b"")
    path = text.parent / name
    response = ask(Site(path, ("Content-Type", kind)), accept_encoding="gzip", range="bytes=0-9")
    assert response.body == path.read_bytes()[:10]
    assert response.headers["accept-ranges"] == "bytes"
    assert "content-encoding" not in response.headers
    assert ("vary" in response.headers) is vary


@pytest.mark.parametrize("ahead_s", [3600, 20 * 365 * 86_400])
def test_file_ahead_of_the_clock_has_tag_and_copy(get: Ask, text: Path, ahead_s: int) -> None:
    os.utime(text, (0, time.time() + ahead_s))
    settle(text)
    for coding in ("identity", "gzip"):
        whole = get(coding)
        tag = whole.headers["etag"]
        assert not tag.startswith("W/")
        assert get(coding, if_none_match=tag).status == 304
        part = get(coding, range="bytes=0-9", if_range=tag)
        assert (part.status, part.body) == (206, whole.body[:10])
