"""The HTTP client with which the doctor examines a running server."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NoReturn
from urllib.parse import urlsplit

from ..errors import ConfigurationError, WSGIFastError

__all__ = ["Answer", "Client", "NoAnswer"]

# Of a body; the rest is not read.
_MOST_BYTES = 64 * 1024 * 1024
# Bytes that do not belong there come with the head, or right behind it: seconds to wait for them.
_AFTER_HEAD_S = 0.15
# Of a client that reads slowly.
_SLOW_BUFFER_BYTES = 4096


class NoAnswer(WSGIFastError, OSError):
    """The server cannot be reached, or does not speak HTTP."""


@dataclass(frozen=True)
class Answer:
    """One response, as a client sees it.

    :ivar body_s: seconds from the end of the head to the end of the body.
    """

    status: int
    headers: Sequence[tuple[str, str]]
    body: bytes
    seconds: float
    body_s: float
    closes: bool

    def header(self, name: str) -> str | None:
        return next((v for k, v in self.headers if k.lower() == name.lower()), None)


class Client:
    """Requests from one server, on one connection each or on a shared one."""

    def __init__(self, url: str, headers: tuple[tuple[str, str], ...], limit_s: float) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise ConfigurationError(f"--live {url}: expected a URL such as http://127.0.0.1:8000")
        self.prefix = parts.path.rstrip("/")
        self._host, self._port = parts.hostname, port
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._headers = headers
        self._limit_s = limit_s

    def connect(self) -> http.client.HTTPConnection:
        """Open a connection.

        :raises NoAnswer: if the server cannot be reached.
        """
        connection: http.client.HTTPConnection
        if self._tls is not None:
            connection = http.client.HTTPSConnection(
                self._host, self._port, timeout=self._limit_s, context=self._tls
            )
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=self._limit_s)
        try:
            connection.connect()
        except OSError as error:
            self._give_up(error)
        return connection

    def ask(
        self,
        url: str,
        *,
        method: str = "GET",
        headers: Iterable[tuple[str, str]] = (),
        on: http.client.HTTPConnection | None = None,
    ) -> Answer:
        """One request, on a connection of its own or on one that is there already.

        :raises NoAnswer: if there is no answer in time, or what came is no HTTP.
        """
        connection = self.connect() if on is None else on
        try:
            began = time.perf_counter()
            connection.putrequest(method, url, skip_accept_encoding=True)
            for name, value in (*self._headers, *headers):
                connection.putheader(name, value)
            connection.endheaders()
            response = connection.getresponse()
            at_head = time.perf_counter()
            body = response.read(_MOST_BYTES)
            ended = time.perf_counter()
            closes = response.will_close
            return Answer(
                response.status,
                response.getheaders(),
                body,
                ended - began,
                ended - at_head,
                closes,
            )
        except (OSError, http.client.HTTPException) as error:
            self._give_up(error)
        finally:
            if on is None:
                connection.close()

    def read_slowly(self, url: str) -> socket.socket:
        """Ask for a body, and do not read it."""
        return self._request(url, receive_buffer=_SLOW_BUFFER_BYTES)

    def bytes_after_head(
        self, url: str, *, method: str = "GET", headers: Iterable[tuple[str, str]] = ()
    ) -> bytes:
        """What follows the head of a response that ends with its head, soon or with it."""
        received = b""
        with contextlib.closing(self._request(url, method=method, headers=headers)) as sock:
            try:
                while b"\r\n\r\n" not in received and (data := sock.recv(65536)):
                    received += data
                sock.settimeout(_AFTER_HEAD_S)
                with contextlib.suppress(TimeoutError):
                    received += sock.recv(65536)
            except OSError as error:
                self._give_up(error)
        return received.partition(b"\r\n\r\n")[2]

    def _request(
        self,
        url: str,
        *,
        method: str = "GET",
        headers: Iterable[tuple[str, str]] = (),
        receive_buffer: int | None = None,
    ) -> socket.socket:
        """Send a request; what comes back is the caller's to read."""
        port = self._port or (443 if self._tls else 80)
        family, kind, protocol, _, address = socket.getaddrinfo(
            self._host, port, type=socket.SOCK_STREAM
        )[0]
        sock = socket.socket(family, kind, protocol)
        try:
            if receive_buffer is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            sock.settimeout(self._limit_s)
            sock.connect(address)
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_hostname=self._host)
            lines = "".join(f"{k}: {v}\r\n" for k, v in (*self._headers, *headers))
            host = f"{self._host}:{port}"
            sock.sendall(f"{method} {url} HTTP/1.1\r\nHost: {host}\r\n{lines}\r\n".encode())
        except OSError as error:
            sock.close()
            self._give_up(error)
        return sock

    def _give_up(self, error: Exception) -> NoReturn:
        where = f"{self._host}:{self._port or (443 if self._tls else 80)}"
        reason = getattr(error, "strerror", None) or error or type(error).__name__
        raise NoAnswer(f"{where}: {reason}") from error
