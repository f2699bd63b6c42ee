"""All output of a server is JSON, or in the user's format: `wsgifast run`, FastUvicornWorker."""

from __future__ import annotations

import json
import os
import signal
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import pytest

from tests.support.servers import ROOT, LiveServer, free_port, live_server

# Lines of Python and of loggers without a handler, beside those of the server.
NOISE = """\
import logging
import threading
import warnings

logging.getLogger("shop").error("not configured")


def noise():
    warnings.warn("a\\nwarning", stacklevel=1)
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()
"""
APPS = {
    "gunicorn": NOISE
    + """\
def app(environ, start_response):
    noise()
    if environ["PATH_INFO"] == "/fails":
        raise ValueError("the\\nreason")
    start_response("200 OK", [("Content-Length", "2")])
    return [b"ok"]
""",
    "uvicorn": NOISE
    + """\
import asyncio


async def app(scope, receive, send):
    if scope["type"] != "http":
        raise RuntimeError(scope["type"])
    noise()
    asyncio.get_running_loop().call_soon(lambda: 1 / 0)
    await asyncio.sleep(0)
    if scope["path"] == "/fails":
        raise ValueError("the\\nreason")
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})
""",
}
# A logging configuration for gunicorn with a format of the user.
OWN_FORMAT = {
    "version": 1,
    "formatters": {"mine": {"format": "MINE %(message)s"}},
    "handlers": {"out": {"class": "logging.StreamHandler", "formatter": "mine"}},
    "root": {"handlers": ["out"], "level": "INFO"},
    "loggers": {
        name: {"handlers": ["out"], "level": "INFO", "propagate": False}
        for name in ("gunicorn.access", "gunicorn.error")
    },
}
ON_BOTH = pytest.mark.parametrize("kind", APPS)


def serve(folder: Path, code: str, *arguments: str) -> AbstractContextManager[LiveServer]:
    (folder / "own.py").write_text(code)
    address = ("127.0.0.1", free_port())
    bind = f"--bind=127.0.0.1:{address[1]}"
    command = ["python", "-m", "wsgifast", "run", "own:app", bind, *arguments]
    return live_server(command, address, cwd=folder, env={"PYTHONPATH": str(ROOT)})


@ON_BOTH
@pytest.mark.parametrize("more", [("--workers=1",), ("--workers=2",), ("--reload",)])
def test_every_line_of_json_logs_is_json(kind: str, more: tuple[str, ...], tmp_path: Path) -> None:
    with serve(tmp_path, APPS[kind], *more) as server:
        assert server.get("/").status == 200
        assert server.get("/fails").status == 500
        server.wait_for_log("ValueError: the")
        if "--reload" not in more:
            os.kill(server.pid, signal.SIGHUP)
            server.wait_for_log("not configured", times=2 * int(more[0][-1]))
        server.stop()
        lines = server.log().splitlines()
    found = [json.loads(line) for line in lines]
    messages = "\n".join(str(line.get("message")) for line in found)
    for part in ("is a", "own:app", "not configured", "a\nwarning", "Uncaught exception"):
        assert part in messages
    assert sum("http.response.status_code" in line for line in found) == 2


@ON_BOTH
def test_failed_start_with_json_logs_is_json(kind: str, tmp_path: Path) -> None:
    code = f"import os\nif 'WSGIFAST_RUN' in os.environ or {kind == 'gunicorn'}:\n    1 / 0\n"
    (tmp_path / "own.py").write_text(code + APPS[kind])
    command = ["python", "-m", "wsgifast", "run", "own:app", "--workers=1"]
    env = {"PYTHONPATH": str(ROOT), "PORT": str(free_port())}
    with live_server(command, cwd=tmp_path, env=env, fails=True) as server:
        assert server.process.wait(60) == 3
        assert "ZeroDivisionError" in server.log()
        for line in server.log().splitlines():
            json.loads(line)


