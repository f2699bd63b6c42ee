"""An ASGI app with large bodies. Each path is a sequence of messages."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from asgifast.protocols import large_bodies

if place := os.environ.get("TEST_PLACE"):
    large_bodies.memory.count(large_bodies.MEMORY_BYTES)
    if place == "full disk":
        large_bodies.disk.count(large_bodies.DISK_BYTES)

SIZE = 3_000_000
BODY = b"".join([b"%7d " % number for number in range(SIZE // 8 + 1)])

# The bodies of the messages, and whether the start has a Content-Length.
_SHAPES: dict[str, tuple[list[int], bool]] = {
    "/whole": ([SIZE], True),
    "/unknown-length": ([SIZE], False),
    "/and-empty": ([SIZE, 0], True),
    "/and-empty-unknown": ([SIZE, 0], False),
    "/between": ([10, SIZE - 20, 10], True),
    "/between-unknown": ([10, SIZE - 20, 10], False),
    "/parts": ([SIZE // 3, SIZE // 3, SIZE // 3], True),
    # Not as long as the headers say
    "/short": ([SIZE - 1], True),
    "/long": ([SIZE + 1], True),
    "/long-in-parts": ([SIZE - 10, 20], True),
}
SHAPES = [path for path, (sizes, _) in _SHAPES.items() if sum(sizes) == SIZE]
WRONG = [path for path in _SHAPES if path not in SHAPES]


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    sizes, is_declared = _SHAPES[scope["path"]]
    headers = [(b"content-length", b"%d" % SIZE)] if is_declared else []
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    at = 0
    for number, size in enumerate(sizes, 1):
        part, more = BODY[at : at + size], number < len(sizes)
        await send({"type": "http.response.body", "body": part, "more_body": more})
        at += size
    if scope["query_string"]:
        Path(scope["query_string"].decode()).touch()
