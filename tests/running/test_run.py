"""`wsgifast run`: the responses and logs of its servers, and errors if no server can start."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support import forkserver
from tests.support.decoders import decoded
from tests.support.files import write_settled
from tests.support.http import Connection
from tests.support.servers import ROOT, LiveServer, free_port, live_server, wait_for
from tests.support.tls import write_certificate

WSGI = "examples.mistakes:raw"
ASGI = "examples.starlette_app"


@contextmanager
def running(*arguments: str) -> Iterator[LiveServer]:
    command = ["python", "-m", "wsgifast", "run", "--bind", "127.0.0.1:{port}", *arguments]
    env = {"WEB_CONCURRENCY": "1"}  # a worker starts in half a second of CPU time
    with live_server(command, env=env) as server:
        yield server


def logged(server: LiveServer, field: str) -> list[dict[str, Any]]:
    """Return the lines in JSON that have a field."""
    lines = [json.loads(line) for line in server.log().splitlines() if line.startswith("{")]
    return [line for line in lines if field in line]


def test_wsgi_app_has_files_and_a_json_access_log(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a file")
    options = ("--static", f"/files/={tmp_path}", "--access-log", "json")
    with running(WSGI, *options, "--", "--max-requests=100") as server:
        response = server.get("/bare-text")
        assert response.status == 200, server.log()
        assert response.header("Content-Length") == str(len(response.body))
        assert server.get("/files/a.txt").body == b"a file"
        assert "Using worker: wsgifast.workers.FastWorker" in server.log()
        assert "--max-requests=100" in server.log()
        wait_for(lambda: len(logged(server, "url.path")) == 2, "both requests are logged")
        # Two threads write them, in either order.
        page, file = sorted(logged(server, "url.path"), key=lambda line: line["url.path"])
        assert (page["url.path"], file["url.path"]) == ("/bare-text", "/files/a.txt")
        assert page["wsgifast.sent_as"] == "rescued"
        assert file["http.response.body.size"] == 6
        assert file["wsgifast.app_us"] >= 0


def test_asgi_app_is_served_with_a_json_access_log() -> None:
    with running(ASGI, "--access-log", "json") as server:
        assert server.get("/").status == 200, server.log()
        assert "asgifast.uvicorn:HttpToolsProtocol" in server.log()
        agents = [("User-Agent", "first"), ("User-Agent", "last")]
        assert server.get('/"nowhere?a=%0A', headers=agents).status == 404
        wait_for(lambda: len(logged(server, "url.path")) == 2, "both requests are logged")
        page, missing = logged(server, "url.path")
        assert server.log().count("user_agent.original") == 1
        assert missing["user_agent.original"] == "last"
        for name in ("time", "process.pid", "wsgifast.duration_us"):
            assert page.pop(name)
        assert page == {
            "client.address": "127.0.0.1",
            "http.request.method": "GET",
            "http.route": "/",
            "url.scheme": "http",
            "url.path": "/",
            "network.protocol.version": "1.1",
            "http.response.status_code": 200,
            "http.response.body.size": 7,
            "wsgifast.chunks": 1,
            "wsgifast.sent_as": "as-is",
            "wsgifast.outcome": "sent",
        }
        assert missing["http.response.status_code"] == 404
        assert missing["url.query"] == "a=%0A"


FAILING = {
    "gunicorn": "def app(environ, start_response):\n    raise ValueError('the\\nreason')\n",
    "uvicorn": "async def app(scope, receive, send):\n    raise ValueError('the\\nreason')\n",
}


@pytest.mark.parametrize("server", FAILING)
def test_error_log_beside_a_json_access_log_is_json(server: str, tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text(FAILING[server])
    with running("--access-log=json", str(tmp_path / "fails.py")) as live:
        assert live.get("/").status == 500
        wait_for(lambda: logged(live, "exception.stacktrace"), live.log)
        (failed,) = logged(live, "exception.stacktrace")
        assert set(failed) == {
            "time", "level", "process.pid", "message", "exception.stacktrace"
        }  # fmt: skip
        assert failed["level"] == "ERROR"
        assert failed["exception.stacktrace"].endswith("ValueError: the\nreason")
        assert {line["level"] for line in logged(live, "level")} == {"INFO", "ERROR"}
        # Nothing else is logged, except before the app is loaded.
        own = live.log().partition("\n{")[2]
        assert all(line.startswith("{") for line in own.splitlines()[1:]), own


def test_forwarded_headers_of_unix_socket_are_believed(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("app", [WSGI, ASGI])
def test_metrics_option_serves_metrics_and_probes(app: str) -> None:
    address = ("127.0.0.1", free_port())
    with running(app, "--workers=1", f"--metrics=127.0.0.1:{address[1]}") as server:
        assert server.get("/").status in (200, 404)

        def ready() -> bool:
            try:
                with Connection(address) as connection:
                    return connection.request("/readyz").status == 200
            except (OSError, EOFError):
                return False

        wait_for(ready, server.log)
        with Connection(address) as connection:
            assert b"wsgifast_workers" in connection.request("/metrics").body


DJANGO = """\
SECRET_KEY = "a"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = __name__
urlpatterns = []
INSTALLED_APPS = ["django.contrib.staticfiles"]
STATICFILES_DIRS = ["HERE/sources"]
STATIC_URL = "static/"
STATIC_ROOT = "HERE/collected"
STORAGES = {
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.ManifestStaticFilesStorage"}
}
"""
DJANGO_ASGI = """\
import os
from django.core.asgi import get_asgi_application

