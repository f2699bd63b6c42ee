"""An ASGI app with paths that wait for files. Each path sets the deadline of its request."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from wsgifast import request_timeout

_MAX_S = 60.0


async def _send(send: Any, body: bytes) -> None:
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _wait(scope: Any) -> None:
    """Wait until the file in the query exists.

    Create a second file at the beginning of the wait.
    """
    file = Path(scope["query_string"].decode())
    file.with_name(f"{file.name}.waits").touch()
    end = time.monotonic() + _MAX_S
    while not file.exists() and time.monotonic() < end:
        await asyncio.sleep(0.005)


async def _late(scope: Any, send: Any) -> None:
    await _wait(scope)
    await _send(send, b"late")


async def _begun(scope: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"first", "more_body": True})
    await _wait(scope)
    await send({"type": "http.response.body", "body": b"last"})


async def _stubborn(scope: Any, send: Any) -> None:
    try:
        await _wait(scope)
    except asyncio.CancelledError:
        await _send(send, b"late")


async def _by_key(scope: Any, send: Any) -> None:
    scope["state"]["wsgifast.request_timeout_s"] = 0.2
    await _late(scope, send)


async def _after_response(scope: Any, send: Any) -> None:
    await _send(send, b"app")
    await _wait(scope)
    file = Path(scope["query_string"].decode())
    file.with_name("done").touch()


async def _computes(scope: Any, send: Any) -> None:
    """Block the event loop for half a second."""
    file = Path(scope["query_string"].decode())
    file.touch()
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


_VIEWS = {
    "/late": _late,
    "/begun": _begun,
    "/stubborn": _stubborn,
    "/key": _by_key,
    "/decorated": request_timeout(0.2)(_late),
    "/without": request_timeout(None)(_late),
    "/after": _after_response,
    "/computes": _computes,
    "/blocks": _blocks,
    "/large": _large,
}


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    view = _VIEWS.get(scope["path"])
    if view is not None:
        await view(scope, send)
    else:
        await _send(send, b"app")
