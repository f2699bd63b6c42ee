"""ASGI messages and apps, and functions that call an app as a server does, in this process."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from asgifast import ASGIFast
from asgifast.messages import PATHSEND, ZEROCOPYSEND, ASGIApp, Message, Receive, Scope, Send

from tests.support.calls import raising as raising

START: Message = {"type": "http.response.start", "status": 200, "headers": []}
END: Message = {"type": "http.response.body", "body": b".", "more_body": False}
DATA = bytes(range(256)) * 4
# The actions of an app: see sending().
Step = Message | Callable[[], object] | None
_BODY_TYPES = {"http.response.body", PATHSEND, ZEROCOPYSEND}


@dataclass
class Received:
    """The messages that an app has sent for one response."""

    messages: list[Message] = field(default_factory=list)

    @property
    def status(self) -> int:
        return int(self.messages[0]["status"])

    @property
    def headers(self) -> list[tuple[str, str]]:
        return [(k.decode("latin-1"), v.decode("latin-1")) for k, v in self.messages[0]["headers"]]

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages[1:])

    @property
    def types(self) -> list[str]:
        return [message["type"] for message in self.messages]


def sending(*steps: Step) -> ASGIApp:
    """Return an app that sends messages, and calls functions between them.

    The app awaits the result of a function if it is awaitable. In place of None it waits for some
    iterations of the loop.
    """

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for step in steps:
            if isinstance(step, MutableMapping):
                await send(step)
            elif step is None:
                for _ in range(5):
                    await asyncio.sleep(0)
            elif inspect.isawaitable(called := step()):
                await called

    return app


def noting(seen: list[Any], key: str, app: ASGIApp) -> ASGIApp:
    """Middleware that records the value of one key of the scope of each request."""

    async def noted(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope[key])
        await app(scope, receive, send)

    return noted


def app_of(*messages: Message, **options: Any) -> ASGIApp:
    """Return an app that sends these messages, in ASGIFast with these options."""
    return ASGIFast(sending(*messages), **options)


def start_message(*headers: tuple[bytes, bytes], status: int = 200) -> Message:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def length(size: int) -> tuple[bytes, bytes]:
    return b"content-length", b"%d" % size


def body(data: Any, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


def pathsend(path: str | Path) -> Message:
    return {"type": PATHSEND, "path": str(path)}


def zerocopy(file: Any, **options: Any) -> Message:
    return {"type": ZEROCOPYSEND, "file": file, **options}


def chunk(data: bytes) -> bytes:
    """Return bytes in the chunked coding."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def scope_of(path: str = "/", method: str = "GET", **headers: str) -> Scope:
    """Return an HTTP scope with headers such as if_none_match='"x"'."""
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode("utf-8", "surrogateescape"),
        "query_string": b"",
        "root_path": "",
        "headers": [
            (name.replace("_", "-").encode(), value.encode("latin-1"))
            for name, value in headers.items()
        ],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }


def offering(*extensions: str, method: str = "GET", **headers: str) -> Scope:
    """Return a request to a server with these extensions."""
    return {**scope_of(method=method, **headers), "extensions": {name: {} for name in extensions}}


def recording(sent: list[Message]) -> Send:
    """The send() of a server that never waits."""

    async def send(message: Message) -> None:
        sent.append(message)

    return send


async def checkpoints(count: int = 1) -> None:
    """Wait for iterations of the event loop, asyncio's or trio's."""
    for _ in range(count):
        await anyio.lowlevel.checkpoint()


async def no_body() -> Message:
    """The receive() of a server after the client has disconnected."""
    return {"type": "http.disconnect"}


async def nothing() -> Message:
    """The receive() of a server to which no message comes."""
    await asyncio.Event().wait()
    raise AssertionError


def bytes_of(message: Message) -> bytes:
    """Return the bytes of a body message, or of a zerocopysend message with offset and count."""
    if message["type"] == ZEROCOPYSEND:
        return os.pread(message["file"].fileno(), message["count"], message["offset"])
    return bytes(message.get("body", b""))


def call(
    app: ASGIApp,
    scope: Scope,
    *,
    on_send: Callable[[Message], None] | None = None,
    left: bool = False,
    whole: bool = True,
    body: bytes | None = None,
) -> Received:
    """Run an app for one request on a new event loop.

    :param on_send: called with each message. It may raise, like a server's send().
    :param left: whether the client has disconnected, which receive() then reports.
    :param body: the request body for an app that reads it, or None if it must not wait for one.
    :param whole: whether the response must be valid: one start, then a body that ends once.
    """
    response = Received()

    async def send(message: Message) -> None:
        if on_send is not None:
            on_send(message)
        response.messages.append(message)
        await asyncio.sleep(0)

    received = [] if body is None else [{"type": "http.request", "body": body}]

    async def receive() -> Message:
        if received:
            return received.pop()
        if not left:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    asyncio.run(app(scope, receive, send))  # type: ignore[arg-type]
    if whole and scope["type"] == "http" and not left:
        first, *bodies, last = response.types
        assert first == "http.response.start", response.types
        assert {*bodies, last} <= _BODY_TYPES, response.types
        more = [bool(message.get("more_body")) for message in response.messages[1:]]
        assert more == [True] * len(bodies) + [False], more
    return response