FORMAT = "MINE %(m)s %(U)s %(s)s"
DICT = {
    "version": 1,
    "formatters": {"mine": {"format": "MINE %(message)s"}},
    "root": {"handlers": ["mine"]},
    "handlers": {
        "mine": {
            "class": "logging.StreamHandler", "formatter": "mine", "stream": "ext://sys.stdout"
        }
    },
    "loggers": {
        name: {"handlers": ["mine"], "level": "INFO", "propagate": False}
        for name in ("gunicorn.access", "gunicorn.error", "uvicorn", "uvicorn.access")
    },
}  # fmt: skip
IN_APP = f"import logging.config\nlogging.config.dictConfig({DICT!r})\n"
_LOGGERS = ("gunicorn.access", "uvicorn.access", "uvicorn")
INI = f"""\
[loggers]
keys=root,{",".join(_LOGGERS)}
[handlers]
keys=out
[formatters]
keys=mine
[logger_root]
handlers=out
[handler_out]
class=StreamHandler
formatter=mine
args=(sys.stdout,)
[formatter_mine]
format=MINE %(message)s
""" + "".join(
    f"[logger_{name}]\nlevel=INFO\nhandlers=out\npropagate=0\nqualname={name}\n"
    for name in _LOGGERS
)


@pytest.mark.parametrize(
    ("kind", "configuration", "in_app", "more"),
    [
        ("gunicorn", f"access_log_format = {FORMAT!r}", "", ()),
        ("gunicorn", "", "", ("--", "--access-logformat", FORMAT)),
        ("gunicorn", f"logconfig_dict = {DICT!r}", "", ()),
        ("gunicorn", "logconfig_json = 'dict.json'", "", ()),
        ("gunicorn", "", "", ("--", "--log-config", "own.ini")),
        ("gunicorn", "", IN_APP, ()),
        ("uvicorn", "", "", ("--", "--log-config", "dict.json")),
        ("uvicorn", "", "", ("--", "--log-config=own.ini")),
        ("uvicorn", "", IN_APP, ()),
    ],
)
def test_log_has_the_format_that_the_user_gave(
    kind: str, configuration: str, in_app: str, more: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "gunicorn.conf.py").write_text(configuration)
    (tmp_path / "dict.json").write_text(json.dumps(DICT))
    (tmp_path / "own.ini").write_text(INI)
    with serve(tmp_path, in_app + APPS[kind], "--workers=1", *more) as server:
        assert server.get("/it").status == 200
        server.wait_for_log("/it")
        lines = [line for line in server.log().splitlines() if "/it" in line]
    assert len(lines) == 1, server.log()
    assert lines[0].startswith("MINE ")
    assert "{" not in lines[0]


@pytest.mark.parametrize(
    ("kind", "words", "variable", "reason"),
    [
        ("gunicorn", "", "WEB_CONCURRENCY=abc", "WEB_CONCURRENCY='abc'"),
        ("uvicorn", "", "PORT=abc", "PORT='abc'"),
        ("uvicorn", "", "UVICORN_LOG_LEVEL=loud", "--log-level': 'loud'"),
        ("gunicorn", "", "FORWARDED_ALLOW_IPS=abc", "FORWARDED_ALLOW_IPS='abc'"),
        ("gunicorn", "", "GUNICORN_CMD_ARGS=--workers=abc", "--workers: invalid int value: 'abc'"),
        ("gunicorn", "--workers=x", "", "argument --workers: 'x'"),
        ("gunicorn", "--nonsense", "", "unrecognized arguments: --nonsense"),
        ("gunicorn", "-- --nonsense", "", "unrecognized arguments: --nonsense"),
        ("uvicorn", "-- --nonsense", "", "No such option '--nonsense'"),
        ("gunicorn", "--config=workers.py", "", "Invalid value for workers: abc"),
        ("gunicorn", "--config=syntax.py", "", "syntax.py. SyntaxError"),
        ("gunicorn", "--config=raises.py", "", "raises.py. ValueError: my reason"),
        ("gunicorn", "--config=option.py", "", "FastWorker.head_timeout_s=-1"),
        ("gunicorn", "--config=misspelt.py", "", "head_timeout_sec"),
        ("gunicorn", "--config=none.py", "", "none.py: there is no such file"),
    ],
)
def test_refusal_is_one_line_of_json(
    kind: str, words: str, variable: str, reason: str, tmp_path: Path
) -> None:
    files = {
        "own": APPS[kind], "workers": "workers = 'abc'\n", "syntax": "workers = (\n",
        "raises": "raise ValueError('my reason')\n", "option": "head_timeout_s = -1\n",
        "misspelt": "head_timeout_sec = 3\n",
    }  # fmt: skip
    for name, code in files.items():
        (tmp_path / f"{name}.py").write_text(code)
    command = ["python", "-m", "wsgifast", "run", "own:app", *words.split()]
    name, _, value = variable.partition("=")
    env = {"PYTHONPATH": str(ROOT), **({name: value} if name else {})}
    address = ("127.0.0.1", free_port())
    with live_server(command, address, cwd=tmp_path, env=env, fails=True) as server:
        assert server.process.wait(60) == 2
        lines = server.log().splitlines()
    assert len(lines) == 1, lines
    found = json.loads(lines[0])
    assert reason in found["message"]
    assert found["level"] == "CRITICAL"


