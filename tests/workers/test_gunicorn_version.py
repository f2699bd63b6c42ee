"""What a gunicorn outside the supported range is told, by one that is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.programs import ProgramMissing
from tests.support.servers import free_port, live_server
from wsgifast.workers import UnsupportedGunicorn
from wsgifast.workers.gunicorn_version import check_gunicorn

# Where `make test` installs it.
UNSUPPORTED = Path(sys.prefix, "unsupported-gunicorn")


@pytest.fixture
def unsupported() -> dict[str, str]:
    """The environment in which Python finds an unsupported gunicorn."""
    if not UNSUPPORTED.is_dir():
        raise ProgramMissing("an old gunicorn is not installed: make test")
    return {"PYTHONPATH": str(UNSUPPORTED)}


@pytest.mark.parametrize("name", ["wsgifast.FastWorker", "wsgifast.workers.FastWorker"])
def test_unsupported_gunicorn_is_refused_without_traceback(
    unsupported: dict[str, str], name: str
) -> None:
    argv = [sys.executable, "-m", "gunicorn", "-k", name, "-b", "127.0.0.1:0", "a:a"]
    done = subprocess.run(
        argv, env={**os.environ, **unsupported}, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 1
    assert "Error: gunicorn 23.0.0 is installed, but FastWorker works with gunicorn" in done.stderr
    assert "Traceback" not in done.stderr


def test_files_command_uses_gthread_with_unsupported_gunicorn(
    unsupported: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "page.html").write_text("a page")
    port = free_port()
    argv = ["python", "-m", "wsgifast", "files", str(tmp_path), "--bind", str(port)]
    with live_server(argv, ("127.0.0.1", port), env=unsupported) as server:
        answer = server.get("/page.html")
        assert (answer.status, answer.body) == (200, b"a page")
        assert answer.header("Server") == "gunicorn"
        assert "Traceback" not in server.log()


def test_unsupported_gunicorn_error_names_supported_versions() -> None:
    check_gunicorn("25.0.0")
    check_gunicorn("27.9.1")
    for version in ("23.0.0", "28.0.0"):
        sentence = rf"gunicorn {version} is installed, but .* gunicorn 25\.0 to 27\.x"
        with pytest.raises(UnsupportedGunicorn, match=sentence):
            check_gunicorn(version)
