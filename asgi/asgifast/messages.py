"""The types of ASGI, as far as they are used here (asgiref's may not be installed)."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Protocol, TypedDict

__all__ = [
    "PATHSEND",
    "ZEROCOPYSEND",
    "ASGIApp",
    "Message",
    "PathSend",
    "Receive",
    "ResponseBody",
    "ResponseStart",
    "Scope",
    "Send",
    "ZeroCopySend",
    "response_body",
    "response_start",
]

Scope = MutableMapping[str, Any]
# Any message; the classes below say what one holds whose type is known. It is no union of them,
# because Starlette's apps, whose messages are of this type, would then not be apps for mypy here.
# For mypy a TypedDict is no MutableMapping, although it is one.
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

# Extension names, as scope["extensions"] has them.
PATHSEND = "http.response.pathsend"
ZEROCOPYSEND = "http.response.zerocopysend"


class HasFileno(Protocol):
    def fileno(self) -> int: ...


class ResponseStart(TypedDict):
    """http.response.start: the head, which servers hold until the first message behind it."""

    type: str
    status: int
    # Names in lower case.
    headers: Iterable[tuple[bytes, bytes]]


class ResponseBody(TypedDict):
    """http.response.body: a piece of the body, the last one without `more_body`."""

    type: str
    body: bytes
    more_body: bool


class _PathSendFile(TypedDict):
    type: str
    # Absolute.
    path: str | os.PathLike[str]


class PathSend(_PathSendFile, total=False):
    """http.response.pathsend: the whole body is the file at a path, or a run of its bytes.

    Only a server whose extension is {"ranges": True} takes a run: that much is proposed for ASGI,
    and not in it yet.
    """

    # Bytes; without an offset from the file's beginning, without a count to its end.
    offset: int
    count: int


class _ZeroCopySendFile(TypedDict):
    type: str
    # A descriptor, or an object that has one.
    file: int | HasFileno


class ZeroCopySend(_ZeroCopySendFile, total=False):
    """http.response.zerocopysend: a piece of the body is a run of a file's bytes."""

    # Without an offset: from the file's current position, which moves on.
    offset: int
    # Without a count: to the end of the file.
    count: int
    more_body: bool


def response_start(status: int, headers: Iterable[tuple[bytes, bytes]]) -> Message:
    """The head of a response; the headers are copied, since middleware may add to them."""
    start: ResponseStart = {
        "type": "http.response.start",
        "status": status,
        "headers": list(headers),
    }
    return start  # type: ignore[return-value]


def response_body(body: bytes = b"", *, more_body: bool = False) -> Message:
    """A piece of a body, as a rule the last one."""
    piece: ResponseBody = {"type": "http.response.body", "body": body, "more_body": more_body}
    return piece  # type: ignore[return-value]
