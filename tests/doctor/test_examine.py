"""The doctor finds each shape, and nothing where there is nothing."""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import asgifast
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import FileResponse, PlainTextResponse
from starlette.routing import Route

from tests.doctor.apps import ASGI_SHAPES, SHAPES, asgi_app, failing_asgi_app, wsgi_app
from tests.support.servers import wait_for
from wsgifast import ConfigurationError, WSGIFast, WSGIFastError
from wsgifast.doctor import CATALOGUE, Endpoint, as_text, examination, examine, explain, judge
from wsgifast.doctor.formats import as_github, as_junit
from wsgifast.doctor.page import as_html
from wsgifast.loading import unwrapped

pytestmark = pytest.mark.long


@pytest.mark.parametrize("path", SHAPES)
def test_wsgi_shapes(path: str) -> None:
    expected = SHAPES[path][0]
    endless = expected == "WF016" or path == "/events"
    report = examine(wsgi_app, [path], limit_s=0.5 if endless else 20.0)
    ids = [finding.id for finding in report.findings if finding.id not in ("WF010", "WF021")]
    assert ids[:1] == ([] if expected is None else [expected]), as_text(report)


@pytest.mark.parametrize("path", ASGI_SHAPES)
def test_asgi_shapes(path: str) -> None:
    expected = ASGI_SHAPES[path]
    report = examine(asgi_app, [path], limit_s=20.0)
    ids = [finding.id for finding in report.findings]
    assert ids[:1] == ([] if expected is None else [expected]), as_text(report)


def test_what_would_be_gained_is_measured() -> None:
    report = examine(wsgi_app, ["/list", "/good"])
    finding = report.findings[0]
    before, after = (float(text) for text in finding.cost.removesuffix(" ms").split(" -> "))
    assert before > 2 * after > 0
    assert finding.saves_s > 0
    assert report.good == 1


@pytest.mark.parametrize("app", [wsgi_app, asgi_app], ids=["WSGI", "ASGI"])
def test_a_body_to_head_has_no_length_to_be_wrong(app: Any) -> None:
    report = examine(app, [Endpoint("/good", "/good", "test", "HEAD")])
    assert not report.of("wrong"), as_text(report)


def test_a_file_that_loses_its_compression(tmp_path: Path) -> None:
    (tmp_path / "app.js").write_text("x" * 10_000)

    async def file(request: Any) -> FileResponse:
        return FileResponse(tmp_path / "app.js")

    async def page(request: Any) -> PlainTextResponse:
        return PlainTextResponse("x" * 10_000)

    routes = [Route("/app.js", file), Route("/page", page)]
    gzip = Middleware(GZipMiddleware)
    report = examine(Starlette(routes=routes, middleware=[gzip]), ["/app.js", "/page"])
    (finding,) = [finding for finding in report.findings if finding.id == "WF024"]
    assert finding.endpoint.url == "/app.js"
    assert "in gzip; under ASGIFast uncompressed" in finding.what
    report = examine(Starlette(routes=routes), ["/app.js"])
    assert "WF024" not in [finding.id for finding in report.findings]


def test_a_slow_reader_is_tried() -> None:
    report = examine(wsgi_app, ["/file-in-generator", "/good"])
    held = {seen.endpoint.url: seen.raw.held for seen in report.observations}
    assert held == {"/file-in-generator": True, "/good": None}


@pytest.mark.parametrize(
    ("app", "path", "fix"),
    [
        (wsgi_app, "/good-file", "WSGIFast(app)"),
        (wsgi_app, "/file-in-generator", "return the file, or set an ETag"),
        (asgi_app, "/file", "ASGIFast(app)"),
        (asgi_app, "/read-file", "return the file, or set an ETag"),
    ],
)
def test_what_gives_a_file_a_validator_is_what_was_seen_to(app: Any, path: str, fix: str) -> None:
    found = {finding.id: finding.fix for finding in examine(app, [path]).findings}
    assert found["WF020"] == fix


