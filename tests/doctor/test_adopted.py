"""The doctor on apps that are wrapped as README says, with sessions and CORS: no findings."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import secrets
import subprocess
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
from starlette.responses import FileResponse, JSONResponse
from starlette.routing import Route

from tests.docs.blocks import adopted_lines, djangos_replaced
from tests.support.servers import ROOT
from wsgifast import WSGIFast
from wsgifast.commands.doctor import examine

_FLASK = """
import flask
import flask_cors

app = flask.Flask("shop", root_path=r"{folder}")
app.secret_key = "a"
flask_cors.CORS(app, supports_credentials=True, origins=["https://shop.example"])

@app.get("/")
def page():
    flask.session["seen"] = flask.session.get("seen", 0) + 1
    return flask.jsonify(items=["item"] * 500)

@app.get("/plain")
def plain():
    return "<p>page</p>" * 500

@app.get("/file")
def file():
    return flask.send_file(__file__)

"""
_FASTAPI = """
from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, HTMLResponse
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.staticfiles import StaticFiles

app = FastAPI()

@app.get("/")
def page(request: Request):
    request.session["seen"] = request.session.get("seen", 0) + 1
    return {"items": ["item"] * 500}

@app.get("/plain", response_class=HTMLResponse)
async def plain():
    return "<p>page</p>" * 500

@app.get("/file")
def file():
    return FileResponse(__file__)

app.mount("/static", StaticFiles(directory=r"{folder}/static"))
origins = ["https://shop.example"]
app.add_middleware(SessionMiddleware, secret_key="a")
app.add_middleware(CORSMiddleware, allow_origins=origins, allow_credentials=True)
"""
_DJANGO = """
from pathlib import Path

BASE_DIR = Path(r"{folder}")
SECRET_KEY = "secret"
ALLOWED_HOSTS = ["localhost"]
ROOT_URLCONF = "urls"
STATIC_URL = "static/"
STATICFILES_DIRS = [BASE_DIR / "static"]
SESSION_ENGINE = "django.contrib.sessions.backends.signed_cookies"
"""
# In place of README's "... your other apps" and "... your other middleware".
_OTHERS = """
INSTALLED_APPS.append("django.contrib.sessions")
MIDDLEWARE += [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
]
"""
_URLS = """
from django.http import FileResponse, HttpResponse, JsonResponse
from django.middleware.csrf import get_token
from django.templatetags.static import static
from django.urls import path

def page(request):
    request.session["seen"] = request.session.get("seen", 0) + 1
    return JsonResponse({"items": ["item"] * 500})

def plain(request):
    head = f"<link rel=stylesheet href={static('style.css')}>{get_token(request)}"
    return HttpResponse(head + "<p>page</p>" * 500)

def file(request):
    return FileResponse(open(__file__, "rb"))

urlpatterns = [path("", page), path("plain", plain), path("file", file)]
"""
_WSGI = """
import os
from django.core.wsgi import get_wsgi_application

os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
application = get_wsgi_application()
"""


def adopted(framework: str, folder: Path) -> str:
    """Write an app with README's exact lines, and a static folder. Return its name."""
    (folder / "static").mkdir()
    (folder / "static" / "style.css").write_text("body { color: black; }\n" * 500)
    (folder / "static" / "small.txt").write_text("small")
    own = {"Flask": _FLASK, "FastAPI": _FASTAPI, "Django": _DJANGO}[framework]
    lines = own.replace("{folder}", str(folder)) + adopted_lines(framework)
    if framework != "Django":
        (folder / "shop.py").write_text(lines)
        return "shop:app"
    (folder / "settings.py").write_text(lines + _OTHERS)
    (folder / "urls.py").write_text(_URLS)
    (folder / "wsgi.py").write_text(djangos_replaced(_WSGI))
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "settings", "PYTHONPATH": str(folder)}
    command = [sys.executable, "-m", "django", "collectstatic", "--no-input"]
    subprocess.run(command, cwd=folder, env=environment, check=True, timeout=60)
    return "wsgi"


