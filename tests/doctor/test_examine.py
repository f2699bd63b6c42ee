"""The doctor finds each shape, and reports nothing for a correct app."""

from __future__ import annotations

import contextlib
import importlib
import re
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asgifast
import flask
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route
from werkzeug.middleware.proxy_fix import ProxyFix

from tests.doctor.apps import (
    ASGI_SHAPES,
    SHAPES,
    asgi_app,
    failing_asgi_app,
    plain,
    wsgi,
    wsgi_app,
)
from tests.support.calls import raising
from tests.support.servers import wait_for
from wsgifast import ConfigurationError, WSGIFast, WSGIFastError
from wsgifast.commands.doctor import (
    CATALOGUE,
    Endpoint,
    as_text,
    examination,
    examine,
    explain,
    findings,
)
from wsgifast.commands.doctor.formats import as_html
from wsgifast.commands.loading import unwrapped

pytestmark = pytest.mark.long


@pytest.mark.parametrize("path", SHAPES)
def test_wsgi_shape_has_its_finding(path: str) -> None:
    expected = SHAPES[path][0]
    endless = expected == "WF016" or path == "/events"
    report = examine(wsgi_app, [path], limit_s=0.5 if endless else 20.0)
    beside = ("WF010", "WF021", "WF025", "WF034")
    ids = [finding.id for finding in report.findings if finding.id not in beside]
    assert ids[:1] == ([] if expected is None else [expected]), as_text(report)


@pytest.mark.parametrize("path", ASGI_SHAPES)
def test_asgi_shape_has_its_finding(path: str) -> None:
    expected = ASGI_SHAPES[path]
    report = examine(asgi_app, [path], limit_s=20.0)
    ids = [finding.id for finding in report.findings]
    assert ids[:1] == ([] if expected is None else [expected]), as_text(report)


def test_gain_of_a_fix_is_measured() -> None:
    report = examine(wsgi_app, ["/list", "/good"])
    finding = report.findings[0]
    assert re.fullmatch(r"[0-9.]+ ms as it is -> [0-9.]+ ms wrapped", finding.cost)
    costs = next(s.costs for s in report.observations if s.endpoint == finding.endpoint)
    assert costs["raw"].sends > 2 * costs["wrapped"].sends > 0
    assert finding.saves_s > 0
    assert report.good == 1


def test_slow_endpoint_is_examined_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """The finding and its costs stay."""
    calls = []

    def app(environ: dict[str, Any], start_response: Any) -> Any:
        calls.append(environ["PATH_INFO"])
        start_response("200 OK", [("Content-Type", "text/plain")])
        return (b"a" * 10 for _ in range(5000))

    monkeypatch.setattr("wsgifast.commands.doctor.examination.MAX_S", -1.0)
    report = examine(app, ["/slow"])
    assert len(calls) == 3  # raw, wrapped, coalesced
    assert "WF003" in {finding.id for finding in report.findings}
    assert {"raw", "wrapped", "coalesced"} == report.observations[0].costs.keys()
    assert "  1 examined in part, for 8 s: /slow" in as_text(report).splitlines()


@pytest.mark.parametrize("app", [wsgi_app, asgi_app], ids=["WSGI", "ASGI"])
def test_headers_without_body_have_no_wrong_length(app: Any) -> None:
    report = examine(app, [Endpoint("/good", "/good", "test", "HEAD")])
    assert not report.of("wrong"), as_text(report)


def test_slow_reader_is_tried_on_large_bodies() -> None:
    report = examine(wsgi_app, ["/file-in-generator", "/good"])
    blocks_thread = {seen.endpoint.url: seen.raw.blocks_thread for seen in report.observations}
    assert blocks_thread == {"/file-in-generator": True, "/good": None}


@pytest.mark.parametrize(
    ("app", "path", "id_", "fix"),
    [
        (wsgi_app, "/good-file", "WF020", "WSGIFast(app)"),
        (wsgi_app, "/file-in-generator", "WF020", "return the file, or set an ETag"),
        (asgi_app, "/file", "WF020", "return the file, or set an ETag"),
        (asgi_app, "/read-file", "WF020", "return the file, or set an ETag"),
        (wsgi_app, "/list", "WF021", "WSGIFast(app)"),
        (wsgi_app, "/write", "WF021", "send Content-Length"),
    ],
)
def test_fix_of_missing_validator_was_seen_to_work(app: Any, path: str, id_: str, fix: str) -> None:
    found = {finding.id: finding.fix for finding in examine(app, [path]).findings}
    assert found[id_] == fix


