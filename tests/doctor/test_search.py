"""Which endpoints are requested: safe ones, and others only with permission."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import quote

import bottle
import flask
import pytest
from asgiref import wsgi as asgiref_wsgi
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles as StarletteFiles
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from whitenoise import WhiteNoise

import wsgifast
from tests.doctor.apps import parted
from tests.support.process import open_terminal
from tests.support.servers import ROOT
from wsgifast.commands.doctor import Endpoint, as_text, examine
from wsgifast.commands.doctor.endpoints import (
    filled,
    from_openapi,
    from_paths,
)

NAMES = ("/logout", "/createUser", "/startScan", "/list", "/", "/item/<int:id>", "/item/<id>/edit")


def counted_app(*rules: str, pages: dict[str, str] | None = None) -> tuple[Any, Counter[str]]:
    """Return a Flask app that counts its calls. Some of its views are pages."""
    app, calls = flask.Flask(__name__, static_folder=None), Counter[str]()

    def view(**given: str) -> str:
        calls[flask.request.path] += 1
        return (pages or {}).get(flask.request.path, "ok")

    for rule in rules:
        app.add_url_rule(rule, rule.replace(".", "_"), view)
    return app, calls


def reached(report: Any) -> set[str]:
    return {seen.endpoint.url for seen in report.observations}


def test_view_is_not_requested_by_default() -> None:
    app, calls = counted_app(*NAMES)
    report = examine(app)
    assert not calls
    assert not report.observations
    assert {left.name for left in report.unreached} == set(NAMES)
    assert "  5 not reached (may change something: --all requests it, too): GET /" in as_text(
        report
    )


def test_all_endpoints_requests_the_rest() -> None:
    app, calls = counted_app(*NAMES)
    report = examine(app, all_endpoints=True)
    assert reached(report) == set(calls) == {"/logout", "/createUser", "/startScan", "/list", "/"}


def test_allow_is_called_once_with_both_kinds(tmp_path: Path) -> None:
    (tmp_path / "app.css").write_text("a")
    requested = []

    def allow(safe: Any, rest: Any) -> bool:
        requested.append(([each.url for each in safe], [each.url for each in rest]))
        return False

    app, calls = counted_app("/logout")
    served = wsgifast.StaticFiles(app, directory=tmp_path, prefix="/static/")
    report = examine(served, all_endpoints=allow)
    assert requested == [(["/static/app.css"], ["/logout"])]
    assert reached(report) == {"/static/app.css"}
    assert not calls


def test_named_endpoint_is_requested() -> None:
    arguments: Any
    for arguments in (
        {"endpoints": ["/logout"]},
        {"endpoints": [Endpoint("/logout", "/logout", "test")]},
        {"found": lambda fetch: from_paths(["/logout"])},
        {"unsafe": True},
    ):
        app, calls = counted_app("/logout")
        examine(app, **arguments)
        assert calls, arguments


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path = tmp_path / "static"
    tmp_path.mkdir()
    (tmp_path / "js").mkdir()
    (tmp_path / "js/app one.js").write_text("a" * 2000)
    (tmp_path / "js/small.js").write_text("a")
    (tmp_path / "style.css").write_text("a" * 100)
    (tmp_path / ".hidden").write_text("a")
    (tmp_path / "style.css.gz").write_text("a")
    return tmp_path


def flask_static(folder: Path) -> Any:
    return flask.Flask(__name__, static_folder=str(folder))


def blueprint_static(folder: Path) -> Any:
    app = flask.Flask(__name__, static_folder=None)
    blueprint = flask.Blueprint("b", __name__, static_folder=str(folder), url_prefix="/b")
    app.register_blueprint(blueprint)
    return app


def starlette_mount(folder: Path) -> Any:
    inner = Mount("/static", StarletteFiles(directory=folder))
    return Starlette(routes=[Mount("/inner", routes=[inner])])


def our_mount(folder: Path) -> Any:
    import asgifast

    return Starlette(routes=[Mount("/static", asgifast.StaticFiles(directory=folder))])


def flask_in_starlette(folder: Path) -> Any:
    wsgi_to_asgi: Any = asgiref_wsgi.WsgiToAsgi
    return Starlette(routes=[Mount("/old", wsgi_to_asgi(flask_static(folder)))])


def flask_in_dispatcher(folder: Path) -> Any:
    other = flask.Flask("other", static_folder=None)
    return DispatcherMiddleware(other, {"/shop": flask_static(folder)})


STATIC = {
    flask_static: "/static/",
    blueprint_static: "/b/static/",
    starlette_mount: "/inner/static/",
    our_mount: "/static/",
    flask_in_starlette: "/old/static/",
    flask_in_dispatcher: "/shop/static/",
    lambda folder: WhiteNoise(bottle.Bottle(), str(folder), "w/"): "/w/",
    lambda folder: wsgifast.StaticFiles(bottle.Bottle(), directory=folder, prefix="/s"): "/s/",
}


@pytest.mark.filterwarnings("ignore")  # of frameworks
@pytest.mark.parametrize("make", STATIC)
def test_files_of_static_folders_are_requested(make: Any, folder: Path) -> None:
    prefix = STATIC[make]
    report = examine(make(folder))
    assert reached(report) == {f"{prefix}js/app%20one.js", f"{prefix}style.css"}, as_text(report)
    assert all(seen.raw.status == 200 for seen in report.observations)
    assert all(seen.endpoint.evidence for seen in report.observations)


def test_all_option_requests_no_guessed_value() -> None:
    app, calls = counted_app("/", "/item/<int:id>", pages={"/": '<a href="/item/7">'})
    report = examine(app, all_endpoints=True)
    assert set(calls) == {"/"}
    (left,) = report.unreached
    assert (left.name, left.reason) == ("/item/<int:id>", "needs --value id=...")


def test_all_option_requests_the_root_without_routes() -> None:
    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("200 OK", [("Content-Type", "text/html"), ("Content-Length", "20")])
        return [b'<a href="/b"></a>'.ljust(20)]

    assert reached(examine(app, all_endpoints=True)) == {"/"}


texts = st.text(st.characters(categories=["L", "N", "P", "Zs"]), min_size=1, max_size=12)


@given(texts, st.sampled_from(["/a/<{}>", "/a/{{{}}}/b", "/é/<int:{}>.txt", "/x/{{{}:path}}"]))
def test_filled_pattern_is_a_path_with_the_value(value: str, form: str) -> None:
    endpoint = filled(form.format("name"), {"name": value}, "test", "GET")
    assert isinstance(endpoint, Endpoint)
    from_paths([endpoint.url])

    assert quote(value, safe="/") in endpoint.url


ITEMS = {"type": "array", "items": {"$ref": "#/components/schemas/Item"}}
JSON_ITEMS = {"description": "", "content": {"application/json": {"schema": ITEMS}}}
READS: dict[str, Any] = {"responses": {"200": JSON_ITEMS}}


@pytest.mark.parametrize(
    ("item", "is_read_only"),
    [
        ({"get": READS}, True),
        ({"get": {"responses": {"200": JSON_ITEMS, "404": {"description": ""}}}}, True),
        ({"get": {"responses": {200: {"content": {"image/png": {}}}}}}, True),
        ({"get": {"responses": {"200": {"schema": ITEMS}}}}, False),
        ({"get": {"responses": {"200": {"$ref": "#/components/responses/Items"}}}}, True),
        ({"get": READS, "post": {"summary": "Add one"}}, True),
        # A method is not evidence.
        ({"get": {}}, False),
        ({"get": {"responses": {"200": {"description": "done"}}}}, False),
        ({"get": {"responses": {"200": {"content": {"application/json": {"schema": {}}}}}}}, False),
        ({"get": {"responses": {"200": {"content": {"text/html": {"schema": ITEMS}}}}}}, False),
        ({"get": {"responses": {"200": {"$ref": "#/components/nothing"}}}}, False),
        ({"get": {**READS, "requestBody": {}}}, False),
        ({"get": {**READS, "parameters": [{"in": "body", "name": "x"}]}}, False),
        ({"get": {"responses": {"200": JSON_ITEMS, "202": {"description": ""}}}}, False),
        # The same operation by two methods, like Subsonic's createUser.
        ({"get": {**READS, "summary": "New user"}, "post": {"summary": "New user"}}, False),
        ({"post": READS}, False),
        ({"delete": READS}, False),
    ],
)
def test_openapi_operation_that_only_returns_is_safe(
    tmp_path: Path, item: dict[str, Any], is_read_only: bool
) -> None:
    path = tmp_path / "openapi.json"
    components = {"responses": {"Items": JSON_ITEMS}}
    path.write_text(json.dumps({"paths": {"/items": item}, "components": components}))
    endpoints, _ = parted(from_openapi(str(path), {}, lambda path: b""))
    assert [bool(each.evidence) for each in endpoints][:1] == [is_read_only]


APP = """
import atexit, sys
from flask import Flask
app = Flask(__name__, static_folder="static")
calls = []
@app.get("/logout")
def logout():
    calls.append("logout")
    return "x"