@pytest.mark.parametrize(
    "requested",
    [("--all",), ("--all", "--https"), ("--all", "--header", "Origin: https://shop.example")],
)
@pytest.mark.parametrize("framework", ["Flask", "Django", "FastAPI"])
def test_doctor_finds_readmes_lines_in_order(
    framework: str, requested: tuple[str, ...], tmp_path: Path
) -> None:
    ended = doctor(adopted(framework, tmp_path), *requested, "--format=json", folder=tmp_path)
    report = json.loads(ended.stdout)
    assert {each["url"] for each in report["endpoints"]} >= {"/", "/plain", "/file"}
    assert any(each["url"].startswith("/static/") for each in report["endpoints"])
    # The app's own file response lacks a validator. Its wrapper adds one.
    fixed = [f for f in report["findings"] if f["fix"] == "nothing: the app's wrapper fixes it"]
    assert report["findings"] == fixed
    assert report["not_reached"] == []
    assert ended.returncode == 0


@pytest.mark.parametrize("framework", ["Flask", "Django", "FastAPI"])
def test_doctor_that_reached_no_view_fails(framework: str, tmp_path: Path) -> None:
    ended = doctor(adopted(framework, tmp_path), folder=tmp_path)
    assert ended.returncode == 2
    assert "no view, only files, was reached" in ended.stderr


def doctor(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "wsgifast", "doctor", *arguments],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip


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


def flask_app_without_vary() -> Any:
    app = flask.Flask("shop")
    app.add_url_rule("/", view_func=lambda: ["item"] * 500)
    app.wsgi_app = WSGIFast(app.wsgi_app, compress=True)  # type: ignore[method-assign]
    return app


def starlette_app_without_vary() -> Any:
    async def page(request: Any) -> JSONResponse:
        return JSONResponse(["item"] * 500)

    return ASGIFast(Starlette(routes=[Route("/", page)]), compress=True)


@pytest.mark.parametrize("is_outermost", [False, True])
def test_file_of_wrapped_asgi_app_is_not_slow(tmp_path: Path, is_outermost: bool) -> None:
    path = tmp_path / "large.bin"
    path.write_bytes(bytes(32 * 2**20))
    app: Any = Starlette(routes=[Route("/", lambda request: FileResponse(path))])
    if is_outermost:
        app = ASGIFast(app)
    else:
        app.add_middleware(ASGIFast)
    report = examine(app, ["/"])
    assert report.was_wrapped
    assert [(f.id, f.severity, f.fix) for f in report.findings if f.id == "WF031"] == [
        ("WF031", "info", "uvicorn --http asgifast.uvicorn:HttpToolsProtocol")
    ]


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


@pytest.mark.parametrize(
    "make", [flask_app, flask_app_without_vary, starlette_app, starlette_app_without_vary]
)
def test_app_wrapped_as_in_readme_is_not_wrong(make: Callable[[], Any]) -> None:
    report = examine(make(), ["/"], headers=[ORIGIN])
    assert report.observations
    assert [(f.id, f.what) for f in report.of("wrong")] == []


def test_random_padding_is_no_growth() -> None:
    # Random padding may make the wrapped app's responses larger, in both comparisons.
    padding = itertools.cycle([8, 100, 100, 8, 100, 8, 8, 100])

    def app(environ: Any, start_response: Any) -> list[bytes]:
        body, compressed = b"page" * 200, [("Vary", "Accept-Encoding")]
        if "gzip" in environ.get("HTTP_ACCEPT_ENCODING", ""):
            # A name in gzip's header, like the one that Django's and our middleware add.
            name = secrets.token_hex(next(padding) // 2).encode() + b"\0"
            body = b"\x1f\x8b\x08\x08" + bytes(6) + name + gzip.compress(body)[10:]
            compressed.append(("Content-Encoding", "gzip"))
        length = ("Content-Length", str(len(body)))
        start_response("200 OK", [*compressed, length, ("Content-Type", "text/html")])
        return [body]

    report = examine(app, ["/"])
    assert [finding.id for finding in report.findings] == []


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


def test_command_requests_https_with_its_option(tmp_path: Path) -> None:
    (tmp_path / "secure.py").write_text(
        "import flask\napp = flask.Flask(__name__)\n"
        "@app.before_request\ndef redirect():\n"
        "    if not flask.request.is_secure:\n        return flask.redirect('https://localhost/')\n"
        "@app.get('/')\ndef page():\n    return 'page'\n"
    )
    ended = doctor("secure:app", "/", folder=tmp_path)
    assert (ended.returncode, "--https may help" in ended.stderr) == (2, True)
    ended = doctor("secure:app", "/", "--https", folder=tmp_path)
    assert (ended.returncode, ended.stdout) == (0, "1 endpoint: 1 good.\n")
