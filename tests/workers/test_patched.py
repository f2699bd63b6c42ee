"""Threads that FastWorker cannot use, patched or without a GIL: refused at the start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.workers.serving import gunicorn_command
from wsgifast.workers.gunicorn_support import unfit_threads

APP = """
from gevent import monkey
monkey.patch_all()

def app(environ, start_response):
    start_response("200 OK", [])
    return []
"""


@pytest.mark.parametrize("preload", [[], ["--preload"]])
def test_app_patched_by_gevent_is_refused(tmp_path: Path, preload: list[str]) -> None:
    (tmp_path / "patched_app.py").write_text(APP)
    argv = gunicorn_command(
        "-k", "wsgifast.workers.FastWorker", "-b", "127.0.0.1:0", *preload, "patched_app:app"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env=environ)
    assert done.returncode != 0
    assert "replaced threads and sockets by gevent's" in done.stderr
    assert "use `-k gevent`" in done.stderr


def test_threads_patched_by_eventlet_are_unfit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unfit_threads() is None
    patcher = SimpleNamespace(is_monkey_patched=lambda module: module == "thread")
    monkeypatch.setitem(sys.modules, "eventlet.patcher", patcher)
    assert "by eventlet's" in str(unfit_threads())


NO_GIL = """
import sys
sys._is_gil_enabled = lambda: False

def app(environ, start_response):
    start_response("200 OK", [])
    return []
"""


@pytest.mark.parametrize("where", ["configuration", "app"])
def test_python_without_gil_is_refused(tmp_path: Path, where: str) -> None:
    """No such Python is here: what one says of itself is put in its place."""
    (tmp_path / "free.py").write_text(NO_GIL)
    (tmp_path / "other.py").write_text(NO_GIL.replace("sys._is_gil_enabled =", "unused ="))
    options = ["--config", str(tmp_path / "free.py")] if where == "configuration" else []
    name = "free" if where == "app" else "other"
    argv = gunicorn_command(
        "-k", "wsgifast.workers.FastWorker", "-b", "127.0.0.1:0", *options, f"{name}:app"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env=environ)
    assert done.returncode != 0
    assert "without the GIL" in done.stderr
    assert "PYTHON_GIL=1" in done.stderr
    assert "`-k gthread`" in done.stderr
    assert "Traceback" not in done.stderr.partition("without the GIL")[0] or where == "app"


@pytest.mark.parametrize("enabled", [True, False])
def test_enabled_gil_is_accepted(monkeypatch: pytest.MonkeyPatch, enabled: bool) -> None:
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: enabled, raising=False)
    assert (unfit_threads() is None) is enabled
