"""Endpoints from files and documents. Each one that is not reached is reported."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import flask
import pytest
from asgifast.json_log import JSONFormatter
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from tests.doctor.apps import parted
from wsgifast import ConfigurationError
from wsgifast.commands.doctor import as_text, examine
from wsgifast.commands.doctor.endpoints import from_access_log, from_openapi
from wsgifast.commands.doctor.model import Found


def test_access_log_names_paths_and_their_counts(tmp_path: Path) -> None:
    path = tmp_path / "log"
    line = '10.0.0.1 - bob [22/Nov/2026:10:00:00 +0000] "{}" {} 12'
    path.write_text(
        "\n".join(
            [
                line.format("GET /often?x=1 HTTP/1.1", 200),
                line.format("GET /often?x=1 HTTP/1.1", 206) + ' "http://ref/" "Agent/1.0 (x)"',
                line.format("GET /once HTTP/1.1", 304),
                line.format("GET /missing HTTP/1.1", 404),
                line.format("GET //[::1 HTTP/1.1", 200),
                line.format("GET http://host/go?u=http://else/#top HTTP/1.1", 200),
                line.format("OPTIONS * HTTP/1.0", 200),
                "no such line",
            ]
        )
    )
    endpoints, left = parted(from_access_log(str(path)))
    assert [(e.url, e.name, e.requests) for e in endpoints] == [
        ("/often?x=1", "/often", 2),
        ("/once", "/once", 1),
        ("//[::1", "//[::1", 1),
        ("/go?u=http://else/", "/go", 1),
    ]
    assert not left
    _, left = parted(from_access_log(str(path), max_paths=1))
    assert "most frequent" in left[0].reason
    path.write_text("nothing\n")
    with pytest.raises(ConfigurationError, match="log format"):
        from_access_log(str(path))


@pytest.mark.parametrize(
    "line",
    [
        '{"time":"2026-11-22T10:00:00.000Z","client.address":"10.0.0.1","url.scheme":"http",'
        '"http.request.method":"GET","url.path":"/items","url.query":"page=2",'
        '"http.response.status_code":200,"wsgifast.duration_us":812}',
        'INFO:     127.0.0.1:50000 - "GET /items?page=2 HTTP/1.1" 200 OK',
    ],
)
def test_access_log_of_uvicorn_and_json_is_read(tmp_path: Path, line: str) -> None:
    path = tmp_path / "log"
    other = ['{"process.pid":1,"message":"started"}', '{"url.path":"/x"}', "{", "INFO: Started"]
    path.write_text("\n".join([line, *other, line]))
    (endpoint,), left = parted(from_access_log(str(path)))
    assert (endpoint.method, endpoint.url, endpoint.requests) == ("GET", "/items?page=2", 2)
    assert not left


def test_access_log_of_our_own_logger_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = ("127.0.0.1:5", "GET", "/a%20b?c", "1.1", 200)
    record = logging.LogRecord("uvicorn.access", logging.INFO, "", 0, "", args, None)
    path = tmp_path / "log"
    path.write_text(JSONFormatter().format(record))
    assert [each.url for each in parted(from_access_log(str(path)))[0]] == ["/a%20b?c"]


@pytest.mark.parametrize(
    ("described", "url"),
    [
        ({"servers": [{"url": "/api/v1"}]}, "/api/v1/items"),
        ({"servers": [{"url": "https://api.example/v2/"}, {"url": "/other"}]}, "/v2/items"),
        ({"servers": [{"url": "./v3"}]}, "/described/v3/items"),
        ({"servers": [{"url": "https://api.example"}]}, "/items"),
        ({"servers": []}, "/items"),
        (
            {
                "servers": [
                    {
                        "url": "{protocol}://{host}/{base}",
                        "variables": {
                            "protocol": {"default": "https"},
                            "host": {"default": "a.example"},
                            "base": {"default": "v4"},
                        },
                    }
                ]
            },
            "/v4/items",
        ),
        ({"swagger": "2.0", "basePath": "/v5"}, "/v5/items"),
    ],
)
def test_openapi_servers_are_prefixes(described: dict[str, Any], url: str) -> None:
    document = {**described, "paths": {"/items": {"get": {}}}}
    fetch = json.dumps(document).encode()
    (endpoint,), _ = parted(from_openapi("/described/openapi.json", {}, lambda path: fetch))
    assert (endpoint.url, endpoint.name) == (url, url)


def test_openapi_servers_of_an_operation_are_a_prefix() -> None:
    item = {"servers": [{"url": "/of-path"}], "get": {}, "head": {"servers": [{"url": "/of-head"}]}}
    document = {"servers": [{"url": "/of-all"}], "paths": {"/a": item, "/b": {"get": {}}}}
    endpoints, _ = parted(from_openapi("/d", {}, lambda path: json.dumps(document).encode()))
    assert [each.url for each in endpoints] == ["/of-path/a", "/of-head/a", "/of-all/b"]


FROM_FILES: dict[str, Callable[[str], Found]] = {
    "--access-log": from_access_log,
    "--openapi": lambda path: from_openapi(path, {}, lambda path: b""),
}


@pytest.mark.parametrize("option", FROM_FILES)
def test_file_without_endpoints_is_refused(tmp_path: Path, option: str) -> None:
    """Each error names the option, the file and the fault."""
    empty, binary = tmp_path / "empty", tmp_path / "binary"
    empty.touch()
    binary.write_bytes(bytes(range(256)))
    for path, reason in (
        (tmp_path / "missing", "No such file or directory$"),
        (tmp_path, "Is a directory$"),
        (empty, "no |Expecting value"),
        (binary, "no |Expecting value"),
    ):
        given = os.path.relpath(path)
        with pytest.raises(ConfigurationError, match=f"^{option} {given}: .*({reason})"):
            FROM_FILES[option](given)


def test_openapi_operations_are_endpoints(tmp_path: Path) -> None:
    example = {"name": "id", "in": "path", "example": 7}
    described = {
        "paths": {
            "/items/{id}": {"get": {"parameters": [example]}, "post": {}},
            "/other/{name}": {"get": {}},
        }
    }
    path = tmp_path / "openapi.json"
    path.write_text(json.dumps(described))

    def fetch(path: str) -> bytes:
        assert path == "/openapi.json"
        return json.dumps(described).encode()

    for source in (str(path), "/openapi.json"):
        endpoints, unreached = parted(from_openapi(source, {}, fetch))
        assert [(e.method, e.url) for e in endpoints] == [("GET", "/items/7")]
        assert {(left.method, left.name) for left in unreached} == {
            ("POST", "/items/{id}"),
            ("GET", "/other/{name}"),
        }


@pytest.mark.parametrize(
    ("text", "said"),
    [(b'{"paths": {}}', "it describes no operation"), (b"[]", "is not an OpenAPI document")],
)
def test_openapi_without_operations_is_refused(text: bytes, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        from_openapi("/described", {}, lambda path: text)


def test_app_that_describes_itself_is_started_once() -> None:
    started = []

    @contextlib.asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        started.append(app)
        yield

    async def described(request: Any) -> JSONResponse:
        if request.headers.get("Authorization") != "Bearer x":
            return JSONResponse({"detail": "who are you?"}, status_code=401)
        response = {"description": "", "content": {"application/json": {"schema": {"$ref": "#/x"}}}}
        return JSONResponse({"paths": {"/described": {"get": {"responses": {"200": response}}}}})

    app = Starlette(routes=[Route("/describes", described)], lifespan=lifespan)
    report = examine(
        app,
        found=lambda fetch: from_openapi("/describes", {}, fetch),
        headers=[("Authorization", "Bearer x")],
    )
    assert "/described" in {left.name for left in report.unreached}  # there is no such route
    assert len(started) == 1
    with pytest.raises(ConfigurationError, match=r"answers 401 to GET /describes.*--header"):
        examine(app, found=lambda fetch: from_openapi("/describes", {}, fetch))


def test_slow_self_description_is_reported() -> None:
    async def described(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.sleep(60)

    app = Starlette(routes=[Mount("/described", described)])
    with pytest.raises(ConfigurationError, match=r"nothing within 0.1 s to GET .* --timeout"):
        examine(app, found=lambda fetch: from_openapi("/described/", {}, fetch), limit_s=0.1)


def test_unreached_endpoints_are_grouped_by_reason() -> None:
    app = flask.Flask(__name__, static_folder=None)
    for number in range(5):
        app.add_url_rule(f"/save{number}", str(number), lambda: "ok", methods=["POST"])
    for number in range(9):
        app.add_url_rule(f"/{number}/<name>", f"user{number}", lambda name: name)
    assert as_text(examine(app, silence=["WF033"])).splitlines()[1:] == [
        "  5 not reached (its method changes something: --unsafe requests it, too): POST /save0, "
        "POST /save1, POST /save2 and 2 more",
        "  9 not reached (needs --value name=...): GET /0/<name>, GET /1/<name>, GET /2/<name> "
        "and 6 more",
    ]
