"""README's lines for each framework, added word for word to an app whose tests must pass."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import flask
import httpx
import pytest
from fastapi import Depends, FastAPI, Request
from fastapi.responses import FileResponse

from tests.docs.blocks import adopted_lines, djangos_replaced

PAGE = "a line of a page\n" * 500
GZIP = {"Accept-Encoding": "gzip"}


@pytest.fixture
def flask_app() -> flask.Flask:
    app = flask.Flask("shop")
    app.config["PAGE"] = PAGE
    app.add_url_rule("/", "page", lambda: flask.current_app.config["PAGE"])
    app.cli.command("hello")(lambda: print("hello"))
    exec(adopted_lines("Flask"), {"app": app})
    return app


def test_flask_lines_compress_a_page(flask_app: flask.Flask) -> None:
    response = flask_app.test_client().get("/", headers=GZIP)
    assert response.headers["Content-Encoding"] == "gzip"
    assert len(response.data) < len(PAGE)


def test_flask_lines_keep_the_apps_own_tests_green(flask_app: flask.Flask) -> None:
    flask_app.config.update(TESTING=True, PAGE="of the test")
    assert flask_app.test_client().get("/").text == "of the test"
    with flask_app.test_request_context("/"):
        assert flask.url_for("page") == "/"
    assert flask_app.test_cli_runner().invoke(args=["hello"]).output == "hello\n"


def _database() -> str:
    return "the real one"


@pytest.fixture
def fastapi_app() -> FastAPI:
    app = FastAPI(title="Shop")
    app.state.limit = 3

    @app.get("/page")
    def page() -> dict[str, str]:
        return {"page": PAGE}

    @app.get("/database")
    def database(request: Request, name: str = Depends(_database)) -> list[Any]:
        return [name, request.app.state.limit]

    @app.get("/source")
    def source() -> FileResponse:
        return FileResponse(__file__)

    exec(adopted_lines("FastAPI"), {"app": app})
    return app


def _get(app: FastAPI, path: str, headers: dict[str, str] | None = None) -> httpx.Response:
    async def get() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            return await client.get(path, headers=headers)

    return asyncio.run(get())


def test_fastapi_lines_compress_and_answer_ranges(fastapi_app: FastAPI) -> None:
    response = _get(fastapi_app, "/page", GZIP)
    assert response.headers["Content-Encoding"] == "gzip"
    assert response.json() == {"page": PAGE}
    part = _get(fastapi_app, "/source", {"Range": "bytes=0-9"})
    assert (part.status_code, part.content) == (206, Path(__file__).read_bytes()[:10])


def test_fastapi_lines_keep_the_apps_attributes(fastapi_app: FastAPI) -> None:
    added = ["/page", "/database", "/source"]
    assert [getattr(route, "path", "") for route in fastapi_app.routes][-3:] == added
    assert [*fastapi_app.openapi()["paths"]] == added
    fastapi_app.dependency_overrides[_database] = lambda: "a fake"
    fastapi_app.state.limit = 7
    fastapi_app.add_api_route("/later", lambda: "added")
    assert _get(fastapi_app, "/database").json() == ["a fake", 7]
    assert _get(fastapi_app, "/later").json() == "added"
    assert _get(fastapi_app, "/openapi.json").json()["info"]["title"] == "Shop"


_SETTINGS = """
from pathlib import Path

BASE_DIR = Path(__file__).parent
SECRET_KEY = "secret"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "urls"
STATIC_URL = "static/"
STATICFILES_DIRS = [BASE_DIR / "assets"]
"""
_URLS = f"""
from django.http import HttpResponse
from django.templatetags.static import static
from django.urls import path

urlpatterns = [
    path("", lambda request: HttpResponse({PAGE!r})),
    path("style", lambda request: HttpResponse(static("style.css"))),
]
"""
_TESTS = """
from django.test import SimpleTestCase, override_settings
from wsgi import application  # of the Django project


class ShopTest(SimpleTestCase):
    def test_page(self):
        self.assertContains(self.client.get("/"), "a line of a page")

    def test_static_file_has_its_hash(self):
        url = self.client.get("/style").content.decode()
        self.assertRegex(url, r"^/static/style\\.[0-9a-f]{12}\\.css$")
        response = self.client.get(url)
        self.assertEqual(response.status_code, 200)
        self.assertIn("immutable", response["Cache-Control"])

    @override_settings(ROOT_URLCONF="urls", DEBUG=True)
    def test_changed_settings(self):
        self.assertEqual(self.client.get("/missing").status_code, 404)

    def test_application_compresses(self):
        from werkzeug.test import Client

        response = Client(application).get("/", headers={"Accept-Encoding": "gzip"})
        self.assertEqual(response.headers["Content-Encoding"], "gzip")
"""
_WSGI = """
import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
application = get_wsgi_application()
"""


def test_django_lines_keep_the_projects_tests_green(tmp_path: Path) -> None:
    """Django's own test runner, after collectstatic and the checks."""
    files = {
        "settings.py": _SETTINGS + adopted_lines("Django"),
        "urls.py": _URLS,
        "wsgi.py": djangos_replaced(_WSGI),
        "tests.py": _TESTS,
        "assets/style.css": "body { color: black; }\n" * 100,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(text))
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "settings", "PYTHONPATH": str(tmp_path)}
    for command in ("collectstatic --no-input", "check --fail-level WARNING", "test tests"):
        done = subprocess.run(
            [sys.executable, "-m", "django", *command.split()],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    assert [*(tmp_path / "staticfiles").glob("style.*.css.gz")]
    assert "Ran 4 tests" in done.stderr