ROUTED = """\
import asyncio
import logging
import os
from contextvars import ContextVar

from asgifast import ASGIFast
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.responses import FileResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Mount, Route

tenant = ContextVar("tenant", default="")


def item(request):
    return PlainTextResponse("item " + request.path_params["name"])


async def file(request):
    tenant.set("acme")
    return FileResponse("large")


async def cut(request):
    async def parts():
        yield b"a" * 1000
        raise ValueError("the\\nreason")
    return StreamingResponse(parts())


def fails(request):
    raise ValueError("the\\nreason")


async def stalls(request):
    async def parts():
        yield b"a" * 1000
        await asyncio.sleep(60)
    return StreamingResponse(parts())


def shrunk(request):
    return FileResponse("large", headers={"content-length": "4000000"})


def sized(length):
    def respond(request):
        response = PlainTextResponse("abc")
        response.headers["content-length"] = length
        return response
    return respond


async def background(request):
    async def wait():
        while not os.path.exists("released"):
            await asyncio.sleep(0.01)
    return PlainTextResponse("ok", background=BackgroundTask(wait))


routes = [Route("/item/{name}", item), Route("/file", file), Route("/cut", cut)]
routes += [Route("/fails", fails), Route("/stalls", stalls), Route("/shrunk", shrunk)]
routes += [Route("/short", sized("9")), Route("/long", sized("1"))]
routes += [Route("/background", background)]
app = Starlette(routes=[Mount("/shop", routes=routes)])
"""
CUT_OFF = {"wsgifast.outcome": "cut off", "http.response.status_code": 200}
SENT = {"url.scheme": "https", "wsgifast.outcome": "sent", "http.response.status_code": 200}
ADDRESSES = {"client.address": "192.0.2.7", "network.peer.address": "127.0.0.1"}
LINES: dict[str, dict[str, object]] = {
    "/shop/item/a?b=c": {
        **SENT, **ADDRESSES, "http.route": "/shop/item/{name}", "http.response.body.size": 6,
        "url.path": "/shop/item/a", "url.query": "b=c", "wsgifast.sent_as": "as-is",
        "user_agent.original": "mine", "http.request.header.referer": ["http://r/"],
        "user.name": "ann", "wsgifast.chunks": 1,
    },
    "/shop/file": {
        **SENT, "http.route": "/shop/file", "http.response.body.size": 3_000_000,
        "wsgifast.sent_as": "file",
    },
    "/shop/cut": {**SENT, "http.response.body.size": 1000, "wsgifast.outcome": "cut off"},
    "/shop/fails": {**SENT, "http.response.body.size": 21, "http.response.status_code": 500},
    "/shop/short": CUT_OFF,
    "/shop/long": CUT_OFF,
    "/shop/shrunk": {**CUT_OFF, "http.response.body.size": 3_000_000},
    "/shop/stalls": CUT_OFF,
    # The line does not wait for the background task.
    "/shop/background": {**SENT, "http.response.body.size": 2},
}  # fmt: skip
HEADERS = {
    "User-Agent": "mine", "Referer": "http://r/", "X-Forwarded-For": "192.0.2.7",
    "X-Forwarded-Proto": "https", "Authorization": "Basic YW5uOngK",
}  # fmt: skip