@atexit.register
def report():
    print("requested:", calls, file=sys.stderr)
"""


def on_a_terminal(folder: Path, response: bytes, *arguments: str) -> tuple[int, str]:
    """Run the doctor on a terminal where a user answers."""
    primary, secondary = open_terminal(columns=100)
    (folder / "shop.py").write_text(APP)
    (folder / "static").mkdir(exist_ok=True)
    (folder / "static/a.css").write_text("a")
    os.write(primary, response)  # it waits there to be read
    process = subprocess.Popen(
        [sys.executable, "-m", "wsgifast", "doctor", "shop:app", *arguments],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=secondary, stdout=secondary, stderr=secondary,
    )  # fmt: skip
    os.close(secondary)
    shown = b""
    while True:
        try:
            data = os.read(primary, 65536)
        except OSError:  # the last program has closed it
            break
        if not data:
            break
        shown += data
    os.close(primary)
    return process.wait(60), shown.decode()


def test_person_on_a_terminal_confirms_the_paths(tmp_path: Path) -> None:
    status, shown = on_a_terminal(tmp_path, b"y\n")
    before, _, after = shown.partition("? [y/N]")
    assert "GET /static/a.css: a file of a folder that the app serves" in before
    assert "Endpoints that may change data: 1\r\n  GET /logout\r\n" in before
    assert "2 endpoints: 2 good" in after
    assert "'logout'" in after
    assert status == 0
    for response in (b"\n", b"n\n", b"\x04"):
        status, shown = on_a_terminal(tmp_path, response)
        assert "requested: []" in shown
        assert "1 not reached (may change something" in shown


def test_named_paths_need_no_confirmation(tmp_path: Path) -> None:
    for arguments in (["/logout"], ["--all"]):
        status, shown = on_a_terminal(tmp_path, b"", *arguments)
        assert status == 0
        assert "[y/N]" not in shown
        assert "'logout'" in shown


def test_nothing_is_confirmed_without_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    command = [sys.executable, "-m", "wsgifast", "doctor", str(tmp_path / "shop.py")]
    ran = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60
    )
    assert ran.returncode == 2
    assert "1 not reached (may change something: --all requests it, too): GET /logout" in ran.stdout
    assert "nothing was reached (may change something: --all requests it, too): " in ran.stderr
    assert "requested: []" in ran.stderr
    assert subprocess.run([*command, "--all"], cwd=ROOT, capture_output=True).returncode == 0
