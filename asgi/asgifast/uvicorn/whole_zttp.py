"""Whole responses under uvicorn's zttp protocol for HTTP/1.1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import zttp
from uvicorn.protocols.http import zttp_impl

from wsgifast.http.framing import has_body

from ..messages import Message
from .whole_responses import log_access, ready_body, sends_alike


def send_whole(
    cycle: Any, start: Message, message: Message, write: Callable[[bytes], object] | None = None
) -> bool:
    """See :class:`~asgifast.whole_senders.SendWhole`."""
    body = ready_body(cycle, message)
    if body is None:
        return False
    size = len(body)
    is_declared = False
    try:
        status = start["status"]
        headers = [*cycle.default_headers, *start["headers"]]
        for name, value in headers:
            if len(name) in _FRAMING_SIZES and (lower := name.lower()) in _FRAMING:
                if is_declared or lower != b"content-length" or value != b"%d" % size:
                    return False
                is_declared = True
        has_more = message.get("more_body")
        if not has_body("GET", status) or (has_more and not is_declared):
            return False
    except Exception:  # noqa: BLE001 - not plain: uvicorn's send() raises its own
        return False
    cycle.response_started = True
    cycle.waiting_for_100_continue = False
    if cycle.access_log:
        log_access(cycle, status)
    if not is_declared:
        cycle.chunked_encoding = True
        headers.append((b"transfer-encoding", b"chunked"))
    connection = cycle.conn
    connection.send_response(status, headers)
    if body:
        connection.send_data(body)
    write = write or cycle.transport.write
    if has_more:
        write(connection.data_to_send())
        return True
    connection.end_message()
    cycle.response_complete = True
    write(connection.data_to_send())
    cycle.message_event.set()
    if not cycle.keep_alive or connection.should_close():
        cycle.transport.close()
    cycle.on_response()
    return True


_FRAMING = frozenset({b"content-length", b"transfer-encoding"})
_FRAMING_SIZES = frozenset(len(name) for name in _FRAMING)


def _connection() -> Any:
    """A connection that has received a request."""
    connection = zttp.Connection(zttp.SERVER)
    connection.receive_event(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    return connection


whole_sender = (
    send_whole if sends_alike(zttp_impl.RequestResponseCycle, send_whole, _connection) else None
)
