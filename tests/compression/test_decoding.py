"""Content codings of request bodies, decoded within limits."""

from __future__ import annotations

import contextlib
import gc
import gzip
import io
import os
import tempfile
import threading
import tracemalloc
import weakref
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asgifast
import brotli
import flask
import pytest
from asgifast.messages import Receive, Scope, Send
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.asgi.support import END, START, call, scope_of, sending
from tests.support.decoders import zstd
from tests.support.django_project import set_up
from tests.support.wsgi import Server, new_environ
from wsgifast import ConfigurationError, WSGIFast
from wsgifast.compression.codings import compressor
from wsgifast.compression.decoding import BodyLimits, RequestDecoder, checked_limits
from wsgifast.errors import BodyTooLarge, MalformedRequest, RequestError

CODINGS = ("zstd", "br", "gzip")
MIB = 1024 * 1024


def compress(coding: str, content: bytes) -> bytes:
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
            assert decoded(coding, compress(coding, b"a" * 300_000), step=step) == b"a" * 300_000


@pytest.mark.parametrize("coding", CODINGS)
@given(
    content=st.binary(max_size=2000) | st.sampled_from([b"", b"a" * 20_000]),
    step=st.sampled_from([1, 2, 7, 100, 100_000]),
)
def test_body_in_any_pieces_is_decoded(coding: str, content: bytes, step: int) -> None:
    assert decoded(coding, compress(coding, content), step=step) == content


@pytest.mark.parametrize("step", [1, 13, 100_000])
def test_members_and_frames_in_a_row_are_one_body(step: int) -> None:
    assert decoded("gzip", gzip.compress(b"one") + gzip.compress(b"two"), step=step) == b"onetwo"
    assert decoded("x-gzip", gzip.compress(b"one")) == b"one"
    frames = zstd.compress(b"one") + b"\x50\x2a\x4d\x18\x01\0\0\0x" + zstd.compress(b"two")
    assert decoded("zstd", frames, step=step) == b"onetwo"


@pytest.mark.parametrize("coding", CODINGS)
def test_wrong_incomplete_and_followed_data_is_400(coding: str) -> None:
    right = compress(coding, b"content" * 1000)
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


EMPTY, TINY = gzip.compress(b"", mtime=0), gzip.compress(b"a", mtime=0)
BEGUN = brotli.Compressor()
# Bodies that take much work to decode, and decode to few bytes.
WASTE = {
    "skippable frames": ("zstd", b"\x50\x2a\x4d\x18\0\0\0\0", b""),
    "empty frames": ("zstd", zstd.compress(b""), b""),
    "tiny frames": ("zstd", zstd.compress(b"a"), b""),
    "empty members": ("gzip", EMPTY, b""),
    "tiny members": ("gzip", TINY, b""),
    "members of one run": ("gzip", gzip.compress(b"a" * 250, mtime=0), b""),
    "empty blocks": ("gzip", b"\0\0\0\xff\xff", EMPTY[:10]),
    "empty blocks of zstd": ("zstd", b"\0\0\0", b"\x28\xb5\x2f\xfd\0\x58"),
    "metadata": ("br", b"\x06", BEGUN.process(b"a") + BEGUN.flush()),
}


