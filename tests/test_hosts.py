"""Possible later versions of gunicorn, uvicorn and h2: a copy of each with one change."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from gunicorn.config import Config

from tests.support.servers import ROOT, LiveServer, free_port, live_server
from tests.support.tls import client_context, write_certificate
from wsgifast.hosts import DJANGO, GUNICORN, H2, STARLETTE, UVICORN
from wsgifast.workers import FastWorker
from wsgifast.workers.gunicorn_support import Settings
from wsgifast.workers.options import parsers

pytestmark = pytest.mark.long

WSGI_APP, ASGI_APP = "tests.workers.app:app", "tests.asgi.app:app"
HIGH_BYTE = b"GET /small HTTP/1.1\r\nHost: x\r\nX-Name: \xe9\r\nConnection: close\r\n\r\n"
# A parser that rejects more than today's.
STRICTER = (
    "gunicorn/http/message.py",
    "        if name in RFC9110_5_3_SINGLETON_FIELDS:",
    "        if not value.isascii():\n            raise InvalidHeader(name, req=self)\n"
    "        if name in RFC9110_5_3_SINGLETON_FIELDS:",
)
TERM = (
    "gunicorn/arbiter.py",
    "signal.signal(s, self.signal)",
    "signal.signal(s, lambda number, frame: self.signal(number, frame))",
)
# FastWorker uses no private name of gunicorn. These are public: the parameter of a function that it
# calls, a method that it overrides, an attribute that it reads, and a class.
NAMES_OF_GUNICORN = ("parse_headers", "spawn_worker", "must_close", "SafeAtoms")
Change = tuple[str, str, str]


def numbered(version: str) -> Change:
    """Copy gunicorn with another version number."""
    return "gunicorn/__init__.py", '".".join([str(v) for v in version_info])', repr(version)


def copied(folder: Path, *changes: Change) -> dict[str, str]:
    """Copy the packages that are changed, and return the environment in which they are found.

    :param changes: a file below the packages, a text in it and its replacement. "" for the file:
        all files of gunicorn, uvicorn, h2 or hpack, in which whole words are replaced.
    """
    for path, old, new in changes:
        package = path.partition("/")[0]
        if not (folder / package).exists():
            spec = importlib.util.find_spec(package)
            assert spec is not None
            assert spec.origin is not None
            shutil.copytree(Path(spec.origin).parent, folder / package)
        if path == package:
            for file in (folder / package).rglob("*.py"):
                text = file.read_text()
                if (changed := re.sub(rf"\b{old}\b", new, text)) != text:
                    file.write_text(changed)
        else:
            text = (folder / path).read_text()
            assert text.count(old) == 1, (path, old)
            (folder / path).write_text(text.replace(old, new))
    return {"PYTHONPATH": f"{folder}:{ROOT}:{ROOT / 'asgi'}"}


def gunicorn(*options: str, worker: str = "wsgifast.FastWorker") -> list[str]:
    script = str(Path(sys.executable).with_name("gunicorn"))
    return [
        script, "--no-control-socket", "-k", worker, "--threads=2", "--bind=127.0.0.1:{port}",
        *options, WSGI_APP,
    ]  # fmt: skip


def run(*options: str, own: tuple[str, ...] = ()) -> list[str]:
    return [
        "python", "-m", "wsgifast", "run", WSGI_APP, "--bind=127.0.0.1:{port}", "--workers=2", *own,
        "--", "--no-control-socket", *options,
    ]  # fmt: skip


# By httptools alone.
RUN_ASGI = ["python", "-m", "wsgifast", "run", ASGI_APP, "--bind=127.0.0.1:{port}", "--workers=1"]


def uvicorn(protocol: str) -> list[str]:
    http = f"asgifast.uvicorn:{protocol}"
    return ["python", "-m", "uvicorn", "--port={port}", "--http", http, ASGI_APP]


def ended(argv: list[str], env: dict[str, str]) -> str:
    """Return the output of a server that refuses to start."""
    port = free_port()
    argv = [word.replace("{port}", str(port)) for word in argv]
    with live_server(argv, ("127.0.0.1", port), env=env, forked=False, fails=True) as server:
        assert server.process.wait(60) not in (0, None)
        return server.log()


def status_of(server: LiveServer, request: bytes) -> bytes:
    assert isinstance(server.address, tuple)
    with socket.create_connection(server.address, 20) as sock:
        sock.sendall(request)
        return sock.makefile("rb").readline().split()[1]


# gunicorn


@pytest.mark.parametrize("argv", [gunicorn("--workers=2"), run()], ids=["FastWorker", "run"])
def test_next_gunicorn_serves_with_one_line(tmp_path: Path, argv: list[str]) -> None:
    env = copied(tmp_path, numbered("28.0.0"))
    with live_server(argv, env=env, forked=False) as server:
        assert server.get("/small").status == 200
        assert server.log().count("gunicorn 28.0.0 is untested with FastWorker") == 1


@pytest.mark.parametrize(
    ("argv", "changes", "status"),
    [
        (gunicorn(), [], b"200"),
        (gunicorn(), [numbered("27.0.2")], b"200"),
        (gunicorn(), [numbered("27.0.2"), STRICTER], b"400"),
        (gunicorn(worker="gthread"), [numbered("27.0.2"), STRICTER], b"400"),
        (run(), [numbered("27.0.2"), STRICTER], b"400"),
    ],
    ids=["tested", "untested", "stricter", "gthread", "run"],
)
def test_untested_gunicorn_parses_by_itself(
    tmp_path: Path, argv: list[str], changes: list[Change], status: bytes
) -> None:
    with live_server(argv, env=copied(tmp_path, *changes), forked=False) as server:
        assert status_of(server, HIGH_BYTE) == status
        notes = server.log().count("gunicorn's own parser parses all requests, and httptools none")
        assert notes == (1 if changes and "gthread" not in argv else 0)


@pytest.mark.parametrize("name", NAMES_OF_GUNICORN)
@pytest.mark.parametrize("argv", [gunicorn(), run()], ids=["FastWorker", "run"])
def test_gunicorn_without_a_name_is_refused(tmp_path: Path, argv: list[str], name: str) -> None:
    printed = ended(argv, copied(tmp_path, ("gunicorn", name, f"{name}_renamed")))
    assert re.search(rf"has no \w+\.(\w+\.)*{name}\b.*, which FastWorker uses", printed)
    assert "`-k gthread`" in printed


@pytest.mark.parametrize("name", NAMES_OF_GUNICORN)
def test_way_back_serves_without_a_name(tmp_path: Path, name: str) -> None:
    env = copied(tmp_path, ("gunicorn", name, f"{name}_renamed"))
    with live_server(run("-k", "gthread"), env=env, forked=False) as server:
        assert server.get("/small").status == 200


@pytest.mark.parametrize(
    ("version", "parser"),
    [*((each, "HttptoolsParser") for each in GUNICORN.tested), ("27.0.2", "GunicornParser")],
)
def test_parser_is_chosen_by_gunicorns_version(
    version: str, parser: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gunicorn.__version__", version)
    chosen = parsers(FastWorker, Settings(Config()))(("192.0.2.1", 1))
    assert type(chosen).__name__ == parser


def test_gunicorn_with_another_signature_is_refused(tmp_path: Path) -> None:
    change = (
        "gunicorn/http/message.py",
        "def parse_headers(self, data, from_trailer=False):\n        headers = []",
        "def parse_headers(self, data, trailer=False):\n        headers = []\n"
        "        from_trailer = trailer",
    )
    printed = ended(gunicorn(), copied(tmp_path, change))
    assert "has no Request.parse_headers(data, from_trailer=) (gunicorn.http.message)" in printed


def test_fast_uvicorn_worker_without_a_name_is_refused(tmp_path: Path) -> None:
    argv = gunicorn(worker="asgifast.workers.FastUvicornWorker")
    printed = ended(argv, copied(tmp_path, ("gunicorn", "reexec_pid", "child_pid")))
    assert "has no Arbiter.reexec_pid (gunicorn.arbiter), which FastUvicornWorker uses" in printed
    assert "-k uvicorn_worker.UvicornWorker" in printed


HOOKS = """
def on_starting(server):
    server.log.info("the user's on_starting: %s", type(server).__name__)

