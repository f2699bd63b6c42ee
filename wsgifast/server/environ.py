"""The WSGI environ, with the same keys and values as gunicorn's.

What all requests of a listener share is in a template, which is copied for each request; an idle
connection keeps nothing. Security is the parser's part: it decides which headers get here. Their
names become keys by CGI's rule (RFC 3875 section 4.1.18).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote_to_bytes

from ..errors import MalformedRequest
from .exchange import Exchange

_PROTOCOLS = {(1, 0): "HTTP/1.0", (1, 1): "HTTP/1.1"}
_DEFAULT_PORTS = {"http": "80", "https": "443"}
# The last one counts, as in gunicorn, whose parser refuses repeated ones anyway.
_SINGLE = frozenset({"CONTENT_TYPE", "CONTENT_LENGTH"})
# Set for each request, in the order in which the template has them.
_OF_EACH = (
    "gunicorn.socket", "wsgi.input", "wsgi.url_scheme", "REQUEST_METHOD", "SCRIPT_NAME",
    "PATH_INFO", "QUERY_STRING", "RAW_URI", "SERVER_PROTOCOL",
)  # fmt: skip
# Clients choose the names, so the number of remembered ones is limited.
_keys: dict[str, str] = {}
_MAX_KEYS = 500


class EnvironFactory:
    """Makes the environs of one worker.

    :param worker_part: what is the same in all of them.
    """

    def __init__(self, worker_part: dict[str, Any]) -> None:
        self._script_name = os.environ.get("SCRIPT_NAME", "")
        self._worker_part = {
            "wsgi.version": (1, 0),
            "wsgi.multithread": True,
            "wsgi.run_once": False,
            "wsgi.input_terminated": True,
            **worker_part,
        }
        self._shared: dict[Any, dict[str, Any]] = {}  # templates, by the listener's address

    def make(
        self, exchange: Exchange, sock: object, peer: object, server: Any, *, check: bool = True
    ) -> dict[str, Any]:
        """Make the environ of a request.

        :param sock: the value of `gunicorn.socket`.
        :param peer: the client's address as accept() returned it.
        :param server: the listener's address. For a Unix socket, SERVER_NAME is taken from the
            request's Host instead.
        :param check: False to accept any path, for the log of a request that is refused anyway.
        :raises MalformedRequest: if the path is not below SCRIPT_NAME.
        """
        req = exchange.req
        fields = exchange.fields
        version = req.version
        path = req.path
        script_name = exchange.script_name
        if script_name is None:
            script_name = self._script_name
        if script_name:
            if path.startswith(script_name):
                path = path[len(script_name) :]
            elif check:
                raise MalformedRequest(
                    f"Request path {path!r} does not start with SCRIPT_NAME {script_name!r}"
                )
        if "%" in path or not path.isascii():
            path = decoded_path(path)
        shared = self._shared.get(server)
        if shared is None:
            shared = self._shared[server] = self._share(server)
        environ = shared.copy()
        environ["gunicorn.socket"] = sock
        environ["wsgi.input"] = exchange.body
        environ["wsgi.url_scheme"] = req.scheme
        environ["REQUEST_METHOD"] = req.method
        environ["SCRIPT_NAME"] = script_name
        environ["PATH_INFO"] = path
        environ["QUERY_STRING"] = req.query
        environ["RAW_URI"] = req.uri
        environ["SERVER_PROTOCOL"] = _PROTOCOLS.get(version) or f"HTTP/{version[0]}.{version[1]}"
        if isinstance(peer, tuple):
            environ["REMOTE_ADDR"] = peer[0]
            environ["REMOTE_PORT"] = str(peer[1])
        elif isinstance(peer, str):
            environ["REMOTE_ADDR"] = peer
        elif isinstance(peer, bytes):
            environ["REMOTE_ADDR"] = peer.decode()
        if exchange.proxy is not None:
            environ.update(exchange.proxy)
        environ |= fields
        if "SERVER_NAME" not in environ:
            host = fields.get("HTTP_HOST")
            name, _, port = (host or "").partition(":")
            if not port and host is not None:
                port = _DEFAULT_PORTS.get(req.scheme, "")
            environ["SERVER_NAME"] = name
            environ["SERVER_PORT"] = port
        return environ

    def _share(self, server: Any) -> dict[str, Any]:
        """Make the template of a listener."""
        environ = {**self._worker_part, **dict.fromkeys(_OF_EACH)}
        if isinstance(server, tuple):
            environ["SERVER_NAME"] = server[0]
            environ["SERVER_PORT"] = str(server[1])
        return environ


def decoded_path(path: str) -> str:
    """Return the path of a request as PATH_INFO has it."""
    return unquote_to_bytes(path).decode("latin-1")


def header_fields(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return headers under their environ keys; repeated ones are joined (RFC 9110 section 5.3).

    :param headers: names in upper case, and values.
    """
    fields: dict[str, str] = {}
    repeated: dict[str, list[str]] | None = None
    for name, value in headers:
        key = _keys.get(name) or _learn(name)
        if key in fields and key not in _SINGLE:
            if repeated is None:
                repeated = {}
            repeated.setdefault(key, [fields[key]]).append(value)
        else:
            fields[key] = value
    if repeated is not None:
        # Joined once at the end: joining one by one would take quadratic time.
        for key, values in repeated.items():
            fields[key] = ",".join(values)
    return fields


def header_key(name: str) -> str:
    """Return the environ key of a header.

    :param name: in upper case.
    """
    key = name.replace("-", "_")
    return key if key in _SINGLE and "_" not in name else f"HTTP_{key}"


def _learn(name: str) -> str:
    key = header_key(name)
    if len(_keys) < _MAX_KEYS:
        _keys[name] = key
    return key
