"""The findings about content codings, and about bodies of requests."""

from __future__ import annotations

import gzip
import itertools
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import asgifast
import flask
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse
from starlette.routing import Route

from wsgifast import WSGIFast
from wsgifast.commands.doctor import Endpoint, Finding, Report, as_text, examine
from wsgifast.compression.codings import available_codings

TEXT = b"".join(b'{"id": %d, "name": "a name"}, ' % n for n in range(5000))
NOISE = bytes(range(256)) * 100


def answering(
    compressed: dict[str, str], own: dict[str, str] | None = None, body: bytes = TEXT
) -> Any:
    """Return an app that compresses responses to clients that accept gzip.

    :param compressed: headers that only the compressed response has.
    """

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        headers = {"Content-Type": "application/json", **(own or {})}
        sent = body
        if "gzip" in environ.get("HTTP_ACCEPT_ENCODING", ""):
            headers |= {"Content-Encoding": "gzip", "Vary": "Accept-Encoding", **compressed}
            sent = gzip.compress(body) if body is TEXT else b"0" * (len(body) + 20)
        fields = [(name, value) for name, value in headers.items() if value]
        start_response("200 OK", [*fields, ("Content-Length", str(len(sent)))])
        return [sent]

    return app


def found(report: Report) -> dict[str, Finding]:
    beside = ("WF010", "WF034")
    return {finding.id: finding for finding in report.findings if finding.id not in beside}


@pytest.mark.parametrize(
    ("app", "expected"),
    [
        (answering({}), None),
        (answering({"Vary": "Cookie, accept-encoding"}), None),
        (answering({"Vary": "*"}), None),
        (answering({"Vary": ""}), "WF027"),
        (answering({"Vary": "Cookie"}), "WF027"),
        (answering({"Vary": ""}, {"Cache-Control": "max-age=3, Private"}), None),
        (answering({"Content-Encoding": "gzip, br"}), "WF026"),
        (answering({}, {"Content-Type": "image/png"}, NOISE), "WF026"),
        (answering({}, {"Content-Type": "image/png"}, NOISE[:200]), None),
        (answering({}, {"ETag": '"a"'}), "WF028"),
        (answering({"ETag": '"a+gzip"'}, {"ETag": '"a"'}), None),
        (answering({}, {"ETag": 'W/"a"'}), None),
    ],
)
def test_compressed_response_is_judged_by_its_headers(app: Any, expected: str | None) -> None:
    report = examine(app, ["/"])
    assert list(found(report)) == [expected] * (expected is not None), as_text(report)


def test_large_uncompressed_text_is_found_with_sizes() -> None:
    app = flask.Flask(__name__, static_folder=None)
    app.add_url_rule("/large", "large", lambda: flask.Response(TEXT, mimetype="application/json"))
    app.add_url_rule("/small", "small", lambda: flask.Response(TEXT[:9000], mimetype="text/csv"))
    app.add_url_rule("/image", "image", lambda: flask.Response(NOISE, mimetype="image/png"))
    paths = ["/large", "/small", "/image"]
    (finding,) = found(examine(app, paths)).values()
    assert (finding.id, finding.severity, finding.endpoint.url) == ("WF025", "info", "/large")
    assert finding.what == "155.2 KiB of application/json, not compressed"
    assert finding.fix == "WSGIFast(app, compress=True)"
    first, *others = [
        f"{coding} [0-9.]+{' KiB' * (number == 0)} in [0-9.]+{' ms' * (number == 0)}"
        for number, coding in enumerate(available_codings())
    ]
    assert re.fullmatch(", ".join([first, *others]), finding.cost), finding.cost
    (fixed,) = found(examine(WSGIFast(app, compress=True), paths)).values()
    assert (fixed.id, fixed.fix) == ("WF025", "nothing: the app's wrapper fixes it")


def large(request: Request) -> JSONResponse:
    return JSONResponse([{"id": number, "name": "a name"} for number in range(5000)])


@pytest.mark.parametrize("wrap", [WSGIFast, asgifast.ASGIFast])
def test_wrapper_that_compresses_changes_nothing(wrap: Callable[..., Any]) -> None:
    app: Any = Starlette(routes=[Route("/", large)])
    if wrap is WSGIFast:
        app = flask.Flask(__name__, static_folder=None)
        app.add_url_rule("/", "text", lambda: flask.Response(TEXT, mimetype="text/plain"))
    report = examine(wrap(app, compress=True), ["/"])
    assert not report.of("wrong", "slow"), as_text(report)


