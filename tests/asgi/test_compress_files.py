"""ASGIFast(app, compress=True) and files: their coded copies, with validators and ranges."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import asgifast
import pytest
from asgifast import ASGIFast, StaticFiles
from starlette.applications import Starlette
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from tests.support.coded import decoded
from tests.support.files import write_settled
from wsgifast.compression.codings import compressor
from wsgifast.files import coded_copies

from .messages import head, offering, pathsend
from .support import Answer, call, scope_of
from .test_compress import ask, sending

TEXT = b"All work and no play makes Jack a dull boy.\n" * 2000
CODINGS = ("zstd", "br", "gzip")
KIND = (b"content-type", b"text/plain")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write_settled(tmp_path / "text.txt", TEXT)


def apps(text: Path, **headers: str) -> list[Any]:
    async def starlettes(request: Request) -> Response:
        return FileResponse(text, headers=headers)

    async def ours(request: Request) -> Response:
        return asgifast.FileResponse(text, headers=headers)

    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    return [
        Starlette(routes=[Route("/text.txt", starlettes)]),
        Starlette(routes=[Route("/text.txt", ours)]),
        sending(head(KIND, *raw), pathsend(str(text))),
    ]


def get(app: Any, coding: str, method: str = "GET", **headers: str) -> tuple[Answer, Any]:
    scope = scope_of("/text.txt", method=method, accept_encoding=coding, **headers)
    answer = call(ASGIFast(app, compress=True), scope)
    found = dict(answer.headers)
    assert len(found) == len(answer.headers)
    assert answer.status == 412 or found["vary"] == "Accept-Encoding"
    return answer, found


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("which", range(3))
def test_file_goes_out_from_a_coded_copy(text: Path, coding: str, which: int) -> None:
    app = apps(text)[which]
    plain, plain_headers = get(app, "identity")
    assert plain.body == TEXT
    answer, headers = get(app, coding)
    assert decoded(coding, answer.body) == TEXT
    assert headers["content-encoding"] == coding
    assert headers["content-length"] == str(len(answer.body))
    assert headers["accept-ranges"] == "bytes"
    tag = headers["etag"]
    assert not tag.startswith("W/")
    assert tag != plain_headers["etag"]
    again, found = get(app, coding, if_none_match=tag)
    assert (again.status, again.body, found["etag"]) == (304, b"", tag)
    part, found = get(app, coding, range="bytes=5-9", if_range=tag)
    assert (part.status, part.body) == (206, answer.body[5:10])
    assert found["content-encoding"] == coding
    full, _ = get(app, coding, range="bytes=5-9", if_range=plain_headers["etag"])
    assert (full.status, full.body) in ((200, answer.body), (206, TEXT[5:10]))
    head_answer, found = get(app, coding, "HEAD")
    assert head_answer.body == b""
    assert found.get("content-encoding") in (None, coding)
    assert found.get("etag") in (None, tag)
    assert found.get("content-length") in (None, headers["content-length"])


def test_head_claims_no_coding_where_the_app_codes_the_file(text: Path) -> None:
    """GZipMiddleware sees no bytes of a file in an answer to HEAD, and leaves that as it is."""

    app = apps(text)[0]
    app.add_middleware(GZipMiddleware)
    assert get(app, "gzip, zstd")[1]["content-encoding"] == "gzip"
    assert "content-encoding" not in get(app, "gzip, zstd", "HEAD")[1]


@pytest.mark.parametrize("which", range(3))
def test_preconditions_are_evaluated_with_what_the_client_sent(text: Path, which: int) -> None:
    app = apps(text, etag='"own"')[which]
    _, headers = get(app, "br")
    tag = headers["etag"]
    assert tag.startswith('"own+br-')
    assert get(app, "br", if_match=tag)[0].status == 200
    assert get(app, "br", if_match='"other"')[0].status == 412
    assert get(app, "br", if_none_match='"other"')[0].status == 200
    assert get(app, "gzip", if_none_match=tag)[0].status == 200
    assert get(app, "br", if_none_match=f'"other", {tag}')[0].status == 304


def test_static_files_inside_are_sent_from_a_copy(text: Path) -> None:
    app = StaticFiles(directory=text.parent, cache_bytes=0)
    answer, headers = get(app, "zstd")
    assert decoded("zstd", answer.body) == TEXT
    assert "+zstd-" in headers["etag"]
    again, found = get(app, "zstd", if_none_match=headers["etag"])
    assert (again.status, found["etag"]) == (304, headers["etag"])


def test_file_that_is_being_written_is_compressed_without_a_copy(tmp_path: Path) -> None:
    path = tmp_path / "report"

    async def app(scope: Any, receive: Any, send: Any) -> None:
        path.write_bytes(TEXT)
        await send(head(KIND, (b"etag", b'"own"')))
        await send(pathsend(str(path)))

    answer, headers = ask(app, range="bytes=0-9")
    assert (answer.status, decoded("gzip", answer.body)) == (200, TEXT)
    assert headers["etag"] == 'W/"own+gzip"'
    assert "accept-ranges" not in headers
    answer, headers = ask(app, if_none_match='W/"own+gzip"')
    assert (answer.status, headers["etag"]) == (304, 'W/"own+gzip"')
    assert "etag" not in ask(app, method="HEAD")[1]


def test_large_and_other_files_are_left_to_the_server(text: Path) -> None:
    large = text.parent / "large"
    with large.open("wb") as opened:
        opened.truncate(coded_copies.MAX_FILE_BYTES + 1)
    for path, kind, vary in ((large, b"text/plain", True), (text, b"image/png", False)):
        app = ASGIFast(sending(head((b"content-type", kind)), pathsend(str(path))), compress=True)
        answer = call(app, offering("http.response.pathsend", accept_encoding="gzip"))
        assert answer.messages[-1]["path"] == str(path)
        headers = dict(answer.headers)
        assert "content-encoding" not in headers
        assert headers["accept-ranges"] == "bytes"
        assert ("vary" in headers) is vary


def test_hundred_requests_at_once_compress_once_and_not_on_the_loop(
    text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[threading.Thread] = []

    def counted(coding: str, **options: Any) -> Any:
        made.append(threading.current_thread())
        return compressor(coding, **options)

    monkeypatch.setattr("wsgifast.files.coded_copies.compressor", counted)
    bodies: list[bytes] = []

    async def one() -> None:
        async def send(message: Any) -> None:
            bodies.append(message.get("body", b""))

        scope = scope_of("/text.txt", accept_encoding="br")
        await wrapped(scope, asyncio.Event().wait, send)  # type: ignore[arg-type]

    async def main() -> None:
        await asyncio.gather(*(one() for _ in range(100)))

    for app in apps(text):
        wrapped = ASGIFast(app, compress=True)
        asyncio.run(main())
    assert len(made) == 1
    assert made[0] is not threading.main_thread()
    assert {decoded("br", body) for body in bodies if body} == {TEXT}


def test_descriptors_are_closed(text: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for app in apps(text):
        for coding in ("identity", "gzip"):
            get(app, coding)
            get(app, coding, "HEAD")
    assert len(os.listdir("/proc/self/fd")) == before
