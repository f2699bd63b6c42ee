"""A Flask app with its own metrics, and with data for each panel of a dashboard."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import flask
import prometheus_client

from wsgifast import WSGIFast

flask_app = flask.Flask(__name__)
orders = prometheus_client.Counter("orders", "Orders.")


@flask_app.route("/page/<int:number>")
def page(number: int) -> str:
    orders.inc()
    return "page " * 200


@flask_app.route("/crumbs")
def crumbs() -> flask.Response:
    return flask.Response([b"crumb"] * 1000)


@flask_app.route("/file")
def file() -> flask.Response:
    return flask.send_file(Path(__file__).resolve().parents[2] / "CHANGELOG.md")


@flask_app.route("/broken")
def broken() -> str:
    raise ValueError("this endpoint is broken")


def _app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    if environ["PATH_INFO"] == "/short":
        start_response("200 OK", [("Content-Length", "10")])
        return iter([b"short"])
    return flask_app(environ, start_response)


app = WSGIFast(_app, metrics="prometheus")
