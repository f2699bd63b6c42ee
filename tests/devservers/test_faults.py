"""A fault on one connection does not affect others: nothing hangs, leaks or is hidden."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.server.test_start_response import WRONG
from tests.support.http import Connection, get, reset_on_close
from tests.support.process import open_descriptors
from tests.support.servers import wait_for
from tests.support.wsgi import Closing, answering, exc_info
from wsgifast import WSGIFast

from .serving import Served, each_threaded, path_of, router, serve, talking

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

# More than the socket buffers of both peers contain.
LARGE_BYTES = 50_000_000


ok = answering(path_of)


def raising(*blocks: bytes) -> Iterator[bytes]:
    yield from blocks
    raise LookupError("the app's own")


def assert_serves(served: Served) -> None:
    assert get(served.address, "/fine").body == b"/fine"


class Readable:
    """A body that is neither an iterable nor a file that the server knows."""

    def read(self, size: int = -1) -> bytes:
        return b""


async def coroutine() -> bytes:
    return b"text"


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "int": (lambda: 42, "the app returned int as its body: 42; return a list of bytes"),
    "none": (lambda: None, "the app returned NoneType as its body: None; return a list of bytes"),
    "text": (lambda: "text", "the app returned str as its body: 'text'; return it as bytes in"),
    "no-text": (lambda: "", "the app returned str as its body: ''; return it as bytes in a list"),
    "bytes": (lambda: b"ab", "the app returned bytes as its body: b'ab'; return it as bytes in"),
    "no-bytes": (lambda: b"", "the app returned bytes as its body: b''; return it as bytes in a"),
    "view": (lambda: memoryview(b""), "the app returned memoryview as its body: "),
    "dict": (lambda: {"a": 1}, "the app returned dict as its body: {'a': 1}; return bytes, for"),
    "coroutine": (coroutine, "; an async app needs an ASGI server: wrap it with asgifast.ASGIFast"),
    "readable": (Readable, "; return environ['wsgi.file_wrapper'](file) or a list of bytes"),
    "block": (lambda: [b"ok", "text"], "the app returned a body with a str in it: yield bytes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_body_is_a_500_that_says_why(kind: str, name: str) -> None:
    made, sentence = REFUSED[name]
    with serve(router(body=answering(lambda _: made())), kind) as served:
        assert get(served.address, "/body").status == 500
        assert served.log.count("BodyError: ") == 1
        assert sentence in served.log
        assert_serves(served)


def test_error_before_the_first_byte_is_a_500(kind: str) -> None:
    def called(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        raise LookupError("the app's own")

    iterated = answering(lambda _: raising(b""), headers=[("X-Secret", "no")])
    app = router(called=called, iterated=iterated)
    with talking(app, kind) as (served, client):
        for path in ("/called", "/iterated"):
            response = client.request(path, method="POST", body=b"unread")
            assert response.status == 500
            assert response.header("X-Secret") is None
            assert client.request("/fine").body == b"/fine"
    assert served.log.count("LookupError: the app's own") == 2


def test_error_after_the_first_byte_cuts_the_response(kind: str) -> None:
    bodies = []

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        length = [("Content-Length", "99")] if environ["PATH_INFO"] == "/sized" else []
        start_response("200 OK", length)
        bodies.append(Closing(raising(b"begin")))
        return bodies[-1]

    with serve(app, kind) as served:
        for path in ("/chunked", "/sized"):
            with Connection(served.address) as client:
                client.send_request(path)
                client.read_headers()
                received = client.read_to_end()
                assert b"begin" in received
                assert not received.endswith(b"0\r\n\r\n")  # the response must not look complete
    assert served.log.count("LookupError: the app's own") == 2
    assert [body.closed for body in bodies] == [1, 1]


def test_error_in_close_is_logged_and_ends_connection(kind: str) -> None:
    class Unclosable(Closing):
        def close(self) -> None:
            raise LookupError("the app's own")

    with talking(answering(lambda _: Unclosable(iter([b"whole"]))), kind) as (served, client):
        assert client.request("/").body == b"whole"
        assert client.read_to_end() == b""
        assert "LookupError: the app's own" in served.log


def test_violation_of_pep_3333_is_a_500(kind: str) -> None:
    """A row of FastWorker's table, too."""
    apps = {f"app-{number}": app for number, (app, _) in enumerate(WRONG.values())}
    with serve(router(**apps), kind) as served:
        for path, (name, (_, says)) in zip(apps, WRONG.items(), strict=True):
            response = get(served.address, f"/{path}")
            assert response.status == 500, name
            assert response.header("X") is None, name
            wait_for(lambda says=says: says in served.log, f"the log tells of {name}")  # type: ignore[misc]


def test_exc_info_replaces_headers_before_they_leave(kind: str) -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
        start_response("200 OK", [])
        if environ["PATH_INFO"] == "/late":
            yield b"begun"
        start_response("503 Service Unavailable", [], exc_info(LookupError("the app's own")))
        yield b"sorry"

    with serve(app, kind) as served:
        response = get(served.address, "/replaced")
        assert (response.status, response.body) == (503, b"sorry")
        with pytest.raises((EOFError, ValueError)):
            get(served.address, "/late")
    assert served.log.count("LookupError: the app's own") == 1


def test_write_keeps_to_the_content_length(kind: str) -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        write = start_response("200 OK", [("Content-Length", "5")])
        write(b"123")
        write(b"4567")
        return []

    with talking(app, kind) as (served, client):
        assert client.request("/").body == b"12345"
        assert client.read_to_end() == b""
    assert "longer than its Content-Length" in served.log


