"""`wsgifast files` on gunicorn and on wsgiref."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.files.conftest import TEXT
from tests.support.http import get
from tests.support.servers import STOP_S, free_port, live_server, wait_for
from wsgifast.commands import cli


@pytest.fixture(params=["gunicorn", "wsgiref"])
def without(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """An environment with gunicorn, and one in which gunicorn seems to be missing."""
    if request.param == "gunicorn":
        return dict(os.environ)
    (tmp_path / "shadow" / "gunicorn").mkdir(parents=True)
    (tmp_path / "shadow" / "gunicorn" / "__init__.py").write_text("raise ImportError('hidden')")
    return {**os.environ, "PYTHONPATH": str(tmp_path / "shadow")}


def test_files_command_serves_a_directory(tree: Path, without: dict[str, str]) -> None:
    command = [sys.executable, "-m", "wsgifast", "files", str(tree), "--bind", "0"]
    log = tree.parent / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=without)
    try:
        url = re.compile(r"http://127\.0\.0\.1:(\d+)/")
        wait_for(lambda: url.search(log.read_text()), "the URL is printed")
        address = ("127.0.0.1", int(url.findall(log.read_text())[0]))
        page = get(address)
        assert page.status == 200
        assert b"page.html" in page.body
        response = get(address, "/page.html", headers=[("Range", "bytes=0-9")])
        assert (response.status, response.body) == (206, TEXT[:10])
        assert response.header("Cache-Control") == "max-age=0, public"
        for target in ("/.hidden.txt", "/link.txt", "/../outside.txt", "/%2e%2e/outside.txt"):
            assert get(address, target).status in (400, 404)
        process.send_signal(signal.SIGINT)
        assert process.wait(STOP_S) in (0, 130)
    finally:
        process.kill()
        process.wait()
    assert "Traceback" not in log.read_text()
    assert "ERROR" not in log.read_text()


def test_reload_goes_on_listening(tree: Path) -> None:
    address = ("127.0.0.1", free_port())
    command = ["python", "-m", "wsgifast", "files", str(tree), "--bind", str(address[1])]
    with live_server(command, address) as server:
        assert server.get("/page.html").status == 200
        children = Path(f"/proc/{server.pid}/task/{server.pid}/children")
        before = children.read_text()
        os.kill(server.pid, signal.SIGHUP)
        wait_for(
            lambda: server.process.poll() is None and children.read_text() not in (before, ""),
            "gunicorn has a new worker",
        )
        assert server.get("/page.html").status == 200
        assert "Traceback" not in server.log()


def test_taken_port_and_wrong_address_are_errors(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert cli.main(["files", str(tree), "--bind", f"127.0.0.1:{port}"]) == 2
        error = capsys.readouterr().err
        assert f"127.0.0.1:{port}" in error
        assert "--bind" in error
        assert "Address already in use. Name another" in error
    assert cli.main(["files", str(tree), "--bind", "nosuchhost.invalid:80"]) == 2
    error = capsys.readouterr().err
    assert "cannot listen on nosuchhost.invalid:80: " in error
    assert "Unknown error" not in error
    assert error.count("nosuchhost") == 1
    for bind in ("nonsense", "127.0.0.1:", "1:99999", "1:00000099999", "127.0.0.1:1_0", ":+1"):
        assert cli.main(["files", str(tree), "--bind", bind]) == 2
        assert bind in capsys.readouterr().err
    assert cli.main(["files", str(tree / "none")]) == 2
    assert str(tree / "none") in capsys.readouterr().err


def test_files_are_offered_as_dictionaries(tree: Path) -> None:
    (tree / "css" / "site.0a1b2c3d.css").write_bytes(TEXT)
    argv = ["python", "-m", "wsgifast", "files", str(tree), "--bind", "{port}", "--dictionaries"]
    with live_server(argv) as server:
        offer = server.get("/css/site.0a1b2c3d.css").header("Use-As-Dictionary")
    assert offer == 'match="/css/site.*.css"'


@pytest.mark.parametrize("fallback", ["nope.html", "css", "link.txt", ".hidden.txt", "../x"])
def test_missing_fallback_is_an_error_at_the_start(
    tree: Path, capsys: pytest.CaptureFixture[str], fallback: str
) -> None:
    assert cli.main(["files", str(tree), "--fallback", fallback, "--bind", "0"]) == 2
    shown = capsys.readouterr()
    assert f"fallback={fallback!r}" in shown.err
    assert shown.out == ""
