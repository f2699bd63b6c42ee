"""The types of ASGI, as far as they are used here (asgiref's may not be installed)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, TypedDict

__all__ = ["ASGIApp", "Message", "PathSend", "Receive", "Scope", "Send", "ZeroCopySend"]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]


class ResponseStart(TypedDict, total=False):
    """http.response.start"""

    type: str
    status: int
    headers: Iterable[tuple[bytes, bytes]]


class PathSend(TypedDict):
    """http.response.pathsend: the whole body is the file at an absolute path."""

    type: str
    path: str


class ZeroCopySend(TypedDict, total=False):
    """http.response.zerocopysend: a piece of the body is a run of a file's bytes."""

    type: str
    # A descriptor, or an object with fileno().
    file: Any
    # Without an offset: from the file's current position, which moves on.
    offset: int
    # Without a count: to the end of the file.
    count: int
    more_body: bool


# Extension names, as scope["extensions"] has them.
PATHSEND = "http.response.pathsend"
ZEROCOPYSEND = "http.response.zerocopysend"
