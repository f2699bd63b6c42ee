"""`wsgifast run`: what it decides, what it starts, and what it says where it cannot."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import flask
import pytest
from cryptography.hazmat.primitives import serialization

from tests.support import forkserver
from tests.support.coded import decoded
from tests.support.files import write_settled
from tests.support.http import Connection
from tests.support.servers import ROOT, LiveServer, free_port, live_server, wait_for
from tests.support.tls import write_certificate
from wsgifast.commands import loading
from wsgifast.commands.cli import command_parser
from wsgifast.commands.run import ARGUMENTS, wrapped, wrapped_by_environment
from wsgifast.commands.run.command import Plan, check_certificate, planned
from wsgifast.commands.run.sizing import Container
from wsgifast.errors import ConfigurationError, MissingExtra

WSGI = "examples.mistakes:raw"
ASGI = "examples.starlette_app"


@contextmanager
def running(*arguments: str) -> Iterator[LiveServer]:
    port = free_port()
    command = ["python", "-m", "wsgifast", "run", "--bind", f"127.0.0.1:{port}", *arguments]
    env = {"WEB_CONCURRENCY": "1"}  # a worker starts in half a second of the machine's
    with live_server(command, ("127.0.0.1", port), env=env) as server:
        yield server


def plan(*arguments: str, rest: Sequence[str] = ()) -> Plan:
    options = command_parser().parse_args(["run", *arguments])
    options.rest = list(rest)
    return planned(options)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return forkserver.run([sys.executable, "-m", "wsgifast", "run", *arguments], cwd=ROOT)


def test_a_wsgi_app(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a file")
    options = ("--static", f"/files/={tmp_path}", "--access-log", "json")
    with running(WSGI, *options, "--", "--max-requests=100") as server:
        answer = server.get("/bare-text")
        assert answer.status == 200, server.log()
        assert answer.header("Content-Length") == str(len(answer.body))
        assert server.get("/files/a.txt").body == b"a file"
        assert "Using worker: wsgifast.workers.FastWorker" in server.log()
        assert "--max-requests=100" in server.log()
        wait_for(lambda: len(logged(server)) == 2, "both requests are logged")
        # By two threads, in either order.
        page, file = sorted(logged(server), key=lambda line: line["url.path"])
        assert (page["url.path"], file["url.path"]) == ("/bare-text", "/files/a.txt")
        assert page["wsgifast.sent_as"] == "rescued"
        assert file["http.response.body.size"] == 6
        assert file["wsgifast.app_us"] >= 0


def logged(server: LiveServer) -> list[dict[str, Any]]:
    return [json.loads(line) for line in server.log().splitlines() if line.startswith("{")]


def test_an_asgi_app() -> None:
    with running(ASGI, "--access-log", "json") as server:
        assert server.get("/").status == 200, server.log()
        assert "asgifast.uvicorn:HttpToolsProtocol" in server.log()
        assert server.get('/"nowhere?a=%0A').status == 404
        wait_for(lambda: len(logged(server)) == 2, "both requests are logged")
        page, missing = logged(server)
        for name in ("time", "process.pid"):
            assert page.pop(name)
        assert page == {
            "client.address": "127.0.0.1",
            "http.request.method": "GET",
            "url.path": "/",
            "network.protocol.version": "1.1",
            "http.response.status_code": 200,
        }
        assert missing["http.response.status_code"] == 404
        assert missing["url.query"] == "a=%0A"


@pytest.mark.parametrize("app", [WSGI, ASGI])
def test_limits_of_what_clients_send_are_the_same_on_both_servers(app: str) -> None:
    limits = plan(app, "--body-limit-bytes", "1000", "--body-timeout-s", "5.5").environment
    assert limits.items() >= {
        ("WSGIFAST_BODY_LIMIT_BYTES", "1000"),
        ("WSGIFAST_BODY_TIMEOUT_S", "5.5"),
    }
    assert "WSGIFAST_HEAD_TIMEOUT_S" not in limits


def test_an_impossible_limit_is_a_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        plan(ASGI, "--body-timeout-s", "0")
    assert "argument --body-timeout-s: '0': expected seconds above 0" in capsys.readouterr().err


def test_an_asgi_app_without_a_limit_of_bodies_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    note = "request bodies have no limit (--body-limit-bytes)"
    assert note in plan(ASGI).notes
    assert note not in plan(ASGI, "--body-limit-bytes", "1000").notes
    monkeypatch.setenv("WSGIFAST_BODY_LIMIT_BYTES", "1000")
    assert note not in plan(ASGI).notes


@pytest.mark.parametrize(("options", "seconds"), [((), 30), (("--reload",), 1)])
def test_uvicorn_waits_for_event_streams_no_longer_than_gunicorn(
    options: tuple[str, ...], seconds: int
) -> None:
    own = "--timeout-graceful-shutdown=7"
    command = plan(ASGI, *options, rest=[own]).command
    given = [word for word in command if word.startswith("--timeout-graceful-shutdown")]
    assert given == [f"--timeout-graceful-shutdown={seconds}", own]  # the last one counts


@pytest.mark.parametrize("bind", ["8123", ":8123", "127.0.0.1:8123", "[::1]:8123", "unix:app.sock"])
def test_an_address_is_the_same_on_both_servers(bind: str) -> None:
    command = plan(WSGI, "--bind", bind).command
    same = bind if bind[0] in "u[" else "127.0.0.1:8123"
    assert f"--bind={same}" in command


@pytest.fixture
def container(monkeypatch: pytest.MonkeyPatch) -> None:
    """One with 3 CPUs and half a gigabyte."""
    for name in ("WEB_CONCURRENCY", "PORT", "FORWARDED_ALLOW_IPS", "GUNICORN_CMD_ARGS"):
        monkeypatch.delenv(name, raising=False)
    found = Container(3.0, "quota", 512 * 2**20, "limit")
    monkeypatch.setattr("wsgifast.commands.run.command.read_container", lambda: found)


@pytest.mark.usefixtures("container")
@pytest.mark.parametrize("app", [WSGI, ASGI])
def test_workers_auto_is_the_default_and_says_why(app: str) -> None:
    found = plan(app)
    (given,) = [word for word in found.command if word.startswith("--workers=")]
    count = int(given.partition("=")[2])
    assert 1 <= count <= 3
    assert found.notes[0].startswith(f"{count} worker")
    assert "3 CPUs of the quota" in found.notes[0]


@pytest.mark.usefixtures("container")
@pytest.mark.parametrize("app", [WSGI, ASGI])
@pytest.mark.parametrize(
    ("options", "rest", "environment", "given"),
    [
        (("--workers=7",), (), {"WEB_CONCURRENCY": "2"}, ["--workers=7"]),
        ((), ("--workers=5",), {"WEB_CONCURRENCY": "2"}, ["--workers=5"]),
        ((), (), {"WEB_CONCURRENCY": "2"}, []),
        (("--reload",), (), {}, []),
    ],
)
def test_workers_given_elsewhere_take_the_place_of_auto(
    app: str,
    options: tuple[str, ...],
    rest: tuple[str, ...],
    environment: dict[str, str],
    given: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    command = plan(app, *options, rest=rest).command
    assert [word for word in command if word.startswith("--workers")] == given


@pytest.mark.usefixtures("container")
def test_port_of_the_environment_is_served_on_all_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PORT", "5007")
    assert "--bind=0.0.0.0:5007" in plan(WSGI).command
    assert {"--host=0.0.0.0", "--port=5007"} <= set(plan(ASGI).command)
    assert "--bind=127.0.0.1:9" in plan(WSGI, "--bind=127.0.0.1:9").command
    monkeypatch.setenv("PORT", "http")
    with pytest.raises(ConfigurationError, match="PORT='http'"):
        plan(WSGI)


@pytest.mark.usefixtures("container")
def test_unix_socket_is_trusted_by_uvicorn_unless_configured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trusted = "--forwarded-allow-ips=*"
    assert trusted in plan(ASGI, "--bind=unix:app.sock").command
    assert trusted not in plan(ASGI).command
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "10.0.0.1")
    assert trusted not in plan(ASGI, "--bind=unix:app.sock").command


def test_forwarded_headers_through_a_unix_socket_are_believed(tmp_path: Path) -> None:
    (tmp_path / "scheme.py").write_text(
        "async def app(scope, receive, send):\n"
        "    if scope['type'] != 'http':\n"
        "        raise RuntimeError(scope['type'])\n"
        "    body = scope['scheme'].encode()\n"
        "    await send({'type': 'http.response.start', 'status': 200, 'headers': []})\n"
        "    await send({'type': 'http.response.body', 'body': body})\n"
    )
    path = str(tmp_path / "socket")
    command = ["python", "-m", "wsgifast", "run", "--bind", f"unix:{path}", "--workers=1"]
    with live_server([*command, str(tmp_path / "scheme.py")], path) as server:
        forwarded = [("X-Forwarded-Proto", "https"), ("X-Forwarded-For", "192.0.2.1")]
        assert server.get("/", headers=forwarded).body == b"https", server.log()


@pytest.mark.parametrize("app", [WSGI, ASGI])
def test_sockets_of_systemd_are_served(app: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        code = (
            "import os, sys; os.dup2(int(sys.argv[1]), 3); os.environ.update(LISTEN_FDS='1', "
            "LISTEN_PID=str(os.getpid())); os.execv(sys.executable, [sys.executable, '-m', "
            "'wsgifast', 'run', '--workers=1', sys.argv[2]])"
        )
        fd = listener.fileno()
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(fd), app], pass_fds=[fd], cwd=ROOT,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            with Connection(listener.getsockname()) as connection:
                assert connection.request("/list").status in (200, 404)
        finally:
            process.terminate()
            process.wait(60)


def test_metrics_and_probes_by_one_option() -> None:
    for app in (WSGI, ASGI):
        port = free_port()
        with running(app, "--workers=1", f"--metrics=127.0.0.1:{port}") as server:
            assert server.get("/").status in (200, 404)

            def ready(port: int = port) -> bool:
                try:
                    with Connection(("127.0.0.1", port)) as connection:
                        return connection.request("/readyz").status == 200
                except (OSError, EOFError):
                    return False

            wait_for(ready, server.log)
            with Connection(("127.0.0.1", port)) as connection:
                assert b"wsgifast_workers" in connection.request("/metrics").body


def test_metrics_without_prometheus_client_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "wsgifast.commands.run.command.importlib.util.find_spec",
        lambda name: None if name == "prometheus_client" else object(),
    )
    with pytest.raises(MissingExtra, match=r"wsgifast\[prometheus\]"):
        plan(ASGI, "--metrics=127.0.0.1:9100")


@pytest.mark.usefixtures("container")
def test_access_log_is_json_unless_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    json_logger = "--logger-class=wsgifast.workers.JSONLogger"
    assert json_logger in plan(WSGI).command
    assert json_logger not in plan(WSGI, "--access-log=off").command
    assert json_logger not in plan(WSGI, rest=["--access-logfile=own.log"]).command
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert json_logger not in plan(WSGI).command
    assert "--access-logfile=-" in plan(WSGI).command
    assert "json_log" not in plan(ASGI).environment[ARGUMENTS]


@pytest.mark.usefixtures("container")
def test_tls_brings_http2(tmp_path: Path) -> None:
    pem = write_certificate(tmp_path / "server.pem")
    assert "--http-protocols=h2,h1" in plan(WSGI, "--certfile", pem).command
    own = plan(WSGI, "--certfile", pem, rest=["--http-protocols=h1"]).command
    assert [word for word in own if word.startswith("--http-protocols")] == ["--http-protocols=h1"]


def test_threads_are_more_for_an_app_that_waits_for_other_servers(tmp_path: Path) -> None:
    (tmp_path / "redis.py").write_text("")
    path = f"import sys\nsys.path[:0] = [{str(tmp_path)!r}]\n"
    (tmp_path / "shop.py").write_text(f"{path}import redis\n{_page('a')}")
    found = plan(str(tmp_path / "shop.py"))
    assert "--threads=12" in found.command
    assert "12 threads: the app waits for redis" in found.notes


def test_static_folder_of_flask_is_served_beside_the_app(tmp_path: Path) -> None:
    (tmp_path / "static").mkdir()
    (tmp_path / "static" / "a.txt").write_text("a file")
    page = "import flask\napp = flask.Flask(__name__)\n"
    (tmp_path / "plain.py").write_text(page)
    guard = "@app.before_request\ndef guard():\n    flask.abort(403)\n"
    (tmp_path / "guarded.py").write_text(page + guard)
    static = str(tmp_path / "static")
    found = plan(str(tmp_path / "plain.py"))
    assert f'static={{"/static/": "{static}"}}' in found.command[-1]
    assert any(f"/static/ from {static}" in note for note in found.notes)
    assert "static=" not in plan(str(tmp_path / "plain.py"), "--no-static").command[-1]
    assert "static=" not in plan(str(tmp_path / "guarded.py")).command[-1]
    with running(str(tmp_path / "plain.py"), "--workers=1") as server:
        assert server.get("/static/a.txt").body == b"a file", server.log()


def test_static_root_of_django_is_served_beside_the_app(tmp_path: Path) -> None:
    (tmp_path / "collected").mkdir()
    (tmp_path / "shopsettings.py").write_text(
        "SECRET_KEY = 'a'\nROOT_URLCONF = 'shopsettings'\nurlpatterns = []\n"
        "INSTALLED_APPS = ['django.contrib.staticfiles']\nSTATIC_URL = 'files/'\n"
        f"STATIC_ROOT = {str(tmp_path / 'collected')!r}\n"
        "import os\nMIDDLEWARE = [] if 'W' not in os.environ else ['whitenoise.middleware.W']\n"
    )
    found = plan(str(tmp_path / "shopsettings.py"))
    assert f'static={{"/files/": "{tmp_path / "collected"}"}}' in found.command[-1]


@pytest.mark.parametrize(
    ("pattern", "beside"), [("^files/(.*)$", False), ("^(.*)$", True), ("^static/", True)]
)
def test_static_root_that_a_url_of_django_serves_is_left_to_the_app(
    pattern: str, beside: bool, tmp_path: Path
) -> None:
    """Its middleware adds headers to them."""
    (tmp_path / "collected").mkdir()
    (tmp_path / "shopsettings.py").write_text(
        "SECRET_KEY = 'a'\nROOT_URLCONF = 'shopurls'\n"
        "INSTALLED_APPS = ['django.contrib.staticfiles']\nSTATIC_URL = '/files/'\n"
        f"STATIC_ROOT = {str(tmp_path / 'collected')!r}\n"
    )
    (tmp_path / "shopurls.py").write_text(
        f"from django.urls import re_path\nurlpatterns = [re_path({pattern!r}, print)]\n"
    )
    command = plan(str(tmp_path / "shopsettings.py")).command[-1]
    assert ("static=" in command) is beside


CLASS = """\
from wsgifast.workers import FastWorker


