"""What every kind of dev server does on a connection that goes on."""

from __future__ import annotations

import contextlib
import functools
import http.client
import io
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from wsgiref.validate import validator

import pytest

from tests.support.http import Connection
from tests.support.servers import PATIENCE_S, wait_for
from wsgifast import WSGIFast
from wsgifast.bodies.files import FileSlice
from wsgifast.bodies.segments import Segment, SegmentedBody
from wsgifast.devservers import connection
from wsgifast.sockets.sendfile import FileSegment

from .serving import KINDS, THREADED, Served, serve

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

TEXT = [("Content-Type", "text/plain")]
each_kind = pytest.mark.parametrize("kind", KINDS)
each_threaded = pytest.mark.parametrize("kind", THREADED)


def answering(
    body: Callable[[WSGIEnvironment], Any],
    status: str = "200 OK",
    headers: list[tuple[str, str]] = TEXT,
) -> WSGIApplication:
    """An app that returns what `body` makes of the environ."""

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        made = body(environ)
        start_response(status, list(headers))
        return made

    return app


def path_of(environ: WSGIEnvironment) -> list[bytes]:
    return [environ["PATH_INFO"].encode("latin-1")]


def assert_alive(connection: Connection) -> None:
    """The connection answers a request of its own, not a leftover."""
    response = connection.request("/still-here")
    assert (response.status, response.body) == (200, b"/still-here"), str(response)


def router(**apps: WSGIApplication) -> WSGIApplication:
    """Apps by their path; everything else gets its path back."""

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        chosen = apps.get(environ["PATH_INFO"][1:], answering(path_of))
        return chosen(environ, start_response)

    return app


@each_kind
def test_many_requests_on_one_connection(kind: str) -> None:
    with serve(answering(path_of), kind) as served, Connection(served.address) as client:
        for number in range(20):
            response = client.request(f"/{number}")
            assert response.body == b"/%d" % number
            assert response.header("Content-Length") == str(len(response.body))
            assert response.keep_alive


@each_kind
def test_the_server_keeps_to_wsgi(kind: str) -> None:
    def echo(environ: WSGIEnvironment) -> Iterator[bytes]:
        return iter([environ["wsgi.input"].read(3), environ["wsgi.input"].readline()])

    app = validator(answering(echo))
    with serve(app, kind) as served, Connection(served.address) as client:
        for _ in range(2):
            assert client.request("/a?b", method="POST", body=b"one\ntwo\n").body == b"one\n"
            assert client.request("/a?b", method="HEAD").status == 200
    assert "Error" not in served.log


@each_kind
def test_an_old_client_may_ask_to_stay(kind: str) -> None:
    with serve(answering(path_of), kind) as served:
        with Connection(served.address) as client:
            response = client.request(version="1.0", headers=[("Connection", "Keep-Alive")])
            assert response.header("Connection") == "keep-alive"
            assert_alive(client)
        with Connection(served.address) as client:
            assert client.request(version="1.0").header("Connection") == "close"
            assert client.read_to_end() == b""


@each_kind
def test_close_is_heard_and_said(kind: str) -> None:
    leaving = answering(path_of, headers=[*TEXT, ("Connection", "close")])
    with serve(router(leaving=leaving), kind) as served:
        for target, headers in [("/", [("Connection", "TE, close")]), ("/leaving", [])]:
            with Connection(served.address) as client:
                response = client.request(target, headers=headers)
                assert response.header("Connection") == "close"
                assert client.read_to_end() == b""


@each_kind
def test_pipelined_requests_are_answered_in_order(kind: str) -> None:
    def echo(environ: WSGIEnvironment) -> list[bytes]:
        return [environ["PATH_INFO"].encode(), environ["wsgi.input"].read()]

    with serve(answering(echo), kind) as served, Connection(served.address) as client:
        for number in range(10):
            client.send_request(f"/{number}", method="POST", body=b"body%d" % number)
        for number in range(10):
            assert client.read_response().body == b"/%dbody%d" % (number, number)


