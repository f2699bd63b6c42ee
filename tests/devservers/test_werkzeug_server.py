"""Werkzeug's features still work on its development server: debugger, reloader, TLS, processes."""

from __future__ import annotations

import contextlib
import datetime
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import flask
import pytest
from werkzeug.debug import DebuggedApplication
from werkzeug.middleware.proxy_fix import ProxyFix

from tests.support.calls import raising
from tests.support.http import Connection, get, reset_on_close
from tests.support.servers import free_port, live_server, wait_for
from tests.support.tls import client_context, server_context
from tests.support.wsgi import answering

from .serving import path_of, serve, talking

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

SCRIPT = """
import sys, werkzeug.serving
from wsgifast.devservers.werkzeug_server import WerkzeugRequestHandler
import {module}
werkzeug.serving.run_simple(
    "127.0.0.1", int(sys.argv[1]), {module}.app, request_handler=WerkzeugRequestHandler, {options}
)
"""


each_werkzeug = pytest.mark.parametrize("kind", ["werkzeug", "werkzeug-single"])


@pytest.fixture
def large_file(tmp_path: Path) -> Path:
    path = tmp_path / "large.bin"
    path.write_bytes(os.urandom(1_000_000))
    return path


def test_server_with_tls_answers(kind: str, large_file: Path) -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        assert environ["wsgi.url_scheme"] == "https"
        start_response("200 OK", [])
        if environ["PATH_INFO"] == "/file":
            return environ["wsgi.file_wrapper"](large_file.open("rb"))
        if environ["PATH_INFO"] == "/stream":
            return iter([b"x" * 10, b"y" * 400_000])
        return [b"read ", environ["wsgi.input"].read()]

    with (
        serve(app, kind, tls=server_context()) as served,
        Connection(served.address, tls=client_context()) as client,
    ):
        for _ in range(2):
            assert client.request("/file").body == large_file.read_bytes()
            assert client.request("/stream").body == b"x" * 10 + b"y" * 400_000
            response = client.request("/", method="POST", body=b"b" * 100_000)
            assert response.body == b"read " + b"b" * 100_000
        # Two requests in one TLS record: the second one has been decrypted already.
        client.send(b"GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n")
        assert [client.read_response().status for _ in range(2)] == [200, 200]
        # A body that ends with the connection: without close_notify it would look cut off.
        response = client.request("/stream", version="1.0")
        assert response.body == b"x" * 10 + b"y" * 400_000
    assert "Traceback" not in served.log


@each_werkzeug
def test_flask_sends_files_and_ranges(kind: str, large_file: Path) -> None:
    app = flask.Flask(__name__)

    @app.get("/file")
    def file() -> flask.Response:
        return flask.send_file(large_file)

    @app.post("/form")
    def form() -> str:
        return flask.request.form["name"]

    content = large_file.read_bytes()
    with talking(app, kind) as (_, client):
        assert client.request("/file").body == content
        response = client.request("/file", headers=[("Range", "bytes=500000-500099")])
        assert (response.status, response.body) == (206, content[500_000:500_100])
        etag = client.request("/file", method="HEAD").header("ETag")
        assert etag
        assert client.request("/file", headers=[("If-None-Match", etag)]).status == 304
        assert client.request("/missing").status == 404
        headers = [("Content-Type", "application/x-www-form-urlencoded")]
        response = client.request("/form", method="POST", headers=headers, body=b"name=value")
        assert response.body == b"value"
        headers = [("Content-Type", "multipart/form-data; boundary=b")]
        part = b'--b\r\nContent-Disposition: form-data; name="name"\r\n\r\nmultipart\r\n--b--\r\n'
        response = client.request("/form", method="POST", headers=headers, body=part)
        assert response.body == b"multipart"
        assert client.request("/file").keep_alive


@each_werkzeug
def test_debugger_page_keeps_the_connection(kind: str, large_file: Path) -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        if environ["PATH_INFO"] == "/fails":
            raise LookupError("look here")
        start_response("200 OK", [])
        return environ["wsgi.file_wrapper"](large_file.open("rb"))

    with talking(DebuggedApplication(app, evalex=True), kind) as (_, client):
        response = client.request("/fails")
        assert response.status == 500
        assert b"look here" in response.body
        assert b"EVALEX" in response.body
        resource = client.request("/?__debugger__=yes&cmd=resource&f=debugger.js")
        assert (resource.status, b"function" in resource.body) == (200, True)
        assert client.request("/file").body == large_file.read_bytes()


def test_client_address_is_not_of_the_last_request() -> None:
    app = answering(lambda environ: [environ["REMOTE_ADDR"].encode()])
    with talking(ProxyFix(app), "werkzeug") as (_, client):
        forwarded = [("X-Forwarded-For", "10.9.8.7")]
        assert client.request("/", headers=forwarded).body == b"10.9.8.7"
        assert client.request("/").body == b"127.0.0.1"


def test_bad_request_is_not_logged_as_the_last_one() -> None:
    with talking(answering(path_of), "werkzeug") as (served, client):
        client.request("/first")
        client.send(b"nonsense\r\n\r\n")
        assert client.read_response().status == 400
    assert served.log.count("/first") == 1