class Own(FastWorker):
    pass


print("no JSON")
worker_class = Own
"""


@pytest.mark.parametrize(
    ("given", "rest", "configuration", "environment", "command", "decided"),
    [
        ("", "", "", "", "-k F -t 4 -b D", "FastWorker, 4 threads"),
        ("", "", "threads = 1", "", "-k F -b D --config", "FastWorker, 1 thread"),
        ("--threads 2", "", "threads = 1", "", "-k F -b D -t 2 --config", "FastWorker, 2 threads"),
        ("", "", "bind = ':9'", "", "-k F -t 4 --config", "FastWorker, 4 threads"),
        ("--bind :7", "", "bind = ':9'", "", "-k F -t 4 -b E --config", "FastWorker, 4 threads"),
        ("", "-k gthread", "", "", "-t 4 -b D -k gthread", "gthread, 4 threads"),
        ("", "-k gevent -b :9", "", "", "-t 4 -k gevent -b :9", "gevent"),
        ("", "-k sync", "", "", "-b D -k sync", "sync"),
        ("", "-k sync", "threads = 2", "", "-b D --config -k sync", "gthread, 2 threads"),
        ("", "", "", "--threads=5 -b :9", "-k F", "FastWorker, 5 threads"),
        ("", "", CLASS, "", "-t 4 -b D --config", "Own"),
        ("", "", "threads = (", "", "-k F -t 4 -b D --config", "FastWorker, 4 threads"),
        ("", "--version", "", "", "-k F -t 4 -b D --version", "FastWorker, 4 threads"),
    ],
)
def test_gunicorns_configuration_comes_before_what_is_not_given(
    given: str,
    rest: str,
    configuration: str,
    environment: str,
    command: str,
    decided: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "own.py"
    arguments = [WSGI, *given.split()]
    if configuration:
        file.write_text(configuration)
        arguments += ["--config", str(file)]
    monkeypatch.setenv("GUNICORN_CMD_ARGS", environment)
    monkeypatch.setenv("WEB_CONCURRENCY", "1")
    arguments.append("--access-log=off")
    found = plan(*arguments, rest=rest.split())
    shown = " ".join(found.command[1:-1])
    for text, short in (
        ("--keep-alive=75 --worker-class=wsgifast.workers.FastWorker", "-k F"),
        ("--threads=", "-t "),
        ("--bind=127.0.0.1:8000", "-b D"),
        ("--bind=127.0.0.1:7", "-b E"),
        (f"--config={file}", "--config"),
    ):
        shown = shown.replace(text, short)
    assert shown == command
    assert found.decided.endswith(f"is a WSGI app: gunicorn with {decided}")


def test_idle_connections_are_kept_longer_than_by_a_proxy_unless_configured() -> None:
    assert "--keep-alive=75" in plan(WSGI).command
    assert "--keep-alive=75" not in plan(WSGI, rest=["--keep-alive", "5"]).command
    assert "--keep-alive=75" not in plan(WSGI, rest=["-k", "gthread"]).command
    assert "--timeout-keep-alive=75" in plan(ASGI).command
    assert "--timeout-keep-alive=75" not in plan(ASGI, rest=["--timeout-keep-alive=9"]).command


def test_a_configuration_that_gunicorn_finds_by_itself(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "gunicorn.conf.py").write_text(f"bind = '127.0.0.1:{port}'\nthreads = 2\n")
    (tmp_path / "page.py").write_text(_page("found"))
    command = ["python", "-m", "wsgifast", "run", "page.py"]
    with live_server(
        command, ("127.0.0.1", port), cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}
    ) as server:
        assert server.get().body == b"found", server.log()
        assert "FastWorker, 2 threads\n" in server.log()


def test_the_command_that_it_prints_does_the_same() -> None:
    with running(WSGI) as server:
        command = next(
            line.strip()
            for line in server.log().splitlines()
            if line.strip().startswith("gunicorn ")
        )
    port = free_port()
    words = [f"--bind=127.0.0.1:{port}" if "--bind" in w else w for w in shlex.split(command)]
    words[0] = str(Path(sys.executable).with_name(words[0]))
    with live_server(words, ("127.0.0.1", port)) as again:
        assert again.get("/bare-text").status == 200, again.log()


@pytest.mark.parametrize("place", ["app", "part"])
def test_a_syntax_error_does_not_end_a_server_that_reloads(tmp_path: Path, place: str) -> None:
    """As under gunicorn alone: it answers 500 until the file is mended."""
    (tmp_path / "part.py").write_text(_page("old"))
    (tmp_path / "app.py").write_text("import part\n\n\ndef create_app():\n    return part.app\n")
    file = tmp_path / f"{place}.py"
    right = file.read_text()
    with running("--reload", f"{tmp_path / 'app.py'}:create_app()") as server:
        assert server.get().body == b"old", server.log()

        def becomes(text: str, expected: int) -> bool:
            # Written again each time: the reloader may look at it for the first time just now.
            file.write_text(text)
            assert server.process.poll() is None, server.log()
            try:
                return server.get().status == expected
            except (OSError, EOFError):
                return False  # by the worker that ends

        wait_for(lambda: becomes(right + "def broken(:\n", 500), server.log, interval=0.2)
        wait_for(lambda: becomes(right + "# mended\n", 200), server.log, interval=0.2)


def _page(text: str) -> str:
    return f"""\
