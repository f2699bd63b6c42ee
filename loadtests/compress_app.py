"""Provide apps whose responses are compressed by the package that COMPRESS names.

COMPRESS is an environment variable. `flask_app` and `asgi_app` have the same bodies: /json (about
800 kB), /html (60 kB), /small (3 kB), /csv and /ndjson (streams of rows), /events (a hundred HTML
fragments, 3 ms apart), /script.js (a file).
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

CONTENDER = os.environ.get("COMPRESS", "raw")
_ROWS = 5_000
_EVENTS, _BETWEEN_EVENTS_S = 100, 0.003
_LIST = [
    {
        "id": number,
        "name": f"item {number * 7919 % 10_007}",
        "price": number * 37 % 997 / 10,
        "tags": ["new", "sale", "blue"][: number % 4],
        "description": "A thing of some use in the house and in the garden",
        "seller": {"id": number % 97, "country": "DE"},
    }
    for number in range(_ROWS)
]
JSON = json.dumps(_LIST[:4700]).encode()
_ROW = '<tr><td>{id}</td><td><a href="/items/{id}">{name}</a></td><td>{price}</td></tr>\n'
HTML = ("<table>" + "".join(_ROW.format(**item) for item in _LIST[:800]) + "</table>").encode()
SMALL = HTML[:3000]


def _script() -> Path:
    path = Path(tempfile.gettempdir()) / f"compress-{os.getuid()}" / "script.js"
    path.parent.mkdir(exist_ok=True)
    functions = (f"function f{n}(a, b) {{ return a * {n} + b[{n % 13}]; }}\n" for n in range(6000))
    text = "".join(functions)
    if not path.exists() or path.stat().st_size != len(text):
        path.write_text(text)
    return path


SCRIPT = _script()


def csv_rows() -> Iterator[bytes]:
    for item in _LIST:
        yield "{id},{name},{price}\n".format(**item).encode()


def json_lines() -> Iterator[bytes]:
    for item in _LIST[:2000]:
        yield json.dumps(item).encode() + b"\n"


def event(number: int) -> bytes:
    """Return an event with a fragment of a page, like those of Datastar."""
    item = _LIST[number]
    row = _ROW.format(**item).rstrip()
    return f'event: patch\ndata: <div id="row-{number}" class="row new">{row}</div>\n\n'.encode()


def events() -> Iterator[bytes]:
    for number in range(_EVENTS):
        yield event(number)
        time.sleep(_BETWEEN_EVENTS_S)


_HTML = "text/html; charset=utf-8"
# Maps each path to its body, or to a function that yields the rows of the body, and to the
# Content-Type.
_BODIES: dict[str, tuple[Any, str]] = {
    "/json": (JSON, "application/json"),
    "/html": (HTML, _HTML),
    "/small": (SMALL, _HTML),
    "/csv": (csv_rows, "text/csv"),
    "/ndjson": (json_lines, "application/x-ndjson"),
}
_EVENT_STREAM = "text/event-stream"


def flask_app() -> Any:
    import flask

    app = flask.Flask(__name__)

    def view(body: Any, kind: str) -> Any:
        return lambda: flask.Response(body() if callable(body) else body, content_type=kind)

    for path, (body, kind) in {**_BODIES, "/events": (events, _EVENT_STREAM)}.items():
        app.add_url_rule(path, path, view(body, kind))
    app.add_url_rule("/script.js", "script", lambda: flask.send_file(SCRIPT))
    if CONTENDER == "flask-compress":
        import flask_compress

        app.config["COMPRESS_MIMETYPES"] = [
            "application/json", "application/x-ndjson", "text/html", "text/csv", "text/javascript",
        ]  # fmt: skip
        flask_compress.Compress(app)
    if CONTENDER == "wsgifast":
        from wsgifast import Compression, WSGIFast

        return WSGIFast(app.wsgi_app, compress=Compression(event_streams=True, padding=False))
    return app


def asgi_app() -> Any:
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.requests import Request
    from starlette.responses import FileResponse, Response, StreamingResponse
    from starlette.routing import Route

    def view(body: Any, kind: str) -> Any:
        async def body_chunks() -> AsyncIterator[bytes]:
            for row in body():
                yield row

        async def response(request: Request) -> Response:
            if callable(body):
                return StreamingResponse(body_chunks(), media_type=kind)
            return Response(body, media_type=kind)

        return response

    async def events_view(request: Request) -> Response:
        async def body_chunks() -> AsyncIterator[bytes]:
            for number in range(_EVENTS):
                yield event(number)
                await asyncio.sleep(_BETWEEN_EVENTS_S)

        return StreamingResponse(body_chunks(), media_type=_EVENT_STREAM)

    async def script(request: Request) -> Response:
        return FileResponse(SCRIPT)

    middleware: list[Any] = []
    if CONTENDER == "starlette-compress":
        from starlette_compress import CompressMiddleware

        middleware = [Middleware(CompressMiddleware)]
    app = Starlette(
        routes=[
            *(Route(path, view(body, kind)) for path, (body, kind) in _BODIES.items()),
            Route("/events", events_view),
            Route("/script.js", script),
        ],
        middleware=middleware,
    )
    if CONTENDER == "wsgifast":
        from asgifast import ASGIFast

        from wsgifast import Compression

        return ASGIFast(app, compress=Compression(event_streams=True, padding=False))
    return app