def when_ready(server):
    server.log.info("the user's when_ready: %s", type(server).__name__)
"""


@pytest.mark.parametrize("by", ["FastWorker", "run"])
def test_arbiter_is_found_behind_another_handler(tmp_path: Path, by: str) -> None:
    hooks = tmp_path / "hooks.py"
    hooks.write_text(HOOKS)
    argv = gunicorn("-c", str(hooks)) if by == "FastWorker" else run("-c", str(hooks))
    with live_server(argv, env=copied(tmp_path, TERM), forked=False) as server:
        server.wait_for_log("Worker ready")
        assert "the user's on_starting: Arbiter" in server.log()
        assert "the user's when_ready: Arbiter" in server.log()
        server.process.send_signal(signal.SIGHUP)
        server.wait_for_log("Each worker serves until its successor is ready")
        server.wait_for_log("All workers are replaced")
        assert server.get("/small").status == 200
        assert "arbiter is missing" not in server.log()


def test_missing_arbiter_is_an_error_in_the_log(tmp_path: Path) -> None:
    change = "gunicorn/arbiter.py", "self.cfg.when_ready(self)", "pass"
    argv = gunicorn("--workers=2")
    with live_server(argv, env=copied(tmp_path, change), forked=False) as server:
        server.wait_for_log("Worker ready", times=2)
        assert server.get("/small").status == 200
        assert server.log().count("gunicorn's arbiter is missing") == 1


# uvicorn


def test_uvicorn_without_our_supervisors_names_serves(tmp_path: Path) -> None:
    change = ("uvicorn/supervisors/multiprocess.py", "def is_ready(", "def is_up(")
    with live_server(RUN_ASGI, env=copied(tmp_path, change), forked=False) as server:
        assert server.get("/hello").status == 200
        assert server.log().count("uvicorn lacks Process.is_ready()") == 1
        assert all(line.startswith("{") for line in server.log().splitlines())


@pytest.mark.parametrize(
    ("protocol", "name"),
    sorted(
        ({"httptools": "HttpToolsProtocol", "zttp": "AutoZttpProtocol"}[part], name)
        for part in ("httptools", "zttp")
        for _, name, _ in UVICORN.names(part)
        if name.startswith("_")
    ),
)
def test_uvicorn_without_a_private_name_is_refused(
    tmp_path: Path, protocol: str, name: str
) -> None:
    if "Zttp" in protocol:
        pytest.importorskip("uvicorn.protocols.http.zttp_impl", exc_type=ImportError)
    env = copied(tmp_path, ("uvicorn", name, f"{name}_renamed"))
    for argv in (uvicorn(protocol), *([RUN_ASGI] if protocol == "HttpToolsProtocol" else [])):
        printed = ended(argv, env)
        assert re.search(rf"does not fit uvicorn [\d.]+, which has no \w+\.{name}\(", printed)


@pytest.mark.parametrize(
    ("change", "is_known"),
    [
        (("uvicorn/__init__.py", f'"{UVICORN.newest}"', '"0.54.99"'), True),
        (("uvicorn", "_is_writable_event", "_is_writable"), True),
        (
            (
                "uvicorn/protocols/http/httptools_impl.py",
                "self.waiting_for_100_continue = False\n\n            status_code",
                "self.waiting_for_100_continue = False\n            pass\n            status_code",
            ),
            False,
        ),
    ],
    ids=["number", "unused name", "send()"],
)
@pytest.mark.parametrize("argv", [uvicorn("HttpToolsProtocol"), RUN_ASGI], ids=["uvicorn", "run"])
def test_uvicorn_is_known_by_its_code(
    tmp_path: Path, argv: list[str], change: Change, is_known: bool
) -> None:
    env = copied(tmp_path, change)
    with live_server(argv, env=env, forked=False) as server:
        assert server.get("/hello").status == 200
        assert ("does not know the send()" not in server.log()) == is_known


# h2


@pytest.mark.parametrize(
    ("package", "name"),
    sorted(
        (place.partition(".")[0].partition(":")[0], name)
        for place, name, _ in H2.names()
        if name.startswith("_")
    ),
)
@pytest.mark.parametrize("by", ["FastWorker", "run"])
def test_h2_without_a_private_name_leaves_http1(
    tmp_path: Path, package: str, name: str, by: str
) -> None:
    certificate = write_certificate(tmp_path / "certificate.pem")
    tls = f"--certfile={certificate}", f"--keyfile={certificate}"
    argv = gunicorn("--http-protocols=h2,h1", *tls) if by == "FastWorker" else run(own=tls)
    env = copied(tmp_path, (package, name, f"{name}_renamed"))
    with live_server(argv, env=env, forked=False) as server:
        assert protocol_of(server) != "h2"
        assert len(re.findall(rf"h2 [\d.]+ has no .*\b{name}\b", server.log())) == 1


def protocol_of(server: LiveServer) -> str | None:
    """Return the protocol that ALPN has chosen. Without HTTP/2, send one request first."""
    assert isinstance(server.address, tuple)
    context = client_context("h2", "http/1.1")
    with (
        socket.create_connection(server.address, 20) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as sock,
    ):
        chosen = sock.selected_alpn_protocol()
        if chosen != "h2":
            sock.sendall(b"GET /small HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert sock.recv(100).startswith(b"HTTP/1.1 200")
    return chosen


# Starlette, Django and Locust

STARLETTE_APP = """
from asgifast import FileResponse