@each_kind
@pytest.mark.parametrize("chunked", [False, True])
def test_an_unread_request_body_does_not_become_a_request(kind: str, chunked: bool) -> None:
    smuggled = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
    with serve(answering(path_of), kind) as served, Connection(served.address) as client:
        for _ in range(3):
            headers = [("Transfer-Encoding", "chunked")] if chunked else []
            body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(smuggled), smuggled) if chunked else smuggled
            response = client.request("/outer", method="POST", headers=headers, body=body)
            assert (response.body, response.keep_alive) == (b"/outer", True)
        assert_alive(client)
    assert "smuggled" not in served.log


@each_kind
def test_a_large_unread_body_closes_and_the_answer_still_arrives(kind: str) -> None:
    app = answering(path_of, "413 Content Too Large")
    with serve(app, kind) as served, Connection(served.address) as client:
        # Sent whole before the answer is read, as http.client does.
        response = client.request("/big", method="POST", body=b"x" * 20_000_000)
        assert (response.status, response.header("Connection")) == (413, "close")
        assert client.read_to_end() == b""


@each_kind
def test_a_chunked_request_is_decoded(kind: str) -> None:
    def echo(environ: WSGIEnvironment) -> list[bytes]:
        assert "HTTP_TRANSFER_ENCODING" not in environ
        return [environ["wsgi.input"].read()]

    wire = b"3;x=y\r\nabc\r\n" + b"2\r\nde\r\n" + b"0\r\nX-Sum: t\r\n\r\n"
    with serve(router(echo=answering(echo)), kind) as served, Connection(served.address) as client:
        headers = [("Transfer-Encoding", "chunked")]
        response = client.request("/echo", method="POST", headers=headers, body=wire)
        assert response.body == b"abcde"
        assert_alive(client)
        response = client.request("/echo", method="POST", headers=headers, body=b"x\r\n")
        assert response.status in (400, 500), str(response)
        assert client.read_to_end() == b""


@each_kind
def test_malformed_chunks_that_nobody_reads_end_the_connection(kind: str) -> None:
    with serve(answering(path_of), kind) as served, Connection(served.address) as client:
        headers = [("Transfer-Encoding", "chunked")]
        smuggled = b"x\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
        response = client.request("/outer", method="POST", headers=headers, body=smuggled)
        assert response.body == b"/outer"
        assert client.read_to_end() == b""
    assert "smuggled" not in served.log


@each_kind
def test_doubtful_framing_is_refused_and_ends_the_connection(kind: str) -> None:
    with serve(answering(path_of), kind) as served:
        for head in (
            b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
            b"Content-Length: 4\r\nContent-Length: 5\r\n",
            b"Content-Length: 4x\r\n",
            b"not a header\r\nContent-Length: 4\r\n",
            b"Folded: a\r\n b\r\n",
            b"X: a\rb\r\n",
        ):
            with Connection(served.address) as client:
                whole = b"POST / HTTP/1.1\r\nHost: a\r\n" + head + b"\r\n"
                client.send(whole + b"GET /smuggled HTTP/1.1\r\n")
                response = client.read_response()
                assert (response.status, response.header("Connection")) == (400, "close"), head
                assert client.read_to_end() == b"", head
            assert "smuggled" not in served.log, head
    assert "smuggled" not in served.log


