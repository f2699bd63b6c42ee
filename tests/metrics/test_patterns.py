"""The URL patterns that frameworks have matched."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import bottle
import falcon
import flask
import pytest
from asgifast import ASGIFast
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Mount, Route

from tests.asgi.support import call, scope_of
from tests.support.notes import Notes
from tests.support.wsgi import Server, new_environ
from wsgifast import WSGIFast


def _pattern(app: Any, path: str, **options: Any) -> str | None:
    notes = Notes()
    Server(WSGIFast(app, metrics=notes, **options), new_environ(path=path)).finish()
    (request,) = notes.requests
    return request.pattern


def test_pattern_of_flask() -> None:
    app = flask.Flask(__name__)
    app.add_url_rule("/items/<int:number>", view_func=lambda number: str(number))
    app.add_url_rule("/lines", "lines", lambda: flask.Response(str(line) for line in range(100)))
    assert _pattern(app, "/items/7") == "/items/<int:number>"
    assert _pattern(app, "/lines") == "/lines"
    assert _pattern(app, "/nowhere") is None
    app.wsgi_app = WSGIFast(app.wsgi_app)  # type: ignore[method-assign]
    assert _pattern(app, "/items/7") == "/items/<int:number>"


def test_pattern_of_bottle() -> None:
    app = bottle.Bottle()
    app.route("/items/<number:int>", callback=lambda number: str(number))
    assert _pattern(app, "/items/7") == "/items/<number:int>"
    assert _pattern(app, "/nowhere") is None


def test_pattern_of_a_framework_that_is_loaded_late(monkeypatch: pytest.MonkeyPatch) -> None:
    app = bottle.Bottle()
    app.route("/", callback=lambda: "hello")
    notes = Notes()
    wrapped = WSGIFast(app, metrics=notes)
    with monkeypatch.context() as before:
        before.delitem(sys.modules, "bottle")
        Server(wrapped).finish()
    Server(wrapped).finish()
    assert [request.pattern for request in notes.requests] == [None, "/"]


def test_pattern_that_the_app_sets_is_recorded() -> None:
    class Item:
        def on_get(self, req: Any, resp: Any, number: str) -> None:
            resp.text = number

    class NotePattern:
        def process_resource(self, req: Any, resp: Any, resource: Any, params: Any) -> None:
            req.env["wsgifast.pattern"] = req.uri_template

    app = falcon.App(middleware=[NotePattern()])
    app.add_route("/items/{number}", Item())
    assert _pattern(app, "/items/7") == "/items/{number}"


def _asgi_pattern(app: Any, path: str) -> str | None:
    notes = Notes()
    call(ASGIFast(app, metrics=notes), scope_of(path=path))
    (request,) = notes.requests
    return request.pattern


async def _show(request: Request) -> PlainTextResponse:
    return PlainTextResponse(str(request.path_params))


def test_pattern_of_fastapi() -> None:
    from fastapi import APIRouter, FastAPI  # a third of a second, in each process that runs tests

    app = FastAPI()
    router = APIRouter(prefix="/shop")

    @router.get("/items/{number}")
    async def item(number: int) -> int:
        return number

    app.include_router(router)
    app.include_router(router, prefix="/towns/{town}")
    around = APIRouter(prefix="/all")
    around.include_router(router)
    app.include_router(around)
    app.mount("/in/{street}", app)
    assert _asgi_pattern(app, "/shop/items/7") == "/shop/items/{number}"
    assert _asgi_pattern(app, "/towns/x/shop/items/7") == "/towns/{town}/shop/items/{number}"
    assert _asgi_pattern(app, "/all/shop/items/7") == "/all/shop/items/{number}"
    assert _asgi_pattern(app, "/in/x/all/shop/items/7") == "/in/{street}/all/shop/items/{number}"
    assert _asgi_pattern(app, "/nowhere") is None


@pytest.mark.parametrize(
    ("path", "pattern"),
    [
        ("/items/7", "/items/{number}"),
        ("/shops/berlin/items/7", "/shops/{shop}/items/{number}"),
        ("/shops/7/items/7", "/shops/{shop}/items/{number}"),
        ("/shops/berlin/static/a/b.txt", "/shops/{shop}/static"),
    ],
)
def test_pattern_of_starlette(path: str, pattern: str) -> None:
    item = Route("/items/{number:int}", _show)

    async def files(scope: Any, receive: Any, send: Any) -> None:
        await PlainTextResponse("x")(scope, receive, send)

    shop = Mount("/shops/{shop}", routes=[item, Mount("/static", files)])
    app = Starlette(routes=[item, shop])
    assert _asgi_pattern(app, path) == pattern


def test_asgi_bodies_are_recorded_by_how_they_are_sent() -> None:
    async def lines(request: Request) -> StreamingResponse:
        async def generate() -> Any:
            for _ in range(3):
                yield b"x" * 100_000
                await asyncio.sleep(0)

        return StreamingResponse(generate())

    app = Starlette(routes=[Route("/", _show), Route("/lines", lines)])
    notes = Notes()
    for path in ("/", "/lines"):
        call(ASGIFast(app, metrics=notes), scope_of(path=path))
    assert [request.sent_as for request in notes.requests] == ["as-is", "stream"]
    assert notes.requests[1].size == 300_000
