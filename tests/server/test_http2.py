"""HTTP/2 on a connection, one event at a time: requests, bodies, windows, floods, ends."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gunicorn.http.wsgi import FileWrapper
from h2.connection import ConnectionState
from h2.settings import SettingCodes
from hyperframe.frame import PingFrame, SettingsFrame

from tests.server.http2_bench import HTTP2, Peer
from tests.support.servers import wait_for
from tests.workers.bench import LARGE, Bench, echo, make_bench
from wsgifast.server import output
from wsgifast.server.backlog import Backlog
from wsgifast.server.figures import figures_of
from wsgifast.server.http2 import outgoing
from wsgifast.server.http2.frames import ALL_STREAMS
from wsgifast.server.slow_clients import slowest_clients
from wsgifast.sockets.sendfile import FileSegment
from wsgifast.workers.worker import FastWorker

__all__ = ["make_bench"]

MakeBench = Callable[..., Bench]
App = Callable[[dict[str, Any], Any], Iterable[bytes]]

NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, CANCEL, REFUSED = 0, 1, 2, 8, 7
ENHANCE_YOUR_CALM = 11


@pytest.fixture
def begin(make_bench: MakeBench) -> Callable[..., Peer]:
    """A client of an app; `attributes` and gunicorn's settings may be named."""

    def make(app: App = echo, client: dict[str, Any] | None = None, **options: Any) -> Peer:
        options = {"keepalive": 5, "worker_connections": 100, **HTTP2, **options}
        return Peer(make_bench(app, **options), **(client or {}))

    return make


Begin = Callable[..., Peer]


def app_of(body: Callable[[], Iterable[bytes]], *headers: tuple[str, str]) -> App:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", list(headers))
        return body()

    return app


# Requests and answers


def test_requests_on_several_streams(begin: Begin) -> None:
    peer = begin()
    first, second = peer.ask("/a?b=c", "POST", body=b"first"), peer.ask("/", "POST", body=b"second")
    third = peer.ask()
    peer.run()
    answers = peer.answers
    assert [answers[n].body for n in (first, second, third)] == [b"first", b"second", b""]
    assert all(answers[n].ended and answers[n].status == 200 for n in (first, second, third))
    assert answers[first].headers["content-length"] == "5"
    assert {*answers[first].headers} == {":status", "content-length", "server", "date"}
    assert peer.bench.log.requests[0] == ("POST /a?b=c", "200 OK", 5)
    assert not peer.streams
    assert peer.socket.near.deadline == peer.bench.clock.now + 5


def test_a_small_answer_leaves_in_one_send(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = begin(app_of(lambda: [b"hello"], ("Content-Length", "5")))
    sent: list[bytes] = []
    queue = peer.near.output
    send = queue._send_now

    def note(data: bytes) -> int:
        sent.append(data)
        return send(data)

    monkeypatch.setattr(queue, "_send_now", note)
    assert peer.get().body == b"hello"
    assert len(sent) == 1
    assert sent[0][-5 - 9 :][3:5] == b"\0\1"  # DATA that ends the stream


def test_the_environ(begin: Begin) -> None:
    peer = begin(proc_name="a")
    stream = peer.ask(
        "/p%20q/\u00e9?x=\u00e9", headers=[("x-a", "1"), ("x-a", "2"), ("cookie", "a=b")]
    )
    peer.run()
    assert peer.answers[stream].status == 200
    environ = peer.bench.log.environs[0]
    assert environ["SERVER_PROTOCOL"] == "HTTP/2.0"
    assert environ["HTTP_HOST"] == "a"
    assert environ["PATH_INFO"] == "/p q/\u00c3\u00a9"  # UTF-8, as PEP 3333 has it
    assert environ["QUERY_STRING"] == "x=%C3%A9"
    assert environ["HTTP_X_A"] == "1,2"
    assert environ["HTTP_COOKIE"] == "a=b"
    assert environ["REMOTE_ADDR"] == "192.0.2.1"
    assert environ["wsgi.url_scheme"] == "http"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([("x_a", "1")], 200),  # dropped: gunicorn's header_map
        ([("expect", "nothing")], 417),
        ([("x-a", "a" * 9000)], 431),
        ([("content-length", "1"), ("content-length", "1")], None),
        ([("x-a", "a\rb")], None),
        ([("transfer-encoding", "chunked")], None),
    ],
)
def test_headers_mean_what_they_mean_in_http_1(
    begin: Begin, headers: list[tuple[str, str]], status: int | None
) -> None:
    answer = begin().get(headers=headers)
    if status is None:
        assert answer.reset is not None or answer.headers.get(":status") in ("400", None)
    else:
        assert answer.status == status