os.environ["DJANGO_SETTINGS_MODULE"] = "shopsettings"
app = get_asgi_application()
"""


@pytest.mark.parametrize("target", ["shopsettings.py", "shopasgi.py"])
def test_names_hashed_by_django_are_immutable(target: str, tmp_path: Path) -> None:
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "shop.css").write_text("body {}\n")
    (tmp_path / "sources" / "shop.3f2a1b9c8d7e.css").write_text("named so by hand\n")
    (tmp_path / "shopsettings.py").write_text(DJANGO.replace("HERE", str(tmp_path)))
    (tmp_path / "shopasgi.py").write_text(DJANGO_ASGI)
    static = f"--static=/static/={tmp_path / 'collected'}"
    collect = [sys.executable, "-m", "django", "collectstatic", "--no-input", "-v0"]
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "shopsettings"}
    subprocess.run(collect, cwd=tmp_path, env=environment, check=True, timeout=60)
    with running(static, str(tmp_path / target)) as server:
        lines = {
            path.name: server.get(f"/static/{path.name}").header("Cache-Control")
            for path in (tmp_path / "collected").glob("*.css")
        }
    hashed = [name for name, line in lines.items() if line and "immutable" in line]
    assert sorted(name.count(".") for name in hashed) == [2, 3]
    assert "shop.3f2a1b9c8d7e.css" not in hashed
    assert {line for name, line in lines.items() if name not in hashed} == {"max-age=60, public"}


@pytest.mark.parametrize(
    ("without", "prefix"),
    [('STATIC_URL = "static/"\n', "/"), ('    "staticfiles": ', "/static/")],
)
def test_static_files_without_storage_are_served(without: str, prefix: str, tmp_path: Path) -> None:
    (tmp_path / "jquery.min.js").write_text("js")
    remaining = DJANGO.partition("STORAGES")[0] if without.startswith("STATIC") else DJANGO
    assert without in remaining
    other = '    "other": ' if without.startswith(" ") else ""
    settings = remaining.replace(without, other).replace("HERE", str(tmp_path))
    (tmp_path / "noshop.py").write_text(settings)
    with running(f"--static={prefix}={tmp_path}", str(tmp_path / "noshop.py")) as server:
        response = server.get(f"{prefix}jquery.min.js")
        assert (response.status, response.body) == (200, b"js"), server.log()
        assert response.header("Cache-Control") == "max-age=60, public"


def _page(text: str) -> str:
    return f"""\
def app(environ, start_response):
    start_response("200 OK", [("Content-Length", "{len(text)}")])
    return [b"{text}"]
