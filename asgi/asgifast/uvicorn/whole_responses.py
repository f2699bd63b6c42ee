"""A response of a head and one message, sent under uvicorn's httptools protocol in one write.

uvicorn's send() checks and encodes every header anew, and writes the head and the body apart: two
system calls on asyncio's own loop. Here a header that was sent before is not checked again, and
both leave together. What is not plain is left to uvicorn's send(), with its errors.

The bytes, the access log and the state of uvicorn's cycle are those of uvicorn's send(): it and
send_whole() send samples when this is imported, and `whole_sender` is None unless they agree.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

from uvicorn.protocols.http import httptools_impl
from uvicorn.protocols.utils import get_client_addr, get_path_with_query_string

from wsgifast.http.framing import has_body

from ..coalescing import COALESCED_BYTES
from ..messages import Message, Send, response_body, response_start

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


class _Own:
    """The lines of uvicorn's own headers, Date among them: it makes a new list every second."""

    headers: object = None
    lines: bytes | None = None


def send_whole(cycle: Any, write: Callable[[bytes], object], start: Message, body: bytes) -> bool:
    """Send a response, if it is plain.

    :param cycle: uvicorn's, of a request whose method is not HEAD.
    :param write: its transport's.
    :param start: the head, with a list of headers.
    :returns: False if nothing was sent: uvicorn's send() is to send it, or to refuse it.
    """
    size = len(body)
    if (
        size >= COALESCED_BYTES
        or cycle.response_started
        or cycle.disconnected
        or cycle.flow.write_paused
    ):
        return False
    if cycle.default_headers is not _Own.headers:
        _Own.lines = _encode_own(cycle.default_headers)
        _Own.headers = cycle.default_headers
    own_lines = _Own.lines
    if own_lines is None:
        return False
    status = start["status"]
    is_declared = False
    try:
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
    except (KeyError, TypeError, ValueError):  # no such status; no tuples of bytes; not plain
        return False
    if not is_declared:
        return False
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = cycle.chunked_encoding = False
    if cycle.access_log:
        scope = cycle.scope
        cycle.access_logger.info(
            '%s - "%s %s HTTP/%s" %d',
            get_client_addr(scope),
            scope["method"],
            get_path_with_query_string(scope),
            scope["http_version"],
            status,
        )
    parts.append(b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n")
    parts.append(body)
    write(b"".join(parts))
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()
    return True


def send_in_place_of(send: Send, start: Message, body: bytes) -> bool:
    """As :func:`send_whole`, under uvicorn's own protocol.

    :param send: of uvicorn's cycle.
    """
    cycle = send.__self__  # type: ignore[attr-defined]
    return send_whole(cycle, cycle.transport.write, start, body)


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
    if len(line) <= _MAX_KEPT_BYTES and not line.startswith(b"set-cookie:"):
        if len(_lines) >= _MAX_LINES:
            _lines.clear()
        _lines[header] = line


def sample(
    start: Message,
    body: bytes,
    *,
    by_uvicorn: bool,
    keep_alive: bool = True,
    own_headers: Sequence[tuple[bytes, bytes]] = ((b"server", b"uvicorn"),),
) -> tuple[object, ...] | None:
    """What comes of a response: what is written and called, and the state of the cycle.

    :param by_uvicorn: send it by uvicorn's send(), which raises its errors.
    :returns: None if :func:`send_whole` sends nothing.
    """
    calls: list[tuple[object, ...]] = []
    written: list[bytes] = []
    given: dict[str, Any] = {
        "scope": {
            "method": "GET", "path": "/", "query_string": b"a=b", "http_version": "1.1",
            "client": ("192.0.2.1", 1), "headers": [(b"connection", b"close")],
        },
        "transport": SimpleNamespace(write=written.append, close=lambda: calls.append(("close",))),
        "flow": SimpleNamespace(write_paused=False),
        "access_logger": SimpleNamespace(info=lambda *line: calls.append(line)),
        "access_log": True,
        "default_headers": list(own_headers),
        "message_event": SimpleNamespace(set=lambda: calls.append(("set",))),
        "keep_alive": keep_alive,
        "on_response": lambda: calls.append(("on_response",)),
    }  # fmt: skip
    cycle_class: Any = httptools_impl.RequestResponseCycle
    names = inspect.signature(cycle_class).parameters
    cycle = cycle_class(**{name: given.get(name) for name in names})
    before = dict(vars(cycle))
    if by_uvicorn:
        for message in (start, response_body(body)):
            _run(cycle.send(message))
    elif not send_whole(cycle, written.append, start, body):
        return (written, calls) if written or calls or vars(cycle) != before else None
    state = {name: value for name, value in vars(cycle).items() if name not in given}
    return b"".join(written), calls, state, cycle.keep_alive


def _run(sending: Any) -> None:
    """Run a coroutine that does not wait."""
    try:
        sending.send(None)
    except StopIteration:
        return
    sending.close()
    raise RuntimeError("it waits")


def sends_alike() -> bool:
    """Whether uvicorn's send() is one that :func:`send_whole` may stand for."""
    start = response_start(200, [(b"Content-Type", b"text/plain"), (b"content-length", b"2")])
    try:
        return all(
            sample(start, b"ok", by_uvicorn=False, keep_alive=keep_alive)
            == sample(start, b"ok", by_uvicorn=True, keep_alive=keep_alive)
            for keep_alive in (True, False)
        )
    except Exception:  # noqa: BLE001 - another uvicorn's internals
        return False


whole_sender = send_whole if sends_alike() else None