@each_kind
def test_broken_requests_get_a_status(kind: str) -> None:
    with serve(answering(path_of), kind) as served:
        for wire, status in (
            (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n", 414),
            (b"GET / HTTP/1.1\r\nX: " + b"x" * 70_000 + b"\r\n\r\n", 431),
            (b"GET / HTTP/3.0\r\n\r\n", 505),
            (b"GET /\r\n\r\n", 400),
            (b"nonsense\r\n\r\n", 400),
            (b"POST / HTTP/1.1\r\nHost: a\r\nExpect: tea\r\n\r\n", 417),
            (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        ):
            with Connection(served.address) as client:
                client.send(wire)
                assert client.read_response().status == status, wire[:100]
                assert client.read_to_end() == b"", wire[:100]


@each_kind
def test_one_empty_line_before_a_request_is_forgiven(kind: str) -> None:
    with serve(answering(path_of), kind) as served, Connection(served.address) as client:
        client.send(b"\r\n")
        assert_alive(client)


@each_kind
def test_100_continue_is_sent_when_the_app_reads(kind: str) -> None:
    def echo(environ: WSGIEnvironment) -> list[bytes]:
        return [environ["wsgi.input"].read(5)]

    headers = [("Expect", "100-continue"), ("Content-Length", "5")]
    with serve(router(echo=answering(echo)), kind) as served:
        with Connection(served.address) as client:
            client.send_request("/echo", method="POST", headers=headers)
            assert client.read_response().status == 100
            client.send(b"hello")
            assert client.read_response().body == b"hello"
            assert_alive(client)
        with Connection(served.address) as client:  # the app answers without reading
            client.send_request("/refused", method="POST", headers=headers)
            response = client.read_response()
            assert (response.status, response.header("Connection")) == (200, "close")
            assert client.read_to_end() == b""


@each_kind
def test_100_continue_never_stands_inside_a_response(kind: str) -> None:
    def late(environ: WSGIEnvironment) -> Iterator[bytes]:
        yield b"first "
        yield environ["wsgi.input"].read(5)

    headers = [("Expect", "100-continue"), ("Content-Length", "5")]
    with serve(answering(late), kind) as served, Connection(served.address) as client:
        client.send_request(method="POST", headers=headers, body=b"hello")
        assert client.read_response().body == b"first hello"
        assert client.read_to_end() == b""


@each_kind
@pytest.mark.parametrize("body", [list, tuple, iter])
def test_no_body_where_none_belongs(kind: str, body: Any) -> None:
    statuses = ["204 No Content", "304 Not Modified", "205 Reset Content"]
    apps = {
        status[:3]: answering(lambda _: body([b"some", b" ", b"body"]), status, [])
        for status in statuses
    }
    with serve(router(**apps), kind) as served, Connection(served.address) as client:
        for code in apps:
            response = client.request(f"/{code}")
            assert response.status == int(code)
            assert response.header("Content-Length") == ("0" if code == "205" else None), code
            assert response.header("Transfer-Encoding") is None, code
            assert_alive(client)


@each_kind
def test_head_has_the_head_of_get_and_no_body(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100_000)
    apps = {
        "list": answering(lambda _: [b"12345"]),
        "iterator": answering(lambda _: iter([b"12345"])),
        "stream": answering(lambda _: (block for block in [b"12345"])),
        "file": answering(lambda environ: environ["wsgi.file_wrapper"](path.open("rb"))),
        "declared": answering(lambda _: [], headers=[("Content-Length", "77")]),
    }
    lengths = {"list": "5", "iterator": "5", "stream": None, "file": "100000", "declared": "77"}
    with serve(router(**apps), kind) as served, Connection(served.address) as client:
        for name, length in lengths.items():
            response = client.request(f"/{name}", method="HEAD")
            assert response.header("Content-Length") == length
            assert_alive(client)


@each_kind
def test_an_empty_body_has_length_0(kind: str) -> None:
    apps = {
        "list": answering(lambda _: []),
        "block": answering(lambda _: [b""]),
        "stream": answering(lambda _: (b"" for _ in range(2))),
        "iterator": answering(lambda _: iter([b"", b""])),
        "file": answering(lambda environ: environ["wsgi.file_wrapper"](io.BytesIO())),
    }
    with serve(router(**apps), kind) as served, Connection(served.address) as client:
        for name in apps:
            response = client.request(f"/{name}")
            assert (response.body, response.header("Content-Length")) == (b"", "0")
        assert_alive(client)


@each_kind
def test_a_body_of_unknown_length_is_chunked_for_who_understands(kind: str) -> None:
    app = answering(lambda _: (block for block in [b"one ", b"", b"two"]))
    with serve(router(stream=app), kind) as served:
        with Connection(served.address) as client:
            response = client.request("/stream")
            assert response.header("Transfer-Encoding") == "chunked"
            assert response.body == b"one two"
            assert_alive(client)
        with Connection(served.address) as client:
            headers = [("Connection", "keep-alive")]
            response = client.request("/stream", version="1.0", headers=headers)
            assert response.header("Transfer-Encoding") is None
            assert response.header("Connection") == "close"
            assert response.body == b"one two"


@each_kind
def test_what_exceeds_the_content_length_is_cut_and_logged(kind: str) -> None:
    length = [("Content-Length", "4")]
    apps = {
        "list": answering(lambda _: [b"12", b"345678"], headers=length),
        "stream": answering(lambda _: (b for b in [b"12", b"3456", b"78"]), headers=length),
    }
    with serve(router(**apps), kind) as served, Connection(served.address) as client:
        for name in apps:
            assert client.request(f"/{name}").body == b"1234"
            assert_alive(client)
    assert served.log.count("longer than its Content-Length") == 2


@each_kind
@pytest.mark.parametrize("body", [list, iter])
def test_what_falls_short_of_the_content_length_ends_the_connection(kind: str, body: Any) -> None:
    app = answering(lambda _: body([b"12", b"34"]), headers=[("Content-Length", "5")])
    with (
        serve(app, kind) as served,
        Connection(served.address) as client,
        pytest.raises(EOFError, match="4 of 5"),
    ):
        client.request("/")
    assert "the body has 4 bytes" in served.log


def sized_file(folder: Path, size: int) -> tuple[Path, bytes]:
    content = os.urandom(size)
    path = folder / f"file-{size}"
    path.write_bytes(content)
    return path, content


@each_kind
@pytest.mark.parametrize("sendfile", [True, False])
@pytest.mark.parametrize("size", [1, 16 * 1024, 3_000_000])
def test_files_arrive_whole_from_where_they_stand(
    kind: str, sendfile: bool, size: int, tmp_path: Path
) -> None:
    path, content = sized_file(tmp_path, size)
    files = []

    def wrapped(environ: WSGIEnvironment) -> Any:
        files.append(path.open("rb"))
        files[-1].read(size // 3)
        return environ["wsgi.file_wrapper"](files[-1])

    with (
        serve(router(file=answering(wrapped)), kind, use_sendfile=sendfile) as served,
        Connection(served.address) as client,
    ):
        for _ in range(2):
            response = client.request("/file")
            assert response.body == content[size // 3 :]
            assert response.header("Content-Length") == str(size - size // 3)
        assert_alive(client)
    assert all(file.closed for file in files)
    assert f" 200 {size - size // 3}" in served.log


@each_kind
def test_an_open_file_is_sent_whole_without_a_wrapper(kind: str, tmp_path: Path) -> None:
    path, content = sized_file(tmp_path, 300_000)
    app = answering(lambda _: path.open("rb"))
    with serve(router(file=app), kind) as served, Connection(served.address) as client:
        response = client.request("/file")
        assert response.body == content
        assert response.header("Content-Length") == "300000"
        assert_alive(client)


@each_kind
def test_a_file_after_write_is_framed_too(kind: str, tmp_path: Path) -> None:
    path, content = sized_file(tmp_path, 50_000)

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        start_response("200 OK", [])(b"written ")
        return environ["wsgi.file_wrapper"](path.open("rb"))

    with serve(router(file=app), kind) as served, Connection(served.address) as client:
        assert client.request("/file").body == b"written " + content
        assert_alive(client)


@each_kind
def test_a_file_slice_and_segments_are_sent_as_runs(kind: str, tmp_path: Path) -> None:
    path, content = sized_file(tmp_path, 100_000)
    closed = []

    def sliced(environ: WSGIEnvironment) -> Any:
        file = path.open("rb")
        return environ["wsgi.file_wrapper"](FileSlice(FileSegment(file.fileno(), 10, 70_000), file))

    def segmented(environ: WSGIEnvironment) -> Any:
        fd = os.open(path, os.O_RDONLY)
        parts: list[Segment] = [b"<", FileSegment(fd, 5, 60_000), b"|", FileSegment(fd, 0, 7), b">"]

        def close() -> None:
            os.close(fd)
            closed.append(fd)

        return SegmentedBody(parts, close)

    apps = {"slice": answering(sliced), "segments": answering(segmented)}
    with serve(router(**apps), kind) as served, Connection(served.address) as client:
        assert client.request("/slice").body == content[10:70_010]
        response = client.request("/segments")
        assert response.body == b"<" + content[5:60_005] + b"|" + content[:7] + b">"
        assert response.header("Content-Length") == "60010"
        assert_alive(client)
    assert len(closed) == 1
    assert " 200 60010" in served.log


@each_kind
@pytest.mark.parametrize(
    "blocks",
    [[b"x"] * 100_000, [b"y" * 20_000] * 100, [b"", b"z" * 2_000_000, b"1"], (b"a", b"b")],
)
def test_a_list_of_blocks_is_one_sized_body(kind: str, blocks: Any) -> None:
    with serve(answering(lambda _: blocks), kind) as served, Connection(served.address) as client:
        response = client.request("/")
        assert response.body == b"".join(blocks)
        assert response.header("Content-Length") == str(len(response.body))


class CountingSocket(socket.socket):
    """Keeps what each send was given."""

    sends: list[tuple[int, int]]

    def send(self, data: Any, flags: int = 0) -> int:
        self.sends.append((len(data), flags))
        return super().send(data, flags)

    def sendmsg(self, buffers: Any, ancillary: Any = (), flags: int = 0, *rest: Any) -> int:
        self.sends.append((sum(map(len, buffers)), flags))
        return super().sendmsg(buffers, ancillary, flags, *rest)


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_and_its_first_block_leave_in_one_send(kind: str, tmp_path: Path) -> None:
    small, content = sized_file(tmp_path, 1000)
    large, _ = sized_file(tmp_path, 100_000)
    apps = {
        "list": answering(lambda _: [b"x" * 10, b"y" * 20_000]),
        "stream": answering(lambda _: (b"x" * 10 for _ in range(1))),
        "small": answering(lambda environ: environ["wsgi.file_wrapper"](small.open("rb"))),
        "large": answering(lambda environ: environ["wsgi.file_wrapper"](large.open("rb"))),
    }
    sends: list[tuple[int, int]] = []
    with serve(router(**apps), kind) as served:
        accept = served.server.get_request

        def get_request() -> Any:
            accepted, address = accept()
            counting = CountingSocket(fileno=accepted.detach())
            counting.sends = sends
            return counting, address

        served.server.get_request = get_request
        with Connection(served.address) as client:
            received = {}
            for name in apps:
                before = len(sends)
                response = client.request(f"/{name}")
                received[name] = (response, sends[before:])
    for name in ("list", "small"):
        response, made = received[name]
        assert len(made) == 1, name
        assert made[0][0] > len(response.body)
    assert [flags for _, flags in received["stream"][1]] == [0, 0]  # the head's, the last chunk's
    # The head waits for the file, which another call brings.
    assert received["large"][1][0][1] == getattr(socket, "MSG_MORE", 0)
    assert received["small"][0].body == content


@each_kind
def test_small_writes_are_not_delayed(kind: str) -> None:
    seen = []

    def look(environ: WSGIEnvironment) -> list[bytes]:
        # The server's side of the connection, found by its descriptor: both ends are in here.
        for frame in sys._current_frames().values():
            handler: Any = frame
            while handler is not None:
                connection = getattr(handler.f_locals.get("self"), "connection", None)
                if isinstance(connection, socket.socket):
                    seen.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
                handler = handler.f_back
        return [b"ok"]

    with serve(answering(look), kind) as served, Connection(served.address) as client:
        client.request("/")
    assert seen
    assert all(seen)


@pytest.mark.parametrize("kind", ["wsgiref-single", "werkzeug-single"])
def test_an_idle_connection_does_not_lock_others_out(kind: str) -> None:
    with (
        serve(answering(path_of), kind, keep_alive_timeout=60.0) as served,
        Connection(served.address) as idle,
    ):
        assert idle.request("/").keep_alive
        with Connection(served.address) as other:
            assert_alive(other)
        assert idle.read_to_end() == b""


@pytest.mark.parametrize("kind", ["wsgiref-single", "werkzeug-single"])
def test_a_silent_connection_is_sent_away_after_a_grace(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "FRESH_GRACE_S", 0.05)
    with (
        serve(answering(path_of), kind) as served,
        Connection(served.address) as silent,
        Connection(served.address) as other,
    ):
        assert_alive(other)
        assert silent.read_to_end() == b""


@pytest.mark.parametrize("kind", ["wsgiref-single", "werkzeug-single"])
def test_who_has_just_connected_gets_an_answer_although_others_wait(kind: str) -> None:
    with serve(answering(path_of), kind) as served:
        clients = [Connection(served.address) for _ in range(3)]
        for client in clients:
            assert_alive(client)
            client.close()


@pytest.mark.parametrize("kind", ["wsgiref-single", "werkzeug-single"])
def test_a_busy_connection_ends_when_others_wait(kind: str) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def app(environ: WSGIEnvironment) -> list[bytes]:
        inside.set()
        assert go_on.wait(PATIENCE_S)
        return path_of(environ)

    with serve(answering(app), kind) as served, Connection(served.address) as busy:
        busy.send_request("/busy")
        assert inside.wait(PATIENCE_S)
        with Connection(served.address) as other:
            go_on.set()
            assert busy.read_response().header("Connection") == "close"
            assert_alive(other)


@each_kind
def test_an_idle_connection_is_closed_in_time(kind: str) -> None:
    with (
        serve(answering(path_of), kind, keep_alive_timeout=0.05) as served,
        Connection(served.address) as client,
    ):
        assert client.request("/").keep_alive
        assert client.read_to_end() == b""
    assert "out" not in served.log  # nothing went wrong


def is_timed_out(served: Served, sent: bytes) -> bool:
    """Whether a client that stalls behind these bytes is told 408, and nothing else.

    False for one that has stalled before them, on a busy machine: it is told nothing.
    """
    with Connection(served.address) as client, contextlib.suppress(ConnectionError):
        client.send(sent)
        if answer := client.read_to_end():
            assert answer.startswith(b"HTTP/1.1 408 "), answer
            return True
    return False


@each_kind
def test_a_stalled_head_is_answered_with_408(kind: str) -> None:
    with serve(answering(path_of), kind, timeout=0.1) as served:
        sent = b"GET / HTTP/1.1\r\nHost:"
        wait_for(lambda: is_timed_out(served, sent), "408 is answered")


@each_kind
def test_a_stalled_request_body_is_answered_with_408(kind: str) -> None:
    app = answering(lambda environ: [environ["wsgi.input"].read(5)])
    for head in (b"Content-Length: 5", b"Transfer-Encoding: chunked"):
        with serve(app, kind, timeout=0.1) as served:
            sent = b"POST / HTTP/1.1\r\nHost: a\r\n" + head + b"\r\n\r\n3"
            wait_for(functools.partial(is_timed_out, served, sent), "408 is answered")
        assert "Traceback" not in served.log


@each_threaded
def test_a_response_ends_its_connection_while_the_server_stops(kind: str) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def app(environ: WSGIEnvironment) -> list[bytes]:
        inside.set()
        assert go_on.wait(PATIENCE_S)
        return [b"whole"]

    def closed_listener(served: Any) -> bool:
        return bool(served.server.fileno() < 0)

    with serve(answering(app), kind) as served, Connection(served.address) as client:
        client.send_request("/")
        assert inside.wait(PATIENCE_S)
        closer = threading.Thread(target=served.server.server_close)
        served.server.shutdown()
        closer.start()
        wait_for(lambda: closed_listener(served), "the server stops listening")
        go_on.set()
        response = client.read_response()
        assert (response.body, response.header("Connection")) == (b"whole", "close")
        closer.join(PATIENCE_S)
        assert not closer.is_alive()


@each_kind
def test_wrapped_apps(kind: str, tmp_path: Path) -> None:
    path, content = sized_file(tmp_path, 300_000)
    apps = {
        "text": answering(lambda _: "text"),
        "file": answering(lambda _: path.open("rb")),
        "wrapper": answering(lambda environ: environ["wsgi.file_wrapper"](path.open("rb"))),
    }
    with serve(WSGIFast(router(**apps)), kind) as served, Connection(served.address) as client:
        assert client.request("/text").body == b"text"
        for name in ("file", "wrapper"):
            response = client.request(f"/{name}")
            assert response.body == content
            assert response.header("Content-Length") == "300000"
        assert_alive(client)


@each_kind
def test_responses_can_be_read_by_others(kind: str) -> None:
    with serve(answering(path_of), kind) as served:
        client = http.client.HTTPConnection(*served.address, timeout=60)
        for number in range(3):
            client.request("GET", f"/{number}")
            assert client.getresponse().read() == b"/%d" % number
        client.close()
