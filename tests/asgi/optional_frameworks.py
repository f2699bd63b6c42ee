"""Litestar, Quart and Sanic on ASGI: /file is the file `large`, /stream a stream of crumbs.

They are imported when they are asked for: `pip install --group frameworks` brings them.
"""

from __future__ import annotations

import functools
import os
from collections.abc import AsyncIterator
from importlib import import_module
from typing import Any

from asgifast import ASGIFast

from .app import crumbs

_PATH = os.path.join(os.environ.get("ASGIFAST_TEST_FILES", ""), "large")


async def _crumbs() -> AsyncIterator[bytes]:
    for crumb in crumbs():
        yield crumb


def _litestar() -> Any:
    litestar, response = import_module("litestar"), import_module("litestar.response")

    async def file() -> Any:
        return response.File(path=_PATH, filename="large")

    async def stream() -> Any:
        return response.Stream(_crumbs())

    file.__annotations__["return"] = response.File
    stream.__annotations__["return"] = response.Stream
    return litestar.Litestar([litestar.get("/file")(file), litestar.get("/stream")(stream)])


def _quart() -> Any:
    quart = import_module("quart")
    app = quart.Quart(__name__)

    @app.route("/file")  # type: ignore[untyped-decorator]
    async def file() -> Any:
        return await quart.send_file(_PATH, mimetype="text/plain", conditional=True)

    @app.route("/stream")  # type: ignore[untyped-decorator]
    async def stream() -> Any:
        return _crumbs(), 200

    return app


def _sanic() -> Any:
    sanic = import_module("sanic")
    app = sanic.Sanic("test")

    @app.get("/file")  # type: ignore[untyped-decorator]
    async def file(request: Any) -> Any:
        return await sanic.response.file_stream(_PATH)

    @app.get("/stream")  # type: ignore[untyped-decorator]
    async def stream(request: Any) -> None:
        answer = await request.respond()
        async for crumb in _crumbs():
            await answer.send(crumb)
        await answer.eof()

    return app


FRAMEWORKS = {"litestar": _litestar, "quart": _quart, "sanic": _sanic}


@functools.cache  # Sanic refuses a second app of a name
def _wrapped(name: str) -> ASGIFast:
    return ASGIFast(FRAMEWORKS[name]())


def __getattr__(name: str) -> Any:
    if name in FRAMEWORKS:
        return _wrapped(name)
    raise AttributeError(name)
