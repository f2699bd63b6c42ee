"""The body limit and the metrics work with every way to start a server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.http import Connection
from tests.support.servers import ROOT, LiveServer, free_port, live_server
from tests.workers.test_metrics import scraped_until

pytestmark = pytest.mark.long

LIMIT = "WSGIFAST_BODY_LIMIT_BYTES"
METRICS = "WSGIFAST_METRICS"
HEALTH = "WSGIFAST_HEALTH_PATH"
# The app reads the body, and returns its size.
APP = """
async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    size, more = 0, True
    while more:
        message = await receive()
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    body = str(size).encode()
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
"""
CLASS = """
import uvicorn
from asgifast.uvicorn import {protocol}
from small import app
uvicorn.run(app, http={protocol}, port={{port}}, lifespan="off")
"""
FACTORY = """
import uvicorn
from asgifast.uvicorn import HttpToolsProtocol
from small import app
def made(**options):
    return HttpToolsProtocol(**options)
uvicorn.run(app, http=made, port={port}, lifespan="off")
"""
SUBCLASS = """
import uvicorn
from asgifast.uvicorn import HttpToolsProtocol
class Mine(HttpToolsProtocol):
    body_limit_bytes = 10_000_000
uvicorn.run("small:app", http=Mine, port={port}, lifespan="off")
"""
LATE = """
import os
import uvicorn
from asgifast.uvicorn import HttpToolsProtocol
for line in open(".env"):
    name, _, value = line.strip().partition("=")
    os.environ[name] = value
uvicorn.run("small:app", http=HttpToolsProtocol, port={port}, lifespan="off")
"""
LOADED = """
import asyncio
import uvicorn
config = uvicorn.Config(
    "small:app", http="asgifast.uvicorn:HttpToolsProtocol", port={port}, lifespan="off"
)
config.load()
asyncio.run(uvicorn.Server(config).serve())
"""
UVICORN = "-m uvicorn --port {{port}} --lifespan off --http asgifast.uvicorn:{} {} small:app"
GUNICORN = (
    "-m gunicorn --no-control-socket -b 127.0.0.1:{{port}} -k asgifast.workers.FastUvicornWorker "
    "{} small:app"
)
NAME = UVICORN.format("HttpToolsProtocol", "")
# How the server is started: a script, or arguments of Python. Then the place of the options.
STARTS = {
    "a class": (CLASS.format(protocol="HttpToolsProtocol"), "environment"),
    "h11's class": (CLASS.format(protocol="H11Protocol"), "environment"),
    "a factory": (FACTORY, "environment"),
    "a subclass": (SUBCLASS, "environment"),
    "a name": (NAME, "environment"),
    "a name, two workers": (UVICORN.format("H11Protocol", "--workers 2"), "environment"),
    "an env file": (UVICORN.format("HttpToolsProtocol", "--env-file .env"), ".env"),
    "an env file read after the import": (LATE, ".env"),
    "Config.load() outside a loop": (LOADED, "environment"),
    "gunicorn": (GUNICORN.format(""), "environment"),
    "gunicorn --env": (
        GUNICORN.format(
            f"--env {LIMIT}={{limit}} --env {METRICS}={{metrics}} --env {HEALTH}=/livez"
        ),
        "command",
    ),
    "gunicorn's raw_env": (GUNICORN.format("-c conf.py"), "conf.py"),
    "wsgifast run": ("-m wsgifast run --bind 127.0.0.1:{port} small:app", "environment"),
}  # fmt: skip


def _argv(start: str, place: str, folder: Path, limit: str, metrics: str) -> list[str]:
    """Return the command of the server, and write the files that it needs."""
    (folder / "small.py").write_text(APP)
    if place in (".env", "conf.py"):
        lines = [f"{LIMIT}={limit}", f"{HEALTH}=/livez"]
        lines += [f"{METRICS}={metrics}"] if metrics else []
        text = f"raw_env = {lines!r}\n" if place == "conf.py" else "\n".join(lines)
        (folder / place).write_text(text)
    if start.startswith("-m"):
        return ["python", *start.replace("{limit}", limit).replace("{metrics}", metrics).split()]
    return ["python", "-c", start]


def _environment(place: str, folder: Path, limit: str, metrics: str) -> dict[str, str]:
    set_ = {LIMIT: limit, METRICS: metrics, HEALTH: "/livez"} if place == "environment" else {}
    path = os.pathsep.join([str(folder), str(ROOT)])
    return {"PYTHONPATH": path} | {name: value for name, value in set_.items() if value}


def _post(server: LiveServer, size: int) -> int:
    with Connection(server.address) as client:
        return client.request(method="POST", body=bytes(size)).status


@pytest.mark.parametrize("name", STARTS)
def test_options_are_in_force_however_started(name: str, tmp_path: Path) -> None:
    start, place = STARTS[name]
    metrics = free_port()
    argv = _argv(start, place, tmp_path, "1000", f"127.0.0.1:{metrics}")
    env = _environment(place, tmp_path, "1000", f"127.0.0.1:{metrics}")
    with live_server(argv, env=env, cwd=tmp_path, forked=False) as server:
        assert _post(server, 1000) == 200
        assert _post(server, 5000) == 413
        assert server.get("/livez").body == b"alive\n"
        counted = "http_server_request_duration_seconds_count"
        scraped_until(metrics, counted, 1, http_response_status_code="200")
        scraped_until(metrics, "wsgifast_requests_refused_total", 1, status="413")


def test_limit_is_in_force_for_a_preloaded_app(tmp_path: Path) -> None:
    argv = _argv(GUNICORN.format("--preload"), "environment", tmp_path, "1000", "")
    env = _environment("environment", tmp_path, "1000", "")
    with live_server(argv, env=env, cwd=tmp_path, forked=False) as server:
        assert _post(server, 1000) == 200
        assert _post(server, 5000) == 413


TOO_EARLY = "import prometheus_client" + CLASS.format(protocol="HttpToolsProtocol")
# How the server is started, the place of its options, its limit, and whether it has metrics.
IMPOSSIBLE = {
    "a class": (STARTS["a class"][0], "environment", "many", False),
    "a name": (NAME, "environment", "many", False),
    "an env file": (LATE, ".env", "many", False),
    "gunicorn --env": (GUNICORN.format(f"--env {LIMIT}={{limit}}"), "command", "many", False),
    "wsgifast run": (STARTS["wsgifast run"][0], "environment", "many", False),
    "preload_app": (GUNICORN.format("--preload"), "environment", "1000", True),
    "prometheus_client": (TOO_EARLY, "environment", "1000", True),
}
SAID = {
    "preload_app": "Remove preload_app",
    "prometheus_client": "prometheus_client was imported before",
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_option_that_cannot_be_honoured_ends_a_server(name: str, tmp_path: Path) -> None:
    start, place, limit, is_metered = IMPOSSIBLE[name]
    metrics = f"127.0.0.1:{free_port()}" if is_metered else ""
    argv = _argv(start, place, tmp_path, limit, metrics)
    command = [sys.executable, *(word.replace("{port}", str(free_port())) for word in argv[1:])]
    env = {**os.environ, **_environment(place, tmp_path, limit, metrics)}
    env.pop("PROMETHEUS_MULTIPROC_DIR", None)
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=env, cwd=tmp_path
    )
    assert done.returncode not in (0, -9)
    assert SAID.get(name, f"{LIMIT}='many': expected bytes") in done.stderr
    assert "Traceback" not in done.stderr