def test_compressed_bytes_before_leaving_are_logged(kind: str) -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
        start_response("200 OK", [("Content-Type", "text/html")])
        yield os.urandom(LARGE_BYTES // 4)

    with serve(WSGIFast(app, compress=True), kind) as served:
        client = Connection(served.address)
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n")
        client.read(1_000_000)
        client.close()
        wait_for(lambda: '"GET / ' in served.log, "the request is logged")
    assert int(served.log.split()[-1]) > 900_000


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET",
        b"GET / HTTP/1.1\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Le",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhalf",
        b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /fine HTTP/1.1\r\nHost: a\r\n\r\n" * 50,
    ],
)
@pytest.mark.parametrize("reset", [False, True])
def test_client_that_leaves_leaves_nothing_open(kind: str, sent: bytes, reset: bool) -> None:
    requests: list[str] = []
    bodies: list[Closing] = []

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        requests.append(environ["REQUEST_METHOD"])
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or -1))
        if environ["PATH_INFO"] == "/large":
            start_response("200 OK", [])
            bodies.append(Closing(iter([b"x" * 1_000_000] * (LARGE_BYTES // 1_000_000))))
            return bodies[-1]
        return ok(environ, start_response)

    with serve(app, kind) as served:
        assert_serves(served)
        threads, descriptors = threading.active_count(), open_descriptors()
        for _ in range(3):
            client = Connection(served.address)
            client.send(sent)
            if reset:
                reset_on_close(client.sock)
            client.close()
        assert_serves(served)
        wait_for(lambda: threading.active_count() <= threads, "the threads end")
        wait_for(lambda: open_descriptors() <= descriptors, "the descriptors are closed")
        # On a busy machine, the last client's thread may start only now.
        wait_for(lambda: all(body.closed for body in bodies), "the bodies are closed")
    assert all(body.closed == 1 for body in bodies)
    assert "Traceback" not in served.log
    if b"\r\n\r\n" not in sent:
        assert set(requests) == {"GET"}
        assert len(requests) == 2  # incomplete headers are not a request


def stalling(served: Served, target: str) -> Connection:
    """A client that has requested much data and reads only the first bytes."""
    client = Connection(served.address, receive_buffer=4096)
    try:
        client.send_request(target)
        client.read_headers()
    except BaseException:
        client.close()
        raise
    return client


@each_threaded
@pytest.mark.parametrize("sendfile", [True, False])
@pytest.mark.parametrize("target", ["/file", "/list", "/stream"])
def test_client_that_stops_reading_is_closed(
    kind: str, target: str, sendfile: bool, tmp_path: Path
) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(LARGE_BYTES)
    files: list[Any] = []

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        start_response("200 OK", [])
        if environ["PATH_INFO"] == "/list":
            return [b"x" * LARGE_BYTES]
        if environ["PATH_INFO"] == "/stream":
            return iter([b"x" * LARGE_BYTES])
        files.append(path.open("rb"))
        return environ["wsgi.file_wrapper"](files[-1])

    with (
        # A client on a busy machine can send its request in this time.
        serve(app, kind, timeout=0.7, use_sendfile=sendfile) as served,
        stalling(served, target),
    ):
        wait_for(lambda: " 200 " in served.log, "the server gives the client up")
    assert all(file.closed for file in files)
    logged = int(served.log.split(" 200 ")[1].split()[0])
    assert 0 < logged < LARGE_BYTES


@pytest.mark.parametrize("sendfile", [True, False])
def test_file_shrinking_ends_the_connection(kind: str, sendfile: bool, tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(LARGE_BYTES)

    app = answering(lambda environ: environ["wsgi.file_wrapper"](path.open("rb")))
    with serve(app, kind, use_sendfile=sendfile) as served:
        with stalling(served, "/") as client:
            os.truncate(path, 1_000_000)
            received = client.read_to_end()
            missing = LARGE_BYTES - len(received)
        wait_for(
            lambda: f"{missing} of {LARGE_BYTES} bytes are missing" in served.log, "it is logged"
        )
    assert missing > 0
    assert f" 200 {len(received)}" in served.log


def test_request_body_cannot_be_read_after_its_request(kind: str) -> None:
    stored: list[Any] = []

    def echo(environ: WSGIEnvironment) -> list[bytes]:
        stolen: object = None
        if stored:
            try:
                stolen = stored[0].read()
            except ValueError as error:
                stolen = error
        stored.append(environ["wsgi.input"])
        return [repr(stolen).encode(), environ["wsgi.input"].read()]

    with talking(answering(echo), kind) as (_, client):
        assert client.request("/", method="POST", body=b"first").body == b"Nonefirst"
        second = client.request("/", method="POST", body=b"second").body
        assert second.startswith(b"ValueError")
        assert second.endswith(b"second")


@each_threaded
def test_closed_connections_leave_no_descriptor(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100_000)

    app = router(file=answering(lambda environ: environ["wsgi.file_wrapper"](path.open("rb"))))
    threads, descriptors = {*threading.enumerate()}, open_descriptors()
    with serve(app, kind) as served:
        for _ in range(30):
            with Connection(served.address) as client:
                client.request("/file")
                assert client.request("/fine").body == b"/fine"
    wait_for(lambda: {*threading.enumerate()} <= threads, "all threads have ended")
    wait_for(lambda: open_descriptors() <= descriptors, "all descriptors are closed")