@pytest.mark.parametrize("path", ["", "x", "http://a/", "/a b", "/a\r\n\r\nGET /b HTTP/1.1"])
def test_paths_that_are_none(begin: Begin, path: str) -> None:
    peer = begin()
    answer = peer.get(path)
    assert peer.goaways or answer.status == 400
    assert not [line for line in peer.bench.log.requests if line[1] == "200 OK"]


def test_trusted_peers_say_the_scheme(begin: Begin) -> None:
    for trusted in ("*", "192.0.2.9"):
        peer = begin(forwarded_allow_ips=trusted)
        stream = peer.state.get_next_available_stream_id()
        head = [(":method", "GET"), (":path", "/"), (":scheme", "https"), (":authority", "a")]
        peer.state.send_headers(stream, head, end_stream=True)
        peer.run()
        said = peer.bench.log.environs[0]["wsgi.url_scheme"]
        assert said == ("https" if trusted == "*" else "http")


def test_no_body_where_there_is_none(begin: Begin) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response(environ["PATH_INFO"][1:] + " X", [("Content-Type", "text/plain")])
        return [b"dropped"]

    peer = begin(app)
    for path, method in (("/200", "HEAD"), ("/204", "GET"), ("/304", "GET")):
        answer = peer.get(path, method)
        assert (answer.status, answer.body, answer.ended) == (int(path[1:]), b"", True)


def test_hints_and_trailers(begin: Begin) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        environ["wsgi.early_hints"]([("Link", "</a>")])
        start_response("200 OK", [("Content-Length", "3")])
        environ["gunicorn.http2.send_trailers"]([("Grpc-Status", "0")])
        return [b"abc"] if environ["PATH_INFO"] == "/list" else iter([b"a", b"bc"])

    peer = begin(app)
    for path in ("/list", "/iterator"):
        answer = peer.get(path)
        assert answer.early == [{":status": "103", "link": "</a>"}]
        assert (answer.body, answer.trailers, answer.ended) == (b"abc", {"grpc-status": "0"}, True)


def test_what_has_no_place_in_http_2(begin: Begin) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/101":
            start_response("101 Switching", [("Connection", "upgrade"), ("Upgrade", "x")])
            return []
        if environ["PATH_INFO"] == "/socket":
            assert environ["gunicorn.socket"].family  # may be asked
            with pytest.raises(OSError, match="cannot be taken over"):
                environ["gunicorn.socket"].send(b"")
        start_response("200 OK", [("Connection", "close"), ("Upgrade", "x"), ("Keep-Alive", "5")])
        return [b"ok"]

    peer = begin(app)
    assert peer.get("/101").status == 500
    answer = peer.get("/socket")
    assert answer.body == b"ok"
    assert {*answer.headers} == {":status", "server", "date"}
    assert not peer.has_ended


def test_what_an_app_has_raised_is_not_for_its_client(begin: Begin) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/early":
            raise ValueError("a secret")
        start_response("200 OK", [])
        return late()

    def late() -> Iterator[bytes]:
        yield b"begun"
        raise ValueError("a secret")

    peer = begin(app)
    early = peer.get("/early")
    assert (early.status, early.body, early.ended) == (500, b"Internal Server Error", True)
    answer = peer.get("/late")
    assert (answer.status, answer.body, answer.ended) == (200, b"begun", False)
    assert answer.reset == INTERNAL_ERROR
    assert peer.get("/early").status == 500  # others go on
    assert not peer.streams


def test_an_error_has_no_body_for_head(begin: Begin) -> None:
    """RFC 9110 section 9.3.2; clients that find one end the connection."""

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        raise ValueError("a secret")

    peer = begin(app)
    for status, headers in ((500, []), (431, [("x", "a" * 9000)])):
        answer = peer.get(method="HEAD", headers=headers)
        assert (answer.status, answer.body, answer.ended) == (status, b"", True)
        assert int(answer.headers["content-length"]) > 0
    assert not peer.goaways
    assert peer.get().body == b"Internal Server Error"


def test_too_little_does_not_look_whole(begin: Begin) -> None:
    for body in (lambda: [b"abc"], lambda: iter([b"abc"])):
        peer = begin(app_of(body, ("Content-Length", "4")))
        answer = peer.get()
        assert (answer.body, answer.ended, answer.reset) == (b"abc", False, INTERNAL_ERROR)


# Windows


