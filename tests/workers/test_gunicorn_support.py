"""The parts of gunicorn that FastWorker uses, and the versions and threads that it rejects."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gunicorn
import pytest
from gunicorn import util
from gunicorn.config import Config
from gunicorn.http.message import Request

from tests.support import forkserver
from tests.support.programs import ProgramMissing
from tests.support.servers import ROOT, live_server
from tests.workers.serving import refused
from wsgifast.workers import UnsupportedGunicorn
from wsgifast.workers.gunicorn_parser import GunicornParser, Unreader
from wsgifast.workers.gunicorn_support import (
    ErrorPage,
    Settings,
    thread_problem,
)
from wsgifast.workers.gunicorn_version import check_gunicorn

# Settings, hooks and limits


def configured(**options: Any) -> Config:
    cfg = Config()
    for name, value in options.items():
        cfg.set(name, value)
    return cfg


def test_settings_equal_those_of_gunicorn() -> None:
    for options in ({}, {"sendfile": False, "workers": 3, "threads": 4, "proxy_protocol": "auto"}):
        cfg = configured(**options)
        settings = Settings(cfg)
        for name in cfg.settings:
            expected, found = getattr(cfg, name), getattr(settings, name)
            if callable(expected):  # hooks are wrapped anew each time
                assert getattr(found, "__qualname__", "") == expected.__qualname__
            else:
                assert found == expected, name
        assert not settings.is_ssl


def test_header_limit_equals_that_of_gunicorn() -> None:
    for fields, size, line in itertools.product((1, 100, 0, 40_000), (0, 10, 9000), (0, 100, 8000)):
        settings = Settings(
            configured(
                limit_request_fields=fields, limit_request_field_size=size, limit_request_line=line
            )
        )
        parser = GunicornParser(settings, trusted=False, checks_host=True, head_limit_bytes=1 << 40)
        unreader = Unreader(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        request = Request(settings, unreader, ("127.0.0.1", 1), 1)
        longest = request.limit_request_line or 1024 * 1024
        assert parser.head_limit_bytes >= request.max_buffer_headers + longest
        assert parser.head_limit_bytes <= request.max_buffer_headers + max(longest, 8190)


# Error pages


HEAD = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 6\r\n\r\n"


HEADERS = [("Content-Length", "6")]


class Sent(list[tuple[int, str, list[tuple[str, str]], bytes]]):
    """Return the error pages that were sent."""

    def send(self, *page: Any) -> int:
        self.append(page)
        return 5


@pytest.mark.parametrize("page", [b"a\n\nb\r\n", b"\n\r\n\n\r\n"])
@pytest.mark.parametrize(
    "headers", [HEAD, HEAD[:-2] + b"\n", HEAD.replace(b"\r", b"")], ids=["right", "last", "all"]
)
def test_error_page_has_fixed_headers_unchanged_body(headers: bytes, page: bytes) -> None:
    sent = Sent()
    page_socket = ErrorPage(sent.send)
    page_socket.sendall(headers + page)
    assert sent == [(400, "Bad Request", HEADERS, page)]
    assert page_socket.size == 5


def test_error_page_of_gunicorn_is_valid() -> None:
    sent = Sent()
    page_socket = ErrorPage(sent.send)
    util.write_error(page_socket, 400, "Bad Request", "what <came>\n\n")
    ((*first, headers, page),) = sent
    assert first == [400, "Bad Request"]
    assert ("Content-Length", str(len(page))) in headers
    assert b"what &lt;came&gt;" in page


# Versions


# `make test` installs it there.
UNSUPPORTED = Path(sys.prefix, "unsupported-gunicorn")


@pytest.fixture
def unsupported() -> dict[str, str]:
    """Return the environment in which Python finds an unsupported gunicorn."""
    if not UNSUPPORTED.is_dir():
        raise ProgramMissing("an old gunicorn is not installed: make test")
    return {"PYTHONPATH": str(UNSUPPORTED)}


@pytest.mark.parametrize("name", ["wsgifast.FastWorker", "wsgifast.workers.FastWorker"])
def test_unsupported_gunicorn_has_no_traceback(unsupported: dict[str, str], name: str) -> None:
    argv = [sys.executable, "-m", "gunicorn", "-k", name, "-b", "127.0.0.1:0", "a:a"]
    done = forkserver.run(argv, cwd=ROOT, env={**os.environ, **unsupported})
    assert done.returncode == 1
    assert "Error: gunicorn 23.0.0 is installed, but FastWorker works with gunicorn" in done.stderr
    assert "Traceback" not in done.stderr


def test_files_command_uses_wsgiref_on_old_gunicorn(
    unsupported: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "page.html").write_text("a page")
    argv = ["python", "-m", "wsgifast", "files", str(tmp_path), "--bind", "{port}"]
    with live_server(argv, env=unsupported) as server:
        response = server.get("/page.html")
        assert (response.status, response.body) == (200, b"a page")
        assert (response.header("Server") or "").startswith("WSGIServer")
        assert "Traceback" not in server.log()


def test_old_gunicorn_is_refused_with_supported_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    check_gunicorn()
    monkeypatch.setattr(gunicorn, "__version__", "26.1.0")
    sentence = r"gunicorn 26\.1\.0 is installed, but .* gunicorn 26\.2 to 27\.x.*`-k gthread`"
    with pytest.raises(UnsupportedGunicorn, match=sentence):
        check_gunicorn()


# Threads


PATCHED = """
from gevent import monkey
monkey.patch_all()

