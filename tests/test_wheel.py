"""The wheel in an empty environment: it requires no other package, and its core works alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.support.servers import ROOT, free_port, live_server
from wsgifast import __version__

pytestmark = pytest.mark.long

USE_THE_CORE = """
import asyncio, io, json, sys
from importlib import import_module
from importlib.metadata import distributions

import asgifast, wsgifast, wsgifast.devservers, wsgifast.files, wsgifast.mail, wsgifast.sockets
from wsgifast import *
from asgifast import ASGIFast
from wsgifast.devservers import make_server
from wsgifast.mail import IMAP4, SMTP
from wsgifast.sockets import *

def app(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return "hello"

def start_response(status, headers, exc_info=None):
    statuses.append(status)

async def asgi_app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})

async def send(message):
    sent.append(message)

statuses, sent = [], []
environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/page.html", "wsgi.errors": sys.stderr}
wrapped = b"".join(WSGIFast(app)(dict(environ), start_response))
file = b"".join(StaticFiles(directory=sys.argv[1])(dict(environ), start_response))
scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "extensions": {}}
asyncio.run(ASGIFast(asgi_app)(scope, None, send))
missing = {}
for part in PARTS:
    package, _, name = part.rpartition(".")
    try:
        try:
            import_module(part)
        except ModuleNotFoundError:
            getattr(import_module(package), name)
    except MissingExtra as error:
        missing[part] = str(error)
print(json.dumps({
    "distributions": sorted(each.name for each in distributions()),
    "statuses": statuses,
    "bodies": [wrapped.decode(), file.decode(), b"".join(m["body"] for m in sent[1:]).decode()],
    "missing": missing,
}))
"""
# Modules that need an extra, and its name.
PARTS = {
    "wsgifast.FastWorker": "gunicorn",
    "wsgifast.workers.FastWorker": "gunicorn",
    "wsgifast.devservers.WerkzeugRequestHandler": "devservers",
    "wsgifast.mail.server": "mail",
    "wsgifast.mail.django": "django",
    "wsgifast.commands.bench.runner": "bench",
    "asgifast.FileResponse": "asgi",
    "asgifast.uvicorn.HttpToolsProtocol": "asgi",
    "asgifast.uvicorn.H11Protocol": "asgi",
    "asgifast.workers.FastUvicornWorker": "gunicorn,asgi",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if built := os.environ.get("WSGIFAST_TEST_WHEEL"):  # by `make release`
        return Path(built)
    folder = tmp_path_factory.mktemp("wheel")
    _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), cwd=ROOT)
    (path,) = folder.iterdir()
    return path


# `make test-release` names all that are there.
PYTHONS = os.environ.get("WSGIFAST_TEST_PYTHONS", sys.executable).split()


@pytest.fixture(scope="module", params=PYTHONS)
def python(
    request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> str:
    """Return a Python of an environment in which pip has installed the wheel, and nothing else."""
    folder = tmp_path_factory.mktemp("empty")
    _run(request.param, "-m", "venv", "--without-pip", str(folder))
    python = str(folder / "bin" / "python")
    # Without an index, pip fails if the wheel requires another package.
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    _run(*pip, "install", "--quiet", "--no-index", f"--find-links={wheel.parent}", "wsgifast")
    return python


def test_core_without_extras_runs(python: str, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("a page")
    code = USE_THE_CORE.replace("PARTS", repr(list(PARTS)))
    found = json.loads(_run(python, "-I", "-W", "error", "-c", code, str(tmp_path)))
    assert found["distributions"] == ["wsgifast"]
    assert found["statuses"] == ["200 OK", "200 OK"]
    assert found["bodies"] == ["hello", "a page", "hello"]
    for part, extra in PARTS.items():
        assert f"pip install 'wsgifast[{extra}]'" in found["missing"].pop(part)
    assert not found["missing"]


def test_installed_command_serves_files(python: str, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("a page")
    argv = [python, "-I", "-m", "wsgifast", "files", str(tmp_path), "--bind", "{port}"]
    with live_server(argv) as server:
        assert server.get("/page.html").body == b"a page"


def test_every_command_starts(python: str, tmp_path: Path) -> None:
    """Run the script that pip has made. Commands that need an extra name it."""
    script = str(Path(python).with_name("wsgifast"))
    commands = re.findall(r"^    (\w+) ", _run(script, "--help"), re.MULTILINE)
    assert commands == ["doctor", "bench", "run", "top", "files", "compress"]  # files: see above
    assert _run(script, "--version") == f"wsgifast {__version__}\n"
    (tmp_path / "page.html").write_text("a page " * 1_000)
    written = 2 if sys.version_info >= (3, 14) else 1  # it has its own zstd
    assert f"{written} written" in _run(script, "compress", str(tmp_path))
    (tmp_path / "shop.py").write_text(
        "def app(environ, start_response):\n"
        "    start_response('200 OK', [('Content-Length', '6')])\n"
        "    return [b'hello\\n']\n"
    )
    assert "1 good" in _run(script, "doctor", "shop.py", "/", cwd=tmp_path)
    for command, extra in (("bench", "bench"), ("run", "gunicorn")):
        status, said = _status(script, command, "shop.py", cwd=tmp_path)
        assert (status, f"pip install 'wsgifast[{extra}]'" in said) == (2, True), said
    nobody = f"127.0.0.1:{free_port()}"
    status, said = _status(script, "top", nobody, cwd=tmp_path)
    assert (status, nobody in said) == (2, True), said


def test_fastworker_of_the_wheel_serves(python: str) -> None:
    if os.path.realpath(python) != os.path.realpath(sys.executable):
        pytest.skip("this environment's gunicorn is for this Python alone")
    (packages,) = Path(python).parents[1].glob("lib/python*/site-packages")
    (packages / "gunicorn.pth").write_text(sysconfig.get_path("purelib"))
    said = _run(python, "-I", str(ROOT / "tests" / "support" / "try_wheel.py"))
    assert f"FastWorker served with {packages}" in said


def test_wheel_has_the_packages_alone(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    metadata = f"wsgifast-{__version__}.dist-info/"
    expected = {
        path.relative_to(base).as_posix()
        for base, package in ((ROOT, "wsgifast"), (ROOT / "asgi", "asgifast"))
        for path in (base / package).rglob("*")
        if path.is_file() and path.suffix not in (".pyc",)
    }
    assert {name for name in names if not name.startswith(metadata)} == expected
    assert {"wsgifast/py.typed", "asgifast/py.typed"} <= names
    assert f"{metadata}licenses/LICENSE" in names


def test_links_of_first_page_are_absolute_on_index(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"wsgifast-{__version__}.dist-info/METADATA").decode()
    links = [*re.findall(r"\]\((.+?)\)", text), *re.findall(r'(?:src|srcset)="(.+?)"', text)]
    assert len(links) > 10
    assert all(link.startswith("https://") for link in links)


def _status(*command: str, cwd: Path | None = None) -> tuple[int, str]:
    """Return the exit status of a command that may fail, and all its output."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


def _run(*command: str, cwd: Path | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout
