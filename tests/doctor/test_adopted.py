"""The doctor on apps that are wrapped as README says, with sessions and CORS: nothing is wrong."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flask
import flask_cors
import pytest
from asgifast import ASGIFast
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.httpsredirect import HTTPSRedirectMiddleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import JSONResponse
from starlette.routing import Route

from wsgifast import WSGIFast
from wsgifast.commands.cli import main
from wsgifast.commands.doctor import examine

ORIGIN = ("Origin", "https://shop.example")


def flask_app() -> Any:
    app = flask.Flask("shop")
    app.secret_key = "a"
    flask_cors.CORS(app, supports_credentials=True, origins=[ORIGIN[1]])

    @app.get("/")
    def page() -> Any:
        flask.session["seen"] = 1
        response = flask.jsonify(items=["item"] * 500)
        response.headers.add("Vary", "Accept-Language")
        return response

    app.wsgi_app = WSGIFast(app.wsgi_app, compress=True)  # type: ignore[method-assign]
    return app


def starlette_app(*more: Middleware, **responses: Any) -> Any:
    async def page(request: Any) -> JSONResponse:
        request.session["seen"] = 1
        headers = {"Vary": "Accept-Language, Cookie"}
        return JSONResponse({"items": ["item"] * 500}, headers=headers, **responses)

    middleware = [
        *more,
        Middleware(SessionMiddleware, secret_key="a"),
        Middleware(CORSMiddleware, allow_origins=[ORIGIN[1]], allow_credentials=True),
    ]
    return ASGIFast(Starlette(routes=[Route("/", page)], middleware=middleware), compress=True)


@pytest.mark.parametrize("make", [flask_app, starlette_app])
def test_app_wrapped_as_readme_says_has_no_wrong_finding(make: Callable[[], Any]) -> None:
    report = examine(make(), ["/"], headers=[ORIGIN])
    assert report.observations
    assert [(f.id, f.what) for f in report.of("wrong")] == []


@pytest.mark.parametrize(
    ("app", "is_hinted"),
    [
        (lambda: starlette_app(status_code=400), False),
        (lambda: starlette_app(Middleware(TrustedHostMiddleware, allowed_hosts=["a.b"])), True),
    ],
)
def test_hint_about_host_is_for_a_refused_host(app: Callable[[], Any], is_hinted: bool) -> None:
    (left,) = examine(app(), ["/"]).unreached
    assert ("Host" in left.reason) is is_hinted


@pytest.mark.parametrize("half", ["WSGI", "ASGI"])
def test_app_that_redirects_http_is_reached_by_https(half: str) -> None:
    if half == "WSGI":
        app: Any = flask.Flask("shop")

        def redirect() -> Any:
            return None if flask.request.is_secure else flask.redirect("https://localhost/")

        app.before_request(redirect)
        app.add_url_rule("/", "page", lambda: "page")
    else:
        app = starlette_app(Middleware(HTTPSRedirectMiddleware))
    assert not examine(app, ["/"]).observations
    assert examine(app, ["/"], scheme="https").observations


def test_static_file_alone_is_not_an_endpoint_that_was_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "static").mkdir()
    (tmp_path / "static" / "a.txt").write_text("a")
    (tmp_path / "onlystatic.py").write_text(
        "import flask\napp = flask.Flask(__name__)\n@app.get('/')\ndef page():\n    return 'a'\n"
    )
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert main(["doctor", str(tmp_path / "onlystatic.py")]) == 2
    assert "nothing was reached" in capsys.readouterr().err
