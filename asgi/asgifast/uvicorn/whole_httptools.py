"""Whole responses under uvicorn's httptools protocol.

uvicorn checks and encodes every header anew; here one that was sent before is not checked again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from uvicorn.protocols.http import httptools_impl

from wsgifast.http.framing import LAST_CHUNK, chunk, has_body

from ..messages import Message
from .whole_responses import log_access, ready_body, sends_alike

# Of these uvicorn's send() makes more than a line of the head.
_NOT_PLAIN = frozenset({b"connection", b"content-length", b"transfer-encoding"})
# Lines of checked headers, by name and value. Neither long values are kept, nor cookies, which may
# be secrets.
_lines: dict[tuple[bytes, bytes], bytes] = {}
_MAX_LINES = 512
_MAX_KEPT_BYTES = 256
_status_lines: dict[int, bytes] = {
    status: line for status, line in httptools_impl.STATUS_LINE.items() if has_body("GET", status)
}
# uvicorn's own headers, Date among them, and their lines; it makes a new list every second.
_own: tuple[object, bytes | None] = None, None


def send_whole(
    cycle: Any, start: Message, message: Message, write: Callable[[bytes], object] | None = None
) -> bool:
    """See :class:`~asgifast.whole_senders.SendWhole`."""
    global _own
    body = ready_body(cycle, message)
    if body is None:
        return False
    size = len(body)
    own = _own  # another thread may serve, too
    if own[0] is not cycle.default_headers:
        _own = own = cycle.default_headers, _encode_own(cycle.default_headers)
    own_lines = own[1]
    if own_lines is None:
        return False
    is_declared = False
    try:
        status = start["status"]
        parts = [_status_lines[status], own_lines]
        for header in start["headers"]:
            line = _lines.get(header)
            if line is None:
                name, value = header
                if name == b"content-length" and not is_declared and value == b"%d" % size:
                    is_declared = True
                    line = b"content-length: %b\r\n" % value
                else:
                    line = _encode(name, value)
                    _keep(header, line)
            parts.append(line)
    except Exception:  # noqa: BLE001 - not plain: uvicorn's send() raises its own
        return False
    has_more = message.get("more_body")
    if has_more and not is_declared:
        return False
    cycle.response_started = True
    cycle.waiting_for_100_continue = False
    if cycle.access_log:
        log_access(cycle, status)
    cycle.chunked_encoding = not is_declared
    if not cycle.keep_alive:
        parts.append(b"connection: close\r\n")
    if is_declared:
        parts += b"\r\n", body
    else:
        parts += b"transfer-encoding: chunked\r\n\r\n", chunk(body) if body else b"", LAST_CHUNK
    (write or cycle.transport.write)(b"".join(parts))
    if has_more:
        return True
    cycle.response_complete = True
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()
    return True


def _encode(name: bytes, value: bytes) -> bytes:
    """Return the line of a plain header.

    :raises ValueError: if it is none: uvicorn's send() handles it, or refuses it.
    """
    lower = name.lower()
    if (
        lower in _NOT_PLAIN
        or httptools_impl.HEADER_RE.search(name)
        or httptools_impl.HEADER_VALUE_RE.search(value)
    ):
        raise ValueError
    return b"".join((lower, b": ", value, b"\r\n"))


def _encode_own(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    try:
        return b"".join([_encode(name, value) for name, value in headers])
    except ValueError:
        return None


def _keep(header: tuple[bytes, bytes], line: bytes) -> None:
    name, value = header
    if type(name) is not bytes or type(value) is not bytes:
        return  # another type may keep more than its bytes
    if len(line) <= _MAX_KEPT_BYTES and not line.startswith(b"set-cookie:"):
        if len(_lines) >= _MAX_LINES:
            _lines.clear()
        _lines[name, value] = line


# None if uvicorn's send() is another one.
whole_sender = send_whole if sends_alike(httptools_impl.RequestResponseCycle, send_whole) else None
