"""What sends a response of a head and one message with less work than a server's send()."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from .messages import Message, Send

# Sends a head and a body in place of this send(), or returns False.
WholeSender = Callable[[Send, Message, bytes], bool]

# Modules of uvicorn's protocols, and those that know the send() of their cycles.
_UVICORN = {
    "uvicorn.protocols.http.httptools_impl": ".uvicorn.whole_httptools",
    "uvicorn.protocols.http.zttp_impl": ".uvicorn.whole_zttp",
}
# By the function of which a server's send() is a method.
_known: dict[object, WholeSender | None] = {None: None}
_MAX_KNOWN = 64


def whole_sender_for(send: Send) -> WholeSender | None:
    """Return the one for a server's send(); None if there is none."""
    function = getattr(send, "__func__", None)
    if function in _known:
        return _known[function]
    found = _find(function)
    if len(_known) < _MAX_KNOWN:
        _known[function] = found
    return found


def _find(function: Any) -> WholeSender | None:
    name = getattr(function, "__module__", "")
    cycle = getattr(sys.modules.get(name), "RequestResponseCycle", None)
    # Another's in its place has another module, or wraps it.
    if name not in _UVICORN or cycle is None or vars(cycle).get("send") is not function:
        return None
    if hasattr(function, "__wrapped__"):
        return None
    send_whole = import_module(_UVICORN[name], __package__).whole_sender
    if send_whole is None:
        return None

    def send_in_place(send: Send, start: Message, body: bytes) -> bool:
        server_cycle: Any = send.__self__  # type: ignore[attr-defined]
        sent: bool = send_whole(server_cycle, server_cycle.transport.write, start, body)
        return sent

    return send_in_place
