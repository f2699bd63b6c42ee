"""Content codings of request bodies, decoded within limits."""

from __future__ import annotations

import contextlib
import gzip
import io
import tracemalloc
import zlib
from typing import Any

import asgifast
import brotli
import flask
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.asgi.support import call, scope_of
from tests.support.coded import zstd
from tests.support.wsgi import Server, new_environ
from wsgifast import ConfigurationError, WSGIFast
from wsgifast.compression.codings import compressor
from wsgifast.compression.decoding import BodyLimits, checked_limits
from wsgifast.errors import BodyTooLarge, MalformedRequest, RequestError

CODINGS = ("zstd", "br", "gzip")
MIB = 1024 * 1024


def coded(coding: str, content: bytes) -> bytes:
    return compressor(coding, size=len(content)).whole(content)


def decoded(coding: str, data: bytes, *, step: int = 1000, max_bytes: int = 64 * MIB) -> bytes:
    decoder = BodyLimits(max_bytes, decodes=True).decoder(coding)
    assert decoder is not None
    blocks = [data[at : at + step] for at in range(0, len(data), step)]
    content = b"".join(piece for block in blocks for piece in decoder.decode(block))
    decoder.end()
    return content


def test_long_runs_come_out_whole() -> None:
    for coding in CODINGS:
        for step in (1, 7, 100_000):
            assert decoded(coding, coded(coding, b"a" * 300_000), step=step) == b"a" * 300_000


@pytest.mark.parametrize("coding", CODINGS)
@given(
    content=st.binary(max_size=2000) | st.sampled_from([b"", b"a" * 20_000]),
    step=st.sampled_from([1, 2, 7, 100, 100_000]),
)
def test_body_in_any_pieces_is_decoded(coding: str, content: bytes, step: int) -> None:
    assert decoded(coding, coded(coding, content), step=step) == content


@pytest.mark.parametrize("step", [1, 13, 100_000])
def test_members_and_frames_behind_each_other_are_one_body(step: int) -> None:
    assert decoded("gzip", gzip.compress(b"one") + gzip.compress(b"two"), step=step) == b"onetwo"
    assert decoded("x-gzip", gzip.compress(b"one")) == b"one"
    frames = zstd.compress(b"one") + b"\x50\x2a\x4d\x18\x01\0\0\0x" + zstd.compress(b"two")
    assert decoded("zstd", frames, step=step) == b"onetwo"


@pytest.mark.parametrize("coding", CODINGS)
def test_wrong_incomplete_and_followed_data_is_400(coding: str) -> None:
    right = coded(coding, b"content" * 1000)
    for wrong in (
        b"nonsense" * 10,
        right[:-1],
        right[:10],
        right + b"more",
        right[:20] + b"\xff" * 50,
    ):
        for step in (1, 1000):
            with pytest.raises(MalformedRequest):
                decoded(coding, wrong, step=step)


@given(data=st.binary(max_size=300), coding=st.sampled_from(CODINGS))
def test_any_data_is_decoded_or_refused(data: bytes, coding: str) -> None:
    with contextlib.suppress(RequestError):
        decoded(coding, data, step=17)


@pytest.mark.parametrize("coding", CODINGS)
def test_bomb_is_413_before_it_has_grown(coding: str) -> None:
    if coding == "gzip":
        packer = zlib.compressobj(9, wbits=31)
        bomb = b"".join(packer.compress(bytes(MIB)) for _ in range(200)) + packer.flush()
    elif coding == "br":
        bomb = brotli.compress(bytes(200 * MIB), quality=3)
    else:
        bomb = zstd.compress(bytes(200 * MIB))
    decoder = BodyLimits(1000 * MIB, decodes=True).decoder(coding)
    assert decoder is not None
    sizes: list[int] = []
    tracemalloc.start()
    try:
        with pytest.raises(RequestError, match="more than 200 times"):
            sizes.extend(map(len, decoder.decode(bomb)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(sizes) <= max(MIB, len(bomb) * 200)
    assert peak < MIB


def test_decoded_size_is_limited() -> None:
    content = bytes(range(256)) * 40
    data = coded("gzip", content)
    assert decoded("gzip", data, max_bytes=len(content)) == content
    with pytest.raises(BodyTooLarge):
        decoded("gzip", data, max_bytes=len(content) - 1)


@given(st.text(max_size=30))
def test_any_content_encoding_is_known_or_refused(value: str) -> None:
    with contextlib.suppress(RequestError):
        BodyLimits(MIB, decodes=True).decoder(value)


@pytest.mark.parametrize("wrong", ["yes", 1000, None])
def test_invalid_decompress_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="decompress"):
        checked_limits(None, wrong)


@pytest.mark.parametrize("wrong", ["1 MiB", -1, 1.5, True])
def test_invalid_body_limit_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="body_limit_bytes="):
        checked_limits(wrong, False)


