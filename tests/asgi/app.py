"""A bare ASGI app with one URL for each way of sending a body. The tests serve it live.

Every server of the behaviour suite runs it, with ASGIFast (`fast`) and without (`app`). The
environment variable ASGIFAST_TEST_FILES names the folder of the files.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import asgifast
from asgifast import ASGIFast
from asgifast.messages import PATHSEND, ZEROCOPYSEND, Message, Receive, Scope, Send

from .blocking import watch
from .support import Step, body, length, raising, sending, start_message, zerocopy

FAIL = raising(LookupError, "the app failed on purpose")
# The app writes its events to this file, one per line. Tests read it.
EVENTS = os.environ.get("ASGIFAST_TEST_EVENTS")
# A server writes the blocking calls on its event loop to this file. The test that started the
# server reads it.
BLOCKING = os.environ.get("ASGIFAST_TEST_BLOCKING")

if BLOCKING and "asgifast.uvicorn.protocol" in sys.modules:
    # Our protocol does not offer pathsend to an app without a framework. So live servers use this
    # one.
    sys.modules["asgifast.uvicorn.protocol"].FileSending.pathsend = True

if EVENTS:
    # No response shows whether a file was sent by sendfile or by reads.
    _sendfile = os.sendfile

    def sendfile(out: int, fd: int, offset: int, count: int) -> int:
        note("sendfile")
        return _sendfile(out, fd, offset, count)

    os.sendfile = sendfile  # type: ignore[assignment]

if BLOCKING:
    _report = os.open(BLOCKING, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    _watching = watch(lambda violation: os.write(_report, f"{violation}\n".encode()))
    _watching.__enter__()  # open for as long as the server runs


def crumbs() -> list[bytes]:
    return [b"%05d," % number for number in range(5000)]


def note(line: str) -> None:
    if EVENTS:
        with open(EVENTS, "a") as events:
            events.write(line + "\n")


async def sleep(seconds: float) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        await sys.modules["trio"].sleep(seconds)
    else:
        await asyncio.sleep(seconds)


# Apps that read neither the request nor its query.
SENT = {
    "hello": sending(
        start_message((b"content-type", b"text/plain"), length(5)), body(b"hello", False)
    ),
    "crumbs": sending(start_message(), *map(body, crumbs()), body(b"end", False)),
    "sized_crumbs": sending(
        start_message(length(sum(map(len, crumbs())))), *map(body, crumbs()), body(b"", False)
    ),
    "large": sending(start_message(length(3_000_000)), body(b"L" * 3_000_000, False)),
    "mixed": sending(
        start_message(),
        *(body(b"m" * size) for size in (10, 100_000, 0, 7, 70_000, 1)),
        body(b"!", False),
    ),
    "raises": sending(start_message(), body(b"sent before it failed"), FAIL),
    "raises_first": sending(FAIL),
    "raises_behind_its_head": sending(start_message(), FAIL),
    "returns": sending(),
    "returns_midway": sending(start_message(), body(b"sent before it returned")),
}


class Exchange:
    """One request and its query."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope, self.receive, self.send = scope, receive, send
        self.query = dict(parse_qsl(scope["query_string"].decode()))
        folder = os.environ["ASGIFAST_TEST_FILES"]
        self.path = os.path.join(folder, self.query.get("file", "large"))

    def has(self, extension: str) -> bool:
        return extension in (self.scope.get("extensions") or {})

    def number(self, name: str) -> int | None:
        return int(self.query[name]) if name in self.query else None

    async def take(self, *steps: Step) -> None:
        await sending(*steps)(self.scope, self.receive, self.send)

    async def go(self) -> None:
        """Wait until the test has written the file `go`."""
        while not os.path.exists(self.path):
            await sleep(0.005)

    async def hello(self) -> None:
        await SENT["hello"](self.scope, self.receive, self.send)

    async def slow_crumbs(self) -> None:
        """Wait until the test has written the file `go`.

        Require that earlier messages have been sent.
        """
        messages = start_message(), body(b"before"), self.go, body(b"after"), body(b"", False)
        await self.take(*messages)

    async def late(self) -> None:
        """Send the headers at once, and the body when the test has written the file `go`."""
        start = start_message((b"content-type", b"text/event-stream"))
        await self.take(start, self.go, body(b"late", False))

    async def goes_on(self) -> None:
        """Respond at once, and return when the test has written the file `go`."""
        await self.hello()
        await self.go()

    async def pathsend(self) -> None:
        assert self.has(PATHSEND), "no pathsend here"
        size = self.number("declared")
        if size is None:
            size = os.stat(self.path).st_size
        headers = [] if "chunked" in self.query else [length(size)]
        if "type" in self.query:
            headers.append((b"content-type", self.query["type"].encode()))
        if "etag" in self.query:
            headers.append((b"etag", self.query["etag"].encode()))
        await self.send(start_message(*headers))
        path = os.path.relpath(self.path) if "relative" in self.query else self.path
        run = {name: self.number(name) for name in ("offset", "count") if name in self.query}
        await self.send({"type": PATHSEND, "path": path, **run})
        note("pathsend returned")

    async def zerocopy(self) -> None:
        assert self.has(ZEROCOPYSEND), "no zerocopysend here"
        declared = [] if "chunked" in self.query else [length(3 + 1000 + 200_000 + 4)]
        await self.take(start_message(*declared), body(b"<1>"))
        with open(self.path, "rb") as file:
            file.read(500)  # the descriptor's position is far ahead of the file object's
            for count in (1000, 150_000, 50_000):
                await self.send(zerocopy(file, count=count, more_body=True))
            assert file.tell() == 500 + 1000 + 200_000
        await self.send(body(b"</1>", False))

    async def zerocopy_fd(self) -> None:
        fd = os.open(self.path, os.O_RDONLY)
        offset = os.stat(self.path).st_size - 100_000
        await self.take(start_message(), zerocopy(fd, offset=offset))
        assert os.lseek(fd, 0, os.SEEK_CUR) == 0
        os.close(fd)

    async def stall(self) -> None:
        """Block the event loop, like a fault of asgifast would."""
        exec(compile("import time; time.sleep(0)", asgifast.__file__, "exec"))
        await self.hello()

    async def watch(self) -> None:
        """Send until the client disconnects, and record the disconnect."""
        await self.take(start_message(), self.receive, body(b"watched"))
        message = await self.receive()
        note(message["type"])

    async def echo(self) -> None:
        data = b""
        while True:
            message = await self.receive()
            data += message.get("body", b"")
            if not message.get("more_body"):
                break
        await self.take(start_message(length(len(data))), body(data, False))

    async def shape(self) -> None:
        """Send bodies of the wrong type, which ASGIFast repairs."""
        shapes: dict[str, Any] = {
            "str": "grüße",
            "bytearray": bytearray(b"array"),
            "memoryview": memoryview(b"a view"),
            "none": None,
            "int": 7,
        }
        start = start_message((b"content-type", b"text/plain; charset=utf-8"))
        await self.take(start, body(shapes[self.query["kind"]], False))


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        await lifespan(receive, send)
        return
    if scope["type"] == "websocket":
        await websocket(receive, send)
        return
    if scope["path"].startswith("/stack/"):
        from .stacks import serve  # Starlette is slow to import

        await serve(scope, receive, send)
        return
    if scope["path"].startswith("/framework/"):
        from . import frameworks

        await frameworks.serve(scope, receive, send)
        return
    name = scope["path"].lstrip("/") or "hello"
    if name in SENT:
        await SENT[name](scope, receive, send)
    else:
        await getattr(Exchange(scope, receive, send), name)()


