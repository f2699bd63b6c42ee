"""Flask: its command line, static folders, and the promises of docs/how-to/flask.md."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable
from pathlib import Path

import flask
import pytest

from examples.flask_blueprints import wrap
from tests.support.servers import live_server
from wsgifast import WSGIFast

STYLE = b"body { color: red }\n"
LARGE = os.urandom(300_000)


def wrap_alone(app: flask.Flask) -> None:
    app.wsgi_app = WSGIFast(app.wsgi_app)  # type: ignore[method-assign]


@pytest.fixture(params=[wrap, wrap_alone])
def make_app(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., flask.Flask]:
    """Make an app with three static folders: its own, a blueprint's, and a nested blueprint's."""
    for folder in ("own", "shop", "inner"):
        (tmp_path / folder / "static").mkdir(parents=True)
        (tmp_path / folder / "static" / "style.css").write_bytes(folder.encode() + STYLE)
    (tmp_path / "shop" / "static" / "large.bin").write_bytes(LARGE)

    def make(max_age: object = None) -> flask.Flask:
        app = flask.Flask(__name__, static_folder=tmp_path / "own/static")
        app.config["SEND_FILE_MAX_AGE_DEFAULT"] = max_age
        shop = flask.Blueprint("shop", __name__, static_folder=tmp_path / "shop/static")
        inner = flask.Blueprint("inner", __name__, static_folder=tmp_path / "inner/static")
        shop.register_blueprint(inner, url_prefix="/inner")
        app.register_blueprint(shop, url_prefix="/shop")
        app.register_blueprint(shop, url_prefix="/again", name="again")
        missing = flask.Blueprint("missing", __name__, static_folder=tmp_path / "missing/static")
        app.register_blueprint(missing, url_prefix="/missing")
        request.param(app)
        return app

    return make


def test_every_static_folder_is_served(make_app: Callable[..., flask.Flask]) -> None:
    client = make_app().test_client()
    for path, folder in (
        ("/static/", "own"),
        ("/shop/static/", "shop"),
        ("/again/static/", "shop"),
        ("/shop/inner/static/", "inner"),
    ):
        response = client.get(f"{path}style.css", buffered=True)
        assert (response.status_code, response.data) == (200, folder.encode() + STYLE), path
        assert response.headers["Content-Type"] == "text/css; charset=utf-8"
        assert client.get(f"{path}nothing.css", buffered=True).status_code == 404
    part = client.get("/shop/static/large.bin", headers={"Range": "bytes=5-9"}, buffered=True)
    assert (part.status_code, part.data) == (206, LARGE[5:10])
    etag = client.get("/shop/static/large.bin", buffered=True).headers["ETag"]
    again = client.get("/shop/static/large.bin", headers={"If-None-Match": etag}, buffered=True)
    assert again.status_code == 304
    assert client.get("/missing/static/style.css", buffered=True).status_code == 404


@pytest.mark.parametrize(
    ("max_age", "seconds"),
    [(None, 0), (0, 0), (3600, 3600), (datetime.timedelta(hours=2), 7200)],
)
def test_send_file_max_age_default(
    make_app: Callable[..., flask.Flask], max_age: object, seconds: int
) -> None:
    client = make_app(max_age).test_client()
    for path in ("/static/style.css", "/shop/static/style.css"):
        cache_control = client.get(path, buffered=True).cache_control
        assert cache_control.max_age == seconds or (not seconds and cache_control.no_cache)


def test_flask_run() -> None:
    command = "python -m flask --app examples.flask_blueprints run --port {port}"
    with live_server(command.split()) as server:
        assert b"/polls/static/style.css" in server.get("/polls/").body
        style = server.get("/polls/static/style.css")
        assert style.header("Cache-Control") == "max-age=3600, public"
        part = server.get("/polls/static/style.css", headers=[("Range", "bytes=3-9")])
        assert (part.status, part.body) == (206, style.body[3:10])
