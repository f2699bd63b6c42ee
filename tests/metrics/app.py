"""A Flask app with metrics of its own, for live tests."""

from __future__ import annotations

import flask
import prometheus_client

from wsgifast import WSGIFast

orders = prometheus_client.Counter("orders", "Orders.")
flask_app = flask.Flask(__name__)


@flask_app.get("/items/<int:number>")
def item(number: int) -> str:
    orders.inc()
    return "x" * number


@flask_app.get("/lines")
def lines() -> flask.Response:
    return flask.Response([f"{number}\n" for number in range(1000)])


app = WSGIFast(flask_app, metrics="prometheus")
