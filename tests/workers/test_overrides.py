"""Parts of gunicorn that a configuration replaces: obeyed, refused or named."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gunicorn
import pytest
from gunicorn.http import message, wsgi
from gunicorn.workers import gthread

from tests.workers.bench import MakeBench, hello
from tests.workers.serving import fast_worker, refused
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
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch, place: Any
) -> None:
    monkeypatch.setattr(place, "SERVER", "own")
    response = make_bench(hello).begin().read_response()
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
