"""The types, messages and extensions of ASGI.

The types are declared here because asgiref may not be installed.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from wsgifast.errors import BodyError
from wsgifast.files import ByteRange
from wsgifast.http.fields import parse_length
from wsgifast.sockets import FileSegment, file_segment
from wsgifast.sockets.sending import open_regular

from .loops import Event, new_event

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
RawHeaders = list[tuple[bytes, bytes]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

# When this many bytes are coalesced, they are sent before the event loop iteration ends. The
# default high-water mark of asyncio's transports is the same.
COALESCED_BYTES = 64 * 1024
STATUSES_WITHOUT_BODY = frozenset({204, 304})
_FRAMING = frozenset({b"content-length", b"transfer-encoding"})

# The keys of extensions in scope["extensions"].
PATHSEND = "http.response.pathsend"
ZEROCOPYSEND = "http.response.zerocopysend"
EARLY_HINT = "http.response.early_hint"
# A key in the scopes of asgifast's uvicorn protocols. With it, ASGIFast does not coalesce small
# messages, because the protocol does.
COALESCING = "asgifast.coalescing"
# Advice for error messages about an app whose middleware breaks its files.
PATHSEND_ADVICE = (
    "a middleware does not support http.response.pathsend. If that middleware changes bodies, "
    "wrap the app in ASGIFast(app, pathsend=False), so that files are sent as bytes"
)

# The extensions that ASGIFast offers to an app if all layers of the app support them.
FILE_EXTENSIONS: dict[str, dict[str, Any]] = {
    PATHSEND: {"ranges": True, "files": True},
    ZEROCOPYSEND: {},
}


def response_start(status: int, headers: Iterable[tuple[bytes, bytes]]) -> Message:
    """Return a start message with a copy of the headers, because middleware may add to them."""
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def response_body(body: bytes = b"", *, more_body: bool = False) -> Message:
    """Return a part of a body, by default the last one."""
    return {"type": "http.response.body", "body": body, "more_body": more_body}


def copied_start(start: Message) -> tuple[Message, list[tuple[bytes, bytes]], bool]:
    """Return a copy of a start message, since the app may change its own message later.

    :returns: the copy, its headers as a list, and whether Content-Length is among them. The app may
        have passed any iterable of headers, or omitted them.
    :raises TypeError or ValueError: if a header is not a pair.
    """
    headers = [*(start["headers"] if "headers" in start else ())]  # noqa: SIM401 - quicker than get()
    copied = {**start}
    copied["headers"] = headers
    for name, _ in headers:
        if name == b"content-length":
            return copied, headers, True
    return copied, headers, False


def with_listed_headers(scope: Scope) -> Scope:
    """Return a scope with a list of headers, since an iterator could be read only once."""
    return {**scope, "headers": [*scope["headers"]]}


def body_is_dropped(method: str, start: Message | None) -> bool:
    """Return whether the body of a response is dropped (RFC 9110, section 6.4.1)."""
    if method == "HEAD":
        return True
    return start is not None and start.get("status") in STATUSES_WITHOUT_BODY


def without_framing(headers: RawHeaders) -> RawHeaders:
    """Return headers without Content-Length and Transfer-Encoding."""
    return [header for header in headers if header[0].lower() not in _FRAMING]


def whole_body(message: Message) -> bytes | None:
    """Return the body if this message contains the whole body as bytes, or None."""
    if message["type"] == "http.response.body" and not message.get("more_body"):
        body = message["body"] if "body" in message else b""  # noqa: SIM401 - quicker than get()
        if type(body) is bytes:
            return body
    return None


def text_headers(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    """Return headers as pairs of str, as WSGI apps and :mod:`wsgifast.files` use them."""
    return [(str(name, "latin-1"), str(value, "latin-1")) for name, value in headers]


def declared_length(headers: Iterable[tuple[bytes, bytes]]) -> int | None:
    """Return the Content-Length of a start message, or None if it has no valid one."""
    for name, value in headers:
        if len(name) == 14 and name.lower() == b"content-length":
            return parse_length(value.decode("latin-1"))
    return None


class RequestedFile(NamedTuple):
    """The range of a file that a zerocopysend message names. The app closes the file."""

    segment: FileSegment
    # The file whose position is advanced, if the message has no offset.
    file_to_seek: Any = None

    def advance(self) -> None:
        """Set the file's position to the end of the sent bytes, if the message has no offset."""
        if self.file_to_seek is None:
            return
        position = self.segment.offset + self.segment.size
        if isinstance(self.file_to_seek, int):
            os.lseek(self.file_to_seek, position, os.SEEK_SET)
        else:
            self.file_to_seek.seek(position)


