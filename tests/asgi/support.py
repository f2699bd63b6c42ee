"""Calling ASGI apps as a server would, in this process."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asgifast.messages import ASGIApp, Message, Scope

from tests.support.http import Connection
from tests.support.http2 import Answer as Http2Answer
from tests.support.http2 import Client
from tests.support.servers import LiveServer

from .app import crumbs

__all__ = [
    "Answer",
    "Http2",
    "call",
    "expect_files_through",
    "expect_http2",
    "expect_websocket",
    "processes",
    "scope_of",
]

_BODY_TYPES = {
    "http.response.body",
    "http.response.pathsend",
    "http.response.zerocopysend",
}


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
    whole: bool = True,
    body: bytes | None = None,
) -> Answer:
    """Run an app for one request on a new event loop.

    :param on_send: called with each message; may raise, as a server's send() does.
    :param left: the client has left: receive() says so.
    :param body: of the request, for an app that reads it; None for one that must not wait for it.
    :param whole: the answer must be as ASGI has it: one start, then a body that ends once.
    """
    answer = Answer()

    async def send(message: Message) -> None:
        if on_send is not None:
            on_send(message)
        answer.messages.append(message)
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
        first, *bodies, last = answer.types
        assert first == "http.response.start", answer.types
        assert {*bodies, last} <= _BODY_TYPES, answer.types
        more = [bool(message.get("more_body")) for message in answer.messages[1:]]
        assert more == [True] * len(bodies) + [False], more
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


def expect_websocket(connection: Connection) -> None:
    """Go over to a WebSocket on which the app answers a text with its reverse."""
    connection.send(
        b"GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    assert connection.read_head().status == 101
    connection.send(b"\x81\x83\0\0\0\0abc")  # a text frame, masked with zeros
    assert connection.read(5) == b"\x81\x03cba"


def processes(pid: int) -> Iterator[int]:
    """A server's process and those that it has started."""
    yield pid
    for thread in os.listdir(f"/proc/{pid}/task"):
        for child in Path(f"/proc/{pid}/task/{thread}/children").read_text().split():
            yield from processes(int(child))


class Http2:
    """A connection of a client of HTTP/2 to a live server."""

    def __init__(self, sock: socket.socket, client: Client) -> None:
        self._sock = sock
        self.client = client
        client.begin()

    def get(self, target: str, method: str = "GET", **options: Any) -> Http2Answer:
        stream = self.client.ask(target, method, **options)
        answer = self.client.answers[stream]
        while not answer.ended and answer.reset is None:
            self._sock.sendall(self.client.state.data_to_send())
            data = self._sock.recv(1_000_000)
            assert data, "the server closed the connection"
            self.client.take(data)
        self._sock.sendall(self.client.state.data_to_send())
        return answer


def expect_http2(server: LiveServer, files: Path, *, ranges: bool = True) -> None:
    """The test app answers over HTTP/2 with prior knowledge.

    :param ranges: ASGIFast is around it.
    """
    large = (files / "large").read_bytes()
    assert isinstance(server.address, tuple)
    with socket.create_connection(server.address, 20.0) as sock:
        http2 = Http2(sock, Client())
        for file in sorted(files.iterdir()):
            assert http2.get(f"/pathsend?file={file.name}").body == file.read_bytes(), file.name
        assert http2.get("/crumbs").body == b"".join(crumbs()) + b"end"
        assert http2.get("/mixed").body == b"m" * 170_018 + b"!"
        assert http2.get("/zerocopy").body == b"<1>" + large[500:201_500] + b"</1>"
        assert http2.get("/zerocopy_pipe").body == b"through a pipe"
        assert http2.get("/pathsend", "HEAD").body == b""
        if ranges:
            ranged = http2.get("/pathsend", headers=[("range", "bytes=5-9,200000-399999")])
            assert ranged.status == 206
            assert large[200_000:400_000] in ranged.body
        for way in ("file", "ours", "static"):
            assert http2.get(f"/stack/base-gzip/{way}/large").body == large
