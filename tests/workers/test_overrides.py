"""Parts of gunicorn that a configuration replaces: FastWorker uses, rejects or logs them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gunicorn
import pytest
from gunicorn.http import message, wsgi
from gunicorn.workers import gthread

from tests.support.servers import wait_for
from tests.workers.serving import fast_worker, refused
from tests.workers.stepped_worker import MakeStepped, hello
from wsgifast.workers import FastWorker, overrides

PATCHES = {
    "gunicorn.http.wsgi.Response": (wsgi, "Response", type("Own", (wsgi.Response,), {})),
    "gunicorn.http.wsgi.create": (wsgi, "create", hello),
    "gunicorn.http.wsgi.Response.default_headers": (wsgi.Response, "default_headers", hello),
    "gunicorn.http.message.Message.parse_headers": (message.Message, "parse_headers", hello),
    "gunicorn.workers.gthread.ThreadWorker.handle": (gthread.ThreadWorker, "handle", hello),
}


@pytest.mark.parametrize("name", PATCHES)
def test_replaced_part_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert overrides.replaced_parts() == []
    monkeypatch.setattr(overrides, "_named", set())
    monkeypatch.setattr(*PATCHES[name])
    lines: list[str] = []
    log = SimpleNamespace(warning=lambda text, *args: lines.append(text % args))
    for _ in range(2):
        overrides.name_replaced_parts(log)
    (line,) = lines
    assert line.startswith(f"{name} is not")


@pytest.mark.parametrize("method", ["handle_request", "handle", "enqueue_req", "accept"])
@pytest.mark.parametrize("mixin", [True, False])
def test_override_without_effect_is_found(method: str, mixin: bool) -> None:
    own: dict[str, Any] = {method: hello, "init_process": hello, "handle_error": hello}
    bases = (type("Own", (), own), FastWorker) if mixin else (FastWorker,)
    worker = type("Own", bases, {} if mixin else own)
    assert overrides.uncalled_methods(worker, FastWorker) == [f"Own.{method}()"]


def test_override_without_effect_is_refused(tmp_path: Path) -> None:
    conf = tmp_path / "conf.py"
    conf.write_text(
        "from wsgifast.workers import FastWorker\n"
        "class worker_class(FastWorker):\n"
        "    def handle_request(self, req, conn): pass\n"
    )
    assert "worker_class.handle_request(): FastWorker does not" in refused("-c", str(conf))


@pytest.mark.parametrize("place", [gunicorn, wsgi])
def test_changed_server_name_is_sent(
    make_stepped: MakeStepped, monkeypatch: pytest.MonkeyPatch, place: Any
) -> None:
    monkeypatch.setattr(place, "SERVER", "own")
    response = make_stepped(hello).begin().read_response()
    assert response.header("Server") == "own"


REPLACES = """
from gunicorn.http import wsgi
class Response(wsgi.Response):
    pass
wsgi.Response = Response
"""


def test_log_names_replaced_response_at_start() -> None:
    with fast_worker(configuration=REPLACES) as server:
        assert server.get("/small/5").status == 200
        assert server.log().count("gunicorn.http.wsgi.Response is not gunicorn's own") == 1


# Shapes of public configurations. The app's status and the number of open connections are logged.
WRAPS_APP = """
def pre_request(worker, req):
    if not hasattr(worker, "inner"):
        worker.inner = worker.wsgi
        worker.wsgi = lambda env, start: worker.inner({**env, "PATH_INFO": "/small/7"}, start)
"""
READS_CONNECTIONS = """
def post_request(worker, req, environ, resp):
    worker.log.info("open: %d", worker.nr_conns)
"""
REPLACES_METHOD = """
def post_fork(server, worker):
    worker.enqueue_req = lambda conn: None
"""
CHANGES_FORMAT = """
from gunicorn.glogging import Logger
Logger.access_fmt = "access: %(message)s"
"""
SHAPES = {
    "app wrapped in a request": (WRAPS_APP, '"GET /small/5 HTTP/1.1" 200 7 '),
    "connections": (READS_CONNECTIONS, "open: 1"),
    "method of the worker": (REPLACES_METHOD, "A hook has set worker.enqueue_req"),
    "format of the access log": (CHANGES_FORMAT, "access: 127.0.0.1"),
    "name like an option": ("body_limit = 30\ntimeout = body_limit + 1\n", '"GET /small/5 '),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_shape_of_configuration_shows_in_log(shape: str) -> None:
    configuration, line = SHAPES[shape]
    with fast_worker(configuration=configuration) as server:
        assert server.get("/small/5").status == 200
        wait_for(lambda: line in server.log(), line)