"""


def test_configuration_found_by_gunicorn_counts(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "gunicorn.conf.py").write_text(f"bind = '127.0.0.1:{port}'\nthreads = 2\n")
    (tmp_path / "page.py").write_text(_page("found"))
    command = ["python", "-m", "wsgifast", "run", "page.py", "--access-log=text"]
    with live_server(
        command, ("127.0.0.1", port), cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}
    ) as server:
        assert server.get().body == b"found", server.log()
        assert "FastWorker, 2 threads\n" in server.log()


def test_printed_command_starts_the_same_server() -> None:
    with running(WSGI, "--access-log=text") as server:
        lines = [line.strip() for line in server.log().splitlines()]
        command = next(line for line in lines if line.startswith("gunicorn "))
    words = ["--bind=127.0.0.1:{port}" if "--bind" in w else w for w in shlex.split(command)]
    words[0] = str(Path(sys.executable).with_name(words[0]))
    with live_server(words) as again:
        assert again.get("/bare-text").status == 200, again.log()


@pytest.mark.parametrize("place", ["app", "part"])
def test_syntax_error_ends_no_reloading_server(tmp_path: Path, place: str) -> None:
    """Like under gunicorn alone, the server responds with 500 until the file is fixed."""
    (tmp_path / "part.py").write_text(_page("old"))
    (tmp_path / "app.py").write_text("import part\n\n\ndef create_app():\n    return part.app\n")
    file = tmp_path / f"{place}.py"
    right = file.read_text()
    with running("--reload", f"{tmp_path / 'app.py'}:create_app()") as server:
        assert server.get().body == b"old", server.log()

        def becomes(text: str, expected: int) -> bool:
            # The file is written again each time, since the reloader may look at it for the first
            # time just now. It is replaced as a whole: a worker that starts meanwhile must not read
            # an empty file.
            (tmp_path / "new").write_text(text)
            (tmp_path / "new").replace(file)
            assert server.process.poll() is None, server.log()
            try:
                return server.get().status == expected
            except (OSError, EOFError):
                return False  # by the worker that ends

        wait_for(lambda: becomes(right + "def broken(:\n", 500), server.log, interval=0.2)
        wait_for(lambda: becomes(right + "# mended\n", 200), server.log, interval=0.2)


def test_run_that_cannot_start_says_why(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        pem = write_certificate(tmp_path / "server.pem")
        for name, text in (
            ("broken", "import no_such_module\n"),
            ("nothing", "def create_app():\n    pass\n"),
            ("needs", "def create_app(config):\n    pass\n"),
            ("other", "class Other: ...\napp = Other()\n"),
        ):
            (tmp_path / f"{name}.py").write_text(text)
        for arguments, status, said in (
            (f"{WSGI} --bind 127.0.0.1:{port}", 2, "in use"),
            (f"{WSGI} --bind nosuchhost.invalid:80", 2, "nosuchhost.invalid"),
            (f"{WSGI} --bind 127.0.0.1:http", 2, "HOST:PORT"),
            (f"{WSGI} --static /s/=nowhere", 2, "nowhere"),
            (f"{ASGI} --threads 2", 2, "--threads"),
            (
                f"{WSGI} --bind unix:/no/such/app.sock",
                2,
                "/no/such/app.sock: cannot write",
            ),
            (f"{WSGI} --certfile nowhere.pem", 2, "--certfile nowhere.pem: there is no such file"),
            (f"{WSGI} --config nowhere.py", 2, "--config nowhere.py: there is no such file"),
            (f"{WSGI} --config tests", 2, "--config tests: there is no such file"),
            (f"{WSGI} --certfile README.md", 2, "README.md: [SSL]"),
            (f"{ASGI} --certfile {pem} --keyfile README.md", 2, "README.md: [SSL]"),
            (f"{WSGI} --keyfile {pem}", 2, "name the certificate with --certfile"),
            ("nowhere:app", 3, "nowhere"),
            ("./README.md", 3, "./README.md is neither a module nor a .py file"),
            ("exampels.mistakes:app", 3, "did you mean 'examples'?"),
            ("examples.mistakes:ap", 3, "did you mean 'app'?"),
            ("tests/", 3, "tests/ is a directory"),
            (f"{tmp_path}/needs.py", 3, "missing 1 required positional argument: 'config'"),
            (f"{tmp_path}/broken.py", 3, "no_such_module"),
            (f"{tmp_path}/nothing.py", 3, "None"),
            (f"{tmp_path}/other.py:app", 3, "other.Other is neither a WSGI nor an ASGI app"),
            ("examples.mistakes:PAGE", 3, "PAGE"),
        ):
            command = [sys.executable, "-m", "wsgifast", "run", *arguments.split()]
            ended = forkserver.run(command, cwd=ROOT)
            printed = ended.stderr.strip()
            assert ended.returncode == status, printed
            assert said in printed, printed
            assert len(printed.splitlines()) == 1, printed


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
            response = server.get(target, headers=accepted)
            coding = response.header("Content-Encoding")
            assert coding == (None if option else "zstd"), server.log()
            plain = server.get(target)
            assert decoded(coding, response.body) == plain.body
            assert plain.header("Content-Encoding") is None
        own = server.get("/own", headers=accepted)
        assert own.header("Content-Encoding") == "gzip", server.log()
        assert decoded("gzip", own.body) == b"All work and no play. " * 500