def test_fault_that_the_apps_wrapper_mends_is_info() -> None:
    paths = ["/str", "/list", "/generator", "/wrapper", "/too-long", "/none"]
    report = examine(WSGIFast(wsgi_app), paths)
    assert report.was_wrapped
    shapes = [f for f in report.findings if f.id < "WF016" and f.id != "WF010"]
    found = {f.endpoint.url: (f.id, f.severity) for f in shapes}
    assert found == {
        "/str": ("WF011", "info"),
        "/list": ("WF001", "info"),
        "/generator": ("WF003", "slow"),  # not without coalesce=True
        "/wrapper": ("WF007", "info"),
        "/too-long": ("WF013", "info"),
        "/none": ("WF014", "wrong"),
    }, as_text(report)
    report = examine(WSGIFast(wsgi_app, coalesce=True), ["/generator"])
    assert [(f.id, f.severity) for f in report.findings] == [("WF003", "info")]
    report = examine(asgifast.ASGIFast(asgi_app), ["/messages", "/good", "/str", "/raises"])
    found = {f.endpoint.url: (f.id, f.severity) for f in report.findings}
    assert found.get("/messages") == ("WF030", "info"), as_text(report)
    assert found["/raises"] == ("WF015", "wrong")


def test_wrapper_inside_other_middleware_is_no_failure() -> None:
    inner = Starlette(routes=[Route("/", lambda request: PlainTextResponse("x" * 100))])
    inner.add_middleware(asgifast.ASGIFast)
    app = flask.Flask(__name__, static_folder=None)
    app.add_url_rule("/", "index", lambda: flask.Response(["a"] * 1000))
    app.wsgi_app = ProxyFix(WSGIFast(app.wsgi_app))  # type: ignore[method-assign]
    for each in (inner, asgifast.ASGIFast(inner), app, WSGIFast(app)):
        report = examine(each, ["/"])
        assert not report.of("wrong", "slow"), as_text(report)


OWN_DJANGO = """
from django.conf import settings
settings.configure(ROOT_URLCONF=__name__, SECRET_KEY="x")
from django.http import HttpResponse
from django.urls import path
from wsgifast.django import get_asgi_application
urlpatterns = [path("", lambda request: HttpResponse("page"))]
app = get_asgi_application()
"""


