"""Server-Timing: WSGIFast and ASGIFast with `server_timing`, and `wsgifast run --server-timing`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from asgifast import ASGIFast

from tests.asgi.support import body, call, length, scope_of, sending, start_message
from tests.support.servers import ROOT, live_server
from tests.support.wsgi import Server, answering, new_environ
from wsgifast import WSGIFast

Pairs = Sequence[tuple[str, str]]
Ask = Callable[..., list[str]]
PAGE = b"page " * 10_000


def ask_wsgi(requested: Pairs = (), own: Pairs = (), *, twice: bool = False, **options: Any) -> Any:
    extra = {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in requested}
    html = ("Content-Type", "text/html")
    wrapped: Any = WSGIFast(
        answering(lambda _: [PAGE], "200 OK", [html, *own]), **{"server_timing": True, **options}
    )
    if twice:
        wrapped = WSGIFast(wrapped, server_timing=True)
    server = Server(wrapped, new_environ(**extra))
    server.finish()
    return [value for name, value in server.starts[0][1] if name.lower() == "server-timing"]


def ask_asgi(requested: Pairs = (), own: Pairs = (), *, twice: bool = False, **options: Any) -> Any:
    headers = [(name.lower().encode(), value.encode()) for name, value in own]
    start = start_message(*headers, (b"content-type", b"text/html"), length(len(PAGE)))
    app = sending(start, body(PAGE, more=False))
    wrapped = ASGIFast(app, **{"server_timing": True, **options})
    if twice:
        wrapped = ASGIFast(wrapped, server_timing=True)
    received = call(wrapped, scope_of(**{name.lower(): value for name, value in requested}))
    return [value for name, value in received.headers if name == "server-timing"]


@pytest.fixture(params=[ask_wsgi, ask_asgi], ids=["WSGIFast", "ASGIFast"])
def ask(request: pytest.FixtureRequest) -> Ask:
    return request.param  # type: ignore[no-any-return]


def times_in(value: str) -> dict[str, float]:
    parts = [part.split(";dur=") for part in value.split(", ")]
    return {name: float(shown) for name, shown in parts}


def test_times_of_a_plain_response_are_its_own(ask: Ask) -> None:
    (value,) = ask()
    assert list(times_in(value)) == ["app", "first-byte"]


def test_times_add_up_to_the_first_byte(ask: Ask) -> None:
    start = f"t={time.time() - 9:.3f}"
    (value,) = ask([("Accept-Encoding", "gzip"), ("X-Request-Start", start)], compress=True)
    times = times_in(value)
    assert list(times) == ["queue", "app", "compress", "first-byte"]
    assert times["queue"] >= 8990
    total = times["queue"] + times["app"] + times["compress"]
    assert total == pytest.approx(times["first-byte"], abs=0.2)


def test_header_of_the_app_stays(ask: Ask) -> None:
    assert ask(own=[("Server-Timing", "db;dur=5")])[0] == "db;dur=5"
    assert len(ask(own=[("Server-Timing", "db;dur=5")])) == 2


def test_header_is_off_by_default(ask: Ask) -> None:
    assert not ask(server_timing=False)


SMALL = """
import time
def app(environ, start_response):
    start_response("200 OK", [("Content-Length", "2")])
    return [b"ok"]
async def asgi(scope, receive, send):
    headers = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})
"""


@pytest.mark.long
@pytest.mark.parametrize("name", ["app", "asgi"])
def test_run_adds_the_times_of_the_queue(name: str, tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text(SMALL)
    argv = ["python", "-m", "wsgifast", "run", "--server-timing", "--bind", "127.0.0.1:{port}"]
    env = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "WEB_CONCURRENCY": "1"}
    with live_server([*argv, f"small:{name}"], env=env, cwd=tmp_path, forked=False) as server:
        value = server.get("/").header("Server-Timing")
    assert value is not None
    assert list(times_in(value)) == ["queue", "app", "first-byte"]