def app(environ, start_response):
    start_response("200 OK", [("Content-Length", "{len(text)}")])
    return [b"{text}"]
"""


def test_one_sentence_for_what_cannot_be(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        pem = write_certificate(tmp_path / "server.pem")
        (tmp_path / "broken.py").write_text("import no_such_module\n")
        (tmp_path / "nothing.py").write_text("def create_app():\n    pass\n")
        (tmp_path / "needs.py").write_text("def create_app(config):\n    pass\n")
        (tmp_path / "other.py").write_text("class Other: ...\napp = Other()\n")
        for arguments, status, said in (
            ((WSGI, "--bind", f"127.0.0.1:{port}"), 2, "in use"),
            ((WSGI, "--bind", "nosuchhost.invalid:80"), 2, "nosuchhost.invalid"),
            ((WSGI, "--bind", "127.0.0.1:http"), 2, "HOST:PORT"),
            ((WSGI, "--static", "/s/=nowhere"), 2, "nowhere"),
            ((ASGI, "--threads", "2"), 2, "--threads"),
            ((WSGI, "--bind", "unix:/no/such/app.sock"), 2, "/no/such/app.sock: No such file"),
            ((WSGI, "--certfile", "nowhere.pem"), 2, "--certfile nowhere.pem: No such file"),
            ((WSGI, "--certfile", "README.md"), 2, "--certfile README.md: [SSL]"),
            ((ASGI, "--certfile", pem, "--keyfile", "README.md"), 2, "--keyfile README.md: [SSL]"),
            ((WSGI, "--keyfile", pem), 2, "name its certificate by --certfile"),
            (("nowhere:app",), 3, "nowhere"),
            (("./README.md",), 3, "./README.md is neither a module nor a .py file"),
            (("exampels.mistakes:app",), 3, "did you mean 'examples'?"),
            (("examples.mistakes:ap",), 3, "did you mean 'app'?"),
            (("tests/",), 3, "tests/ is a directory"),
            ((f"{tmp_path / 'needs.py'}",), 3, """'needs:create_app("value")'"""),
            ((str(tmp_path / "broken.py"),), 3, "no_such_module"),
            ((str(tmp_path / "nothing.py"),), 3, "None"),
            ((f"{tmp_path / 'other.py'}:app",), 3, "other.Other is neither a WSGI nor an ASGI app"),
            (("examples.mistakes:PAGE",), 3, "PAGE"),
        ):
            ended = run(*arguments)
            told = ended.stderr.strip()
            assert ended.returncode == status, told
            assert said in told, told
            assert len(told.splitlines()) == 1, told


def test_the_password_of_a_key_is_for_the_server_to_ask(tmp_path: Path) -> None:
    pem = tmp_path / "server.pem"
    write_certificate(pem)
    key = serialization.load_pem_private_key(pem.read_bytes(), None)
    pem_of_key = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    (tmp_path / "encrypted.key").write_bytes(pem_of_key)
    check_certificate(str(pem), str(tmp_path / "encrypted.key"))


def test_a_wrapped_app_is_not_wrapped_again() -> None:
    from wsgifast import WSGIFast

    app = wrapped("examples.mistakes:app")
    assert isinstance(app, WSGIFast)
    assert not isinstance(app.app, WSGIFast)
    own = flask.Flask("own")
    own.wsgi_app = WSGIFast(own.wsgi_app)  # type: ignore[method-assign]
    assert loading.wrapped(own, "WSGI") is own


WSGI_PAGES = """\
import gzip

