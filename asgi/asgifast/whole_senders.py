"""What sends a response of a head and one message with less work than a server's send()."""

from __future__ import annotations

import sys
from collections.abc import Callable

from .messages import Message, Send

# Sends a head and a body in place of this send(), or returns False.
WholeSender = Callable[[Send, Message, bytes], bool]

_UVICORN = "uvicorn.protocols.http.httptools_impl"
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


def _find(function: object) -> WholeSender | None:
    uvicorn = sys.modules.get(_UVICORN)
    cycle = getattr(uvicorn, "RequestResponseCycle", None)
    if (
        function is not getattr(cycle, "send", None)
        # and not another's, in its place
        or getattr(function, "__module__", None) != _UVICORN
        or hasattr(function, "__wrapped__")
    ):
        return None
    from .uvicorn.whole_responses import send_in_place_of, whole_sender

    return whole_sender and send_in_place_of
