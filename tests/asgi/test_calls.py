"""How many functions a request calls under our uvicorn protocols, and in how many files."""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import asgifast
import pytest
import uvicorn
from asgifast.uvicorn import HttpToolsProtocol
from starlette.applications import Starlette
from starlette.responses import FileResponse
from starlette.routing import Route
from uvicorn.server import ServerState

import wsgifast
from wsgifast.sockets.sending import cached_bytes

from .protocols import (
    GET,
    LARGE_BYTES,
    each_protocol,
    is_sent_whole,
    iterations,
    serving,
    two_bytes,
)

pytestmark = pytest.mark.usefixtures("no_descriptor_is_left")

# All of them but the last fill caches.
REQUESTS = 3
# Two of the functions write the access log.
MAX_FILES = 14
# Of ours, for a small response with httptools.
MAX_CALLS = 13
# The most calls that health checks, queue timeouts and deadlines together may add.
OPERATORS_CALLS = 3
OPERATED = {
    "health_path": "/livez",
    "ready_path": "/readyz",
    "queue_timeout_s": 5,
    "request_timeout_s": 30,
}
OURS = tuple(str(Path(each.__file__ or "").parent) for each in (asgifast, wsgifast))


@contextmanager
def calls() -> Iterator[list[CodeType]]:
    """Note the functions that this thread calls."""
    called: list[CodeType] = []

    def on_event(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            called.append(frame.f_code)

    gc.collect()
    gc.disable()  # it would call finalizers
    sys.setprofile(on_event)
    try:
        yield called
    finally:
        sys.setprofile(None)
        gc.enable()


async def calls_of_small_response(protocol: Any) -> Counter[CodeType]:
    """Return the functions that the last one of some requests calls, over TCP."""
    config = uvicorn.Config(two_bytes, log_config=None, access_log=False, lifespan="off")
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: protocol(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    called: list[CodeType] = []
    async with server:
        with socket.create_connection(server.sockets[0].getsockname()) as client:
            for number in range(1, REQUESTS + 1):
                client.sendall(GET)
                if number < REQUESTS:
                    await iterations()
                else:
                    with calls() as called:
                        await iterations()
                assert client.recv(4096).endswith(b"\r\n\r\nok")
        while state.connections:
            await asyncio.sleep(0)
    return Counter(called)


@is_sent_whole
async def test_small_response_takes_few_calls() -> None:
    called = await calls_of_small_response(HttpToolsProtocol)
    ours = [each for each in called.elements() if each.co_filename.startswith(OURS)]
    for code in ours:
        print(f"    {code.co_filename}: {code.co_name}")
    assert len(ours) <= MAX_CALLS


@each_protocol
async def test_operators_options_take_at_most_three_calls(protocol: Any) -> None:
    plain = await calls_of_small_response(protocol)
    added = await calls_of_small_response(type("Operated", (protocol,), OPERATED)) - plain
    # A function in C from Python 3.12 on.
    names = [each.co_name for each in added.elements() if each.co_name != "current_task"]
    print(names)
    assert "last_received" in names
    assert len(names) <= OPERATORS_CALLS


async def test_file_response_passes_through_few_files(large: Path) -> None:
    with large.open("rb") as file:
        if not cached_bytes(file.fileno(), 0, 1):
            pytest.skip("the file system cannot say what is in memory: a thread sends it")
    app = Starlette(routes=[Route("/", lambda request: FileResponse(large))])
    async with serving(HttpToolsProtocol, app, pathsend=None) as client:
        for _ in range(REQUESTS - 1):
            await client.send(GET)
            await client.body(LARGE_BYTES)
        with calls() as called:
            await client.send(GET)
            await client.body(LARGE_BYTES)
    files = [each.co_filename for each in called if each.co_filename.startswith(OURS)]
    for code in called:
        if code.co_filename in files:
            print(f"    {code.co_filename}: {code.co_name}")
    assert any(file.endswith("file_transfer.py") for file in files)
    assert len({*files}) <= MAX_FILES