def test_unwrapping_takes_only_asgifast_itself_off(tmp_path: Path) -> None:
    """Other parts of asgifast do not count: its files, and Django's handler in asgifast.django."""
    (tmp_path / "a.txt").write_text("a file")
    alone = asgifast.StaticFiles(directory=tmp_path)
    around = asgifast.StaticFiles(asgi_app, directory=tmp_path, prefix="/static/")
    assert unwrapped(asgifast.ASGIFast(around)) == (around, True)
    report = examine(alone, ["/a.txt"])
    assert not report.was_wrapped
    assert [seen.raw.status for seen in report.observations] == [200]
    (tmp_path / "own_django.py").write_text(OWN_DJANGO)
    command = [sys.executable, "-m", "wsgifast", "doctor", str(tmp_path / "own_django.py"), "/"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "1 endpoint: 1 good." in ran.stdout, ran.stderr


def test_app_that_does_not_start_is_an_error() -> None:
    with pytest.raises(WSGIFastError, match="no database"):
        examine(failing_asgi_app, ["/"])


def test_post_is_not_requested_without_unsafe() -> None:
    requested = [Endpoint("/good", "/good", "test", "POST"), Endpoint("/good", "/good", "test")]
    report = examine(wsgi_app, requested)
    assert len(report.observations) == 1
    assert [(left.method, "--unsafe" in left.reason) for left in report.unreached] == [
        ("POST", True)
    ]
    assert len(examine(wsgi_app, requested, unsafe=True).observations) == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"endpoints": ["no-slash"]}, "no-slash"),
        ({"endpoints": ["/good"], "silence": ["WF999"]}, "WF999"),
        ({}, "Name paths, as in: wsgifast doctor tests.doctor.apps / "),
    ],
)
def test_bad_input_is_named_in_the_error(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        examine(wsgi_app, **options)


def test_silenced_finding_is_left_out() -> None:
    assert not examine(wsgi_app, ["/str"], silence=["wf011"]).findings


def test_finding_is_explained_by_its_id() -> None:
    for finding_id, entry in CATALOGUE.items():
        text = explain(finding_id.lower())
        assert text.startswith(f"{finding_id} ({entry.severity}): {entry.title}"), finding_id
        assert entry.wsgifast in text, finding_id


# Correct apps, as their frameworks wrap them: path -> the allowed findings.
WELL_SHAPED = {
    "flask": ("/", "/download"),
    "falcon": ("/", "/download"),
    "bottle": ("/", "/download"),
    "starlette": ("/", "/download"),
    "fastapi": ("/", "/download", "/openapi.json"),
}


@pytest.mark.parametrize("framework", WELL_SHAPED)
def test_well_shaped_app_has_no_finding(framework: str) -> None:
    app = importlib.import_module(f"examples.{framework}_app").app
    report = examine(app, WELL_SHAPED[framework])
    assert not report.of("wrong", "slow"), as_text(report)
    assert report.good == len(WELL_SHAPED[framework])


def test_mistakes_of_the_example_are_all_found() -> None:
    from examples.mistakes import MISTAKES, raw

    report = examine(raw, list(MISTAKES))
    found = {finding.endpoint.url: finding.id for finding in report.of("wrong", "slow")}
    assert found == {
        "/bare-text": "WF011",
        "/bare-bytes": "WF011",
        "/wrong-length": "WF011",
        "/text-file": "WF012",
        "/rows": "WF012",
        "/letters": "WF001",
        "/file-by-lines": "WF007",
        "/file-by-blocks": "WF007",
    }, as_text(report)


def test_fix_is_never_cut_off() -> None:
    from examples.mistakes import raw

    report = examine(raw, ["/letters", "/file-by-lines"])
    wide = as_text(report)
    assert all(f.what in wide and f.fix in wide for f in report.findings)
    narrow = as_text(report, width=60).splitlines()
    assert max(map(len, narrow)) <= 60
    for finding in report.findings:
        at = next(n for n, line in enumerate(narrow) if line.startswith(finding.id))
        assert narrow[at + 1] == f"       {finding.fix}"


def test_busy_machine_is_no_blocked_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop turns of the first two requests take long, and no others."""
    for module in (examination, findings):
        monkeypatch.setattr(module, "BLOCKED_S", 0.4)  # longer than this machine may stand still
    requested = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal requested
        if scope["type"] != "http":
            raise RuntimeError("no lifespan")
        requested += 1
        if requested <= 2:
            time.sleep(0.5)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x"})

    report = examine(app, ["/"])
    assert not report.findings, as_text(report)
    assert requested > 2


@pytest.mark.parametrize(
    ("status", "location", "reason"),
    [
        ("302 Found", "/login?next=/account", "302 to /login; --cookie or --header may help"),
        ("301 Moved Permanently", "/moved", "301 to /moved"),
        *((f"{code} Elsewhere", "/elsewhere", f"{code} to /elsewhere") for code in (300, 303, 307)),
        ("308 Elsewhere", "https://shop/", "308 to https://shop/; --https may help"),
        (
            "400 Bad Request",
            None,
            "400; if the app checks the host, --header 'Host: its.name' may help",
        ),
        ("403 Forbidden", None, "403; --cookie or --header may help"),
        ("404 Not Found", None, "404"),
        ("500 Internal Server Error", None, None),
    ],
)
def test_redirect_or_refusal_is_unreached(
    status: str, location: str | None, reason: str | None
) -> None:
    fields = {} if location is None else {"Location": location}
    report = examine(wsgi(plain(b"text", status, Content_Length="4", **fields)), ["/"])
    if reason is None:
        assert [finding.id for finding in report.findings] == ["WF015"]
        assert not report.unreached
    else:
        assert not report.observations
        assert [left.reason for left in report.unreached] == [reason]


def test_error_of_several_lines_is_reported_in_one() -> None:
    (finding,) = examine(
        wsgi(raising(ValueError, "no such table\n  [SQL: SELECT 1]\n")), ["/"]
    ).findings
    assert finding.what.startswith("ValueError: no such table [SQL: SELECT 1] (")
    assert "\n" not in finding.what


def test_page_leaves_out_what_a_finding_has_not() -> None:
    """WF015 has neither a cost nor a way to fix it in each framework. WF011 has both."""
    without, with_both = (as_html(examine(wsgi_app, [path])) for path in ("/raises", "/str"))
    assert "<ul></ul>" not in without
    assert ". </p>" not in without
    assert "<p>a bare str. fails as it is</p>" in with_both
    assert "<ul><li>" in with_both


def test_app_blocking_the_loop_is_not_waited_for() -> None:
    end = threading.Event()
    ended = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await asgi_app(scope, receive, send)
        else:
            ended.append(end.wait(20.0))

    report = examine(app, ["/"], limit_s=0.2)
    assert [finding.id for finding in report.findings] == ["WF016"]
    assert report.findings[0].fix.endswith("or set a longer --timeout")
    assert not ended
    end.set()
    wait_for(
        lambda: all(thread.name != "wsgifast-doctor-loop" for thread in threading.enumerate()),
        "the loop has ended",
    )


def test_request_has_the_state_of_the_lifespan() -> None:
    """Each request has a copy of the state, as the ASGI specification requires."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[dict[str, Any]]:
        yield {"pool": "a pool"}

    async def page(request: Any) -> PlainTextResponse:
        text = request.state.pool
        request.state.pool = "another"
        return PlainTextResponse(text)

    app = Starlette(routes=[Route("/", page)], lifespan=lifespan)
    for each in (app, asgifast.ASGIFast(app)):
        report = examine(each, ["/"])
        assert not report.findings, as_text(report)
        assert report.observations[0].raw.sent_bytes == len("a pool")


@pytest.mark.parametrize("interface", ["WSGI", "ASGI"])
def test_given_host_replaces_the_default(interface: str) -> None:
    hosts: list[Any] = []

    def wsgi(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        hosts.append(environ["HTTP_HOST"])
        start_response("200 OK", [("Content-Length", "1")])
        return [b"x"]

    async def asgi(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            hosts.append(",".join(v.decode() for k, v in scope["headers"] if k == b"host"))
            await PlainTextResponse("x")(scope, receive, send)

    app = wsgi if interface == "WSGI" else asgi
    examine(app, ["/"])
    examine(app, ["/"], headers=[("Host", "shop.example"), ("X-A", "1")])
    assert set(hosts) == {"localhost", "shop.example"}


def test_header_given_twice_is_joined_as_by_servers() -> None:
    seen = []

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        seen.append((environ["HTTP_COOKIE"], environ["HTTP_X_A"]))
        start_response("200 OK", [("Content-Length", "1")])
        return [b"x"]

    pairs = [("Cookie", "a=1"), ("X-A", "1"), ("cookie", "b=2"), ("x-a", "2")]
    examine(app, ["/"], headers=pairs)
    assert set(seen) == {("a=1; b=2", "1,2")}


def test_sync_generator_rows_are_found_to_cost_threads() -> None:
    async def rows(request: Any) -> StreamingResponse:
        return StreamingResponse(b"%d\n" % n for n in range(1000))

    async def async_rows(request: Any) -> StreamingResponse:
        async def made() -> AsyncIterator[bytes]:
            for n in range(1000):
                yield b"%d\n" % n

        return StreamingResponse(made())

    async def few(request: Any) -> StreamingResponse:
        return StreamingResponse(b"%d\n" % n * 9000 for n in range(4))

    routes = [Route("/sync", rows), Route("/async", async_rows), Route("/few", few)]
    report = examine(Starlette(routes=routes), ["/sync", "/async", "/few"])
    found = {f.endpoint.url: (f.id, f.what, f.fix) for f in report.of("slow")}
    assert found.keys() == {"/sync", "/async"}, as_text(report)
    assert found["/sync"] == (
        "WF030",
        "1,000 messages, median 4 B, each from a thread",
        "yield joined rows, or use an async generator",
    )
    assert found["/async"] == ("WF030", "1,000 messages, median 4 B", "ASGIFast(app)")
