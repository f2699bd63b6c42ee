"""ASGIFast's files in this process: by the server or by reads, ranges, and options."""

from __future__ import annotations

import asyncio
import gzip
from pathlib import Path
from typing import Any

import pytest
from asgifast import ASGIFast
from asgifast.file_blocks import read_block
from asgifast.messages import (
    FILE_EXTENSIONS,
    PATHSEND,
    Message,
    Receive,
    Scope,
    Send,
)
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import FileResponse as StarletteFileResponse

from wsgifast import BodyError
from wsgifast.sockets import sending

from .protocols import LARGE_BYTES
from .support import DATA, START, Received, app_of, body, call, noting, offering, pathsend, scope_of
from .support import sending as sends

pytestmark = pytest.mark.usefixtures("no_descriptor_is_left")


@pytest.fixture
def digits(tmp_path: Path) -> str:
    """Return the path of a file of ten bytes."""
    (tmp_path / "f").write_bytes(b"0123456789")
    return str(tmp_path / "f")


def test_relative_path_is_made_absolute(
    digits: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app = app_of(START, pathsend("f"))
    assert call(app, scope_of()).body == b"0123456789"
    assert call(app, offering(PATHSEND)).messages[1]["path"] == digits, "absolute for the server"


@pytest.mark.parametrize("path", [None, 1, b"f"])
def test_pathsend_without_a_path_is_refused(path: object) -> None:
    with pytest.raises(BodyError, match="needs a path"):
        call(app_of(START, {"type": PATHSEND, "path": path}), scope_of())


@pytest.mark.parametrize("size", [0, 1, 100_000])
def test_upload_stays_out_of_memory_during_a_file(tmp_path: Path, size: int) -> None:
    with (tmp_path / "f").open("wb") as file:
        file.truncate(50_000_000)
    uploaded = 0

    async def receive() -> Message:
        nonlocal uploaded
        await asyncio.sleep(0)
        uploaded += 1
        return {"type": "http.request", "body": b"%d" % uploaded * size, "more_body": True}

    async def send(message: Message) -> None:
        await asyncio.sleep(0)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        await send(pathsend(str(tmp_path / "f")))
        buffered = uploaded
        assert buffered < 100, "much is left to the server"
        assert buffered * size < 300_000
        for number in range(1, buffered + 10):
            assert (await receive())["body"] == b"%d" % number * size, "nothing is lost"

    asyncio.run(ASGIFast(app)(scope_of(), receive, send))


def test_range_answered_by_stream_is_passed_on(tmp_path: Path) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert (b"range", b"bytes=0-1") in scope["headers"]
        await send({**START, "status": 206, "headers": [(b"content-range", b"bytes 0-1/10")]})
        await send(body(b"0"))
        await send(body(b"1", more=False))

    response = call(ASGIFast(app), scope_of(range="bytes=0-1"))
    assert (response.status, response.body) == (206, b"01")
    assert response.headers == [("content-range", "bytes 0-1/10")]


def test_ranges_and_preconditions_can_be_off(digits: str) -> None:
    path = pathsend(digits)
    app = app_of(START, path, ranges=False, conditional=False)
    response = call(app, scope_of(range="bytes=0-1", if_none_match="*"))
    assert (response.status, response.headers, response.body) == (200, [], b"0123456789")
    no_ranges = app_of(START, path, ranges=False)
    assert call(no_ranges, scope_of(range="bytes=0-1")).status == 200
    assert call(no_ranges, scope_of(if_none_match="*")).status == 304
    no_conditions = app_of(START, path, conditional=False)
    assert call(no_conditions, scope_of(range="bytes=0-1")).status == 206
    assert call(no_conditions, scope_of(if_none_match="*")).status == 200


@pytest.mark.parametrize("server_has_it", [False, True])
def test_pathsend_false_hides_extensions_for_files(server_has_it: bool) -> None:
    seen: list[Any] = []
    app = noting(seen, "extensions", sends(START, body(b"x", False)))
    scope = scope_of()
    scope["extensions"] = {"http.response.debug": {}}
    if server_has_it:
        scope["extensions"].update(FILE_EXTENSIONS)
    assert call(ASGIFast(app, pathsend=False), scope).body == b"x"
    assert set(seen[0]) == {"http.response.debug"}
    assert PATHSEND in scope["extensions"] or not server_has_it


@pytest.mark.parametrize("pathsend", [True, False])
def test_gzip_middleware_compresses_files_as_bytes(tmp_path: Path, pathsend: bool) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(b"line\n" * 1000)
    app = GZipMiddleware(StarletteFileResponse(path))
    response = call(ASGIFast(app, pathsend=pathsend), scope_of(accept_encoding="gzip"))
    assert response.status == 200
    assert (response.body == path.read_bytes()) is pathsend
    assert pathsend or gzip.decompress(response.body) == path.read_bytes()


# The client while a file is read and sent


def sending_and_receiving(app: Any, incoming: list[Message], scope: Scope) -> Received:
    """Run an app on a server. receive() returns these messages. Only one call of it may wait."""
    response = Received()

    async def run() -> None:
        receiving = 0

        async def receive() -> Message:
            nonlocal receiving
            receiving += 1
            assert receiving == 1, "two wait for the server at once"
            try:
                if incoming[:1] != [GONE]:  # a server returns the message at once, on every call
                    await asyncio.sleep(0)
                if not incoming:
                    await asyncio.Event().wait()
                return incoming.pop(0)
            finally:
                receiving -= 1

        async def send(message: Message) -> None:
            response.messages.append(message)
            await asyncio.sleep(0)

        await ASGIFast(app)(scope, receive, send)
        await asyncio.sleep(0)
        assert not receiving, "nobody listens any more"

    asyncio.run(run())
    return response


REQUEST: Message = {"type": "http.request", "body": b"1", "more_body": True}
REQUEST_END: Message = {"type": "http.request", "body": b"2", "more_body": False}
GONE: Message = {"type": "http.disconnect"}


@pytest.fixture
def large(tmp_path: Path) -> str:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(LARGE_BYTES)
    return str(tmp_path / "large")


def test_client_leaving_after_receive_ends_the_file(large: str) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert await receive() == REQUEST_END
        await send(START)
        await send(pathsend(large))
        assert await receive() == GONE

    incoming = [REQUEST_END, GONE, GONE]
    assert len(sending_and_receiving(app, incoming, scope_of()).body) < LARGE_BYTES
    assert incoming == [GONE], "nothing more is listened for"


def test_receive_during_a_file_goes_on_waiting(large: str) -> None:
    """Starlette's StreamingResponse also listens for a disconnect."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        listening: asyncio.Task[Message] = asyncio.create_task(receive())  # type: ignore[arg-type]
        await asyncio.sleep(0)
        await send(START)
        await send(pathsend(large))
        assert not listening.done()
        listening.cancel()
        await asyncio.wait([listening])

    assert len(sending_and_receiving(app, [], scope_of()).body) == LARGE_BYTES


def test_small_files_are_sent_without_listening(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(DATA * 600)
    incoming = [GONE]
    app = app_of(START, pathsend(str(tmp_path / "small")))
    assert sending_and_receiving(app, incoming, scope_of()).body == DATA * 600
    assert incoming == [GONE]


@pytest.mark.parametrize("can_be_requested", [True, False])
async def test_block_that_is_read_ends_with_the_file(
    path: str, can_be_requested: bool, monkeypatch: pytest.MonkeyPatch, blocking_calls: list[str]
) -> None:
    if not can_be_requested:
        monkeypatch.setattr(sending, "_NOWAIT", 0)
    with open(path, "rb") as file:
        for offset, size in ((0, 10), (len(DATA) - 3, 10), (len(DATA), 10)):
            block = await read_block(file.fileno(), offset, size)
            assert block == DATA[offset : offset + size]
    assert not blocking_calls
