"""Connections with TLS: the bytes of one record, the handshake, and close_notify."""

from __future__ import annotations

import errno
import os
import socket
import ssl
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.server.connections import HEAD, MakeStepped
from tests.support import http2
from tests.support.tls import client_context, write_certificate
from tests.workers.stepped_worker import GET, HEAD_TIMEOUT_S, LARGE, SteppedWorker, echo, large
from wsgifast.server.endpoint import CLOSED, IDLE, LINGERING, STREAMS
from wsgifast.server.http2 import multiplexer
from wsgifast.server.poller import READ, WRITE
from wsgifast.server.pool import Pool


@pytest.fixture
def tls_bench(make_stepped: MakeStepped, tmp_path: Path) -> Callable[..., SteppedWorker]:
    """Make stepped workers whose clients use TLS."""
    pem = write_certificate(tmp_path / "server.pem")
    return lambda app=echo, **more: make_stepped(app, certfile=pem, keyfile=pem, **more)


def test_tls_requests_in_one_record_are_all_answered(tls_bench: MakeStepped) -> None:
    stepped = tls_bench(keepalive=5)
    client = stepped.connect(tls=client_context())
    headers = HEAD + b"Content-Length: %d\r\n\r\n"
    # One record each. The first is larger than one receive.
    for size in (0, 9, 15_000):
        body = b"a" * size
        client.run(headers % size + body + headers % 3 + b"end")
        assert client.read_response().body == body
        assert client.read_response().body == b"end"
        client.run(headers % (size + 1))
        # The body is received separately. TLS decrypts the bytes that follow at the same time.
        client.run(b"b" + body + headers % 3 + b"end")
        assert client.read_response().body == b"b" + body
        assert client.read_response().body == b"end"
    # Headers in two records, and a body in several.
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 8000 + b"\r\nY: " + b"b" * 7900)
    client.send(b"\r\n\r\n")
    body = bytes(range(250)) * 280
    client.run_request(method="POST", body=body)
    assert client.read_response().status == 200
    assert client.read_response().body == body


def test_tls_handshake_failing_ends(
    tls_bench: MakeStepped, monkeypatch: pytest.MonkeyPatch
) -> None:
    stepped = tls_bench(keepalive=0)
    silent, nonsense = stepped.connect(), stepped.begin()
    assert silent.near.is_idle()
    assert nonsense.is_in(LINGERING)
    assert stepped.log.says("[SSL: HTTP_REQUEST]")
    nonsense.close()
    stepped.pass_time(HEAD_TIMEOUT_S + 1)
    assert silent.is_in(CLOSED)
    assert silent.read_to_end() == b""
    client = stepped.connect()
    events = stepped.armed()
    wants = [ssl.SSLWantReadError(), ssl.SSLWantWriteError(), ssl.SSLWantReadError()]

    def handshake(self: ssl.SSLSocket, block: bool = False) -> None:
        raise wants.pop(0)

    monkeypatch.setattr(ssl.SSLSocket, "do_handshake", handshake)
    for event in (READ, READ, WRITE):
        stepped.server.receive((client.near.fd, event))
    assert events == [READ, WRITE, READ]


def _client_hello() -> bytes:
    out = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        client_context().wrap_bio(ssl.MemoryBIO(), out, server_hostname="a").do_handshake()
    return out.read()


# The bytes that a client has sent before it leaves. A balancer's health check sends none.
LEFT_AFTER: dict[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "half a hello": lambda: _client_hello()[:60],
    "a hello": _client_hello,
    "hello, close_notify": lambda: _client_hello() + b"\x15\x03\x03\x00\x02\x01\x00",
    "hello, user_canceled": lambda: _client_hello() + b"\x15\x03\x03\x00\x02\x02\x5a",
}
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close() resets the connection


@pytest.mark.parametrize("resets", [False, True])
@pytest.mark.parametrize("sent", LEFT_AFTER)
def test_client_leaving_a_handshake_is_not_logged(
    tls_bench: MakeStepped, sent: str, resets: bool
) -> None:
    stepped = tls_bench()
    for answered in (False, True):
        client = stepped.connect(tcp=True)
        client.send(LEFT_AFTER[sent]())
        if answered:
            stepped.run()
        if resets:
            client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        client.close()
        stepped.run()
        assert client.is_in(CLOSED)
    assert not stepped.log.warnings
    assert stepped.log.says("The client has left in the TLS handshake")