@pytest.mark.parametrize("kind", WASTE)
@pytest.mark.parametrize("step", [1000, 64 * 1024, 4 * MIB])
def test_body_of_empty_parts_is_400(kind: str, step: int) -> None:
    coding, unit, before = WASTE[kind]
    data = before + unit * (4 * MIB // len(unit))
    decoder = BodyLimits(None, decodes=True).decoder(coding)
    assert decoder is not None
    taken: list[int] = []
    blocks = (data[at : at + step] for at in range(0, len(data), step))
    with pytest.raises(MalformedRequest, match="empty or tiny parts"):
        taken.extend(len(piece) for block in blocks for piece in decoder.decode(block))
    assert sum(map(len, blocks)) >= len(data) - max(step, MIB // 2)
    assert sum(taken) < MIB


def test_log_of_small_members_is_decoded() -> None:
    lines = [f"{number} {os.urandom(150).hex()}\n".encode() for number in range(3000)]
    for coding in ("gzip", "zstd"):
        body = b"".join(compress(coding, line) for line in lines)
        assert decoded(coding, body, step=len(body)) == b"".join(lines)


def test_decoded_size_is_limited() -> None:
    content = bytes(range(256)) * 40
    data = compress("gzip", content)
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
    return int(server.start[0][:3]), {n.lower(): v for n, v in server.start[1]}, body


def post_asgi(data: bytes, coding: str, **options: Any) -> tuple[int, dict[str, str], bytes]:
    scope = scope_of(method="POST", content_encoding=coding, content_length=str(len(data)))
    response = call(asgifast.ASGIFast(star, **options), scope, body=data)
    return response.status, dict(response.headers), response.body


@pytest.mark.parametrize("post", [post_wsgi, post_asgi])
def test_apps_get_decoded_bodies_clients_their_errors(post: Any) -> None:
    data = b'{"name": "%s"}' % (b"n" * 30_000)
    for coding in CODINGS:
        status, _, body = post(compress(coding, data), coding, decompress=True)
        assert status == 200
        assert flask.json.loads(body)["coding"] is None
        assert flask.json.loads(body)["json"] == flask.json.loads(data)
        assert (
            post(compress(coding, data), coding, decompress=True, body_limit_bytes=1000)[0] == 413
        )
        assert post(compress(coding, data)[:-3], coding, decompress=True)[0] == 400
        assert post(b"nonsense", coding, decompress=True)[0] == 400
    status, headers, _ = post(data, "lzma", decompress=True)
    assert (status, headers["accept-encoding"]) == (415, "zstd, br, gzip")
    assert post(data, "gzip, br", decompress=True)[0] == 415
    assert post(data, "identity", decompress=True)[0] == 200
    status, _, body = post(data, "gzip")
    assert flask.json.loads(body)["coding"] == "gzip"


@pytest.mark.parametrize(
    "sent", [b"", compress("gzip", b"[1, 2]")], ids=["nothing", "a whole member"]
)
def test_body_that_ends_before_its_length_is_400(sent: bytes) -> None:
    """The client has disconnected, or has closed its half of the connection."""
    environ = new_environ("POST", CONTENT_LENGTH="100", HTTP_CONTENT_ENCODING="gzip")
    environ["wsgi.input"] = io.BytesIO(sent)
    server = Server(WSGIFast(web.wsgi_app, decompress=True), environ)
    assert server.start[0].startswith("400 ")
    assert b"before its Content-Length" in server.finish()


def test_body_without_length_is_decoded_to_its_end() -> None:
    data = compress("gzip", b"[1, 2]")
    environ = new_environ("POST", CONTENT_TYPE="application/json", HTTP_CONTENT_ENCODING="gzip")
    environ.pop("CONTENT_LENGTH", None)
    environ.update({"wsgi.input": io.BytesIO(data), "wsgi.input_terminated": True})
    environ["HTTP_TRANSFER_ENCODING"] = "chunked"
    server = Server(WSGIFast(web.wsgi_app, decompress=True), environ)
    assert flask.json.loads(server.finish())["json"] == [1, 2]


@pytest.fixture
def decoders(monkeypatch: pytest.MonkeyPatch) -> Iterator[weakref.WeakSet[RequestDecoder]]:
    """Return the decoders that are in memory. Only reference counts free them."""
    alive: weakref.WeakSet[RequestDecoder] = weakref.WeakSet()
    begin = RequestDecoder.__init__

    def noted(self: RequestDecoder, *args: Any) -> None:
        begin(self, *args)
        alive.add(self)

    monkeypatch.setattr(RequestDecoder, "__init__", noted)
    gc.collect()
    gc.disable()
    yield alive
    gc.enable()


BOTH = pytest.mark.parametrize("post", [post_wsgi, post_asgi])
REFUSED = {
    "grown": (zstd.compress(os.urandom(40_000) + bytes(9 * MIB)), 413),
    "too large": (zstd.compress(b"text " * 40_000), 413),
    "wrong": (b"nonsense" * 9000, 400),
    "empty frames": (zstd.compress(b"") * 10_000, 400),
    "cut off": (zstd.compress(os.urandom(100_000))[:-1], 400),
}


@BOTH
@pytest.mark.parametrize("kind", REFUSED)
def test_refused_body_frees_its_decoder(
    post: Any, kind: str, decoders: weakref.WeakSet[RequestDecoder]
) -> None:
    data, status = REFUSED[kind]
    limit = len(data) if kind == "too large" else None
    assert post(data, "zstd", decompress=True, body_limit_bytes=limit)[0] == status
    assert not [*decoders]


@pytest.mark.parametrize("coding", ["utf-8", "gzip", "gzip, br"])
def test_coding_of_no_body_is_not_refused(coding: str) -> None:
    """The body of an HTTP/2 request may end at once, and a chunked one may be empty."""
    seen: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append([dict(scope["headers"])[b"content-encoding"], await receive()])
        await sending(START, END)(scope, receive, send)

    limited = asgifast.ASGIFast(app, decompress=True)
    unknown = {**scope_of(method="GET", content_encoding=coding), "http_version": "2"}
    for scope in (
        scope_of(method="GET", content_encoding=coding),
        scope_of(method="PUT", content_encoding=coding, content_length="0"),
        unknown,
    ):
        assert call(limited, scope, body=b"").status == 200
        assert seen[-1][0] == coding.encode()
        assert not seen[-1][1]["body"]
    assert call(limited, unknown, body=b"x").status in (400, 415)

    def wsgi(environ: Any, start_response: Any) -> list[bytes]:
        seen.append([environ.get("HTTP_CONTENT_ENCODING"), environ["wsgi.input"].read()])
        start_response("200 OK", [])
        return []

    for extra in (
        {},
        {"CONTENT_LENGTH": "0"},
        {"HTTP_TRANSFER_ENCODING": "chunked", "wsgi.input_terminated": True},
    ):
        environ = new_environ("PUT", HTTP_CONTENT_ENCODING=coding)
        environ.pop("CONTENT_LENGTH", None)
        environ.update({"wsgi.input": io.BytesIO(), **extra})
        assert Server(WSGIFast(wsgi, decompress=True), environ).start[0] == "200 OK"
        assert seen[-1][1] == b""
        assert seen[-1][0] == coding or (coding == "gzip" and "HTTP_TRANSFER_ENCODING" in extra)


def test_asgi_app_gets_the_length_and_small_messages() -> None:
    content = b"".join(os.urandom(50) * 4 for _ in range(25_000))
    seen: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        sizes = []
        while True:
            message = await receive()
            sizes.append(len(message["body"]))
            if not message["more_body"]:
                break
        seen.append((headers[b"content-length"], b"content-encoding" in headers, sum(sizes)))
        assert max(sizes) <= MIB
        await sending(START, END)(scope, receive, send)

    for coding in CODINGS:
        data = compress(coding, content)
        scope = scope_of(method="POST", content_encoding=coding, content_length=str(len(data)))
        assert call(asgifast.ASGIFast(app, decompress=True), scope, body=data).status == 200
    assert seen == [(str(len(content)).encode(), False, len(content))] * 3


def test_django_form_is_read_under_asgi() -> None:
    set_up()
    from django.core.handlers.asgi import ASGIHandler, ASGIRequest

    form = (
        b'--B\r\nContent-Disposition: form-data; name="title"\r\n\r\nhello\r\n--B\r\n'
        b'Content-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\n%b\r\n--B--\r\n'
    )
    seen = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        request = ASGIRequest(scope, await ASGIHandler().read_body(receive))
        seen.append((request.POST["title"], request.FILES["file"].size))
        request.close()
        await sending(START, END)(scope, receive, send)

    for size in (5000, 3_000_000):
        # A value without a hyphen. Django might read three bytes of it as the boundary.
        content = os.urandom(size).replace(b"-", b"+")
        data = gzip.compress(form % content)
        scope = scope_of(
            method="POST", content_encoding="gzip", content_length=str(len(data)),
            content_type="multipart/form-data; boundary=B",
        )  # fmt: skip
        assert call(asgifast.ASGIFast(app, decompress=True), scope, body=data).status == 200
    assert seen == [("hello", 5000), ("hello", 3_000_000)]


@BOTH
def test_decoded_body_without_room_is_503(
    post: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = compress("gzip", b'{"name": "%s"}' % os.urandom(2 * MIB).hex().encode())
    assert post(data, "gzip", decompress=True)[0] == 200
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    status, _, body = post(data, "gzip", decompress=True)
    assert status == 503
    assert b"no room" in body
    assert b"No such file" in body


def test_nothing_is_decoded_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = set()
    decode = RequestDecoder.decode

    def noted(self: RequestDecoder, data: bytes) -> Iterator[bytes]:
        for piece in decode(self, data):
            threads.add(threading.current_thread())
            yield piece

    monkeypatch.setattr(RequestDecoder, "decode", noted)
    for size in (100, 100_000):
        assert (
            post_asgi(compress("gzip", b"[%b]" % (b" " * size)), "gzip", decompress=True)[0] == 200
        )
    assert threads
    assert threading.main_thread() not in threads
