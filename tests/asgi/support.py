"""Calling ASGI apps as a server would, in this process, with a detector of blocking calls."""

from __future__ import annotations

import asyncio
import builtins
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from asgifast.messages import ASGIApp, Message, Scope

from tests.support.http import Connection
from tests.support.servers import LiveServer

__all__ = [
    "Answer",
    "BlockingCall",
    "call",
    "expect_files_through",
    "forbid_blocking_calls",
    "scope_of",
]


RWF_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)


class BlockingCall(AssertionError):
    """Something that may wait for the disk, or sleep, was called on an event loop."""


def forbid_blocking_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the calls that may wait for the disk fail on an event loop's thread.

    preadv with RWF_NOWAIT cannot wait, and is let through; so are threads.
    """

    def guard(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def guarded(*args: Any, **kwargs: Any) -> Any:
            cannot_wait = name == "preadv" and len(args) == 4 and args[3] & RWF_NOWAIT
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                return real(*args, **kwargs)
            if cannot_wait:
                return real(*args, **kwargs)
            raise BlockingCall(f"{name}{args!r} on the event loop")

        monkeypatch.setattr(owner, name, guarded)

    for name in ("open", "pread", "preadv", "read", "readv", "stat", "lstat", "listdir", "scandir"):
        if hasattr(os, name):
            guard(os, name)
    guard(builtins, "open")
    guard(time, "sleep")


@dataclass
class Answer:
    """What an app sent."""

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


def scope_of(path: str = "/", method: str = "GET", **headers: str) -> Scope:
    """An http scope; headers as if_none_match='"x"'."""
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


def call(
    app: ASGIApp,
    scope: Scope,
    *,
    on_send: Callable[[Message], None] | None = None,
    left: bool = False,
) -> Answer:
    """Run an app for one request on a new event loop.

    :param on_send: called with each message; may raise, as a server's send() does.
    :param left: the client has left: receive() says so.
    """
    answer = Answer()

    async def send(message: Message) -> None:
        if on_send is not None:
            on_send(message)
        answer.messages.append(message)
        await asyncio.sleep(0)

    async def receive() -> Message:
        if not left:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    asyncio.run(app(scope, receive, send))  # type: ignore[arg-type]
    return answer


def expect_files_through(stack: str, server: LiveServer, files: Path) -> None:
    """Files, whole and in parts, arrive through the middleware of a stack of tests.asgi.stacks."""
    data = (files / "large").read_bytes()
    with Connection(server.address) as connection:
        for way in ("file", "relative", "ours", "static"):
            target = f"/stack/{stack}/{way}/large"
            assert connection.request(target).body == data, target
            assert connection.request(target, method="HEAD").body == b"", target
            part = connection.request(target, headers=[("Range", "bytes=100000-399999")])
            assert (part.status, part.body) == (206, data[100_000:400_000]), target
            if way in ("file", "relative"):
                continue  # several ranges are Starlette's there, and were wrong before its 1.0
            parts = connection.request(target, headers=[("Range", "bytes=5-9,200000-399999")])
            assert parts.status == 206, target
            assert data[5:10] in parts.body, target
            assert data[200_000:400_000] in parts.body, target
