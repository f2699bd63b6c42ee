"""The wsgiref server from its start to its end, compared with the standard library's."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any
from wsgiref import simple_server

import pytest

from tests.support.http import Connection, get
from tests.support.servers import live_server, wait_for
from tests.support.wsgi import answering
from wsgifast.devservers import ThreadingWSGIServer, WSGIRequestHandler, WSGIServer, make_server
from wsgifast.devservers import simple_server as ours

from .serving import path_of, serve, talking

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

SCRIPT = """
import sys, wsgiref.simple_server
from wsgifast.devservers.simple_server import ThreadingWSGIServer, make_server

def app(environ, start_response):
    if environ["PATH_INFO"] == "/file":
        start_response("200 OK", [("Content-Type", "application/octet-stream")])
        return environ["wsgi.file_wrapper"](open(sys.argv[2], "rb"))
    return wsgiref.simple_server.demo_app(environ, start_response)

with make_server("127.0.0.1", int(sys.argv[1]), app, server_class=ThreadingWSGIServer) as server:
    server.serve_forever()
"""


class QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


ok = answering(path_of)


def test_server_replaces_that_of_the_standard_library() -> None:
    assert issubclass(WSGIServer, simple_server.WSGIServer)
    assert issubclass(WSGIRequestHandler, simple_server.WSGIRequestHandler)
    with make_server("127.0.0.1", 0, ok) as server:
        assert type(server) is WSGIServer
        assert server.get_app() is ok


def test_server_in_a_process_of_its_own_answers(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789" * 100_000)
    with live_server(["python", "-c", SCRIPT, "{port}", str(path)]) as server:
        with Connection(server.address) as client:
            assert client.request("/demo").body.startswith(b"Hello world!")
            assert client.request("/file").body == path.read_bytes()
            assert client.request("/demo").keep_alive
        wait_for(lambda: '"GET /file HTTP/1.1" 200 1000000' in server.log(), "it is logged")
        assert "Traceback" not in server.log()


def test_handle_request_serves_one_request() -> None:
    with make_server("127.0.0.1", 0, ok, WSGIServer, QuietHandler) as server:
        address = ("127.0.0.1", server.server_port)
        for number in range(2):
            with Connection(address) as client:
                client.send_request(f"/{number}")
                server.handle_request()
                response = client.read_response()
                assert (response.body, response.header("Connection")) == (b"/%d" % number, "close")


@pytest.mark.parametrize("kind", ["wsgiref", "wsgiref-single"])
def test_shutdown_does_not_wait_for_idle_connections(kind: str) -> None:
    with talking(ok, kind, keep_alive_timeout=3600.0) as (served, client):
        assert client.request("/").keep_alive
        served.server.shutdown()
        assert client.read_to_end() == b""


def test_server_can_be_started_again() -> None:
    with make_server("127.0.0.1", 0, ok, WSGIServer, QuietHandler) as server:
        for _ in range(2):
            thread = threading.Thread(target=server.serve_forever, args=(0.02,))
            thread.start()
            with Connection(("127.0.0.1", server.server_port)) as client:
                client.request("/")
                assert client.request("/").keep_alive
            server.shutdown()
            thread.join()


def test_server_close_waits_for_a_running_response() -> None:
    inside, go_on = threading.Event(), threading.Event()

    def slow(environ: WSGIEnvironment) -> list[bytes]:
        inside.set()
        go_on.wait(60)
        return [b"whole"]

    with talking(answering(slow), "wsgiref") as (served, client):
        client.send_request("/")
        assert inside.wait(60)
        served.server.shutdown()
        closer = threading.Thread(target=served.server.server_close)
        closer.start()
        closer.join(0.1)
        assert closer.is_alive()
        go_on.set()
        assert client.read_response().body == b"whole"
        closer.join(60)
        assert not closer.is_alive()


def test_response_that_does_not_end_in_time_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ours, "STOP_S", 0.05)
    inside, go_on = threading.Event(), threading.Event()

    def stuck(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        start_response("200 OK", [])
        yield b"begun"
        inside.set()
        go_on.wait(60)
        yield b"never arrives"

    with talking(stuck, "wsgiref") as (served, client):
        client.send_request("/")
        assert inside.wait(60)
        served.server.shutdown()
        closer = threading.Thread(target=served.server.server_close)
        closer.start()
        assert b"never" not in client.read_to_end()
        go_on.set()
        closer.join(60)
        assert not closer.is_alive()


def test_taken_port_is_an_error() -> None:
    with make_server("127.0.0.1", 0, ok) as server, pytest.raises(OSError):
        make_server("127.0.0.1", server.server_port, ok)


def test_server_listens_on_ipv6() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        server = make_server("::1", 0, ok, handler_class=QuietHandler)
    except OSError:
        pytest.skip("no IPv6 loopback here")
    with server, socket.create_connection(("::1", server.server_port), 10) as client:
        client.sendall(b"GET /six HTTP/1.0\r\n\r\n")
        server.handle_request()
        assert client.makefile("rb").read().endswith(b"/six")


def test_handle_request_starts_a_thread_serving_many() -> None:
    with (
        make_server("127.0.0.1", 0, ok, ThreadingWSGIServer, QuietHandler) as server,
        Connection(("127.0.0.1", server.server_port)) as client,
    ):
        client.send_request("/1")
        server.handle_request()
        assert client.read_response().body == b"/1"
        assert client.request("/2").body == b"/2"


def test_server_without_an_application_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    server = WSGIServer(("127.0.0.1", 0), QuietHandler)
    with server, Connection(("127.0.0.1", server.server_port)) as client:
        client.send_request("/")
        server.handle_request()
        assert client.read_response().status == 500
    assert "set_app" in capsys.readouterr().err


def test_environment_variables_are_not_in_the_environ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://evil")

    app = answering(lambda environ: [str("HTTP_PROXY" in environ).encode()])
    with serve(app, "wsgiref") as served:
        assert get(served.address).body == b"False"
