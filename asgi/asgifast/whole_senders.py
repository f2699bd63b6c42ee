"""What sends a response of a head and one message with less work than uvicorn's send().

uvicorn may not be installed, or not be the server: it is found by its send().
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from types import MethodType
from typing import Any, Protocol

from .messages import Message, Send


class SendWhole(Protocol):
    def __call__(
        self,
        owner: Any,
        start: Message,
        message: Message,
        write: Callable[[bytes], object] | None = None,
        /,
    ) -> bool:
        """Send a head and the message behind it at once, if that may be.

        The end of a body with `more_body` is left to the server's send().

        :param owner: whose method the server's send() is, such as uvicorn's cycle.
        :param start: its headers are a list.
        :param write: in place of the transport's.
        :returns: whether both were sent; if not, nothing was, and the server's send() is to send or
            refuse them.
        :raises Exception: that of zttp, which makes the head.
        """
        ...


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


def add_sender(of: type, send: object, sender: SendWhole) -> None:
    """Have a class's send(), other than uvicorn's, stood for by `sender`."""
    _known[of] = send, sender


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