@pytest.mark.parametrize(
    ("path", "fix"), [("/list", "WSGIFast(app)"), ("/write", "send Content-Length")]
)
def test_what_gives_a_body_its_length_is_what_was_seen_to(path: str, fix: str) -> None:
    found = {finding.id: finding.fix for finding in examine(wsgi_app, [path]).findings}
    assert found["WF021"] == fix


def test_an_app_that_is_wrapped_is_examined_without_it() -> None:
    report = examine(WSGIFast(wsgi_app), ["/str"])
    assert report.was_wrapped
    assert [finding.id for finding in report.findings] == ["WF011"]


OWN_DJANGO = """
from django.conf import settings
settings.configure(ROOT_URLCONF=__name__, SECRET_KEY="x")
from django.http import HttpResponse
from django.urls import path
from wsgifast.django import get_asgi_application
urlpatterns = [path("", lambda request: HttpResponse("page"))]
app = get_asgi_application()
"""


def test_only_asgifast_itself_is_taken_off_an_app(tmp_path: Path) -> None:
    """Not what else asgifast has: its files, and Django's handler in asgifast.django."""
    (tmp_path / "a.txt").write_text("a file")
    alone = asgifast.StaticFiles(directory=tmp_path)
    around = asgifast.StaticFiles(asgi_app, directory=tmp_path, prefix="/static/")
    assert unwrapped(asgifast.ASGIFast(around)) == (around, True)
    report = examine(alone, ["/a.txt"])
    assert not report.was_wrapped
    assert [seen.raw.status for seen in report.observations] == [200]
    (tmp_path / "own_django.py").write_text(OWN_DJANGO)
    command = [sys.executable, "-m", "wsgifast", "doctor", str(tmp_path / "own_django.py")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "1 endpoint: 1 good." in ran.stdout, ran.stderr


def test_an_app_that_does_not_start() -> None:
    with pytest.raises(WSGIFastError, match="no database"):
        examine(failing_asgi_app, ["/"])


def test_nothing_is_changed_without_unsafe() -> None:
    asked = [Endpoint("/good", "/good", "test", "POST"), Endpoint("/good", "/good", "test")]
    report = examine(wsgi_app, asked)
    assert len(report.observations) == 1
    assert [(left.method, "--unsafe" in left.reason) for left in report.unreached] == [
        ("POST", True)
    ]
    assert len(examine(wsgi_app, asked, unsafe=True).observations) == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"endpoints": ["no-slash"]}, "no-slash"),
        ({"endpoints": ["/good"], "silence": ["WF999"]}, "WF999"),
        ({}, "Name paths, as in: wsgifast doctor tests.doctor.apps / "),
    ],
)
def test_bad_input_is_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        examine(wsgi_app, **options)


def test_findings_can_be_silenced() -> None:
    assert not examine(wsgi_app, ["/str"], silence=["wf011"]).findings


def test_every_finding_is_explained() -> None:
    for finding_id, entry in CATALOGUE.items():
        text = explain(finding_id.lower())
        assert text.startswith(f"{finding_id} ({entry.severity}): {entry.title}"), finding_id
        assert entry.wsgifast in text, finding_id


# Apps that are as they should be, as their frameworks wrap them: path -> the findings allowed.
WELL_SHAPED = {
    "flask": ("/", "/download"),
    "falcon": ("/", "/download"),
    "bottle": ("/", "/download"),
    "starlette": ("/", "/download"),
    "fastapi": ("/", "/download", "/openapi.json"),
}


@pytest.mark.parametrize("framework", WELL_SHAPED)
def test_nothing_is_found_on_well_shaped_apps(framework: str) -> None:
    app = importlib.import_module(f"examples.{framework}_app").app
    report = examine(app, WELL_SHAPED[framework])
    assert not report.of("wrong", "slow"), as_text(report)
    assert report.good == len(WELL_SHAPED[framework])


def test_every_mistake_of_the_example_is_found() -> None:
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


