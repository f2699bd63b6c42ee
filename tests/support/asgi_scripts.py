"""ASGI apps as data: any sequence of messages, also with mistakes, served raw and wrapped.

On a live server, `app` plays the script in its request, in the way that its path names.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from dataclasses import asdict, dataclass
from urllib.parse import quote, unquote

from asgifast import ASGIFast
from asgifast.messages import PATHSEND, ASGIApp, Message, Receive, Scope, Send

from wsgifast import Compression

_TEXT = b"Some text that shrinks. " * 4000
_TAGGED = [
    (b"etag", b'"tag"'), (b"vary", b"Cookie"), (b"cache-control", b"max-age=60"),
    (b"set-cookie", b"a=b"), (b"set-cookie", b"c=d"),
]  # fmt: skip


class AppError(Exception):
    """The error that the written apps raise."""


@dataclass(frozen=True)
class MessageScript:
    """The messages of an app, as data.

    :ivar sizes: of the body messages, in bytes.
    :ivar length: the Content-Length minus the sum of the sizes, or None for no such header.
    :ivar surplus: whether a message of one more byte follows, before the end.
    :ivar end: "last": the last message ends the body. "empty": a message of b"" does. "none": one
        of None does. "missing": nothing does. "raises": the app raises in its place. "twice": one
        more message follows the last.
    :ivar is_file: the body is a file, sent by pathsend where that is offered.
    :ivar waits: whether the app waits for a turn of the event loop after each message.
    :ivar catches: whether the app catches errors of send(), and returns.
    :ivar listens: whether another task of the app cancels it at http.disconnect.
    """

    method: str = "GET"
    status: int = 200
    kind: str = "text/plain"
    sizes: tuple[int, ...] = (5,)
    length: int | None = None
    surplus: bool = False
    end: str = "last"
    is_file: bool = False
    is_tagged: bool = False
    waits: bool = False
    catches: bool = False
    listens: bool = False

    def messages(self) -> list[Message]:
        headers = [(b"content-type", self.kind.encode()), *(_TAGGED if self.is_tagged else ())]
        content = _TEXT[: sum(self.sizes)]
        if self.length is not None:
            declared = max(0, len(content) + self.length)
            headers.append((b"content-length", b"%d" % declared))
            if self.is_file:
                content = content[:declared]
        bodies = []
        at = 0
        for size in (len(content),) if self.is_file else self.sizes:
            bodies.append(content[at : at + size])
            at += size
        if self.surplus and not self.is_file:
            bodies.append(b"\n")
        sent: list[Message] = [
            {"type": "http.response.body", "body": body, "more_body": True} for body in bodies
        ]
        # pathsend is the whole body.
        end = self.end if not self.is_file or self.end == "twice" else "last"
        if end in ("last", "twice") and sent:
            sent[-1]["more_body"] = False
        if end == "empty" or (end in ("last", "twice") and not sent):
            sent.append({"type": "http.response.body"})
        if end == "none":
            sent.append({"type": "http.response.body", "body": None})
        if end == "twice":
            sent.append({"type": "http.response.body", "body": b"x"})
        return [{"type": "http.response.start", "status": self.status, "headers": headers}, *sent]


def target_of(script: MessageScript, way: str, number: int = 0) -> str:
    """Return the URL at which :data:`app` plays a script."""
    return f"/{way}?{number}&" + quote(json.dumps(asdict(script)))


_outcomes: dict[str, asyncio.Future[str]] = {}


async def raw(scope: Scope, receive: Receive, send: Send) -> None:
    """Play the script of the request, and record how that ended."""
    number, _, query = scope["query_string"].decode().partition("&")
    fields = json.loads(unquote(query))
    script = MessageScript(**{**fields, "sizes": tuple(fields["sizes"])})
    outcome = _outcomes.setdefault(number, asyncio.get_running_loop().create_future())
    playing = asyncio.ensure_future(_play(script, scope, send))
    listening = asyncio.ensure_future(_cancel_at_end(playing, receive)) if script.listens else None
    try:
        await playing
    except asyncio.CancelledError:
        outcome.set_result("cancelled")
    except BaseException as error:
        outcome.set_result("AppError" if isinstance(error, AppError) else "error")
        raise
    else:
        outcome.set_result("returned")
    finally:
        if listening is not None:
            listening.cancel()


async def _cancel_at_end(playing: asyncio.Future[None], receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    playing.cancel()


async def _play(script: MessageScript, scope: Scope, send: Send) -> None:
    start, *bodies = script.messages()
    start["headers"].append((b"x-request-headers", b"%d" % len([*scope["headers"]])))
    try:
        await send(start)
        for message in bodies:
            if script.waits:
                await asyncio.sleep(0)
            if script.is_file and message.get("body") and PATHSEND in scope["extensions"]:
                with tempfile.NamedTemporaryFile() as file:
                    file.write(message["body"])
                    file.flush()
                    await send({"type": PATHSEND, "path": os.path.abspath(file.name)})
            else:
                await send(message)
    except Exception:
        if not script.catches:
            raise
        return
    if script.end == "raises":
        raise AppError("behind its messages")


def _inside(wrapped: ASGIApp) -> ASGIApp:
    """Wrap an app in a middleware function, which has its own send()."""

    async def outer(scope: Scope, receive: Receive, send: Send) -> None:
        async def passed_on(message: Message) -> None:
            await send(message)

        headers = (each for each in scope["headers"])
        await wrapped({**scope, "headers": headers}, receive, passed_on)

    return outer


_GZIP = Compression(codings=["gzip"], min_bytes=20)
WAYS: dict[str, ASGIApp] = {
    "raw": raw,
    "fast": ASGIFast(raw, pathsend=True),
    "compress": ASGIFast(raw, compress=_GZIP, pathsend=True),
    "uncoalesced": ASGIFast(raw, coalesce=False, compress=_GZIP),
    "inside": _inside(ASGIFast(raw)),
    "inside-compress": _inside(ASGIFast(raw, compress=_GZIP)),
    "metrics": ASGIFast(raw, metrics="prometheus", body_limit_bytes=1000, buffer_bodies=True),
}


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Play the script of the request in one of WAYS.

    /outcome returns how the app of a number has ended.
    """
    if scope["type"] != "http":
        return
    way = scope["path"].strip("/")
    if way != "outcome":
        await WAYS[way]({**scope, "extensions": scope.get("extensions") or {}}, receive, send)
        return
    outcome = await _outcomes.pop(scope["query_string"].decode())
    headers = [(b"content-length", b"%d" % len(outcome))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": outcome.encode()})
