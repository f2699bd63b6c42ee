"""The WSGI environ: the same keys and values as gunicorn's, with what is constant made once.

A worker's part (file_wrapper, errors, ...) and a connection's part (addresses) are copied for each
request; only its head is worked through. The security-relevant rules are gunicorn's: which headers
reach us at all was decided by its parser, the mapping to names is CGI's (RFC 3875 section 4.1.18).
"""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import unquote_to_bytes

from ..errors import MalformedRequest

__all__ = ["EnvironFactory"]

_PROTOCOLS = {(1, 0): "HTTP/1.0", (1, 1): "HTTP/1.1"}
_DEFAULT_PORTS = {"http": "80", "https": "443"}
# The last one counts, as in gunicorn; its parser refuses repeated ones anyway.
_SINGLE = frozenset({"CONTENT_TYPE", "CONTENT_LENGTH"})
# Names are the client's to choose: remember the usual ones, not every one ever sent.
_MAX_HEADER_KEYS = 500


class EnvironFactory:
    """Makes environs for one worker.

    :param worker_part: what is the same for all of them.
    """

    def __init__(self, worker_part: dict[str, Any]) -> None:
        self._script_name = os.environ.get("SCRIPT_NAME", "")
        self._header_keys: dict[str, str] = {}
        self._worker_part = {
            "wsgi.version": (1, 0),
            "wsgi.multithread": True,
            "wsgi.run_once": False,
            "wsgi.input_terminated": True,
            **worker_part,
        }

    def for_connection(self, sock: object, peer: object, server: object) -> dict[str, Any]:
        """The part that is the same for every request of a connection.

        :param sock: what the app finds under `gunicorn.socket`.
        :param peer: the peer's address as accept() gave it.
        :param server: the listener's address; a Unix socket's path says nothing to an app, so
            SERVER_NAME is then taken from each request's Host.
        """
        environ = self._worker_part.copy()
        environ["gunicorn.socket"] = sock
        if isinstance(peer, str):
            environ["REMOTE_ADDR"] = peer
        elif isinstance(peer, bytes):
            environ["REMOTE_ADDR"] = peer.decode()
        elif isinstance(peer, tuple):
            environ["REMOTE_ADDR"] = peer[0]
            environ["REMOTE_PORT"] = str(peer[1])
        if isinstance(server, tuple):
            environ["SERVER_NAME"] = server[0]
            environ["SERVER_PORT"] = str(server[1])
        return environ

    def for_request(
        self, part: dict[str, Any], req: Any, body: object, *, check: bool = True
    ) -> dict[str, Any]:
        """The environ of a request.

        :param part: what :meth:`for_connection` made.
        :param check: False for the log of a request that is refused anyway.
        :raises MalformedRequest: if the path is not under SCRIPT_NAME.
        """
        environ = part.copy()
        environ["wsgi.input"] = body
        environ["REQUEST_METHOD"] = req.method
        environ["QUERY_STRING"] = req.query
        environ["RAW_URI"] = req.uri
        version = req.version
        environ["SERVER_PROTOCOL"] = _PROTOCOLS.get(version) or f"HTTP/{version[0]}.{version[1]}"
        environ["wsgi.url_scheme"] = req.scheme
        script_name = self._script_name
        host = None
        keys = self._header_keys
        repeated: dict[str, list[str]] | None = None
        for name, value in req.headers:
            key = keys.get(name) or self._learn(name)
            if name == "HOST":
                host = value
            elif name == "SCRIPT_NAME":
                script_name = value  # the parser lets it through from trusted peers only
            if key in environ and key not in _SINGLE:
                if repeated is None:
                    repeated = {}
                repeated.setdefault(key, [environ[key]]).append(value)
            else:
                environ[key] = value
        if repeated is not None:
            # Joined once at the end: one by one would copy the growing value each time.
            for key, values in repeated.items():
                environ[key] = ",".join(values)
        if "SERVER_NAME" not in environ:
            name, _, port = (host or "").partition(":")
            if not port and host is not None:
                port = _DEFAULT_PORTS.get(req.scheme, "")
            environ["SERVER_NAME"] = name
            environ["SERVER_PORT"] = port
        path = req.path
        if script_name:
            if path.startswith(script_name):
                path = path[len(script_name) :]
            elif check:
                raise MalformedRequest(
                    f"Request path {path!r} does not start with SCRIPT_NAME {script_name!r}"
                )
        if "%" in path or not path.isascii():
            path = unquote_to_bytes(path).decode("latin-1")
        environ["PATH_INFO"] = path
        environ["SCRIPT_NAME"] = script_name
        return environ

    def _learn(self, name: str) -> str:
        if name in ("CONTENT-TYPE", "CONTENT-LENGTH"):
            key = name.replace("-", "_")
        else:
            key = "HTTP_" + name.replace("-", "_")
        if len(self._header_keys) < _MAX_HEADER_KEYS:
            self._header_keys[name] = key
        return key
