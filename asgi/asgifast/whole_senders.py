"""What sends a response of a head and one message with less work than uvicorn's send().

uvicorn may not be installed, or not be the server: it is found by its send().
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from types import MethodType
from typing import Any

from .messages import Send

# Given uvicorn's cycle, the head with a list of headers, the message behind it, and perhaps a
# write() in place of the transport's. Returns whether both were sent; if not, nothing was, and
# uvicorn's send() is to send or refuse them. The end of a body with `more_body` is left to it.
SendWhole = Callable[..., bool]

# Modules of uvicorn's protocols, and those that know the send() of their cycles.
_UVICORN = {
    "uvicorn.protocols.http.httptools_impl": ".uvicorn.whole_httptools",
    "uvicorn.protocols.http.zttp_impl": ".uvicorn.whole_zttp",
}
# What was found for the class of which a server's send() is a method, and for that function.
_known: dict[type, tuple[object, SendWhole | None]] = {}
_UNKNOWN = None, None
_MAX_KNOWN = 64


def whole_sender_for(send: Send) -> SendWhole | None:
    """Return what may stand for a server's send(), a method of uvicorn's cycle; or None."""
    if type(send) is not MethodType:  # a proxy may have the attributes of one
        return None
    of = type(send.__self__)
    function, sender = _known.get(of, _UNKNOWN)
    if function is not send.__func__:
        sender = _find(of, send.__func__)
        if len(_known) < _MAX_KNOWN:
            _known[of] = send.__func__, sender
    return sender


def register(of: type, function: object, sender: SendWhole) -> None:
    """Have another class's send(), `function`, stood for by what is called with its object."""
    _known[of] = function, sender


def _find(of: type, function: Any) -> SendWhole | None:
    name = of.__module__
    if (
        name not in _UVICORN
        or of is not getattr(sys.modules.get(name), "RequestResponseCycle", None)
        # Another's in its place has another module, or wraps it.
        or getattr(function, "__module__", None) != name
        or hasattr(function, "__wrapped__")
    ):
        return None
    try:
        module = import_module(_UVICORN[name], __package__)
    except Exception:  # noqa: BLE001 - another uvicorn's internals
        return None
    found: SendWhole | None = module.whole_sender
    return found