TEXT = b"All work and no play. " * 500


def app(environ, start_response):
    headers = [("Content-Type", "text/html")]
    if environ["PATH_INFO"] == "/own":
        start_response("200 OK", [*headers, ("Content-Encoding", "gzip")])
        return [gzip.compress(TEXT, 9, mtime=0)]
    start_response("200 OK", headers)
    return [TEXT]
"""
ASGI_PAGES = """\
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import HTMLResponse
from starlette.routing import Mount, Route


async def page(request):
    return HTMLResponse("All work and no play. " * 500)


own = Starlette(routes=[Route("/own", page)], middleware=[Middleware(GZipMiddleware)])
app = Starlette(routes=[Route("/page", page), Mount("/", own)])
"""


@pytest.mark.parametrize("code", [WSGI_PAGES, ASGI_PAGES])
@pytest.mark.parametrize("option", [(), ("--no-compress",)])
def test_responses_and_files_are_compressed_by_default(
    code: str, option: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "pages.py").write_text(code)
    (tmp_path / "static").mkdir()
    write_settled(tmp_path / "static" / "app.js", b"let answer = 42;" * 500)
    static = f"--static=/static/={tmp_path / 'static'}"
    with running(*option, static, str(tmp_path / "pages.py")) as server:
        accepted = [("Accept-Encoding", "gzip, br, zstd")]
        for target in ("/page", "/static/app.js"):
            answer = server.get(target, headers=accepted)
            coding = answer.header("Content-Encoding")
            assert coding == (None if option else "zstd"), server.log()
            plain = server.get(target)
            assert decoded(coding, answer.body) == plain.body
            assert plain.header("Content-Encoding") is None
        own = server.get("/own", headers=accepted)
        assert own.header("Content-Encoding") == "gzip", server.log()
        assert decoded("gzip", own.body) == b"All work and no play. " * 500


def test_arguments_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    from wsgifast import ConfigurationError

    monkeypatch.delenv(ARGUMENTS, raising=False)
    with pytest.raises(ConfigurationError, match=ARGUMENTS):
        wrapped_by_environment()
    monkeypatch.setitem(os.environ, ARGUMENTS, json.dumps({"target": WSGI}))
    assert callable(wrapped_by_environment())
