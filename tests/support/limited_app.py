"""A WSGI app that limits request bodies to LIMIT bytes."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import flask

from wsgifast import WSGIFast

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

LIMIT = 100_000

web = flask.Flask("limited")


@web.post("/whole")
def whole() -> str:
    return str(len(flask.request.get_data()))


@web.post("/caught")
def caught() -> tuple[str, int, dict[str, str]]:
    try:
        flask.request.get_data()
    except OSError:
        return "it failed", 200, {"Access-Control-Allow-Origin": "*", "ETag": '"1"'}
    return "good", 200, {}


@web.post("/lazy")
def lazy() -> flask.Response:
    source = flask.request.stream
    return flask.Response(str(len(source.read())) for _ in range(1))


@web.post("/unread")
def unread() -> str:
    return "unread"


def raw(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """Read to the end, and catch no exception."""
    if environ["PATH_INFO"] != "/raw":
        return web.wsgi_app(environ, start_response)
    size, most = 0, int(environ.get("CONTENT_LENGTH") or sys.maxsize)
    while block := environ["wsgi.input"].read(min(7000, most - size)):
        size += len(block)
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [str(size).encode()]


wsgi = WSGIFast(raw, body_limit_bytes=LIMIT)
