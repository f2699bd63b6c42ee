"""Responses of a head and one message, sent in one write: what is common to uvicorn's protocols.

uvicorn's send() is a coroutine for the head and one for the body, and writes them apart: two system
calls on asyncio's own loop. A `send_whole` sends both at once, with the same bytes, access log and
state of uvicorn's cycle. What is not plain it leaves to uvicorn's send(), with its errors; and the
end, if that is a message of its own behind the whole body (Starlette's BaseHTTPMiddleware).

It is not used with a uvicorn whose send() does something else: both send a sample when it is
imported (:func:`sends_alike`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from uvicorn.protocols.utils import get_client_addr, get_path_with_query_string

from ..coalescing import COALESCED_BYTES
from ..messages import Message, response_body, response_start
from ..whole_senders import SendWhole


def ready_body(cycle: Any, message: Message) -> bytes | None:
    """The message's part of the body, if it may leave now, with its head."""
    if message["type"] != "http.response.body":
        return None
    body = message["body"] if "body" in message else b""  # noqa: SIM401 - quicker than get()
    if (
        type(body) is not bytes
        or len(body) >= COALESCED_BYTES
        or cycle.response_started
        or cycle.disconnected
        or cycle.flow.write_paused
        or (method := cycle.scope["method"]) == "HEAD"
        or method == "CONNECT"
    ):
        return None
    return body


def log_access(cycle: Any, status: int) -> None:
    """Write uvicorn's line, which it writes with the head."""
    scope = cycle.scope
    cycle.access_logger.info(
        '%s - "%s %s HTTP/%s" %d',
        get_client_addr(scope),
        scope["method"],
        get_path_with_query_string(scope),
        scope["http_version"],
        status,
    )


def sample(
    cycle_class: Any,
    send_whole: SendWhole | None,
    start: Message,
    body: bytes,
    *,
    more_body: bool = False,
    connection: Any = None,
    http_version: str = "1.1",
    keep_alive: bool = True,
    own_headers: Sequence[tuple[bytes, bytes]] = ((b"server", b"uvicorn"),),
) -> tuple[object, ...] | None:
    """What comes of a response: what is written and called, and the state of the cycle.

    :param send_whole: None for uvicorn's send(), which raises its errors.
    :param more_body: the end is a message of its own, which uvicorn sends.
    :param connection: zttp's, which has received a request.
    :returns: None if `send_whole` leaves the response to uvicorn.
    """
    calls: list[tuple[object, ...]] = []
    written: list[bytes] = []
    given: dict[str, Any] = {
        "scope": {
            "method": "GET", "path": "/", "query_string": b"a=b", "http_version": http_version,
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
        "conn": connection,
    }  # fmt: skip
    names = inspect.signature(cycle_class).parameters
    cycle = cycle_class(**{name: given.get(name) for name in names})
    before = dict(vars(cycle))
    message = response_body(body, more_body=more_body)
    if send_whole is None:
        _run(cycle.send(start))
        _run(cycle.send(message))
    elif not send_whole(cycle, start, message):
        return (written, calls) if written or calls or vars(cycle) != before else None
    found: tuple[object, ...] = ()
    for ends in (True, False) if more_body else (False,):
        state = {name: value for name, value in vars(cycle).items() if name not in given}
        found += b"".join(written), calls.copy(), state, cycle.keep_alive
        if ends:
            _run(cycle.send(response_body()))
    return found


def _run(sending: Any) -> None:
    """Run a coroutine that does not wait."""
    try:
        sending.send(None)
    except StopIteration:
        return
    sending.close()
    raise RuntimeError("it waits")


def sends_alike(
    cycle_class: Any, send_whole: SendWhole, connection: Callable[[], Any] = lambda: None
) -> bool:
    """Whether `send_whole` may stand for the send() of uvicorn's cycle.

    :param connection: makes what :func:`sample` has.
    """
    chunked = [(b"Content-Type", b"text/plain")]
    declared = [*chunked, (b"content-length", b"2")]
    try:
        for status, headers, http_version, keep_alive, more_body in (
            (200, declared, "1.1", True, False), (404, declared, "1.1", False, False),
            (200, declared, "1.0", False, False), (200, declared, "1.1", True, True),
            (404, declared, "1.1", False, True), (200, chunked, "1.1", True, False),
            (404, chunked, "1.1", False, False), (200, chunked, "1.0", False, False),
        ):  # fmt: skip
            ours, uvicorns = (
                sample(cycle_class, how, response_start(status, headers), b"ok",
                       more_body=more_body, connection=connection(), http_version=http_version,
                       keep_alive=keep_alive)
                for how in (send_whole, None)
            )  # fmt: skip
            if ours is None or ours != uvicorns:
                return False
    except Exception:  # noqa: BLE001 - another uvicorn's internals
        return False
    return True
