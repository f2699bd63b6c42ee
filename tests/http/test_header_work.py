"""Work on request headers grows like their size: many lines, and long lines, in WSGI and ASGI."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asgifast import ASGIFast, FileResponse
from asgifast import StaticFiles as ASGIStaticFiles
from asgifast.content_coding import ContentCoding as ASGICoding
from asgifast.files import file_request_from as asgi_conditions
from asgifast.messages import Receive, Scope, Send
from asgifast.request_bodies import declared

from tests.asgi.support import call, scope_of
from tests.support.wsgi import Server, new_environ
from wsgifast import Compression, StaticFiles, WSGIFast
from wsgifast.bodies.content_coding import ContentCoding
from wsgifast.bodies.files import file_request_from
from wsgifast.bodies.requests import limit_request
from wsgifast.compression.decoding import BodyLimits
from wsgifast.compression.response import ResponseCoding
from wsgifast.errors import RequestError
from wsgifast.http.fields import raw_headers
from wsgifast.http.framing import list_members, wants_to_persist
from wsgifast.http.headers import Headers
from wsgifast.http.request_headers import HeaderScanner, check_host, header_fields
from wsgifast.http.stream_headers import http1_headers, plain_headers

Lines = list[tuple[str, str]]

NAMES = (
    "Accept-Encoding", "Authorization", "Available-Dictionary", "Connection", "Content-Encoding",
    "Cookie", "Host", "If-Match", "If-Modified-Since", "If-None-Match", "If-Range",
    "If-Unmodified-Since", "Origin", "Range", "Sec-Fetch-Site", "Transfer-Encoding",
    "X-Forwarded-For",
)  # fmt: skip
# One line of each kind. A long line repeats its value, with or without commas in between.
UNITS = ('"aaaaaaaaaaaaaaaaaaaaaaaa+gzip"', "gzip;q=0.1", "bytes=0-0,", "[", " ", "1", ",")
SMALL_BYTES, LARGE_BYTES = 30_000, 300_000
# Smaller amounts are not compared: the clock's resolution and a cold cache dominate them.
COMPARED_S = 0.05
FACTOR = LARGE_BYTES // SMALL_BYTES
COMPRESSION = Compression(min_bytes=1)
LIMITS = BodyLimits(None, decodes=True)


def environ_of(lines: Lines, path: str = "/a.0a1b2c3d.txt") -> dict[str, Any]:
    fields = header_fields([(name.upper(), value) for name, value in lines])
    return {**new_environ(path=path), "wsgi.input": io.BytesIO(), **fields}


def asgi_scope(lines: Lines, path: str = "/a.0a1b2c3d.txt") -> Scope:
    return {**scope_of(path), "headers": raw_headers(lines)}


def answered_by_wsgi(app: Any) -> Callable[[Lines], object]:
    return lambda lines: Server(app, environ_of(lines)).finish()


def answered_by_asgi(app: Any) -> Callable[[Lines], object]:
    return lambda lines: call(app, asgi_scope(lines), whole=False)


def scanned(lines: Lines) -> None:
    headers = b"".join(f"{name}: {value}\r\n".encode() for name, value in lines)
    scanner = HeaderScanner()
    for at in range(0, len(headers), 1000):
        scanner.add(headers[at : at + 1000])


def on_stream(lines: Lines) -> list[tuple[bytes, bytes]]:
    pseudo = [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"a"), (b":path", b"/")]
    return [*pseudo, *((name.lower(), value) for name, value in raw_headers(lines))]


PARTS: dict[str, Callable[[Lines], object]] = {
    "header_fields": lambda lines: header_fields(lines),
    "http1_head": lambda lines: http1_headers(on_stream(lines)),
    "plain_head": lambda lines: plain_headers(on_stream(lines)),
    "HeadScanner": scanned,
    "check_host": lambda lines: check_host([value for _, value in lines], http11=True),
    "wants_to_persist": lambda lines: wants_to_persist([v for _, v in lines], http11=True),
    "list_members": lambda lines: [list_members(value) for _, value in lines],
    "request_facts": lambda lines: file_request_from(environ_of(lines)),
    "ContentCoding": lambda lines: (
        ContentCoding(
            COMPRESSION, "GET", environ_of(lines).get("HTTP_ACCEPT_ENCODING"), [], environ_of(lines)
        ).coding
    ),
    "limit_request": lambda lines: limit_request(environ_of(lines), LIMITS),
    "decoder": lambda lines: [LIMITS.decoder(value) for _, value in lines],
    "decide": lambda lines: [
        ResponseCoding(COMPRESSION, "GET", value, []).decide(
            200, Headers([("Content-Type", "text/plain")]), 9
        )
        for _, value in lines
    ],
    "asgifast: request_facts": lambda lines: asgi_conditions(asgi_scope(lines)),
    "asgifast: declared": lambda lines: declared(asgi_scope(lines)),
    "asgifast: ContentCoding": lambda lines: ASGICoding(COMPRESSION, asgi_scope(lines)).coding,
}


def seconds(read: Callable[[Lines], object], lines: Lines) -> float:
    began = time.thread_time()
    try:
        read(lines)
    except RequestError:
        pass  # rejecting headers is work, too
    return time.thread_time() - began


def check_growth(read: Callable[[Lines], object]) -> None:
    """Ten times as many bytes take at most thirty times as long, for any split."""
    for name in NAMES:
        for unit in UNITS:
            for count_of_lines in ("many", "one"):

                def made(size: int, name: str = name, unit: str = unit) -> Lines:
                    times = size // (len(unit) + 20)
                    if count_of_lines == "many":  # noqa: B023 - called in this turn
                        return [(name, unit)] * times
                    return [(name, (unit + "," if unit[-1] == '"' else unit) * times)]

                large = made(LARGE_BYTES)
                if seconds(read, large) > COMPARED_S:
                    few = min(seconds(read, made(SMALL_BYTES)) for _ in range(5))
                    many = min(seconds(read, large) for _ in range(3))
                    bound = max(COMPARED_S, 3 * FACTOR * few)
                    assert many <= bound, (name, unit, count_of_lines, few, many)


@pytest.mark.parametrize("part", PARTS)
def test_reader_of_headers_takes_linear_time(part: str) -> None:
    check_growth(PARTS[part])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    file = folder / "a.0a1b2c3d.txt"
    file.write_bytes(b"hello " * 500)
    os.utime(file, (1.5e9, 1.5e9))
    return folder


@pytest.mark.parametrize("half", ["StaticFiles", "WSGIFast", "asgifast StaticFiles", "ASGIFast"])
def test_app_of_files_takes_linear_time(half: str, site: Path) -> None:
    path = site / "a.0a1b2c3d.txt"
    every: dict[str, Any] = {"compress": COMPRESSION, "decompress": True, "body_limit_bytes": 10}

    def file_app(environ: dict[str, Any], start_response: Any) -> Any:
        start_response("200 OK", [("Content-Type", "text/plain")])
        return path.open("rb")

    async def asgi_file_app(scope: Scope, receive: Receive, send: Send) -> None:
        await FileResponse(path)(scope, receive, send)

    made: dict[str, Callable[[], Callable[[Lines], object]]] = {
        "StaticFiles": lambda: answered_by_wsgi(StaticFiles(directory=site, dictionaries=True)),
        "WSGIFast": lambda: answered_by_wsgi(WSGIFast(file_app, **every)),
        "asgifast StaticFiles": lambda: answered_by_asgi(
            ASGIStaticFiles(directory=site, dictionaries=True)
        ),
        "ASGIFast": lambda: answered_by_asgi(ASGIFast(asgi_file_app, **every)),
    }
    check_growth(made[half]())
