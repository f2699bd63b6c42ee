"""Compression on FastWorker: flushes of streams, and levels while requests wait for a thread.

Blocks of a stream that arrive quickly share a flush, and no block is delayed for long.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.decoders import Decoder, decoded
from tests.support.http import Connection
from tests.support.http2 import Connected
from tests.support.servers import LiveServer, wait_for
from tests.support.tls import client_context, write_certificate
from tests.workers.serving import fast_worker
from wsgifast import Compression, WSGIFast
from wsgifast.compression.codings import DEFAULT_LEVELS, compressor
from wsgifast.compression.policy import IS_BEHIND

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

CODINGS = ("zstd", "br", "gzip")
ROWS = [b"%d,name %d,%d\n" % (number, number % 97, number * 7) for number in range(5000)]
WHOLE = b"".join(ROWS)
LARGE = [b"".join(ROWS), b"", b"x" * 300_000, b"end"]
_next = threading.Semaphore(0)


def events() -> Iterator[bytes]:
    for number in range(20):
        yield b"event %02d\n" % number
        assert _next.acquire(timeout=30)


def failing() -> Iterator[bytes]:
    yield from ROWS[:500]
    raise RuntimeError("midway")


def lazy(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
    """Call write() between blocks, and before the first one."""
    write = start_response("200 OK", [("Content-Type", "text/plain")])
    for row in ROWS[:100]:
        write(b"w")
        yield row
        write(row)


def raw(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    path = environ["PATH_INFO"]
    if path == "/next":
        _next.release()
    if path == "/behind":
        wait_for(environ[IS_BEHIND], "another request waits")
    kind = "image/png" if path == "/image" else "text/plain"
    if path == "/lazy":
        return lazy(environ, start_response)
    write = start_response("200 OK", [("Content-Type", kind)])
    if path == "/written":
        write(b"written")
    bodies: dict[str, Any] = {
        "/events": events, "/failing": failing, "/large": lambda: iter(LARGE),
        "/empty": lambda: iter(()),
        "/next": lambda: [b"ok"],
        "/whole": lambda: [WHOLE], "/behind": lambda: [WHOLE],
    }  # fmt: skip
    return bodies.get(path, lambda: iter(ROWS))()  # type: ignore[no-any-return]


app = WSGIFast(raw, compress=Compression(min_bytes=0))


def behind(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """Middleware that reads each block of the body."""
    return (block.replace(b"\0", b"\0") for block in app(environ, start_response))


FORMAT = (
    "%(U)s %(B)s %({wsgifast.coding}e)s %({wsgifast.uncoded_bytes}e)s %({wsgifast.coded_bytes}e)s"
)


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with fast_worker(f"--access-logformat={FORMAT}", app=f"{__name__}:app") as running:
        yield running


@pytest.mark.parametrize("coding", CODINGS)
def test_quick_blocks_share_a_flush(server: LiveServer, coding: str) -> None:
    whole = b"".join(ROWS)
    response = server.get("/rows", headers=[("Accept-Encoding", coding)])
    assert response.header("Content-Encoding") == coding
    assert decoded(coding, response.body) == whole
    # A flush for each row would give about as many bytes as no compression.
    assert len(response.body) < len(whole) / 2
    line = f"/rows {len(response.body)} {coding} {len(whole)} {len(response.body)}"
    server.wait_for_log(line)


@pytest.mark.parametrize("coding", CODINGS)
def test_large_and_empty_blocks_arrive_whole(server: LiveServer, coding: str) -> None:
    for _ in range(3):
        response = server.get("/large", headers=[("Accept-Encoding", coding)])
        assert decoded(coding, response.body) == b"".join(LARGE)
    response = server.get("/empty", headers=[("Accept-Encoding", coding)])
    assert decoded(response.header("Content-Encoding"), response.body) == b""
    response = server.get("/image", headers=[("Accept-Encoding", coding)])
    assert response.header("Content-Encoding") is None
    assert response.body == b"".join(ROWS)


@pytest.mark.parametrize("coding", CODINGS)
def test_each_block_arrives_before_the_next_is_made(server: LiveServer, coding: str) -> None:
    decoder = Decoder(coding)
    with Connection(server.address) as connection:
        connection.send_request("/events", headers=[("Accept-Encoding", coding)])
        received = connection.read_headers()
        assert received.header("Content-Encoding") == coding
        came = b""
        for number in range(20):
            while not came.endswith(b"event %02d\n" % number):
                came += decoder.add(connection.read_chunk())
            assert server.get("/next").body == b"ok"
        rest = connection.read_to_end_of_chunks()
    decoder.add(rest)
    assert came == b"".join(b"event %02d\n" % number for number in range(20))


def test_written_and_yielded_blocks_stay_in_order(server: LiveServer) -> None:
    for coding in CODINGS:
        response = server.get("/written", headers=[("Accept-Encoding", coding)])
        assert decoded(coding, response.body) == b"written" + b"".join(ROWS)
        response = server.get("/lazy", headers=[("Accept-Encoding", coding)])
        assert decoded(coding, response.body) == b"".join(b"w" + row + row for row in ROWS[:100])


def test_http_1_0_client_gets_stream_without_chunks(server: LiveServer) -> None:
    with Connection(server.address) as connection:
        connection.send(b"GET /rows HTTP/1.0\r\nAccept-Encoding: gzip\r\n\r\n")
        received = connection.read_headers()
        assert received.header("Transfer-Encoding") is None
        assert decoded("gzip", connection.read_to_end()) == b"".join(ROWS)


def test_middleware_around_sees_compressed_blocks() -> None:
    with fast_worker(app=f"{__name__}:behind") as server:
        response = server.get("/rows", headers=[("Accept-Encoding", "br")])
        assert decoded("br", response.body) == b"".join(ROWS)


def test_slow_client_gets_all_of_compressed_stream(server: LiveServer) -> None:
    with Connection(server.address) as connection:
        for _ in range(20):  # pipelined: the server is ahead of this client
            connection.send_request("/large", headers=[("Accept-Encoding", "gzip")])
        for _ in range(20):
            response = connection.read_response()
            assert decoded("gzip", response.body) == b"".join(LARGE)


@pytest.mark.parametrize("coding", CODINGS)
def test_quick_blocks_share_a_flush_over_http2(coding: str, tmp_path: Path) -> None:
    pem = write_certificate(tmp_path / "server.pem")
    options = [f"--certfile={pem}", f"--keyfile={pem}", "--http-protocols=h2,h1"]
    with (
        fast_worker(*options, app=f"{__name__}:app") as server,
        Connection(server.address, tls=client_context("h2")) as connection,
    ):
        client = Connected(connection.sock)
        client.begin()
        accepted = [("accept-encoding", coding)]
        whole = {"/rows": b"".join(ROWS), "/large": b"".join(LARGE), "/empty": b""}
        streams = {client.ask(path, headers=accepted): path for path in [*whole, "/rows"]}
        client.flush()
        for stream, path in streams.items():
            response = client.response(stream)
            assert response.ended, path
            assert response.headers["content-encoding"] == coding
            assert decoded(coding, response.body) == whole[path]
            assert len(response.body) <= len(whole[path]) / 2 + 120
        failing = client.ask("/failing", headers=accepted)
        client.flush()
        assert client.response(failing).reset is not None


@pytest.mark.parametrize("coding", CODINGS)
def test_levels_are_halved_while_requests_wait(coding: str) -> None:
    def at_level(level: int) -> bytes:
        return compressor(coding, level=level, size=len(WHOLE)).whole(WHOLE)

    level = DEFAULT_LEVELS[coding]
    accepts = [("Accept-Encoding", coding)]
    assert at_level(level) != at_level(level // 2)
    with fast_worker("--threads=1", app=f"{__name__}:app") as server:
        with Connection(server.address) as first, Connection(server.address) as second:
            first.send_request("/behind", headers=accepts)
            second.send_request("/whole", headers=accepts)
            assert first.read_response().body == at_level(level // 2)
        full = at_level(level)
        wait_for(lambda: server.get("/whole", headers=accepts).body == full, server.log)
