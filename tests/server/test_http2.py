"""HTTP/2 on a connection, one event at a time: requests, responses and ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from h2.connection import ConnectionState

from tests.server.connections import MakeStepped, responses
from tests.server.http2_peer import (
    HTTP2,
    INTERNAL_ERROR,
    NO_ERROR,
    PROTOCOL_ERROR,
    REFUSED,
    Begin,
    Peer,
    raw_frame,
)
from tests.workers.stepped_worker import HEAD_TIMEOUT_S, LARGE, echo
from wsgifast.errors import ClientGone
from wsgifast.server.endpoint import RUNNING
from wsgifast.server.http2.frames import ALL_STREAMS, Frames
from wsgifast.server.http2.stream import Stream
from wsgifast.server.receiving import Exchange


def test_several_streams_are_each_answered(begin: Begin) -> None:
    peer = begin()
    first, second = peer.ask("/a?b=c", "POST", body=b"first"), peer.ask("/", "POST", body=b"second")
    third = peer.ask()
    peer.run()
    responses = peer.responses
    assert [responses[n].body for n in (first, second, third)] == [b"first", b"second", b""]
    assert all(responses[n].ended and responses[n].status == 200 for n in (first, second, third))
    assert responses[first].headers["content-length"] == "5"
    assert {*responses[first].headers} == {":status", "content-length", "server", "date"}
    assert peer.stepped.log.requests[0] == ("POST /a?b=c", "200 OK", 5)
    assert not peer.streams
    assert peer.socket.near.deadline == peer.stepped.clock.now + 5


def test_small_response_is_one_send(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = begin(responses([b"hello"], ("Content-Length", "5")))
    sent = peer.sends(monkeypatch)
    assert peer.get().body == b"hello"
    assert len(sent) == 1
    assert sent[0][-5 - 9 :][3:5] == b"\0\1"  # DATA that ends the stream


def test_environ_has_the_requests_fields(begin: Begin) -> None:
    peer = begin(proc_name="a")
    fields = [("x-a", "1"), ("x-a", "2"), ("cookie", "a=b")]
    assert peer.get("/p%20q/\u00e9?x=\u00e9", headers=fields).status == 200
    environ = peer.stepped.log.environs[0]
    assert environ["SERVER_PROTOCOL"] == "HTTP/2.0"
    assert environ["HTTP_HOST"] == "a"
    assert environ["PATH_INFO"] == "/p q/\u00c3\u00a9"  # UTF-8, as PEP 3333 represents it
    assert environ["QUERY_STRING"] == "x=%C3%A9"
    assert environ["HTTP_X_A"] == "1,2"
    assert environ["HTTP_COOKIE"] == "a=b"
    assert environ["REMOTE_ADDR"] == "192.0.2.1"
    assert environ["wsgi.url_scheme"] == "http"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([("x_a", "1")], 200),  # gunicorn's header_map drops it
        ([("expect", "nothing")], 417),
        ([("x-a", "a" * 9000)], 431),
        ([("x-a", "a\rb")], None),
    ],
)
def test_headers_are_judged_as_in_http_1(
    begin: Begin, headers: list[tuple[str, str]], status: int | None
) -> None:
    response = begin().get(headers=headers)
    if status is None:
        assert response.reset is not None or response.headers.get(":status") in ("400", None)
    else:
        assert response.status == status


@pytest.mark.parametrize("path", ["", "x", "http://a/", "/a b", "/a\r\n\r\nGET /b HTTP/1.1"])
def test_invalid_path_is_refused(begin: Begin, path: str) -> None:
    peer = begin()
    response = peer.get(path)
    assert response.reset == PROTOCOL_ERROR or response.status == 400
    assert not [line for line in peer.stepped.log.requests if line[1] == "200 OK"]


def test_scheme_of_trusted_peer_alone_is_used(begin: Begin) -> None:
    for trusted, scheme in (("*", "https"), ("192.0.2.9", "http")):
        peer = begin(forwarded_allow_ips=trusted)
        fields = [(":method", "GET"), (":path", "/"), (":scheme", "https"), (":authority", "a")]
        peer.state.send_headers(1, fields, end_stream=True)
        peer.run()
        assert peer.stepped.log.environs[0]["wsgi.url_scheme"] == scheme


def test_stream_to_head_204_or_304_has_no_body(begin: Begin) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        write = start_response(environ["PATH_INFO"][1:] + " X", [("Content-Type", "text/plain")])
        for _ in environ["QUERY_STRING"]:
            write(b"dropped")  # this app raises from the tenth second on
            peer.stepped.clock.now += 1
        return [b"dropped"]

    peer = begin(app)
    for path, method in (("/200", "HEAD"), ("/204", "GET"), ("/304", "GET")):
        for written in (0, 1, 99):
            peer.stepped.log.lines.clear()
            response = peer.get(f"{path}?{written * 'x'}", method)
            seen = response.status, response.body, response.ended, response.reset
            assert seen == (int(path[1:]), b"", True, None)
            assert peer.stepped.log.says("lost connection") == (written == 99)


def test_early_hints_and_trailers_are_sent(begin: Begin) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        environ["wsgi.early_hints"]([("Link", "</a>")])
        start_response("200 OK", [("Content-Length", "3")])
        environ["gunicorn.http2.send_trailers"]([("Grpc-Status", "0")])
        return [b"abc"] if environ["PATH_INFO"] == "/list" else iter([b"a", b"bc"])

    peer = begin(app)
    for path in ("/list", "/iterator"):
        response = peer.get(path)
        assert response.early == [{":status": "103", "link": "</a>"}]
        assert (response.body, response.trailers, response.ended) == (
            b"abc",
            {"grpc-status": "0"},
            True,
        )


def test_stream_has_no_101_socket_or_connection_fields(begin: Begin) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/101":
            start_response("101 Switching", [("Connection", "upgrade"), ("Upgrade", "x")])
            return []
        if environ["PATH_INFO"] == "/socket":
            assert environ["gunicorn.socket"].family  # may be used
            with pytest.raises(OSError, match="cannot be taken over"):
                environ["gunicorn.socket"].send(b"")
        start_response("200 OK", [("Connection", "close"), ("Upgrade", "x"), ("Keep-Alive", "5")])
        return [b"ok"]

    peer = begin(app)
    assert peer.get("/101").status == 500
    response = peer.get("/socket")
    assert response.body == b"ok"
    assert {*response.headers} == {":status", "server", "date"}
    assert not peer.has_ended


def test_error_of_app_is_hidden_from_client(begin: Begin) -> None:
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
    assert (early.status, early.ended) == (500, True)
    assert b"Internal Server Error" in early.body
    assert b"secret" not in early.body
    assert {"date", "content-type"} <= set(early.headers)  # RFC 9110, section 6.6.1
    response = peer.get("/late")
    assert (response.status, response.body, response.ended) == (200, b"begun", False)
    assert response.reset == INTERNAL_ERROR
    assert peer.get("/early").status == 500  # other streams continue
    assert not peer.streams


def test_short_body_resets_its_stream(begin: Begin) -> None:
    for body in ([b"abc"], iter([b"abc"])):
        response = begin(responses(body, ("Content-Length", "4"))).get()
        assert (response.body, response.ended, response.reset) == (b"abc", False, INTERNAL_ERROR)


def test_idle_connection_ends_by_goaway(begin: Begin) -> None:
    peer = begin()
    peer.stepped.pass_time(HEAD_TIMEOUT_S - 1)
    assert peer.get().status == 200
    peer.stepped.pass_time(4)
    peer.run()
    assert not peer.goaways
    peer.stepped.pass_time(2)
    peer.receive()
    assert peer.goaways == [(1, NO_ERROR)]
    assert peer.has_ended
    peer.stepped.pass_time(3)
    assert not peer.stepped.server.connections


@pytest.mark.parametrize("sends", [b"", raw_frame(6, 0, bytes(8)), b"\0\0"])
def test_idle_connection_ends_after_headers_timeout(begin: Begin, sends: bytes) -> None:
    peer = begin(keepalive=1)
    peer.stepped.pass_time(HEAD_TIMEOUT_S - 1)
    peer.send_raw(sends)
    assert not peer.has_ended
    peer.stepped.pass_time(2)
    peer.receive()
    assert peer.goaways == [(0, NO_ERROR)]
    assert peer.has_ended
    assert peer.stepped.server.shared.counters.timeouts == {"head": 1}
    # After a request, the keep-alive timeout applies.
    peer = begin(keepalive=1)
    assert peer.get().status == 200
    peer.stepped.pass_time(2)
    assert peer.has_ended
    assert peer.stepped.server.shared.counters.timeouts == {"keepalive": 1}


def test_client_that_leaves_ends_all_streams(begin: Begin) -> None:
    peer = begin(responses([bytes(LARGE)]), window=10)
    for _ in range(5):
        peer.ask()
    peer.run()
    assert peer.streams == 5
    peer.socket.close()
    peer.stepped.run()
    assert not peer.stepped.server.connections
    assert len(peer.stepped.log.requests) == 5
    assert peer.stepped.server.output_rules.memory.used_bytes == 0


def test_client_leaving_in_app_leaves_socket_open(begin: Begin) -> None:

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        peer.socket.close()
        peer.serve_elsewhere()
        assert environ["gunicorn.socket"].getsockopt(1, 3)  # the connection may be examined
        assert len(peer.stepped.server.connections) == 1
        return echo(environ, start_response)

    peer = begin(app)
    peer.ask()
    peer.run_unread()
    assert not peer.stepped.server.connections
    assert not peer.stepped.log.errors


def test_goaway_of_client_lets_streams_end(begin: Begin) -> None:
    peer = begin(responses([bytes(LARGE)]), window=10)
    peer.get()
    peer.state.close_connection()
    peer.run_unread()
    assert peer.streams == 1  # its streams end properly
    for stream in (0, 1):
        peer.socket.send(raw_frame(8, stream, (2 * LARGE).to_bytes(4, "big")))
    peer.stepped.run()
    while peer.socket.receive_all_there_is():
        peer.stepped.run()
    assert peer.stepped.log.requests == [("GET /", "200 OK", LARGE)]
    assert peer.has_ended


def test_ending_server_sends_goaway_twice(begin: Begin) -> None:
    peer = begin(responses([bytes(LARGE)]), window=10)
    peer.get()
    peer.stepped.server.stop()
    peer.stepped.send_goaways()
    peer.stepped.pass_time(0.1)
    peer.run()
    assert peer.goaways == [(ALL_STREAMS, NO_ERROR)]
    # Requests that were running by then are served.
    peer.state.state_machine.state = ConnectionState.CLIENT_OPEN
    late = peer.ask()
    peer.run()
    assert len(peer.responses[late].body) == 10
    peer.stepped.pass_time(1.1)
    peer.run()
    assert peer.goaways[1:] == [(late, NO_ERROR)]
    peer.state.state_machine.state = ConnectionState.CLIENT_OPEN
    refused = peer.ask()
    peer.open(4 * LARGE)
    for each in (1, late):
        peer.open(LARGE, each)
    peer.run()
    assert peer.responses[refused].reset == REFUSED
    assert peer.responses[1].ended
    assert peer.responses[late].ended
    assert peer.has_ended


def test_max_requests_ends_connection_by_goaway(begin: Begin) -> None:
    peer = begin(max_requests=2)
    assert peer.get().status == 200
    assert not peer.goaways
    assert peer.get().status == 200
    peer.stepped.worker.notify = lambda: None
    assert not peer.stepped.worker._beat()
    peer.stepped.send_goaways()
    peer.stepped.pass_time(0.1)
    peer.stepped.pass_time(1.1)
    peer.receive()
    assert [code for _, code in peer.goaways] == [NO_ERROR, NO_ERROR]
    assert peer.has_ended


def test_internal_error_ends_http2_connection(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = begin(responses([bytes(LARGE)]), window=10)
    peer.get()
    monkeypatch.setattr(peer.near.mux.frames, "send_body", None)
    peer.open(100, 1)
    peer.run_unread()
    assert not peer.stepped.server.connections
    assert peer.stepped.log.says("Error in a connection")


def test_internal_error_as_http2_begins_closes(
    make_stepped: MakeStepped, monkeypatch: pytest.MonkeyPatch
) -> None:
    stepped = make_stepped(echo, **HTTP2, http2_cleartext="both", forwarded_allow_ips="*")
    monkeypatch.setattr(Frames, "begin", None)
    client = stepped.connect()
    client.run(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    assert not stepped.server.connections
    assert stepped.log.says("Error in a connection")


def test_streams_are_added_under_the_lock(begin: Begin) -> None:
    """A thread that ends one stream examines all streams.

    The dictionary must not change size meanwhile.
    """
    peer = begin()
    near = peer.near

    class Streams(dict[int, Any]):
        def __setitem__(self, number: int, stream: Any) -> None:
            assert near.mux.lock._is_owned()  # type: ignore[attr-defined]
            super().__setitem__(number, stream)

    near.streams = near.mux.streams = Streams()
    assert peer.get(method="POST", body=b"a").body == b"a"
    assert peer.get(method="GET").status == 200


class Leaves:
    """A stream whose request is dropped by another thread right after a look at it."""

    def __init__(self, exchange: Any) -> None:
        self._seen = [exchange]

    @property
    def exchange(self) -> Any:
        return self._seen.pop() if self._seen else None

    def has_left(self) -> bool:
        return False


def test_stream_ending_while_queued_is_no_error(begin: Begin) -> None:
    server = begin().stepped.server
    exchange = Exchange(None, 0, b"", {})
    stream: Any = Leaves(exchange)
    server.on_queued(stream)
    assert exchange.queued
    stream = Leaves(exchange)
    server.on_dequeued(stream)
    assert len(server.shared.counters.waits) == 1


def test_stream_ending_while_failed_fails_its_upload(begin: Begin) -> None:
    failed: list[BaseException] = []
    exchange = Exchange(None, None, b"", {})
    exchange.streamed = SimpleNamespace(fail=failed.append)

    class Ending(Leaves, Stream):
        def __init__(self, peer: Peer) -> None:
            Leaves.__init__(self, None)
            self._seen = []
            Stream.__init__(self, peer.near.mux, 99, is_head=False)

        def _set(self, exchange: Any) -> None:
            self._seen = [exchange]

        exchange = property(lambda self: self._seen.pop() if self._seen else None, _set)

    stream = Ending(begin())
    stream.exchange = exchange
    stream.state = RUNNING
    stream.fail(ClientGone("gone"))
    assert [str(error) for error in failed] == ["gone"]
