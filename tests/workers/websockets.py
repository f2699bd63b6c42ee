"""WebSockets under WSGI by two extensions of Flask, on gunicorn's socket."""

from __future__ import annotations

import os
from typing import Any

import flask
import flask_sock
import flask_socketio

sock_app = flask.Flask(__name__)
_sock = flask_sock.Sock(sock_app)


@_sock.route("/echo")
def echo(ws: Any) -> None:
    while (said := ws.receive()) != "bye":
        ws.send(said)


socketio_app = flask.Flask(__name__)
_socketio = flask_socketio.SocketIO(socketio_app, async_mode="threading")


@_socketio.on("say")
def say(said: str) -> None:
    flask_socketio.emit("said", said)


@sock_app.get("/")
@socketio_app.get("/")
def index() -> str:
    return f"a page of {os.getpid()}"