async def lifespan(receive: Receive, send: Send) -> None:
    while True:
        kind = (await receive())["type"]
        await send({"type": f"{kind}.complete"})
        if kind == "lifespan.shutdown":
            note("lifespan.shutdown")
            return


async def websocket(receive: Receive, send: Send) -> None:
    assert (await receive())["type"] == "websocket.connect"
    await send({"type": "websocket.accept"})
    message = await receive()
    await send({"type": "websocket.send", "text": message["text"][::-1]})
    await send({"type": "websocket.close"})


fast = ASGIFast(app, pathsend=True)


async def ignorant(scope: Scope, receive: Receive, send: Send) -> None:
    """Middleware that supports body messages only.

    It delays the headers until the first body message.
    """
    start: Message | None = None

    async def forward(message: Message) -> None:
        nonlocal start
        if message["type"] == "http.response.start":
            start = message
        elif message["type"] == "http.response.body":
            if start is not None:
                await send(start)
                start = None
            await send(message)

    if scope["type"] != "http":
        await app(scope, receive, send)
        return
    await forward({"type": "http.response.start", "status": 200, "headers": []})
    if PATHSEND in scope["extensions"]:
        await forward({"type": PATHSEND, "path": __file__})
    else:
        await forward({"type": "http.response.body", "body": Path(__file__).read_bytes()})


ignored = ASGIFast(ignorant, pathsend=False)
