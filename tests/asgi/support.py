"""Messages and apps, and calling an app as a server would, in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from asgifast import ASGIFast
from asgifast.messages import PATHSEND, ZEROCOPYSEND, ASGIApp, Message, Receive, Scope, Send

START: Message = {"type": "http.response.start", "status": 200, "headers": []}
END: Message = {"type": "http.response.body", "body": b".", "more_body": False}
DATA = bytes(range(256)) * 4
_BODY_TYPES = {"http.response.body", PATHSEND, ZEROCOPYSEND}


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


def sending(*messages: Message | None) -> ASGIApp:
    """An app that sends these; None lets some turns of the loop go by."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for message in messages:
            if message is None:
                for _ in range(5):
                    await asyncio.sleep(0)
            else:
                await send(message)

    return app


def app_of(*messages: Message, **options: Any) -> ASGIApp:
    """An app that sends these, in ASGIFast with these options."""
    return ASGIFast(sending(*messages), **options)


def head(*headers: tuple[bytes, bytes], status: int = 200) -> Message:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def length(size: int) -> tuple[bytes, bytes]:
    return b"content-length", b"%d" % size


def body(data: Any, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


def pathsend(path: str) -> Message:
    return {"type": PATHSEND, "path": path}


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


def offering(*extensions: str, method: str = "GET", **headers: str) -> Scope:
    """A request to a server with these extensions."""
    return {**scope_of(method=method, **headers), "extensions": {name: {} for name in extensions}}


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
