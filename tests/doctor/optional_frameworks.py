"""One app for each framework that `pip install --group frameworks` brings: /doctor and an item."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def index() -> str:
    return "ok"


def item(number: int) -> str:
    return str(number)


async def async_index() -> str:
    return "ok"


async def async_item(number: int) -> str:
    return str(number)


def blacksheep() -> Any:
    app = import_module("blacksheep").Application()
    app.router.add_get("/doctor", index)
    app.router.add_get("/items/{int:number}", item)
    return app


def connexion() -> Any:
    def operation(name: str, *parameters: str) -> dict[str, Any]:
        listed = [
            {"name": each, "in": "path", "required": True, "schema": {"type": "integer"}}
            for each in parameters
        ]
        responses = {"200": {"description": "fine"}}
        where = f"{__name__}.{name}"
        return {"get": {"operationId": where, "parameters": listed, "responses": responses}}

    paths = {"/doctor": operation("index"), "/items/{number}": operation("item", "number")}
    app = import_module("connexion").AsyncApp(__name__)
    app.add_api({"openapi": "3.0.0", "info": {"title": "", "version": "1"}, "paths": paths})
    return app


def litestar() -> Any:
    theirs = import_module("litestar")
    get = theirs.get
    return theirs.Litestar([get("/doctor")(async_index), get("/items/{number:int}")(async_item)])


def quart() -> Any:
    app = import_module("quart").Quart(__name__)
    app.add_url_rule("/doctor", view_func=async_index)
    app.add_url_rule("/items/<int:number>", view_func=async_item)
    return app


def sanic() -> Any:
    theirs = import_module("sanic")
    app = theirs.Sanic("doctor")

    async def index(request: Any) -> Any:
        return theirs.text("ok")

    async def item(request: Any, number: int) -> Any:
        return theirs.text(str(number))

    app.add_route(index, "/doctor")
    app.add_route(item, "/items/<number:int>")
    return app
