"""Idle, silent and stalled connections, over every kind of development server."""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.http import Connection
from tests.support.servers import PATIENCE_S, wait_for
from tests.support.wsgi import answering
from wsgifast.devservers import connection

from .serving import Served, assert_alive, each_single, each_threaded, path_of, serve, talking

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment


@each_single
def test_idle_connection_does_not_lock_others_out(kind: str) -> None:
    with talking(answering(path_of), kind, keep_alive_timeout=60.0) as (served, idle):
        assert idle.request("/").keep_alive
        with Connection(served.address) as other:
            assert_alive(other)
        assert idle.read_to_end() == b""


@each_single
def test_silent_connection_is_closed_after_a_grace(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "FRESH_GRACE_S", 0.05)
    with (
        talking(answering(path_of), kind) as (served, silent),
        Connection(served.address) as other,
    ):
        assert_alive(other)
        assert silent.read_to_end() == b""


@each_single
def test_new_connection_is_answered_though_others_wait(kind: str) -> None:
    with serve(answering(path_of), kind) as served:
        clients = [Connection(served.address) for _ in range(3)]
        for client in clients:
            assert_alive(client)
            client.close()


@each_single
def test_busy_connection_ends_when_others_wait(kind: str) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def app(environ: WSGIEnvironment) -> list[bytes]:
        inside.set()
        assert go_on.wait(PATIENCE_S)
        return path_of(environ)

    with talking(answering(app), kind) as (served, busy):
        busy.send_request("/busy")
        assert inside.wait(PATIENCE_S)
        with Connection(served.address) as other:
            go_on.set()
            assert busy.read_response().header("Connection") == "close"
            assert_alive(other)


def test_idle_connection_is_closed_in_time(kind: str) -> None:
    with talking(answering(path_of), kind, keep_alive_timeout=0.05) as (served, client):
        assert client.request("/").keep_alive
        assert client.read_to_end() == b""
    assert "out" not in served.log  # the server has logged no error


def is_timed_out(served: Served, sent: bytes) -> bool:
    """Return whether a client that stalls after these bytes gets a 408 and no other bytes.

    On a busy machine a client may stall before these bytes. Then it gets no response, and the
    result is False.
    """
    with Connection(served.address) as client, contextlib.suppress(ConnectionError):
        client.send(sent)
        if response := client.read_to_end():
            assert response.startswith(b"HTTP/1.1 408 "), response
            return True
    return False


def test_stalled_headers_are_answered_with_408(kind: str) -> None:
    with serve(answering(path_of), kind, timeout=0.1) as served:
        sent = b"GET / HTTP/1.1\r\nHost:"
        wait_for(lambda: is_timed_out(served, sent), "408 is answered")


def test_stalled_request_body_is_answered_with_408(kind: str) -> None:
    app = answering(lambda environ: [environ["wsgi.input"].read(5)])
    for framing in (b"Content-Length: 5", b"Transfer-Encoding: chunked"):
        with serve(app, kind, timeout=0.1) as served:
            sent = b"POST / HTTP/1.1\r\nHost: a\r\n" + framing + b"\r\n\r\n3"
            wait_for(functools.partial(is_timed_out, served, sent), "408 is answered")
        assert "Traceback" not in served.log


@each_threaded
def test_response_of_stopping_server_ends_connection(kind: str) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def app(environ: WSGIEnvironment) -> list[bytes]:
        inside.set()
        assert go_on.wait(PATIENCE_S)
        return [b"whole"]

    def closed_listener(served: Any) -> bool:
        return bool(served.server.fileno() < 0)

    with talking(answering(app), kind) as (served, client):
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