TENANTS = """

class Tenants(logging.Filter):
    def filter(self, record):
        print("tenant=" + tenant.get(), flush=True)
        return True


logging.getLogger("uvicorn.access").addFilter(Tenants())
"""
COMBINATIONS = [
    (protocol, loop, workers)
    for protocol, first in (("HttpToolsProtocol", 1), ("H11Protocol", 2), ("AutoZttpProtocol", 1))
    for loop, workers in (("asyncio", first), ("uvloop", 3 - first))
]


@pytest.mark.parametrize(("protocol", "loop", "workers"), COMBINATIONS)
def test_asgi_line_has_the_fields_of_wsgi(
    protocol: str, loop: str, workers: int, tmp_path: Path
) -> None:
    if protocol == "AutoZttpProtocol":
        pytest.importorskip("uvicorn.protocols.http.auto_zttp_impl")
    (tmp_path / "large").write_bytes(b"x" * 3_000_000)
    timeout = "--request-timeout-s=3"
    options = timeout, "--", f"--http=asgifast.uvicorn:{protocol}", f"--loop={loop}"
    with serve(tmp_path, ROUTED, f"--workers={workers}", *options) as server:
        for target in LINES:
            with suppress(EOFError, ConnectionError):  # some responses are cut off
                server.get(target, headers=HEADERS.items())
            server.wait_for_log(f'"url.path":"{target.partition("?")[0]}"')
        (tmp_path / "released").touch()
        found = [json.loads(line) for line in server.log().splitlines()]
    logged = [line for line in found if "url.path" in line]
    assert len(logged) == len(LINES)
    for line, expected in zip(logged, LINES.values(), strict=True):
        assert {name: line.get(name) for name in expected} == expected, json.dumps(line)
        assert 0 < line["wsgifast.duration_us"] < 60_000_000


@pytest.mark.parametrize("has_format", [False, True], ids=["stock", "logconfig"])
def test_gunicorns_json_logger_writes_lines_of_asgi(has_format: bool, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(APPS["uvicorn"])
    (tmp_path / "log.json").write_text(json.dumps(OWN_FORMAT))
    command = (
        "-m gunicorn -k asgifast.workers.FastUvicornWorker --no-control-socket own:app "
        "--logger-class wsgifast.workers.JSONLogger -b 127.0.0.1:{port}"
    )
    argv = ["python", *command.split(), *(["--log-config-json=log.json"] if has_format else [])]
    with live_server(argv, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}) as server:
        assert server.get("/item").status == 200
        server.wait_for_log("/item")
        [line] = [line for line in server.log().splitlines() if "/item" in line]
    if has_format:
        assert line.startswith("MINE ")
        return
    fields = json.loads(line)
    assert fields["url.path"] == "/item"
    assert fields["http.response.body.size"] == 2
    assert fields["wsgifast.outcome"] == "sent"


def test_asgi_line_of_file_has_the_requests_context(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * 3_000_000)
    with serve(tmp_path, ROUTED + TENANTS, "--workers=1") as server:
        assert server.get("/shop/file").status == 200
        server.wait_for_log("tenant=acme")
        server.wait_for_log('"http.response.body.size":3000000')


def test_asgi_line_has_the_request_id(tmp_path: Path) -> None:
    with serve(
        tmp_path,
        ROUTED.replace("\napp =", "\ninner =") + "app = ASGIFast(inner, request_id=True)\n",
        "--workers=1",
    ) as server:
        response = server.get("/shop/item/a")
        server.wait_for_log(f'"wsgifast.request_id":"{response.header("x-request-id")}"')


def test_line_with_metrics_has_the_clients_address(tmp_path: Path) -> None:
    with serve(
        tmp_path, ROUTED, "--workers=1", "--access-log=text", f"--metrics=127.0.0.1:{free_port()}"
    ) as server:
        server.get("/shop/item/a", headers=HEADERS.items())
        server.wait_for_log("192.0.2.7")