def test_what_to_do_is_never_cut_off() -> None:
    from examples.mistakes import raw

    report = examine(raw, ["/letters", "/file-by-lines"])
    wide = as_text(report)
    assert all(f.what in wide and f.fix in wide for f in report.findings)
    narrow = as_text(report, width=60).splitlines()
    assert max(map(len, narrow)) <= 60
    for finding in report.findings:
        at = next(n for n, line in enumerate(narrow) if line.startswith(finding.id))
        assert narrow[at + 1] == f"       {finding.fix}"


def test_a_busy_machine_is_no_loop_that_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """The turns of the first two requests take long, and no other."""
    for module in (examination, judge):
        monkeypatch.setattr(module, "BLOCKED_S", 0.4)  # more than this machine may stand still
    asked = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal asked
        if scope["type"] != "http":
            raise RuntimeError("no lifespan")
        asked += 1
        if asked <= 2:
            time.sleep(0.5)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x"})

    report = examine(app, ["/"])
    assert not report.findings, as_text(report)
    assert asked > 2


def test_what_stands_before_an_endpoint_is_told_and_is_no_good_endpoint() -> None:
    answers = {
        "/account": ("302 Found", [("Location", "/login?next=/account")]),
        "/moved/": ("301 Moved Permanently", [("Location", "/moved")]),
        "/staff": ("403 Forbidden", []),
        "/item": ("404 Not Found", []),
        "/broken": ("500 Internal Server Error", []),
    }

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        status, headers = answers[environ["PATH_INFO"]]
        start_response(status, [*headers, ("Content-Length", "4")])
        return [b"text"]

    report = examine(app, list(answers))
    assert {each.name: each.reason for each in report.unreached} == {
        "/account": "302 to /login; --cookie or --header may help",
        "/staff": "403; --cookie or --header may help",
        "/item": "404",
    }
    assert [each.endpoint.url for each in report.observations] == ["/moved/", "/broken"]
    assert [(f.id, f.endpoint.url) for f in report.findings] == [("WF015", "/broken")]


def test_an_error_of_several_lines_is_told_in_one() -> None:
    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        raise ValueError("no such table\n  [SQL: SELECT 1]\n")

    (finding,) = examine(app, ["/"]).findings
    assert finding.what.startswith("ValueError: no such table [SQL: SELECT 1] (")
    assert "\n" not in finding.what


def test_what_an_app_says_does_not_act_on_the_terminal_nor_break_a_report() -> None:
    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        if environ["PATH_INFO"] == "/moved":
            start_response("302 Found", [("Location", "/\x9b31m")])
            return []
        raise ValueError("\x1b[31mred\0 \udcff")

    report = examine(app, ["/", "/moved"])
    assert len(report.findings) == len(report.unreached) == 1
    for form in (as_text, as_github, as_html):
        text = form(report)
        assert r"ValueError: \x1b[31mred\x00 \udcff (" in text
        assert text.replace("\n", "").isprintable()
    ElementTree.fromstring(as_junit(report))


def test_the_page_has_no_place_for_what_a_finding_has_not() -> None:
    """WF015 has neither a cost nor a way to fix it in each framework; WF011 has both."""
    without, with_both = (as_html(examine(wsgi_app, [path])) for path in ("/raises", "/str"))
    assert "<ul></ul>" not in without
    assert ". </p>" not in without
    assert "<p>a bare str. fails as it is</p>" in with_both
    assert "<ul><li>" in with_both


def test_an_app_that_blocks_the_loop_is_not_waited_for_at_the_end() -> None:
    end = threading.Event()
    ended = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await asgi_app(scope, receive, send)
        else:
            ended.append(end.wait(20.0))

    report = examine(app, ["/"], limit_s=0.2)
    assert [finding.id for finding in report.findings] == ["WF016"]
    assert report.findings[0].fix.endswith("--timeout allows more")
    assert not ended
    end.set()
    wait_for(
        lambda: all(thread.name != "wsgifast-doctor-loop" for thread in threading.enumerate()),
        "the loop has ended",
    )