def app(environ, start_response):
    pass
"""


def importing(folder: Path) -> dict[str, str]:
    """Return the environment in which Python finds the modules of a folder."""
    return {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}


@pytest.mark.parametrize("preload", [[], ["--preload"]])
def test_app_patched_by_gevent_is_refused(tmp_path: Path, preload: list[str]) -> None:
    (tmp_path / "patched.py").write_text(PATCHED)
    printed = refused(*preload, app="patched:app", env=importing(tmp_path), app_fails=True)
    assert "replaced threads and sockets by gevent's" in printed
    assert "use `-k gevent`" in printed


def test_threads_patched_by_eventlet_are_unfit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert thread_problem() is None
    patcher = SimpleNamespace(is_monkey_patched=lambda module: module == "thread")
    monkeypatch.setitem(sys.modules, "eventlet.patcher", patcher)
    assert str(thread_problem()).endswith(
        "by eventlet's (monkey patching). FastWorker needs the real ones: remove the patching"
    )


# Such a Python is not installed here, so the test sets the values that it would report.
NO_GIL = """
import sys
sys._is_gil_enabled = lambda: False

def app(environ, start_response):
    pass
"""


@pytest.mark.parametrize("where", ["configuration", "app"])
def test_python_without_gil_is_refused(tmp_path: Path, where: str) -> None:
    (tmp_path / "free.py").write_text(NO_GIL)
    of_app = where == "app"
    options = () if of_app else ("--config", str(tmp_path / "free.py"))
    app = "free:app" if of_app else "tests.workers.app:app"
    printed = refused(*options, app=app, env=importing(tmp_path), app_fails=of_app)
    for text in ("without the GIL", "PYTHON_GIL=1", "`-k gthread`"):
        assert text in printed


@pytest.mark.parametrize("enabled", [True, False])
def test_enabled_gil_is_accepted(monkeypatch: pytest.MonkeyPatch, enabled: bool) -> None:
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: enabled, raising=False)
    assert (thread_problem() is None) is enabled


_WAITING = """
import sys

from wsgifast.metrics.health import resident_bytes
from wsgifast.workers.gunicorn_support import MemoryReturn

memory = MemoryReturn()
blocks = [bytes(100_000) + b"x" for _ in range(500)]
memory.update(50_000_000, 0)
full = resident_bytes()
del blocks[:-1]  # the last one keeps glibc from returning those before it
memory.update(int(sys.argv[1]), int(sys.argv[2]))
print((full - resident_bytes()) / 2**20)
"""


@pytest.mark.parametrize(
    ("waiting", "on_disk"),
    [(100_000, 0), (40_000_000, 10_000_000)],
    ids=["sent", "on the disk"],
)
def test_memory_of_waiting_responses_is_returned(waiting: int, on_disk: int) -> None:
    run = subprocess.run(
        [sys.executable, "-c", _WAITING, str(waiting), str(on_disk)],
        cwd=ROOT, check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    assert float(run.stdout) > 40


_FREED = """
from wsgifast.metrics.health import resident_bytes
from wsgifast.workers.gunicorn_support import MemoryReturn

memory = MemoryReturn()
before = resident_bytes()
small = []
for _ in range(3):
    page = bytearray(12_000_000)
    small.append(bytes(2000))  # behind it, in the heap
    del page
print((resident_bytes() - before) / 2**20)
"""


def test_memory_of_large_page_is_returned_at_once() -> None:
    run = subprocess.run(
        [sys.executable, "-c", _FREED], cwd=ROOT, check=True, capture_output=True, timeout=60
    )
    assert float(run.stdout) < 4