def generator() -> Iterator[bytes]:
    for _ in range(16):
        yield bytes(LARGE // 16)


def large_file(folder: Path) -> Callable[[], Iterable[bytes]]:
    path = folder / "large"
    path.write_bytes(os.urandom(LARGE))

    def body() -> Iterable[bytes]:
        return FileWrapper(path.open("rb"))  # type: ignore[no-any-return]

    return body


@pytest.mark.parametrize("kind", ["list", "generator", "file"])
@pytest.mark.parametrize("window", [0, 1, 1000, 65_535])
def test_a_slow_reader_holds_no_thread(
    begin: Begin, tmp_path: Path, kind: str, window: int
) -> None:
    """The app's turn ends (else the bench would hang), and the rest comes as windows open."""
    bodies: dict[str, Callable[[], Iterable[bytes]]] = {
        "list": lambda: [bytes(LARGE)],
        "generator": generator,
        "file": large_file(tmp_path),
    }
    peer = begin(app_of(bodies[kind]), client={"window": window, "reads": False})
    stream = peer.ask()
    peer.run()
    answer = peer.answers[stream]
    wait_for_disk(peer, lambda: len(answer.body) == window)
    assert len(answer.body) == window
    # Others on the same connection are answered meanwhile.
    if window not in (0, 65_535):
        other = peer.ask()
        wait_for_disk(peer, lambda: len(peer.answers[other].body) == window)
        peer.state.reset_stream(other)
    peer.open(200_000)
    peer.open(150_000, stream)
    wait_for_disk(peer, lambda: len(answer.body) == window + 150_000)
    peer.open(LARGE)
    peer.open(LARGE, stream)
    wait_for_disk(peer, lambda: answer.ended)
    assert len(answer.body) == LARGE
    assert not peer.streams
    assert peer.bench.log.requests[-1][2] == LARGE


def wait_for_disk(peer: Peer, condition: Callable[[], bool]) -> None:
    """A disk thread may bring what comes next: run until it has."""

    def holds() -> bool:
        peer.run()
        return condition()

    wait_for(holds, "all has come that the window lets through")


def test_an_end_does_not_overtake_what_goes_to_a_temporary_file(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its writer has it in hand, nothing of it waits in the queue."""
    peers: list[Peer] = []
    spill = Backlog.spill

    def late(backlog: Backlog, buffers: list[memoryview]) -> FileSegment:
        peer = peers[0]
        peer.open(1000)
        peer.open(1000, 1)
        peer.send_only()
        another_thread(peer)
        return spill(backlog, buffers)

    monkeypatch.setattr(Backlog, "spill", late)
    app = app_of(lambda: [bytes(200_000)], ("Content-Length", "200000"))
    options = {"attributes": {"output_memory_bytes": 1000}}
    peers.append(begin(app, client={"window": 1000, "reads": False}, **options))
    stream = peers[0].ask()
    peers[0].run()
    peers[0].open(LARGE)
    peers[0].open(LARGE, stream)
    answer = peers[0].answers[stream]
    wait_for_disk(peers[0], lambda: answer.ended)
    assert len(answer.body) == 200_000


def test_streams_take_turns(begin: Begin) -> None:
    peer = begin(app_of(lambda: [bytes(LARGE)]), client={"window": LARGE, "reads": False})
    streams = [peer.ask() for _ in range(4)]
    peer.run()
    assert sum(len(peer.answers[each].body) for each in streams) == 65_535
    before = {each: len(peer.answers[each].body) for each in streams}
    peer.open(4 * 64 * 1024)
    peer.run()
    assert all(len(peer.answers[each].body) > before[each] for each in streams[1:])
    peer.open(4 * LARGE)
    peer.run()
    assert all(peer.answers[each].ended for each in streams)


def test_a_client_that_takes_nothing_of_a_stream(begin: Begin) -> None:
    peer = begin(app_of(lambda: [bytes(LARGE)]), client={"window": 1000, "reads": False})
    slow, other = peer.ask(), peer.ask()
    peer.run()
    peer.bench.pass_time(FastWorker.send_timeout_s - 1)
    peer.open(1000, other)
    peer.run()
    peer.bench.pass_time(2)
    peer.run()
    assert peer.answers[slow].reset == CANCEL
    assert peer.answers[other].reset is None
    assert len(peer.answers[other].body) == 2000
    # Too little is as bad as nothing.
    for _ in range(4):
        peer.bench.pass_time(20)
        peer.run()
        if peer.answers[other].reset is None:
            peer.open(100, other)
    assert peer.answers[other].reset == CANCEL
    assert not peer.streams
    assert len(peer.bench.log.requests) == 2


def test_who_takes_least_of_a_stream_is_told(begin: Begin) -> None:
    peer = begin(app_of(lambda: [bytes(LARGE)]), client={"window": 1000, "reads": False})
    stopped, slow = peer.ask(path="/stopped"), peer.ask(path="/slow")
    peer.run()
    peer.bench.clock.now += 10
    peer.open(1000, slow)
    peer.run()
    connections, now = peer.bench.server.connections, peer.bench.clock.now
    first, second = slowest_clients(connections, now, most=10)
    assert (first.path, first.bytes_per_s, first.waited_s) == ("/stopped", 0, 10)
    assert (second.path, second.bytes_per_s) == ("/slow", 100)
    assert first.queued_bytes == LARGE - 1000
    assert figures_of(peer.bench.server).slow_clients == 1
    assert stopped in peer.answers


def test_a_client_that_takes_nothing_at_all(begin: Begin) -> None:
    peer = begin(app_of(lambda: [bytes(LARGE)]), client={"window": LARGE, "reads": False})
    stream = peer.ask()
    peer.run()
    assert len(peer.answers[stream].body) == 65_535
    peer.bench.pass_time(FastWorker.send_timeout_s + 1)
    assert peer.has_ended
    assert peer.bench.log.requests == [("GET /", "200 OK", 65_535)]


def test_the_wait_for_the_first_window_is_over_when_it_opens(begin: Begin) -> None:
    peer = begin(app_of(lambda: [bytes(LARGE)]), client={"window": LARGE, "reads": False})
    stream = peer.ask()
    for _ in range(8):
        peer.run()
        peer.bench.pass_time(50)
        peer.open(LARGE // 8)
    peer.run()
    assert peer.answers[stream].ended


def test_a_full_socket(begin: Begin) -> None:
    peer = begin(app_of(lambda: [bytes(LARGE)]), client={"window": 2 * LARGE, "reads": False})
    peer.open(8 * LARGE)
    streams = [peer.ask() for _ in range(3)]
    peer.send_only()
    peer.bench.run()  # and nobody receives
    assert peer.near.output.draining
    assert peer.near.output.bytes_queued <= 2 * outgoing._QUANTUM_BYTES
    assert peer.streams == 3
    peer.run()
    assert all(len(peer.answers[each].body) == LARGE for each in streams)


def test_a_full_socket_is_given_up(begin: Begin) -> None:
    peer = begin(app_of(lambda: [bytes(LARGE)]), client={"window": 2 * LARGE, "reads": False})
    peer.open(8 * LARGE)
    peer.ask()
    peer.send_only()
    peer.bench.run()
    peer.bench.pass_time(FastWorker.send_timeout_s + 1)
    assert peer.has_ended
    assert len(peer.bench.log.requests) == 1


def test_a_client_that_takes_no_answers_is_not_read(begin: Begin) -> None:
    peer = begin()
    for _ in range(700):  # below the limit for floods
        peer.state.ping(b"12345678")
    peer.near.output.draining = True  # nothing leaves
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outgoing, "_CLOGGED_BYTES", 1000)
        armed = peer.bench.armed()
        peer.send_only()
        peer.bench.run()
        assert armed[-1] & 1 == 0


def test_shrinking_windows(begin: Begin) -> None:
    """A window may become negative (RFC 9113 section 6.9.2)."""
    peer = begin(app_of(lambda: [bytes(LARGE)]), client={"window": 10_000, "reads": False})
    stream = peer.ask()
    peer.run()
    peer.state.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 100})
    peer.run()
    peer.open(5000, stream)
    peer.run()
    assert len(peer.answers[stream].body) == 10_000
    peer.open(5000, stream)
    peer.run()
    assert len(peer.answers[stream].body) == 10_100
    peer.state.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 1000})
    peer.run()
    assert len(peer.answers[stream].body) == 11_000


# Request bodies


def test_uploads_are_here_whole_before_the_app_runs(begin: Begin) -> None:
    peer = begin(attributes={"body_memory_bytes": 1000})
    stream = peer.ask(method="POST", body=b"a" * 30_000, trailers=[("x-sum", "1")])
    half = peer.state.data_to_send()
    peer.socket.send(half[:20_000])
    peer.bench.run()
    assert not peer.bench.log.environs
    peer.socket.send(half[20_000:])
    peer.run()
    assert peer.answers[stream].body == b"a" * 30_000
    assert peer.bench.server.bodies_on_disk.used_bytes == 0


def test_all_uploads_of_a_connection_share_its_memory(begin: Begin) -> None:
    peer = begin(attributes={"body_memory_bytes": 100_000})
    for _ in range(100):
        peer.ask(method="POST", body=bytes(10_000), ends=False)
        peer.run()
    assert peer.streams == 100
    # All but what is in memory.
    assert 800_000 < peer.bench.server.bodies_on_disk.used_bytes < 1_000_000


def test_a_large_upload_gets_its_windows(begin: Begin) -> None:
    peer = begin(client={"reads": True})
    stream = peer.ask(method="POST", ends=False)
    left = 500_000
    while left:
        room = min(peer.state.local_flow_control_window(stream), 16_384, left)
        if room:
            left -= room
            peer.state.send_data(stream, bytes(room), end_stream=not left, pad_length=None)
        else:
            peer.run()
    peer.run()
    assert len(peer.answers[stream].body) == 500_000


@pytest.mark.parametrize("declared", [True, False])
def test_an_upload_that_is_too_large(begin: Begin, declared: bool) -> None:
    peer = begin(attributes={"body_limit_bytes": 1000})
    headers = [("content-length", "2000")] if declared else []
    answer = peer.get(method="POST", headers=headers, body=bytes(2000))
    assert answer.status == 413
    assert answer.ended
    assert peer.get(method="POST", body=b"ok").body == b"ok"
    assert not peer.streams
    assert not peer.goaways


def test_an_upload_that_does_not_come(begin: Begin) -> None:
    peer = begin()
    stream = peer.ask(method="POST", body=b"begun", ends=False)
    peer.run()
    peer.bench.pass_time(FastWorker.body_timeout_s + 1)
    peer.take(peer.socket.receive_all_there_is())
    assert peer.answers[stream].status == 408
    assert peer.answers[stream].reset == NO_ERROR
    assert not peer.streams


def test_expect(begin: Begin) -> None:
    peer = begin()
    stream = peer.ask(method="POST", headers=[("expect", "100-continue")], ends=False)
    peer.run()
    assert peer.answers[stream].early == [{":status": "100"}]
    peer.state.send_data(stream, b"body", end_stream=True)
    peer.run()
    assert peer.answers[stream].body == b"body"


def test_trailers_are_the_request_s(begin: Begin) -> None:
    seen: list[Any] = []
    peer = begin(post_request=lambda worker, req, environ, resp: seen.append(req))
    answer = peer.get(method="POST", body=b"a", trailers=[("x-sum", "1")])
    assert answer.body == b"a"
    assert ("X-SUM", "1") in seen[0].trailers
    answer = peer.get(method="POST", body=b"a", trailers=[("x-sum", "a" * 9000)])
    assert (answer.status, len(seen)) == (431, 1)
    answer = peer.get(method="POST", body=b"a", trailers=[("x-sum", "a\rb")])
    assert peer.goaways or answer.reset is not None or answer.status == 400


# Bodies that the app reads


STREAMED = {"buffer_bodies": False}


def test_an_app_reads_its_body_as_it_comes(begin: Begin) -> None:
    parts: list[bytes] = []
    peers: list[Peer] = []

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        body = environ["wsgi.input"]
        parts.append(body.read(5))
        peers[0].state.send_data(1, b" and second", end_stream=True, pad_length=10)
        peers[0].send_only()
        another_thread(peers[0])
        parts.append(body.read())
        start_response("200 OK", [])
        return [b"read"]

    peers.append(begin(app, attributes=STREAMED))
    peers[0].ask(method="POST", body=b"first", headers=[("expect", "100-continue")], ends=False)
    peers[0].run()
    assert parts == [b"first", b" and second"]
    answer = peers[0].answers[1]
    assert (answer.body, answer.ended, answer.early) == (b"read", True, [{":status": "100"}])
    # All that was taken is given back to both windows.
    assert peers[0].state.outbound_flow_control_window == 65_535


def test_windows_open_as_the_app_reads(begin: Begin) -> None:
    peers: list[Peer] = []
    seen: list[int] = []

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        peer = peers[0]
        seen.append(peer.state.local_flow_control_window(1))
        for _ in range(5):  # a receive each
            another_thread(peer)
        for size in (0, 30_000, 35_535):
            assert len(environ["wsgi.input"].read(size)) == size
            peer.take(peer.socket.receive_all_there_is())
            seen.append(peer.state.local_flow_control_window(1))
        start_response("200 OK", [])
        return []

    peers.append(begin(app, attributes=STREAMED))
    peers[0].ask(method="POST", body=bytes(65_535), ends=False)
    peers[0].run()
    assert seen[:2] == [0, 0]
    assert 0 < seen[2] < seen[3] == 65_535
    # The app has not waited for the end: the client is told to send no more.
    answer = peers[0].answers[1]
    assert (answer.status, answer.ended, answer.reset) == (200, True, NO_ERROR)


@pytest.mark.parametrize("end", ["reset", "silence", "leaves"])
def test_a_body_that_stops(begin: Begin, end: str) -> None:
    errors: list[BaseException] = []
    peers: list[Peer] = []

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        peer = peers[0]
        body = environ["wsgi.input"]
        assert body.read(5) == b"begun"
        if end == "reset":
            peer.state.reset_stream(1)
        if end != "silence":
            peer.send_only()
            if end == "leaves":
                peer.socket.close()
            another_thread(peer)
        try:
            body.read()
        except OSError as error:
            errors.append(error)
            raise
        raise AssertionError("it looks whole")

    peers.append(begin(app, attributes={**STREAMED, "body_timeout_s": 0.01}))
    peers[0].ask(method="POST", body=b"begun", ends=False)
    if end == "leaves":
        peers[0].send_only()
        peers[0].bench.run()
    else:
        peers[0].run()
    assert len(errors) == 1
    if end == "silence":
        assert peers[0].answers[1].status == 408
    assert not peers[0].streams
    assert not peers[0].bench.log.errors


# Resets and floods


def test_a_stream_that_is_reset_before_its_turn_runs_no_app(begin: Begin) -> None:
    called: list[str] = []

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        called.append(environ["PATH_INFO"])
        return echo(environ, start_response)

    peer = begin(app)
    peer.ask("/1")
    peer.state.reset_stream(1)
    peer.ask("/3")
    peer.ask("/5")
    peer.run()
    assert called == ["/3", "/5"]
    # One that a thread has been told of, and that is reset then.
    peer.ask("/7")
    peer.ask("/9")
    peer.send_only()
    peer.bench.poll()
    job = peer.bench.take_up()
    assert job is not None
    peer.state.reset_stream(7)
    peer.send_only()
    peer.bench.run()
    peer.bench.answer(job)
    peer.run()
    assert called == ["/3", "/5", "/9"]
    assert not peer.streams


def test_a_stream_that_is_reset_while_its_body_goes_out(begin: Begin) -> None:
    closed: list[int] = []

    class Body:
        def __iter__(self) -> Iterator[bytes]:
            return iter([bytes(LARGE)])

        def close(self) -> None:
            closed.append(1)

    peer = begin(app_of(Body), client={"window": 10, "reads": False})
    stream = peer.ask()
    peer.run()
    assert len(peer.answers[stream].body) == 10
    peer.state.reset_stream(stream)
    peer.run()
    assert closed == [1]
    assert not peer.streams
    assert peer.bench.log.requests == [("GET /", "200 OK", 10)]
    assert peer.bench.server.output_rules.memory.used_bytes == 0


def test_an_app_whose_stream_is_reset_is_told(begin: Begin) -> None:
    steps: list[str] = []
    peers: list[Peer] = []

    def body() -> Iterator[bytes]:
        try:
            yield b"a"
            peers[0].state.reset_stream(1)
            peers[0].send_only()
            another_thread(peers[0])
            steps.append("reset")
            yield b"b"
            steps.append("not reached")
        finally:
            steps.append("closed")

    peers.append(begin(app_of(body)))
    peers[0].get()
    assert steps == ["reset", "closed"]
    assert not peers[0].streams
    assert not peers[0].bench.log.errors


def another_thread(peer: Peer) -> None:
    """What another thread does with what has come, while an app runs in this one."""
    server = peer.bench.server
    server.pool.take_up_events(0)
    while server.pool.work:
        assert peer.bench.take_up() is None


def many(peer: Peer, count: int, make: Callable[[], object]) -> None:
    for _ in range(count):
        make()
    peer.run()


def test_floods_end_the_connection(begin: Begin) -> None:
    def rapid_reset(peer: Peer) -> None:
        stream = peer.ask()
        peer.state.reset_stream(stream)

    def settings(peer: Peer) -> None:
        peer.state.update_settings({4: 65_535})

    def priority(peer: Peer) -> None:
        peer.state.prioritize(1, weight=5)

    def answers_to_no_settings(peer: Peer) -> None:
        frame = SettingsFrame(0, flags=["ACK"])
        peer.state._prepare_for_sending([frame])

    def answers_to_no_ping(peer: Peer) -> None:
        peer.state._prepare_for_sending([PingFrame(0, b"12345678", flags=["ACK"])])

    def data_without_data(peer: Peer) -> None:
        if 1 not in peer.answers:
            peer.ask(method="POST", ends=False)
        peer.state.send_data(1, b"")

    for make, calm in (
        (rapid_reset, 150),
        (data_without_data, 900),
        (lambda peer: peer.state.ping(b"12345678"), 900),
        (settings, 900),
        (priority, 900),
        (answers_to_no_settings, 900),
        (answers_to_no_ping, 900),
    ):
        peer = begin()
        many(peer, calm, lambda make=make, peer=peer: make(peer))  # type: ignore[misc]
        assert not peer.goaways
        assert peer.get().status == 200
        peer.bench.pass_time(3)
        many(peer, 1000, lambda make=make, peer=peer: make(peer))  # type: ignore[misc]
        assert peer.goaways[-1][1] == ENHANCE_YOUR_CALM, make
        assert peer.has_ended


def without_limit(peer: Peer) -> Peer:
    """A client that opens as many streams as it likes."""
    settings = peer.state.remote_settings
    settings[SettingCodes.MAX_CONCURRENT_STREAMS] = 2**31 - 1
    settings.acknowledge()
    return peer


def test_a_stream_too_many_is_refused_and_no_other(begin: Begin) -> None:
    """RFC 9113 section 5.1.2."""
    peer = without_limit(begin(http2_max_concurrent_streams=2))
    first, second = (peer.ask("/", "POST", ends=False) for _ in range(2))
    peer.run()
    refused = [peer.ask("/", headers=[("x-a", str(n))]) for n in range(3)]
    with_body = peer.ask("/", "POST", body=b"dropped")
    peer.run()
    assert [peer.answers[n].reset for n in (*refused, with_body)] == [REFUSED] * 4
    for stream in (first, second):
        peer.state.send_data(stream, b"whole", end_stream=True)
    peer.run()
    assert [peer.answers[n].body for n in (first, second)] == [b"whole", b"whole"]
    # What the headers of those that were refused have said of later ones is known.
    assert peer.get(headers=[("x-a", "1")]).status == 200
    assert peer.bench.log.environs[-1]["HTTP_X_A"] == "1"
    assert not peer.goaways
    assert not peer.streams


def test_bodies_of_streams_that_were_refused_are_dropped(begin: Begin) -> None:
    """They are on their way by then, however many there are."""
    peer = without_limit(begin(http2_max_concurrent_streams=1))
    first = peer.ask("/", "POST", ends=False)
    refused = [peer.ask("/", "POST", ends=False) for _ in range(150)]
    for stream in (*refused, first):
        peer.state.send_data(stream, b"body", end_stream=True)
    peer.run()
    assert {peer.answers[stream].reset for stream in refused} == {REFUSED}
    assert peer.answers[first].body == b"body"
    assert not peer.goaways


def test_who_opens_too_many_streams_again_and_again_is_ended(begin: Begin) -> None:
    peer = without_limit(begin(http2_max_concurrent_streams=1))
    peer.ask("/", "POST", ends=False)
    many(peer, 300, peer.ask)
    assert peer.goaways[-1][1] == ENHANCE_YOUR_CALM
    assert not peer.streams


def test_windows_by_the_byte_end_the_connection(begin: Begin) -> None:
    peer = begin(app_of(lambda: [bytes(LARGE)]), client={"window": 0, "reads": False})
    stream = peer.ask()
    peer.run()
    for _ in range(3000):
        if peer.goaways:
            break
        peer.open(1, stream)
        peer.run()
    assert peer.goaways[-1][1] == ENHANCE_YOUR_CALM


def test_windows_for_each_small_frame_are_no_flood(begin: Begin) -> None:
    peers: list[Peer] = []

    def body() -> Iterator[bytes]:
        for _ in range(3000):
            yield b"a"
            peer = peers[0]
            peer.take(peer.socket.receive_all_there_is())
            if peer.answers[1].body:
                peer.open(1)
                peer.open(1, 1)
                peer.send_only()
                another_thread(peer)

    peers.append(begin(app_of(body), client={"reads": False}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output, "_COALESCE_S", 0.0)  # each block is a frame
        assert peers[0].get().ended
    assert len(peers[0].answers[1].body) == 3000
    assert not peers[0].goaways


def test_header_blocks_have_a_limit(begin: Begin) -> None:
    peer = begin(http2_max_header_list_size=10_000)
    answer = peer.get(headers=[("x-a", "a" * 8000), ("x-b", "b" * 8000)])
    assert peer.goaways[-1][1] == ENHANCE_YOUR_CALM
    assert not answer.headers
    # And before their end has come: a HEADERS frame, and CONTINUATION frames without end.
    peer = begin(http2_max_header_list_size=10_000)
    frame = b"\0\x10\0%c\0\0\0\0\1" + bytes(4096)
    for kind in (1, 9, 9, 9):
        peer.socket.send(frame % kind)
        peer.bench.run()
    peer.take(peer.socket.receive_all_there_is())
    assert peer.goaways[-1][1] == ENHANCE_YOUR_CALM
    assert peer.has_ended


def test_unknown_settings_are_not_kept(begin: Begin) -> None:
    peer = begin()
    known = len(peer.near.frames.remote_settings)
    values = b"".join(code.to_bytes(2, "big") + bytes(4) for code in range(1000, 3000))
    peer.socket.send(len(values).to_bytes(3, "big") + b"\4\0\0\0\0\0" + values)
    peer.run()
    assert len(peer.near.frames.remote_settings) == known
    assert peer.get().status == 200


def test_a_frame_that_is_too_long_is_not_waited_for(begin: Begin) -> None:
    peer = begin()
    peer.socket.send(b"\xff\xff\xff\0\0")
    peer.run()
    assert peer.goaways[-1][1] == 6  # FRAME_SIZE_ERROR
    assert peer.has_ended


# Ends


def test_an_idle_connection_ends(begin: Begin) -> None:
    peer = begin()
    peer.bench.pass_time(FastWorker.head_timeout_s - 1)
    assert peer.get().status == 200
    peer.bench.pass_time(4)
    peer.run()
    assert not peer.goaways
    peer.bench.pass_time(2)
    peer.take(peer.socket.receive_all_there_is())
    assert peer.goaways == [(1, NO_ERROR)]
    assert peer.has_ended
    peer.bench.pass_time(3)
    assert not peer.bench.server.connections


def test_a_client_that_leaves(begin: Begin) -> None:
    peer = begin(app_of(lambda: [bytes(LARGE)]), client={"window": 10, "reads": False})
    for _ in range(5):
        peer.ask()
    peer.run()
    assert peer.streams == 5
    peer.socket.close()
    peer.bench.run()
    assert not peer.bench.server.connections
    assert len(peer.bench.log.requests) == 5
    assert peer.bench.server.output_rules.memory.used_bytes == 0


def test_a_client_that_leaves_while_apps_run(begin: Begin) -> None:
    """The socket stays open as long as an app may look at it."""
    peers: list[Peer] = []

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        peer = peers[0]
        peer.socket.close()
        another_thread(peer)
        server = peer.bench.server
        assert environ["gunicorn.socket"].getsockopt(1, 3)
        assert len(server.connections) == 1
        return echo(environ, start_response)

    peers.append(begin(app))
    peers[0].ask()
    peers[0].send_only()
    peers[0].bench.run()
    assert not peers[0].bench.server.connections
    assert not peers[0].bench.log.errors


def test_a_client_says_goodbye(begin: Begin) -> None:
    peer = begin(app_of(lambda: [bytes(LARGE)]), client={"window": 10, "reads": False})
    stream = peer.ask()
    peer.run()
    peer.state.close_connection()
    data = peer.state.data_to_send()
    peer.socket.send(data)
    peer.bench.run()
    assert peer.streams == 1  # its streams end well
    window = b"\0\0\4\x08\0" + (0).to_bytes(4, "big") + (2 * LARGE).to_bytes(4, "big")
    peer.socket.send(window)
    window = b"\0\0\4\x08\0" + stream.to_bytes(4, "big") + (2 * LARGE).to_bytes(4, "big")
    peer.socket.send(window)
    peer.bench.run()
    while peer.socket.receive_all_there_is():
        peer.bench.run()
    assert peer.bench.log.requests == [("GET /", "200 OK", LARGE)]
    assert peer.has_ended


def test_the_server_says_goodbye(begin: Begin) -> None:
    peer = begin(app_of(lambda: [bytes(LARGE)]), client={"window": 10, "reads": False})
    stream = peer.ask()
    peer.run()
    server = peer.bench.server
    server.end_soon("max_requests")
    peer.bench.say_goodbye()
    peer.bench.pass_time(0.1)
    peer.run()
    assert peer.goaways == [(ALL_STREAMS, NO_ERROR)]
    # What was under way by then is served.
    peer.state.state_machine.state = ConnectionState.CLIENT_OPEN
    late = peer.ask()
    peer.run()
    assert len(peer.answers[late].body) == 10
    peer.bench.pass_time(1.1)
    peer.run()
    assert peer.goaways[1:] == [(late, NO_ERROR)]
    peer.state.state_machine.state = ConnectionState.CLIENT_OPEN
    refused = peer.ask()
    peer.open(4 * LARGE)
    for each in (stream, late):
        peer.open(LARGE, each)
    peer.run()
    assert peer.answers[refused].reset == REFUSED
    assert peer.answers[stream].ended
    assert peer.answers[late].ended
    assert peer.has_ended


def test_max_requests(begin: Begin) -> None:
    peer = begin(max_requests=2)
    assert peer.get().status == 200
    assert not peer.goaways
    assert peer.get().status == 200
    peer.bench.say_goodbye()
    peer.bench.pass_time(0.1)
    peer.bench.pass_time(1.1)
    peer.take(peer.socket.receive_all_there_is())
    assert [code for _, code in peer.goaways] == [NO_ERROR, NO_ERROR]
    assert peer.has_ended


def test_an_error_of_ours_ends_one_connection(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = begin(app_of(lambda: [bytes(LARGE)]), client={"window": 10, "reads": False})
    stream = peer.ask()
    peer.run()

    def fail(*args: object, **options: object) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(peer.near.frames, "send_body", fail)
    peer.open(100, stream)
    peer.send_only()
    peer.bench.run()
    assert not peer.bench.server.connections
    assert peer.bench.log.says("Error in a connection")
