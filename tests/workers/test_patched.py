"""Apps that replace threads by something else: refused at the start, with a sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.workers.serving import gunicorn_command
from wsgifast.workers.gunicorn_support import patched_threads

APP = """
from gevent import monkey
monkey.patch_all()

def app(environ, start_response):
    start_response("200 OK", [])
    return []
"""


@pytest.mark.parametrize("preload", [[], ["--preload"]])
def test_an_app_that_gevent_has_patched_is_refused(tmp_path: Path, preload: list[str]) -> None:
    (tmp_path / "patched_app.py").write_text(APP)
    argv = gunicorn_command(
        "-k", "wsgifast.workers.FastWorker", "-b", "127.0.0.1:0", *preload, "patched_app:app"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env=environ)
    assert done.returncode != 0
    assert "replaced threads and sockets by gevent's" in done.stderr
    assert "use `-k gevent`" in done.stderr


def test_eventlet_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert patched_threads() is None
    patcher = SimpleNamespace(is_monkey_patched=lambda module: module == "thread")
    monkeypatch.setitem(sys.modules, "eventlet.patcher", patcher)
    assert "by eventlet's" in str(patched_threads())