def test_options_that_ask_for_nothing_are_no_limits() -> None:
    assert checked_limits(None, False) is None
    assert checked_limits(0, False) == BodyLimits(0, decodes=False)
    assert checked_limits(None, True) == BodyLimits(None, decodes=True)


# Apps

web = flask.Flask("web")


@web.post("/")
def post() -> Any:
    encoding = flask.request.headers.get("Content-Encoding")
    return {"json": flask.request.get_json(), "coding": encoding}


async def receive_json(request: Request) -> Response:
    found = await request.json()
    return JSONResponse({"json": found, "coding": request.headers.get("content-encoding")})


star = Starlette(routes=[Route("/", receive_json, methods=["POST"])])


def post_wsgi(data: bytes, coding: str, **options: Any) -> tuple[int, dict[str, str], bytes]:
    environ = new_environ(
        "POST",
        CONTENT_TYPE="application/json",
        CONTENT_LENGTH=str(len(data)),
        HTTP_CONTENT_ENCODING=coding,
    )
    environ["wsgi.input"] = io.BytesIO(data + b"the next request")
    server = Server(WSGIFast(web.wsgi_app, **options), environ)
    body = server.finish()
    return int(server.head[0][:3]), {n.lower(): v for n, v in server.head[1]}, body


def post_asgi(data: bytes, coding: str, **options: Any) -> tuple[int, dict[str, str], bytes]:
    scope = scope_of(method="POST", content_encoding=coding, content_length=str(len(data)))
    answer = call(asgifast.ASGIFast(star, **options), scope, body=data)
    return answer.status, dict(answer.headers), answer.body


@pytest.mark.parametrize("post", [post_wsgi, post_asgi])
def test_apps_get_decoded_bodies_and_clients_their_errors(post: Any) -> None:
    data = b'{"name": "%s"}' % (b"n" * 30_000)
    for coding in CODINGS:
        status, _, body = post(coded(coding, data), coding, decompress=True)
        assert status == 200
        assert flask.json.loads(body)["coding"] is None
        assert flask.json.loads(body)["json"] == flask.json.loads(data)
        assert post(coded(coding, data), coding, decompress=True, body_limit_bytes=1000)[0] == 413
        assert post(coded(coding, data)[:-3], coding, decompress=True)[0] == 400
        assert post(b"nonsense", coding, decompress=True)[0] == 400
    status, headers, _ = post(data, "lzma", decompress=True)
    assert (status, headers["accept-encoding"]) == (415, "zstd, br, gzip")
    assert post(data, "gzip, br", decompress=True)[0] == 415
    assert post(data, "identity", decompress=True)[0] == 200
    status, _, body = post(data, "gzip")
    assert flask.json.loads(body)["coding"] == "gzip"


def test_body_without_length_is_decoded_where_the_server_ends_it() -> None:
    data = coded("gzip", b"[1, 2]")
    environ = new_environ("POST", CONTENT_TYPE="application/json", HTTP_CONTENT_ENCODING="gzip")
    environ.pop("CONTENT_LENGTH", None)
    environ.update({"wsgi.input": io.BytesIO(data), "wsgi.input_terminated": True})
    environ["HTTP_TRANSFER_ENCODING"] = "chunked"
    server = Server(WSGIFast(web.wsgi_app, decompress=True), environ)
    assert flask.json.loads(server.finish())["json"] == [1, 2]
