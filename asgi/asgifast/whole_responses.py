"""Send small responses of uvicorn's httptools protocol in one write.

For a small response, uvicorn's send() needs two coroutines and two writes, and checks and encodes
every header. :func:`send_whole` sends headers and body at once, and caches headers that it has
checked. The bytes, the access log and the state of uvicorn's RequestResponseCycle are the same as
with uvicorn's send(). All other responses are sent or refused by uvicorn's send(). Starlette's
BaseHTTPMiddleware sends the end of a body as a separate message, which uvicorn's send() handles.

The send() of another version of uvicorn might differ. So this module checks the source of uvicorn's
send() and of its helpers. It replaces only a send() whose source it knows, whatever the version
number is. tests/asgi/test_whole_responses.py compares both.
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

# The type of :func:`send_whole`, without its last parameter.
SendWhole = Callable[[Any, Message, Message], bool]

_MODULE = "uvicorn.protocols.http.httptools_impl"
# The digests of the sources that send_whole() can replace, each with the versions of uvicorn that
# have this source.
KNOWN_SENDS = {"de5bad0dc369ad90": ("0.53.0", "0.54.0")}
# The parts of uvicorn's source that are checked: methods of the cycle, functions and patterns.
_METHODS = "__init__", "send"
_FUNCTIONS = "get_client_addr", "get_path_with_query_string"
_PATTERNS = "HEADER_RE", "HEADER_VALUE_RE"
# uvicorn's module. None until a send() of uvicorn is found, because uvicorn may not be installed.
_httptools_impl: Any = None
# The classes of servers so far, each with its send() function and the replacement or None.
_known_senders: dict[type, tuple[object, SendWhole | None]] = {}
_UNKNOWN = None, None
_MAX_KNOWN_SENDERS = 64

# Headers that uvicorn's send() does not only write, but also evaluates.
_SPECIAL_HEADERS = frozenset({b"connection", b"content-length", b"transfer-encoding"})
# Cached lines of checked headers, by name and value. Long values are not cached. Cookies are not
# cached either, because they may be secrets.
_lines: dict[tuple[bytes, bytes], bytes] = {}
_MAX_LINES = 512
_MAX_CACHED_BYTES = 256
_status_lines: dict[int, bytes] = {}
# uvicorn's default headers, such as Date, and their encoded lines. uvicorn makes a new list every
# second.
_default_headers: tuple[object, bytes] = None, b""


def whole_sender_for(send: Send) -> SendWhole | None:
    """Return the replacement for a server's send() if it is that of a known uvicorn, or None."""
    if type(send) is not MethodType:  # proxy objects may have the same attributes
        return None
    server_class = type(send.__self__)
    function, sender = _known_senders.get(server_class, _UNKNOWN)
    if function is not send.__func__:
        sender = _find(server_class, send.__func__)
        if len(_known_senders) < _MAX_KNOWN_SENDERS:
            _known_senders[server_class] = send.__func__, sender
    return sender


def _find(server_class: type, function: Any) -> SendWhole | None:
    global _httptools_impl
    module = sys.modules.get(_MODULE)
    if (
        module is None
        or server_class is not getattr(module, "RequestResponseCycle", None)
        # A function that replaces or wraps uvicorn's send() has another module or __wrapped__.
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

    Unlike bytecode, the source does not depend on the version of Python.

    :param module: uvicorn's httptools_impl.
    :returns: None if the source is not available, or if names are missing.
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
        "asgifast does not know the send() of uvicorn %s, and uses it for small responses. "
        "That is slower than with uvicorn %s",
        version, " or ".join(each for versions in KNOWN_SENDS.values() for each in versions),
    )  # fmt: skip


def send_whole(
    cycle: Any, start: Message, message: Message, write: Callable[[bytes], object] | None = None
) -> bool:
    """Send a start message and a body message at once, if they need no special treatment.

    :param cycle: uvicorn's RequestResponseCycle.
    :param start: a start message whose headers are a list.
    :param message: a body message. With `more_body`, it must complete the Content-Length, and
        uvicorn's send() ends the response later.
    :param write: writes bytes, in place of the transport's write().
    :returns: whether both were sent. If not, nothing was sent, and uvicorn's send() must send or
        refuse them.
    """
    global _default_headers
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
        default_headers = _default_headers  # another thread may change it
        if default_headers[0] is not cycle.default_headers:
            lines = [_encode(name, value) for name, value in cycle.default_headers]
            _default_headers = default_headers = cycle.default_headers, b"".join(lines)
        status = start["status"]
        parts = [_status_lines[status], default_headers[1]]
        for header in start["headers"]:
            line = _lines.get(header)
            if line is None:
                name, value = header
                if name == b"content-length" and not is_declared and value == b"%d" % size:
                    is_declared = True
                    line = b"content-length: %b\r\n" % value
                else:
                    line = _encode(name, value)
                    _cache_line(header, line)
            parts.append(line)
    except Exception:  # noqa: BLE001 - uvicorn's send() raises its own error
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
    """Log the response like uvicorn, which logs when it sends the headers."""
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
    """Return the encoded line of a header.

    :raises ValueError: if uvicorn's send() has to handle or refuse the header.
    """
    lower = name.lower()
    if (
        lower in _SPECIAL_HEADERS
        or _httptools_impl.HEADER_RE.search(name)
        or _httptools_impl.HEADER_VALUE_RE.search(value)
    ):
        raise ValueError
    return b"".join((lower, b": ", value, b"\r\n"))


def _cache_line(header: tuple[bytes, bytes], line: bytes) -> None:
    name, value = header
    if type(name) is not bytes or type(value) is not bytes:
        return  # objects of other types may refer to more memory
    if len(line) <= _MAX_CACHED_BYTES and not line.startswith(b"set-cookie:"):
        if len(_lines) >= _MAX_LINES:
            _lines.clear()
        _lines[name, value] = line


# Compute the digest at import if possible, because this reads a file. Otherwise it is computed on
# the event loop.
if _MODULE in sys.modules:
    digest_of_send(sys.modules[_MODULE])