def test_file_behind_compressing_middleware_is_found(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_bytes(TEXT)

    async def file(request: Request) -> FileResponse:
        return FileResponse(path)

    routes = [Route("/file", file), Route("/page", large)]
    app = Starlette(routes=routes, middleware=[Middleware(GZipMiddleware)])
    report = examine(app, ["/file", "/page"])
    slow = {finding.endpoint.url: finding for finding in report.of("slow")}
    assert {url: finding.id for url, finding in slow.items()} == {"/file": "WF029"}
    assert slow["/file"].saves_s > 0
    assert slow["/file"].cost.endswith(" ms in gzip")
    assert [(f.id, f.endpoint.url) for f in report.of("wrong")] == [("WF028", "/file")]


def test_file_with_precompressed_is_not_compressed(tmp_path: Path) -> None:
    (tmp_path / "data.json").write_bytes(TEXT)
    (tmp_path / "data.json.gz").write_bytes(gzip.compress(TEXT))
    report = examine(asgifast.StaticFiles(directory=tmp_path), ["/data.json"])
    assert not {"WF025", "WF026", "WF027", "WF028", "WF029"} & found(report).keys(), as_text(report)


async def save(request: Request) -> PlainTextResponse:
    return PlainTextResponse("saved")


def starlette_app() -> Starlette:
    posts = [Route(f"/save{n}", save, methods=["POST"]) for n in range(5)]
    return Starlette(
        routes=[Route("/", save), Route("/both", save, methods=["GET", "PUT"]), *posts]
    )


def limited_starlette_app() -> Starlette:
    app = starlette_app()
    app.max_body_size = 1_000_000  # type: ignore[attr-defined,unused-ignore]
    return app


def flask_app(limit: int | None) -> flask.Flask:
    app = flask.Flask(__name__, static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = limit
    app.add_url_rule("/save", "save", lambda: "saved", methods=["GET", "POST"])
    return app


def test_endpoints_taking_any_body_size_are_named() -> None:
    finding = found(examine(starlette_app()))["WF033"]
    assert finding.severity == "info"
    assert f"{finding.endpoint.method} {finding.endpoint.name}" == "PUT /both"
    others = ", ".join(f"POST /save{number}" for number in range(5))
    assert finding.what == f"accepts a body of any size, like {others}"
    assert found(examine(flask_app(None)))["WF033"].endpoint.name == "/save"


def test_limited_bodies_and_endpoints_are_not_found() -> None:
    only_gets = Starlette(routes=[Route("/", save)])
    named = [Endpoint("/save0", "/save0", "test", "POST")]
    for report in (
        examine(flask_app(1_000_000)),
        examine(limited_starlette_app()),
        examine(GZipMiddleware(limited_starlette_app())),
        examine(only_gets),
        examine(starlette_app(), ["/"]),
        examine(starlette_app(), named),
        examine(starlette_app(), found=lambda fetch: [*named]),
        examine(starlette_app(), silence=["WF033"]),
    ):
        assert "WF033" not in found(report)


def test_wrapper_with_a_body_limit_is_no_finding() -> None:
    wrapped = asgifast.ASGIFast(starlette_app(), body_limit_bytes=1_000_000)
    assert "WF033" not in found(examine(wrapped))
    assert "WF033" in found(examine(asgifast.ASGIFast(starlette_app())))


def _flask(**headers: str) -> Any:
    app = flask.Flask(__name__, static_folder=None)
    turns = itertools.count()
    texts = {
        "/same": lambda: TEXT,
        "/small": lambda: TEXT[:9000],
        "/changes": lambda: TEXT + b"%d" % next(turns),
    }
    for path, text in texts.items():
        view = partial(lambda make: flask.Response(make(), headers=headers), text)
        app.add_url_rule(path, path[1:], view)
    return app


def _starlette(**headers: str) -> Any:
    async def page(request: Request) -> JSONResponse:
        return JSONResponse(["a name"] * 5000, headers=headers)

    return Starlette(routes=[Route("/same", page)])


@pytest.mark.parametrize(("made", "wrap"), [(_flask, WSGIFast), (_starlette, asgifast.ASGIFast)])
def test_large_body_without_tag_is_found(made: Any, wrap: Any) -> None:
    def urls(app: Any) -> dict[str, str]:
        paths = ["/same", "/small", "/changes"] if made is _flask else ["/same"]
        found = examine(app, paths).findings
        return {each.endpoint.url: each.fix for each in found if each.id == "WF034"}

    assert urls(made()) == {"/same": f"{wrap.__name__}(app, etag=True)"}
    assert urls(wrap(made(), etag=True)) == {"/same": "nothing: the app's wrapper fixes it"}
    for header in ({"ETag": '"a"'}, {"Cache-Control": "no-store"}, {"Set-Cookie": "a=b"}):
        assert not urls(made(**header))
