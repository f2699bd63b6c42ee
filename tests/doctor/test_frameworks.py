"""Endpoints of frameworks, also behind middleware."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import flask
import pytest
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.urls.resolvers import RegexPattern
from starlette.applications import Starlette
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Host, Mount, Route

from tests.doctor.apps import parted
from tests.support import django_project
from wsgifast import WSGIFast
from wsgifast.commands.doctor import examine
from wsgifast.commands.doctor.frameworks import _django_pattern, from_framework


def flask_app() -> Any:
    app = flask.Flask(__name__, static_folder=None)
    app.add_url_rule("/", "index", lambda: "ok")
    app.add_url_rule("/user/<int:number>/<path:rest>", "user", lambda number, rest: rest)
    app.add_url_rule("/save", "save", lambda: "ok", methods=["POST"])
    return app


def starlette_app() -> Any:
    async def ok(request: Any) -> PlainTextResponse:
        return PlainTextResponse("ok")

    user = Mount("/user", routes=[Route("/{number:int}/{rest:path}", ok)])
    return Starlette(routes=[Route("/", ok), user, Route("/save", ok, methods=["POST"])])


@pytest.mark.parametrize("make", [flask_app, starlette_app])
def test_framework_routes_are_listed(make: Any) -> None:
    name, found, _ = from_framework(make(), {})
    endpoints, (left,) = parted(found)
    assert name == make.__name__.removesuffix("_app")
    assert {(e.method, e.url) for e in endpoints} == {("GET", "/"), ("POST", "/save")}
    assert "--value number=" in left.reason
    assert "--value rest=" in left.reason
    endpoints, unreached = parted(from_framework(make(), {"number": "3", "rest": "a b"}).found)
    assert "/user/3/a%20b" in {endpoint.url for endpoint in endpoints}
    assert not unreached


def test_framework_is_found_behind_middleware() -> None:
    app = flask_app()
    app.wsgi_app = WSGIFast(app.wsgi_app)
    assert from_framework(WSGIFast(app.wsgi_app), {})[0] == "flask"
    report = examine(app)
    assert (report.framework, report.was_wrapped) == ("flask", True)


def test_framework_is_found_in_closure_by_any_name() -> None:
    app = flask_app()

    def middleware(environ: Any, start_response: Any) -> Any:
        return app(environ, start_response)

    class Wrapper:
        def __init__(self) -> None:
            self.what_it_serves = middleware

        def __call__(self, environ: Any, start_response: Any) -> Any:
            return self.what_it_serves(environ, start_response)

    assert from_framework(Wrapper(), {})[0] == "flask"


def test_app_mounted_in_middleware_lists_its_routes() -> None:
    app = Starlette(routes=[Mount("/shop", app=GZipMiddleware(starlette_app()))])
    endpoints, unreached = parted(from_framework(app, {}).found)
    assert {(e.method, e.url) for e in endpoints} == {("GET", "/shop/"), ("POST", "/shop/save")}
    assert [left.name for left in unreached] == ["/shop/user/{number:int}/{rest:path}"]


def test_fastapi_routers_have_their_routes_listed() -> None:
    from fastapi import APIRouter, FastAPI  # a third of a second, in each process that runs tests

    def ok() -> str:
        return "ok"

    router, around, inner, app = APIRouter(prefix="/a"), APIRouter(), FastAPI(), FastAPI()
    router.get("/{number}")(ok)
    router.add_route("/plain", lambda request: PlainTextResponse("ok"))
    around.include_router(router)
    inner.include_router(around, prefix="/in")
    app.include_router(around, prefix="/v1")
    app.mount("/sub", inner)
    app.mount("/shop", GZipMiddleware(starlette_app()))
    app.websocket("/socket")(ok)
    name, listed, _ = from_framework(app, {})
    assert name == "fastapi"
    endpoints, unreached = parted(listed)
    of_shop = "/shop/user/{number:int}/{rest:path}"
    assert {left.name for left in unreached} == {"/v1/a/{number}", "/sub/in/a/{number}", of_shop}
    found = {each.url for each in endpoints}
    assert {"/openapi.json", "/v1/plain", "/sub/in/plain", "/shop/"} <= found
    assert not {"/shop", "/socket"} & found
    assert examine(app, values={"number": "3"}, all_endpoints=True).good > 5


def test_starlette_routes_beside_a_host_are_listed() -> None:
    app = Starlette(routes=[Host("other.example", starlette_app()), *starlette_app().routes])
    assert "/" in {endpoint.url for endpoint in parted(from_framework(app, {}).found)[0]}


def test_routes_added_at_startup_are_listed() -> None:
    @contextlib.asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        app.router.routes.append(starlette_app().routes[0])
        yield

    report = examine(Starlette(lifespan=lifespan), all_endpoints=True)
    assert [seen.endpoint.url for seen in report.observations] == ["/"]


@pytest.mark.filterwarnings("ignore")  # their own warnings, such as deprecations in their packages
def test_quart_routes_are_listed() -> None:
    if find_spec("quart") is None and not os.environ.get("CI"):
        pytest.skip("quart is not installed: .venv/bin/pip install --group frameworks")

    async def ok(**given: Any) -> str:
        return "ok"

    app = import_module("quart").Quart(__name__, static_folder=None)
    app.add_url_rule("/doctor", "doctor", ok)
    app.add_url_rule("/items/<int:number>", "item", ok)
    report = examine(app, all_endpoints=True)
    assert report.framework == "quart"
    assert [seen.endpoint.url for seen in report.observations] == ["/doctor"]
    assert [left.reason for left in report.unreached] == ["needs --value number=..."]


@pytest.mark.parametrize(
    ("pattern", "route"),
    [
        (r"^user/(\d+)/password/$", "user/<1>/password/"),
        (r"^(?P<year>\d{4})/(\w+)/(\w+)/?\Z", "<year>/<1>/<2>"),
    ],
)
def test_django_regular_expression_becomes_a_pattern(pattern: str, route: str) -> None:
    assert _django_pattern(RegexPattern(pattern)) == route


def test_django_patterns_are_listed() -> None:
    django_project.set_up()
    name, found, _ = from_framework(get_wsgi_application(), {})
    assert name == "django"
    endpoints, _ = parted(found)
    urls = [endpoint.url for endpoint in endpoints]
    views = [endpoint.url for endpoint in endpoints if not endpoint.evidence]
    assert views[:4] == ["/", "/votes.csv", "/ticks", "/documents/"]
    assert urls[0].startswith("/static/")
    assert endpoints[0].evidence


def test_django_behind_channels_is_found() -> None:
    if find_spec("channels") is None and not os.environ.get("CI"):
        pytest.skip("channels is not installed: .venv/bin/pip install --group frameworks")
    routing = import_module("channels.routing")
    django_project.set_up()
    app = routing.ProtocolTypeRouter({"websocket": starlette_app(), "http": get_asgi_application()})
    name, found, _ = from_framework(app, {})
    assert name == "django"
    assert "/votes.csv" in {endpoint.url for endpoint in parted(found)[0]}
