"""A WSGI and an ASGI app whose views wait for files. Each path sets the deadline of its request."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from wsgifast import request_timeout

_MAX_S = 60.0


def _awaited(query: str, waiter: object) -> Path:
    """Return the file that a view waits for. Another file beside it says that the view waits."""
    file = Path(query)
    file.with_name(f"{file.name}-{waiter}.waits").touch()
    return file


# WSGI


def _wait(environ: dict[str, Any]) -> None:
    file = _awaited(environ["QUERY_STRING"], threading.get_ident())
    end = time.monotonic() + _MAX_S
    while not file.exists() and time.monotonic() < end:
        time.sleep(0.005)


def _late(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    _wait(environ)
    start_response("200 OK", [("Content-Length", "4")])
    return [b"late"]


def _begun(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Length", "9")])

    def blocks() -> Iterator[bytes]:
        yield b"first"
        _wait(environ)
        yield b"last"

    return blocks()


def _by_key(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    environ["wsgifast.request_timeout_s"] = 0.2
    return _late(environ, start_response)


_VIEWS = {
    "/late": _late,
    "/begun": _begun,
    "/key": _by_key,
    "/decorated": request_timeout(0.2)(_late),
    "/without": request_timeout(None)(_late),
}


def wsgi(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    view = _VIEWS.get(environ["PATH_INFO"])
    if view is not None:
        return view(environ, start_response)
    start_response("200 OK", [("Content-Length", "3")])
    return [b"app"]


# ASGI


async def _send(send: Any, body: bytes) -> None:
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _wait_async(scope: Any) -> None:
    file = _awaited(scope["query_string"].decode(), id(asyncio.current_task()))
    end = time.monotonic() + _MAX_S
    while not file.exists() and time.monotonic() < end:
        await asyncio.sleep(0.005)


async def _late_async(scope: Any, send: Any) -> None:
    await _wait_async(scope)
    await _send(send, b"late")


async def _begun_async(scope: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"first", "more_body": True})
    await _wait_async(scope)
    await send({"type": "http.response.body", "body": b"last"})


async def _stubborn(scope: Any, send: Any) -> None:
    try:
        await _wait_async(scope)
    except asyncio.CancelledError:
        await _send(send, b"late")


async def _by_key_async(scope: Any, send: Any) -> None:
    scope["state"]["wsgifast.request_timeout_s"] = 0.2
    await _late_async(scope, send)


async def _after_response(scope: Any, send: Any) -> None:
    await _send(send, b"app")
    await _wait_async(scope)
    Path(scope["query_string"].decode()).with_name("done").touch()


async def _computes(scope: Any, send: Any) -> None:
    """Block the event loop for half a second."""
    Path(scope["query_string"].decode()).touch()
    time.sleep(0.5)
    await _send(send, b"app")


async def _blocks(scope: Any, send: Any) -> None:
    """Block the event loop for a short time."""
    time.sleep(0.02)
    await _send(send, b"app")


async def _large(scope: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(64):
        await send({"type": "http.response.body", "body": bytes(2**20), "more_body": True})
    await send({"type": "http.response.body", "body": b""})


_ASYNC_VIEWS = {
    "/late": _late_async,
    "/begun": _begun_async,
    "/stubborn": _stubborn,
    "/key": _by_key_async,
    "/decorated": request_timeout(0.2)(_late_async),
    "/without": request_timeout(None)(_late_async),
    "/after": _after_response,
    "/computes": _computes,
    "/blocks": _blocks,
    "/large": _large,
}


async def asgi(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    view = _ASYNC_VIEWS.get(scope["path"])
    if view is not None:
        await view(scope, send)
    else:
        await _send(send, b"app")