async def app(scope, receive, send):
    await FileResponse(__file__)(scope, receive, send)
"""


@pytest.mark.parametrize(
    "name",
    # A module has the name `background`, too.
    [name for _, name, _ in STARLETTE.names() if name[0].islower() and name != "background"],
)
def test_starlette_without_a_name_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "own.py").write_text(STARLETTE_APP)
    env = copied(tmp_path, ("starlette", name, f"{name}_renamed"))
    printed = ended(["python", "-m", "uvicorn", "--port={port}", "own:app"], env)
    assert re.search(rf"starlette [\d.]+ has no FileResponse\.{name} ", printed)
    assert "or use Starlette's own FileResponse" in printed


DJANGO_APP = """
import os
import sys

import django
from django.conf import settings

settings.configure(
    ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, INSTALLED_APPS=os.environ["APPS"].split()
)
django.setup()
from django.core.wsgi import get_wsgi_application
from django.http import FileResponse, HttpResponse, StreamingHttpResponse
from django.urls import path
from wsgifast import WSGIFast

urlpatterns = [
    path("file", lambda request: FileResponse(open(__file__, "rb"))),
    path("page", lambda request: HttpResponse("page" * 1000)),
    path("rows", lambda request: StreamingHttpResponse(str(row) for row in range(100))),
]
app = WSGIFast(get_wsgi_application())
"""
ROWS = "".join(map(str, range(100))).encode()


def django_server(folder: Path, apps: str, worker: str) -> list[str]:
    (folder / "own.py").write_text(DJANGO_APP)
    return [
        *gunicorn(worker=worker)[:-1],
        f"--env=APPS={apps}",
        f"--pythonpath={folder}",
        "own:app",
    ]


@pytest.mark.parametrize(
    "name", [None, *(name for _, name, _ in DJANGO.names() if name.startswith("_"))]
)
@pytest.mark.parametrize("worker", ["wsgifast.FastWorker", "gthread"])
def test_django_without_a_private_name_is_iterated(
    tmp_path: Path, name: str | None, worker: str
) -> None:
    argv = django_server(tmp_path, "", worker)
    env = copied(tmp_path, *([("django", name, f"{name}_renamed")] if name else []))
    with live_server(argv, env=env, forked=False) as server:
        for _ in range(2):
            assert server.get("/file").body == (tmp_path / "own.py").read_bytes()
            assert server.get("/page").body == b"page" * 1000
            assert server.get("/rows").body == ROWS
        notes = re.findall(rf"django [\d.]+ has no \w+\.{name} .* as Django iterates", server.log())
        assert len(notes) == (0 if name is None else 1)


@pytest.mark.parametrize("name", ["StaticFilesStorage", "StreamingHttpResponse"])
def test_django_without_a_name_is_refused(tmp_path: Path, name: str) -> None:
    argv = django_server(tmp_path, "wsgifast.django", "gthread")
    env = copied(tmp_path, ("django", name, f"{name}_renamed"))
    printed = ended(argv, env)
    assert name in printed
    assert re.search(rf"django [\d.]+ has no django\.[\w.]+\.{name}\b", printed)


@pytest.mark.parametrize("name", ["FastHttpUser", "StopUser"])
def test_locust_without_a_name_is_refused(tmp_path: Path, name: str) -> None:
    pytest.importorskip("geventhttpclient", reason="Locust is not installed: pip install locust")
    env = copied(tmp_path, ("locust", name, f"{name}_renamed"))
    command = [sys.executable, "-m", "wsgifast", "bench", WSGI_APP, "/small", "--seconds=1"]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, **env}, timeout=120
    )
    assert done.returncode == 2
    assert re.search(
        rf"locust [\d.]+ has no locust\.(\w+\.)?{name}, which wsgifast bench", done.stderr
    )