@pytest.mark.parametrize(
    "error",
    [
        ssl.SSLEOFError(ssl.SSL_ERROR_EOF, "EOF occurred in violation of protocol"),
        ssl.SSLZeroReturnError(ssl.SSL_ERROR_ZERO_RETURN, "TLS/SSL connection has been closed"),
        ssl.SSLSyscallError(ssl.SSL_ERROR_SYSCALL, "Some I/O error occurred"),
        *(
            OSError(number, os.strerror(number))
            for number in (
                errno.ECONNRESET,
                errno.EPIPE,
                errno.ECONNABORTED,
                errno.ETIMEDOUT,
                errno.EHOSTUNREACH,
                errno.ENETUNREACH,
                errno.ENOTCONN,
            )
        ),
    ],
    ids=lambda error: f"{type(error).__name__}-{error.errno}",
)
def test_any_error_of_a_left_handshake_is_not_logged(
    tls_bench: MakeStepped, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    """The versions of Python and OpenSSL decide which error is raised."""

    def handshake(self: ssl.SSLSocket, block: bool = False) -> None:
        raise error

    stepped = tls_bench()
    monkeypatch.setattr(ssl.SSLSocket, "do_handshake", handshake)
    client = stepped.begin()
    assert client.is_in(CLOSED)
    assert not stepped.log.warnings
    assert stepped.log.says("The client has left in the TLS handshake")


# handshake_failure, certificate_unknown, unknown_ca (RFC 8446 section 6.2)
@pytest.mark.parametrize("alert", [40, 46, 48])
def test_alert_of_a_client_in_a_handshake_is_logged(tls_bench: MakeStepped, alert: int) -> None:
    stepped = tls_bench()
    client = stepped.begin(_client_hello() + b"\x15\x03\x03\x00\x02\x02" + bytes([alert]))
    client.close()
    stepped.run()
    assert "ALERT" in stepped.log.warnings[0].upper()


def test_alert_of_a_failed_handshake_arrives(tls_bench: MakeStepped) -> None:
    """Closing a socket with unread bytes would reset the connection, and lose the alert."""
    stepped = tls_bench()
    client = stepped.begin(b"\x16\x03\x01\x00\x05hello" + bytes(100_000))
    assert client.is_in(LINGERING)
    alert = client.read_to_end()
    assert alert[:2] == b"\x15\x03"  # RFC 8446, section 5.1
    client.close()
    stepped.run()
    assert client.is_in(CLOSED)


def test_handshake_that_ends_makes_room_for_another(tls_bench: MakeStepped) -> None:
    stepped = tls_bench()
    handshakes = stepped.server.acceptor._handshakes
    fails, leaves, silent, succeeds = (stepped.connect() for _ in range(4))
    for client in (fails, leaves, silent, succeeds):
        handshakes[client.near] = stepped.clock.now
    fails.send(GET)
    leaves.close()
    stepped.run()
    assert list(handshakes) == [silent.near, succeeds.near]
    out = ssl.MemoryBIO()
    received = ssl.MemoryBIO()
    client_side = client_context().wrap_bio(received, out, server_hostname="localhost")
    while True:
        try:
            client_side.do_handshake()
        except ssl.SSLWantReadError:
            pass
        else:
            break
        finally:
            succeeds.run(out.read())
            received.write(succeeds.receive_all_there_is())
    stepped.run()
    assert list(handshakes) == [silent.near]
    stepped.pass_time(HEAD_TIMEOUT_S + 1)
    assert not handshakes


def test_bytes_of_a_tls_record_give_no_more_time(tls_bench: MakeStepped) -> None:
    stepped = tls_bench(keepalive=5)
    client = stepped.begin(tls=client_context())
    assert client.read_response().status == 200
    record = b"\x17\x03\x03\x40\x00"
    for part, state in ((record[:2], IDLE), (record[2:], CLOSED)):
        assert socket.socket.send(client.sock, part) == len(part)
        stepped.pass_time(6)
        assert client.is_in(state)


def test_tls_connection_ends_with_a_goodbye(tls_bench: MakeStepped) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        assert environ["gunicorn.socket"].pending() == 0  # only TLS sockets have this method
        return echo(environ, start_response)

    stepped = tls_bench(app, keepalive=0)
    client = stepped.begin(tls=client_context())
    assert client.read_response().status == 200
    assert client.near.hijacked
    assert client.read_to_end() == b""  # an end without it is an error
    client.sock.send(b"still sent")  # and is not decrypted any more
    stepped.run()
    assert client.is_in(LINGERING)
    client.close()
    stepped.run()
    assert client.is_in(CLOSED)


def test_http2_is_agreed_on_over_tls(
    tls_bench: MakeStepped, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways: list[int] = []
    monkeypatch.setattr(Pool, "share_work", lambda pool: ways.append(1))
    monkeypatch.setattr(multiplexer, "LONG_TURN_BYTES", 60_000)

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        return (large if environ["PATH_INFO"] == "/large" else echo)(environ, start_response)

    stepped = tls_bench(app, http_protocols="h2,h1", keepalive=5)
    client = stepped.begin(b"", tls=client_context("h2"))
    assert client.is_in(STREAMS)
    speaker = http2.Client()
    speaker.begin()
    bodies = [bytes(30_000), b"second"]

    def answered(*streams: int) -> list[bytes]:
        client.send(speaker.state.data_to_send())
        while not all(speaker.responses[stream].ended for stream in streams):
            stepped.run()
            speaker.take(client.sock.recv(1 << 20))
            client.send(speaker.state.data_to_send())
        return [speaker.responses[stream].body for stream in streams]

    assert answered(*[speaker.ask(method="POST", body=body) for body in bodies]) == bodies
    assert not ways
    # Other connections continue while much data is encrypted.
    stream = speaker.ask(path="/large")
    speaker.open(1 << 21)
    speaker.open(1 << 21, stream)
    assert answered(stream) == [bytes(LARGE)]
    assert ways
    # No thread is blocked meanwhile.
    assert client.near.fd in stepped.server.registry.waiting
    client.close()
    stepped.run()
    assert not stepped.server.connections