def parse_zerocopysend(message: Message) -> RequestedFile:
    """Return the range of the open file of a zerocopysend message.

    `file` is a descriptor, or an object with fileno(). Without `offset`, the range begins at the
    file's current position, which is advanced. Without `count`, it extends to the end of the file.

    :raises BodyError: if the file has no descriptor, or if sendfile does not accept it (a pipe, a
        device), or if the descriptor's bytes differ from the file object's (a GzipFile). It is also
        raised if offset or count is not a number of bytes.
    """
    file, offset, count = message["file"], message.get("offset"), message.get("count")
    _check_range(ZEROCOPYSEND, offset, count)
    if isinstance(file, int):
        fd = file
    else:
        try:
            fd = file.fileno()
        except (AttributeError, OSError):
            raise BodyError(
                f"{ZEROCOPYSEND} needs a file with a descriptor, not {type(file).__name__}; "
                "send its bytes with http.response.body"
            ) from None
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise BodyError(
            f"{ZEROCOPYSEND} needs a regular file, not a pipe or a device; "
            "send its bytes with http.response.body"
        )
    file_to_seek = None
    if offset is None:
        file_to_seek = file
        if isinstance(file, int):
            offset = os.lseek(fd, 0, os.SEEK_CUR)
        else:
            found = file_segment(file)
            if found is None and status.st_size:
                raise BodyError(
                    f"{ZEROCOPYSEND}: the descriptor of a {type(file).__name__} has other bytes "
                    "than the file object; open it with open(path, 'rb')"
                )
            offset = found.offset if found is not None else 0
    remaining = max(0, status.st_size - offset)
    return RequestedFile(
        FileSegment(fd, offset, remaining if count is None else count), file_to_seek
    )


@dataclass(frozen=True, slots=True)
class RequestedPath:
    """The file that a pathsend message names. Offset 0 and count None mean the whole file.

    :ivar path: an absolute path.
    """

    path: str
    offset: int
    count: int | None

    @property
    def is_whole(self) -> bool:
        return self.offset == 0 and self.count is None

    def byte_range(self, size: int, declared: int | None) -> ByteRange:
        """Return the range to send of a file that has `size` bytes.

        :param declared: the response's Content-Length. If it is not None, at most this many bytes
            are sent, since the file may have grown or shrunk after the app had read its size.
        """
        count = declared if self.count is None else self.count
        if count is None:
            count = max(0, size - self.offset)
        elif declared is not None:
            count = min(count, declared)
        return ByteRange(self.offset, count)


def parse_pathsend(message: Message) -> RequestedPath:
    """Return the file that a pathsend message names, with an absolute path.

    `offset` and `count` are a proposed addition to ASGI. Servers that accept them announce the
    extension with {"ranges": True}. With {"files": True}, a message may also contain an open `file`
    and the `parts` of the body: bytes, and each ByteRange of the file. The receiver closes the
    file, perhaps long after send() has returned: Starlette's BaseHTTPMiddleware passes messages
    through a queue.

    The extension requires an absolute path. Starlette's FileResponse sends the path that the app
    passed to it, which may be relative to the working directory.

    :raises BodyError: if the message has no path, or if offset or count is not a number of bytes.
    """
    path, offset, count = message.get("path"), message.get("offset"), message.get("count")
    if not isinstance(path, (str, os.PathLike)):
        raise BodyError(f"{PATHSEND} needs a path, not {path!r}")
    _check_range(PATHSEND, offset, count)
    path = os.fsdecode(path)
    if not os.path.isabs(path):
        path = os.path.join(os.getcwd(), path)
    return RequestedPath(path, offset or 0, count)


def _check_range(kind: str, offset: object, count: object) -> None:
    for name, value in (("offset", offset), ("count", count)):
        if value is not None and (not isinstance(value, int) or value < 0):
            raise BodyError(f"{kind}: {name} is a number of bytes, not {value!r}")


def open_for_pathsend(path: str) -> tuple[int, int]:
    """Open the file of a pathsend message. Return its descriptor and its size."""
    # This may run on the event loop. The app has just read the size of the file, so the kernel has
    # its inode in memory, and open() does not read the disk.
    fd, status = open_regular(path)
    return fd, status.st_size


class SendOrder:
    """Lets the calls of send() proceed one at a time, in the order of their calls.

    A caller acquires the order before it waits for the server::

        if order.is_acquired:
            await order.wait()
        order.is_acquired = True
        try:
            ...
        finally:
            order.release()

    :ivar is_acquired: whether a call has acquired the order and not yet released it.
    """

    __slots__ = ("_waiting", "is_acquired")

    def __init__(self) -> None:
        self.is_acquired = False
        self._waiting: deque[Event] | None = None  # few responses need it

    async def wait(self) -> None:
        """Wait for the earlier callers, and acquire the order."""
        event = new_event()
        if self._waiting is None:
            self._waiting = deque()
        self._waiting.append(event)
        try:
            await event.wait()
        except BaseException:
            if event in self._waiting:
                self._waiting.remove(event)
            else:  # acquired and cancelled in the same iteration
                self.release()
            raise

    def release(self) -> None:
        """Pass the order to the next waiting caller."""
        if self._waiting:
            self._waiting.popleft().set()
        else:
            self.is_acquired = False


def flow_of(send: Send) -> Any:
    """Return the FlowControl that a send() of uvicorn waits for, or None for another send()."""
    return getattr(getattr(send, "__self__", None), "flow", None)
