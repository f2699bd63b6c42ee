"""Small responses under uvicorn's httptools protocol: headers and body, in one write.

uvicorn's send() takes two coroutines and two writes, and checks and encodes every header anew.
:func:`send_whole` sends headers and body at once. It does not check a header again that was sent
before. The bytes, the access log and the state of uvicorn's
RequestResponseCycle are those of uvicorn's send(). All other responses are still sent or refused by
uvicorn's send(). So is the end of a body that is a message of its own (Starlette's
BaseHTTPMiddleware).

Another version's send() might differ. So this is used only if the source of uvicorn's send() and of
its helpers is one with which tests/asgi/test_whole_responses.py compares it. The number of the
version does not matter.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import sys
import tokenize
from collections.abc import Callable
from functools import cache
from types import MethodType
from typing import Any

from wsgifast.http.framing import LAST_CHUNK, chunk, has_body

from .messages import COALESCED_BYTES, Message, Send

# Called as send_whole().
SendWhole = Callable[[Any, Message, Message], bool]

_MODULE = "uvicorn.protocols.http.httptools_impl"
# The digests of sources that send_whole() replaces, and the versions of uvicorn that have them.
KNOWN_SENDS = {"de5bad0dc369ad90": ("0.53.0", "0.54.0")}
# Names that send() uses: methods of the cycle, and names of the module.
_METHODS = "__init__", "send"
_FUNCTIONS = "get_client_addr", "get_path_with_query_string"
_PATTERNS = "HEADER_RE", "HEADER_VALUE_RE"
# That module. None until uvicorn's send() is met: uvicorn may not be installed.
_httptools_impl: Any = None
# The results for each class with a server's send(), and for that function.
_known: dict[type, tuple[object, SendWhole | None]] = {}
_UNKNOWN = None, None
_MAX_KNOWN = 64

# For these uvicorn's send() makes more than a line of the headers.
_NOT_PLAIN = frozenset({b"connection", b"content-length", b"transfer-encoding"})
# Lines of checked headers, by name and value. Neither long values are cached, nor cookies, which
# may be secrets.
_lines: dict[tuple[bytes, bytes], bytes] = {}
_MAX_LINES = 512
_MAX_CACHED_BYTES = 256
_status_lines: dict[int, bytes] = {}
# uvicorn's own headers, Date among them, and their lines. It makes a new list every second.
_own: tuple[object, bytes] = None, b""


def whole_sender_for(send: Send) -> SendWhole | None:
    """Return a replacement for a server's send(), a method of uvicorn's cycle, or None."""
    if type(send) is not MethodType:  # a proxy may have the attributes of one
        return None
    of = type(send.__self__)
    function, sender = _known.get(of, _UNKNOWN)
    if function is not send.__func__:
        sender = _find(of, send.__func__)
        if len(_known) < _MAX_KNOWN:
            _known[of] = send.__func__, sender
    return sender


def _find(of: type, function: Any) -> SendWhole | None:
    global _httptools_impl
    module = sys.modules.get(_MODULE)
    if (
        module is None
        or of is not getattr(module, "RequestResponseCycle", None)
        # Another's in its place has another module, or wraps it.
        or getattr(function, "__module__", None) != _MODULE
        or hasattr(function, "__wrapped__")
    ):
        return None
    if digest_of_send(module) not in KNOWN_SENDS:
        _log_unknown(str(getattr(sys.modules.get("uvicorn"), "__version__", None)))
        return None
    _httptools_impl = module
    for status, line in module.STATUS_LINE.items():
        if has_body("GET", status):
            _status_lines[status] = line
    return send_whole


def digest_of_send(module: Any) -> str | None:
    """Return a digest of the source of uvicorn's send() and of its helpers.

    The source is the same on every version of Python, and the bytecode is not.

    :param module: uvicorn's httptools_impl.
    :returns: None if there is no source, or it has been changed.
    """
    try:
        cycle = module.RequestResponseCycle
        used = [getattr(cycle, name) for name in _METHODS]
        used += [getattr(module, name) for name in _FUNCTIONS]
        patterns = [getattr(module, name).pattern for name in _PATTERNS]
    except AttributeError:
        return None
    return _digest(*used, *patterns)


@cache  # it reads a file
def _digest(*parts: Any) -> str | None:
    try:
        texts = [inspect.getsource(part) if callable(part) else repr(part) for part in parts]
    except (OSError, TypeError, SyntaxError, tokenize.TokenError):
        return None
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


@cache
def _log_unknown(version: str) -> None:
    logging.getLogger("uvicorn.error").warning(
        "asgifast does not know the send() of uvicorn %s, and sends small responses by it. "
        "That is slower than with uvicorn %s",
        version, " or ".join(each for versions in KNOWN_SENDS.values() for each in versions),
    )  # fmt: skip


def send_whole(
    cycle: Any, start: Message, message: Message, write: Callable[[bytes], object] | None = None
) -> bool:
    """Send a start message and the one after it at once, if they are plain.

    :param cycle: uvicorn's RequestResponseCycle.
    :param start: its headers are a list.
    :param message: with `more_body` the end follows by uvicorn's send().
    :param write: in place of the transport's.
    :returns: whether both were sent. If not, nothing was, and uvicorn's send() must send or refuse
        them.
    """
    global _own
    if message["type"] != "http.response.body":
        return False
    body = message["body"] if "body" in message else b""  # noqa: SIM401 - quicker than get()
    if (
        type(body) is not bytes
        or (size := len(body)) >= COALESCED_BYTES
        or cycle.response_started
        or cycle.disconnected
        or cycle.flow.write_paused
        or (method := cycle.scope["method"]) == "HEAD"
        or method == "CONNECT"
    ):
        return False
    is_declared = False
    try:
        own = _own  # another thread may serve, too
        if own[0] is not cycle.default_headers:
            lines = [_encode(name, value) for name, value in cycle.default_headers]
            _own = own = cycle.default_headers, b"".join(lines)
        status = start["status"]
        parts = [_status_lines[status], own[1]]
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
        _log_access(cycle, status)
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


def _log_access(cycle: Any, status: int) -> None:
    """Write uvicorn's line, which it writes with the headers."""
    scope = cycle.scope
    cycle.access_logger.info(
        '%s - "%s %s HTTP/%s" %d',
        _httptools_impl.get_client_addr(scope),
        scope["method"],
        _httptools_impl.get_path_with_query_string(scope),
        scope["http_version"],
        status,
    )


def _encode(name: bytes, value: bytes) -> bytes:
    """Return the line of a plain header.

    :raises ValueError: if it is none: uvicorn's send() handles it, or refuses it.
    """
    lower = name.lower()
    if (
        lower in _NOT_PLAIN
        or _httptools_impl.HEADER_RE.search(name)
        or _httptools_impl.HEADER_VALUE_RE.search(value)
    ):
        raise ValueError
    return b"".join((lower, b": ", value, b"\r\n"))


def _keep(header: tuple[bytes, bytes], line: bytes) -> None:
    name, value = header
    if type(name) is not bytes or type(value) is not bytes:
        return  # another type may keep more than its bytes
    if len(line) <= _MAX_CACHED_BYTES and not line.startswith(b"set-cookie:"):
        if len(_lines) >= _MAX_LINES:
            _lines.clear()
        _lines[name, value] = line


# At import if possible, as it reads a file, and later would do so on the event loop.
if _MODULE in sys.modules:
    digest_of_send(sys.modules[_MODULE])
