"""The protocol sends a large file at the end of a body after the app has returned."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asgifast import FileResponse, StaticFiles
from asgifast.messages import PATHSEND, ASGIApp, Receive, Scope, Send
from starlette import responses
from starlette.background import BackgroundTask

from tests.support.process import uncollected
from wsgifast.files import ByteRange

from .protocols import HELLO, LARGE_BYTES, body, iterations, refusal_of, serving, start
from .support import length, pathsend, raising, sending, start_message, zerocopy

GET = b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n"
RANGES = b"GET /large HTTP/1.1\r\nHost: x\r\nRange: bytes=%b\r\n\r\n"


def descriptors_of(path: Path) -> int:
    """Return how many descriptors of this process refer to a file."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{name}").removesuffix(" (deleted)") == str(path)
        except FileNotFoundError:
            pass  # the descriptor that listed the others
    return found


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("kind", "ranges"),
    [
        ("pathsend", b""),
        ("zerocopysend", b""),
        ("starlette", b""),
        ("ours", b""),
        ("static", b""),
        ("ours", b"100-2000000"),
        ("ours", b"5-9,100-1000000,1500000-2900000"),
    ],
)
async def test_app_returns_before_its_client_reads_the_file(
    protocol: Any, large: Path, kind: str, ranges: bytes
) -> None:
    """The client gets the whole file even if it is moved or deleted meanwhile.

    If there are several ranges, the app waits for all but the last one.
    """
    data = large.read_bytes()
    returned = asyncio.Event()

    remove = BackgroundTask(large.unlink)
    inner: dict[str, ASGIApp] = {
        "pathsend": sending(start_message(length(LARGE_BYTES)), pathsend(large)),
        "starlette": responses.FileResponse(large, background=remove),
        "ours": FileResponse(large, media_type="text/plain", background=remove),
        "static": StaticFiles(directory=large.parent),
    }

    async def send_descriptor(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, length=LARGE_BYTES)
        with open(large, "rb") as file:
            await send(zerocopy(file))

    inner["zerocopysend"] = send_descriptor

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await inner[kind](scope, receive, send)
        large.unlink(missing_ok=True)
        returned.set()

    async with serving(protocol, app) as client:
        await client.send(RANGES % ranges if ranges else GET)
        if b"," not in ranges:
            await returned.wait()  # no byte was read
        response = await client.until(b"\r\n\r\n")
        assert response.startswith(b"HTTP/1.1 206 " if ranges else b"HTTP/1.1 200 ")
        size = int(response.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        body = await client.exactly(size)
        for part in ranges.split(b",") if ranges else [b"0-%d" % (LARGE_BYTES - 1)]:
            first, last = map(int, part.split(b"-"))
            assert data[first : last + 1] in body
        assert ranges or size == LARGE_BYTES
        await client.hello()
        assert descriptors_of(large) == 0


class DelayedMessages:
    """A replacement for an object that a framework puts into the scope of a request."""


async def test_download_does_not_keep_its_request(protocol: Any, large: Path) -> None:
    delayed: list[weakref.ref[DelayedMessages]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"]["held"] = there = DelayedMessages()
        delayed.append(weakref.ref(there))
        await FileResponse(large)(scope, receive, send)

    async with serving(protocol, app) as client:
        with uncollected():
            await client.ask()
            await iterations()
            assert delayed[0]() is None
        assert await client.exactly(LARGE_BYTES) == large.read_bytes()
        await client.ask(GET + HELLO)
        assert await client.exactly(LARGE_BYTES) == large.read_bytes()
        await client.until(b"\r\n\r\nhello")
        await client.hello()


async def test_app_goes_on_while_its_file_is_sent(protocol: Any, large: Path) -> None:
    """The client gets the file and another response while the app is still running."""
    go_on = asyncio.Event()
    over = asyncio.Event()
    app = sending(start_message(length(LARGE_BYTES)), pathsend(large), go_on.wait, over.set)
    async with serving(protocol, app) as client:
        await client.ask()
        assert await client.exactly(LARGE_BYTES) == large.read_bytes()
        await client.hello()
        assert not over.is_set()
        go_on.set()
        await over.wait()
        await client.hello()


async def test_download_has_no_task_but_its_request(protocol: Any, large: Path) -> None:
    """The file is sent even if the app does nothing after it.

    The protocol knows this when the app has returned.
    """
    async with serving(protocol, FileResponse(large)) as client:
        before = len(asyncio.all_tasks())
        await client.ask()
        await iterations()
        assert len(asyncio.all_tasks()) == before + 1
        assert await client.exactly(LARGE_BYTES) == large.read_bytes()
        await client.hello()


async def test_error_of_the_app_does_not_cut_the_file(
    protocol: Any, large: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fail = raising(ValueError, "in the background task")
    app = sending(start_message(length(LARGE_BYTES)), pathsend(large), fail)
    with caplog.at_level(logging.ERROR, "uvicorn.error"):
        async with serving(protocol, app) as client:
            await client.send(GET)
            await iterations()
            await client.until(b"\r\n\r\n")
            assert await client.to_end() == large.read_bytes()
            assert "in the background task" in caplog.text


@pytest.mark.parametrize("outlives", [False, True], ids=["of the app", "of a task beside it"])
@pytest.mark.parametrize("message", ["http.response.body", PATHSEND])
async def test_message_behind_the_file_is_refused(
    protocol: Any, large: Path, message: str, outlives: bool
) -> None:
    """After the file, uvicorn's own send() rejects the message."""
    seen: list[str] = []
    beside: list[asyncio.Task[None]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async def late() -> None:
            if outlives:
                await asyncio.sleep(0)  # the app has returned by then
            late_message = {"type": message, "body": b"late", "path": str(large)}
            seen.append(await refusal_of(send(late_message)))

        await start(send, length=LARGE_BYTES)
        await send({"type": PATHSEND, "path": str(large)})
        if outlives:
            beside.append(asyncio.create_task(late()))
        else:
            await late()

    async with serving(protocol, app) as client:
        await client.send(GET)
        await iterations()
        assert not seen
        assert await client.body(LARGE_BYTES) == large.read_bytes()
        await client.hello()
        assert len(seen) == 1
        assert "Unexpected ASGI message" in seen[0]


async def test_file_outlives_a_cancelled_later_message(protocol: Any, large: Path) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, length=LARGE_BYTES)
        await send({"type": PATHSEND, "path": str(large)})
        late = asyncio.create_task(refusal_of(send({"type": "http.response.body"})))
        await iterations()
        late.cancel()

    async with serving(protocol, app) as client:
        await client.send(GET)
        await iterations()
        assert await client.body(LARGE_BYTES) == large.read_bytes()
        await client.hello()


async def test_task_with_later_message_outlives_the_request(protocol: Any, large: Path) -> None:
    is_sent = asyncio.Event()
    go_on = asyncio.Event()
    beside: list[asyncio.Task[None]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async def task() -> None:
            await send({"type": PATHSEND, "path": str(large)})
            is_sent.set()
            await refusal_of(send({"type": "http.response.body"}))  # in the same iteration
            await go_on.wait()
            raise ValueError("of the task alone")

        await start(send, length=LARGE_BYTES)
        beside.append(asyncio.create_task(task()))
        await is_sent.wait()

    async with serving(protocol, app) as client:
        await client.send(GET)
        assert await client.body(LARGE_BYTES) == large.read_bytes()
        await iterations()
        await asyncio.wait_for(until(lambda: not client.state.tasks), 20)
        go_on.set()
        with pytest.raises(ValueError, match="of the task alone"):
            await beside[0]
        await client.hello()


@pytest.mark.parametrize("where", ["app", "file"])
@pytest.mark.parametrize("soon", [True, False], ids=["before its first step", "midway"])
async def test_cancelled_request_ends_its_file(
    protocol: Any, large: Path, where: str, soon: bool
) -> None:
    """uvicorn cancels requests at the end of its graceful shutdown timeout."""
    tasks: list[asyncio.Task[Any]] = []
    sent = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        await start(send, length=LARGE_BYTES)
        await send({"type": PATHSEND, "path": str(large)})
        sent.set()
        if soon:
            task.cancel()
        if where == "app":
            await asyncio.Event().wait()

    async with serving(protocol, app) as client:
        await client.send(GET)
        await sent.wait()
        if not soon:
            await iterations()
            tasks[0].cancel()
        await client.until(b"\r\n\r\n")
        assert len(await client.to_end()) < LARGE_BYTES
        await until(lambda: descriptors_of(large) == 0)


@pytest.mark.parametrize("size", [1000, 64 * 1024])
async def test_small_file_is_sent_before_the_app_goes_on(
    protocol: Any, large: Path, size: int
) -> None:
    os.truncate(large, size)
    seen: list[Any] = []
    app = sending(
        lambda: seen.append(asyncio.all_tasks()),
        start_message(length(size)),
        pathsend(large),
        lambda: seen.extend([asyncio.all_tasks(), descriptors_of(large)]),
    )
    async with serving(protocol, app) as client:
        await client.ask()
        assert await client.exactly(size) == large.read_bytes()
        await client.hello()
    assert seen == [seen[0], seen[0], 0]


@pytest.mark.parametrize("why", ["left", "complete"])
@pytest.mark.parametrize("kind", ["zerocopysend", "open file"])
async def test_file_that_nobody_can_have_is_closed(
    protocol: Any, large: Path, kind: str, why: str
) -> None:
    over = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, length=2)
        if why == "complete":
            await body(send, b"ok")
        else:
            while (await receive())["type"] != "http.disconnect":
                pass
        # uvicorn raises an error after a complete response.
        with contextlib.suppress(RuntimeError):
            if kind == "open file":
                opened = io.FileIO(large)
                parts = [ByteRange(0, LARGE_BYTES)]
                await send({**pathsend("/none"), "file": opened, "parts": parts})
            else:
                with open(large, "rb") as file:
                    await send(zerocopy(file))
        over.set()

    async with serving(protocol, app) as client:
        await client.send(GET)
        await client.until(b"\r\n\r\n") if why == "complete" else client.sock.close()
        await over.wait()
        assert descriptors_of(large) == 0