@each_werkzeug
@pytest.mark.parametrize("target", ["/list", "/stream", "/head-only"])
def test_hook_for_a_dropped_connection_is_called_once(kind: str, target: str) -> None:
    dropped: list[tuple[BaseException, str | None]] = []

    def connection_dropped(self: Any, error: BaseException, environ: Any = None) -> None:
        dropped.append((error, environ and environ["PATH_INFO"]))

    def large(environ: WSGIEnvironment) -> Any:
        blocks = [b"x" * 1_000_000] * 50
        return iter(blocks) if environ["PATH_INFO"] == "/stream" else blocks

    with serve(answering(large), kind, connection_dropped=connection_dropped) as served:
        with Connection(served.address, receive_buffer=4096) as client:
            if target == "/head-only":
                client.send(b"GET / HTTP/1.1\r\nHo")
                reset_on_close(client.sock)
            else:
                client.send_request(target)
                client.read_headers()
                reset_on_close(client.sock)
        wait_for(lambda: bool(dropped), "the hook is called")
        assert get(served.address, "/small", method="HEAD").status == 200
    ((error, path),) = dropped
    assert isinstance(error, ConnectionError)
    assert path == (None if target == "/head-only" else target)


def test_app_that_took_the_socket_over_is_left_alone() -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        environ["werkzeug.socket"].sendall(b"HTTP/1.1 101 Switching Protocols\r\n\r\nhello")
        raise ConnectionError  # like the end of Flask-Sock

    with talking(app, "werkzeug") as (served, client):
        client.send_request("/")
        assert client.read_headers().status == 101
        assert client.read_to_end() == b"hello"
    assert served.log == ""


def test_connection_error_of_the_app_is_logged() -> None:
    with serve(raising(ConnectionRefusedError, "the database is down"), "werkzeug") as served:
        assert get(served.address).status == 500
    assert "the database is down" in served.log


def test_errors_pass_through_by_the_option() -> None:
    caught: list[BaseException] = []
    with talking(raising(OSError, "through"), "werkzeug") as (served, client):
        served.server.passthrough_errors = True

        def handle_error(*_: object) -> None:
            error = sys.exc_info()[1]
            assert error is not None
            caught.append(error)

        served.server.handle_error = handle_error
        client.send_request("/")
        assert client.read_to_end() == b""
    assert [str(error) for error in caught] == ["through"]


def module(folder: Path, response: str) -> None:
    (folder / "dev_app.py").write_text(
        "import os\n"
        "def app(environ, start_response):\n"
        "    start_response('200 OK', [])\n"
        f"    return [b'{response} %d' % os.getpid()]\n"
    )
    # The reloader and the bytecode cache compare times in whole seconds.
    stamp = datetime.datetime.now().timestamp() - (1000 if response == "first" else 0)
    os.utime(folder / "dev_app.py", (stamp, stamp))


@pytest.fixture
def run_simple(tmp_path: Path) -> Any:
    def run(port: int, options: str) -> Any:
        script = SCRIPT.format(module="dev_app", options=options)
        (tmp_path / "run.py").write_text(script)
        root = str(Path(__file__).resolve().parents[2])
        return live_server(
            ["python", "run.py", str(port)],
            ("127.0.0.1", port),
            cwd=tmp_path,
            env={"PYTHONPATH": f"{tmp_path}:{root}", "PYTHONDONTWRITEBYTECODE": "1"},
        )

    return run


def test_reloader_and_threads_work(run_simple: Any, tmp_path: Path) -> None:
    module(tmp_path, "first")
    options = "threaded=True, use_reloader=True, reloader_type='stat', use_debugger=True"
    with run_simple(free_port(), options) as server:

        def response() -> bytes:
            try:
                return bytes(get(server.address).body)
            except (OSError, EOFError):
                return b""  # it is restarting

        wait_for(lambda: response().startswith(b"first"), "the first version answers")
        module(tmp_path, "second")

        def is_seen() -> bool:
            # The reloader uses the first time that it finds as that of the unchanged file.
            stamp = (tmp_path / "dev_app.py").stat().st_mtime + 1
            os.utime(tmp_path / "dev_app.py", (stamp, stamp))
            return "dev_app.py', reloading" in server.log()

        wait_for(is_seen, "the change is seen", interval=0.2)

        def is_persistent() -> bool:
            # The server may restart once more, for a later time of the same file.
            with contextlib.suppress(OSError, EOFError), Connection(server.address) as client:
                first = client.request("/")
                if not first.body.startswith(b"second"):
                    return False
                assert first.keep_alive
                return client.request("/").body.startswith(b"second")
            return False

        wait_for(is_persistent, "the second version answers")


def test_idle_connections_in_processes_make_room(run_simple: Any, tmp_path: Path) -> None:
    module(tmp_path, "first")
    with run_simple(free_port(), "processes=2") as server:
        # Idle connections occupy the server. For the third connection, one of them must be closed.
        with Connection(server.address) as one, Connection(server.address) as two:
            pids = {client.request("/").body for client in (one, two)}
            assert len(pids) == 2
            with Connection(server.address) as three:
                assert three.request("/").body not in pids
        assert "Traceback" not in server.log()
