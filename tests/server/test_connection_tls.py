"""Connections with TLS: what one record brings, the handshake, and the goodbye."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from tests.support import http2
from tests.support.tls import client_context, write_certificate
from tests.workers.bench import Bench, echo, make_bench
from wsgifast.server.endpoint import CLOSED, IDLE, LINGERING, STREAMS
from wsgifast.server.http2 import multiplexer
from wsgifast.server.options import Options
from wsgifast.server.poller import READ, WRITE
from wsgifast.server.pool import Pool

__all__ = ["make_bench"]

LARGE = 1 << 20
HEAD = b"POST / HTTP/1.1\r\nHost: a\r\n"

MakeBench = Callable[..., Bench]


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ssl.SSLContext]:
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    return write_certificate(path), client_context()


TLSBench = Callable[..., Bench]


@pytest.fixture
def tls_bench(make_bench: MakeBench, pem: tuple[str, ssl.SSLContext]) -> TLSBench:
    return lambda app=echo, **more: make_bench(app, certfile=pem[0], keyfile=pem[0], **more)


def test_tls_requests_in_one_record(tls_bench: TLSBench, pem: tuple[str, ssl.SSLContext]) -> None:
    bench = tls_bench(keepalive=5)
    client = bench.connect(tls=pem[1])
    head = HEAD + b"Content-Length: %d\r\n\r\n"
    # One record each; the first is more than one receive takes.
    for size in (0, 9, 15_000):
        body = b"a" * size
        client.send(head % size + body + head % 3 + b"end")
        bench.run()
        assert client.read_response().body == body
        assert client.read_response().body == b"end"
        client.send(head % (size + 1))
        bench.run()
        # The body is received for itself, and what follows it is decrypted then.
        client.send(b"b" + body + head % 3 + b"end")
        bench.run()
        assert client.read_response().body == b"b" + body
        assert client.read_response().body == b"end"
    # A head across two records, and a body across several.
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 8000 + b"\r\nY: " + b"b" * 7900)
    client.send(b"\r\n\r\n")
    body = bytes(range(250)) * 280
    client.send_request(method="POST", body=body)
    bench.run()
    assert client.read_response().status == 200
    assert client.read_response().body == body


def test_tls_handshakes(
    tls_bench: TLSBench, pem: tuple[str, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = tls_bench(keepalive=0)
    silent, nonsense = bench.connect(), bench.begin(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    assert nonsense.is_in(LINGERING)
    assert bench.log.says("[SSL: HTTP_REQUEST]")
    nonsense.close()
    gone = bench.connect()
    gone.close()
    bench.run()
    assert gone.is_in(CLOSED)
    assert bench.log.says("TLS handshake failed")
    bench.pass_time(Options.head_timeout_s + 1)
    assert silent.is_in(CLOSED)
    assert silent.read_to_end() == b""
    client = bench.connect()
    events = bench.armed()
    wants = [ssl.SSLWantReadError(), ssl.SSLWantWriteError(), ssl.SSLWantReadError()]

    def handshake(self: ssl.SSLSocket, block: bool = False) -> None:
        raise wants.pop(0)

    monkeypatch.setattr(ssl.SSLSocket, "do_handshake", handshake)
    for event in (READ, READ, WRITE):
        bench.server.receive((client.near.fd, event))
    assert events == [READ, WRITE, READ]


def test_the_alert_of_a_failed_handshake_arrives(tls_bench: TLSBench) -> None:
    """Closing a socket with unread bytes would reset the connection, and drop the alert."""
    bench = tls_bench()
    client = bench.begin(b"\x16\x03\x01\x00\x05hello" + bytes(100_000))
    assert client.is_in(LINGERING)
    alert = client.read_to_end()
    assert alert[:2] == b"\x15\x03"  # RFC 8446 section 5.1
    client.close()
    bench.run()
    assert client.is_in(CLOSED)


def test_every_end_of_a_handshake_makes_room_for_another(
    tls_bench: TLSBench, pem: tuple[str, ssl.SSLContext]
) -> None:
    bench = tls_bench()
    handshakes = bench.server._acceptor._handshakes
    fails, leaves, silent, succeeds = (bench.connect() for _ in range(4))
    for client in (fails, leaves, silent, succeeds):
        handshakes[client.near] = bench.clock.now
    fails.send(b"GET / HTTP/1.1\r\n\r\n")
    leaves.close()
    bench.run()
    assert list(handshakes) == [silent.near, succeeds.near]
    out = ssl.MemoryBIO()
    received = ssl.MemoryBIO()
    client_side = pem[1].wrap_bio(received, out, server_hostname="localhost")
    while True:
        try:
            client_side.do_handshake()
        except ssl.SSLWantReadError:
            pass
        else:
            break
        finally:
            succeeds.send(out.read())
            bench.run()
            received.write(succeeds.receive_all_there_is())
    bench.run()
    assert list(handshakes) == [silent.near]
    bench.pass_time(Options.head_timeout_s + 1)
    assert not handshakes


def test_a_worker_that_ends_waits_for_no_handshake_that_is_silent(tls_bench: TLSBench) -> None:
    bench = tls_bench()
    silent = bench.connect()
    assert silent.near.is_idle()


def test_the_bytes_of_a_record_give_a_client_no_more_time(
    tls_bench: TLSBench, pem: tuple[str, ssl.SSLContext]
) -> None:
    """One look after its time is all that it has of them."""
    bench = tls_bench(keepalive=5)
    client = bench.begin(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", tls=pem[1])
    assert client.read_response().status == 200
    record = b"\x17\x03\x03\x40\x00"
    for part, state in ((record[:2], IDLE), (record[2:], CLOSED)):
        assert socket.socket.send(client.sock, part) == len(part)
        bench.pass_time(6)
        assert client.is_in(state)


def test_tls_ends_with_a_goodbye(tls_bench: TLSBench, pem: tuple[str, ssl.SSLContext]) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        assert environ["gunicorn.socket"].pending() == 0  # what only a TLS socket has
        return echo(environ, start_response)

    bench = tls_bench(app, keepalive=0)
    client = bench.begin(tls=pem[1])
    assert client.read_response().status == 200
    assert client.near.hijacked
    assert client.read_to_end() == b""  # an end without it is an error
    client.sock.send(b"still sent")  # and is not decrypted any more
    bench.run()
    assert client.is_in(LINGERING)
    client.close()
    bench.run()
    assert client.is_in(CLOSED)


def test_http2_is_agreed_on(
    tls_bench: TLSBench, pem: tuple[str, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    ways: list[int] = []
    monkeypatch.setattr(Pool, "share_work", lambda pool: ways.append(1))
    monkeypatch.setattr(multiplexer, "LONG_TURN_BYTES", 60_000)

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/large":
            start_response("200 OK", [])
            return [bytes(LARGE)]
        return echo(environ, start_response)

    bench = tls_bench(app, http_protocols="h2,h1", keepalive=5)
    context = pem[1]
    context.set_alpn_protocols(["h2"])
    try:
        client = bench.connect(tls=context)
        bench.run()
    finally:
        context.set_alpn_protocols(["http/1.1"])
    assert client.is_in(STREAMS)
    speaker = http2.Client()
    speaker.begin()
    bodies = [bytes(30_000), b"second"]
    streams = [speaker.ask(method="POST", body=body) for body in bodies]
    client.send(speaker.state.data_to_send())
    while not all(speaker.answers[stream].ended for stream in streams):
        bench.run()
        speaker.take(client.sock.recv(1 << 20))
        client.send(speaker.state.data_to_send())
    assert [speaker.answers[stream].body for stream in streams] == bodies
    assert not ways
    # Others go on while much is encrypted.
    stream = speaker.ask(path="/large")
    speaker.open(1 << 21)
    speaker.open(1 << 21, stream)
    client.send(speaker.state.data_to_send())
    while not speaker.answers[stream].ended:
        bench.run()
        speaker.take(client.sock.recv(1 << 20))
        client.send(speaker.state.data_to_send())
    assert len(speaker.answers[stream].body) == LARGE
    assert ways
    # It waits in no thread.
    assert client.near.fd in bench.server.registry.waiting
    client.close()
    bench.run()
    assert not bench.server.connections
