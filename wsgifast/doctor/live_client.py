"""The HTTP client with which the doctor examines a running server."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from ..errors import ConfigurationError, WSGIFastError

# Of a body; the rest is not read.
_MOST_BYTES = 64 * 1024 * 1024
_BLOCK_BYTES = 1 << 20
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
        host, port, limit_s = self._host, self._port, self._limit_s
        if self._tls is None:
            connection = http.client.HTTPConnection(host, port, timeout=limit_s)
        else:
            connection = http.client.HTTPSConnection(host, port, timeout=limit_s, context=self._tls)
        with self._no_answer():
            connection.connect()
        return connection

    def ask(
        self,
        url: str,
        *,
        method: str = "GET",
        headers: Iterable[tuple[str, str]] = (),
        on: http.client.HTTPConnection | None = None,
    ) -> Answer:
        """One request, on a connection of its own or on an open one.

        :raises NoAnswer: if there is no whole answer in time, or what comes is not HTTP.
        """
        connection = self.connect() if on is None else on
        try:
            with self._no_answer():
                began = time.perf_counter()
                self._send(connection, url, method, headers)
                response = connection.getresponse()
                at_head = time.perf_counter()
                body = self._body(response, began + self._limit_s)
                ended = time.perf_counter()
        finally:
            if on is None:
                connection.close()
        seconds, body_s = ended - began, ended - at_head
        head = response.getheaders()
        return Answer(response.status, head, body, seconds, body_s, response.will_close)

    def _body(self, response: http.client.HTTPResponse, deadline: float) -> bytes:
        """Read a body's first bytes: of an endless one some may come again and again."""
        body = bytearray()
        with response:
            while len(body) < _MOST_BYTES and (block := response.read1(_BLOCK_BYTES)):
                body += block
                if time.perf_counter() > deadline:
                    raise TimeoutError(f"no end of the answer after {self._limit_s:g} s")
        return bytes(body)

    def read_slowly(self, url: str) -> socket.socket:
        """Request a body, and do not read it."""
        connection = self.connect()
        sock: socket.socket = connection.sock
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SLOW_BUFFER_BYTES)
        with self._no_answer():
            self._send(connection, url)
        return sock

    def bytes_after_head(
        self, url: str, *, method: str = "GET", headers: Iterable[tuple[str, str]] = ()
    ) -> bytes:
        """What follows a head that should end its response, with it or soon after it."""
        received = b""
        with contextlib.closing(self.connect()) as connection, self._no_answer():
            self._send(connection, url, method, headers)
            sock: socket.socket = connection.sock
            while b"\r\n\r\n" not in received and (data := sock.recv(65536)):
                received += data
            sock.settimeout(_AFTER_HEAD_S)
            with contextlib.suppress(TimeoutError):
                received += sock.recv(65536)
        return received.partition(b"\r\n\r\n")[2]

    def _send(
        self,
        connection: http.client.HTTPConnection,
        url: str,
        method: str = "GET",
        headers: Iterable[tuple[str, str]] = (),
    ) -> None:
        connection.putrequest(method, url, skip_accept_encoding=True)
        for name, value in (*self._headers, *headers):
            connection.putheader(name, value)
        connection.endheaders()

    @contextlib.contextmanager
    def _no_answer(self) -> Iterator[None]:
        """Raise NoAnswer for errors of the connection."""
        try:
            yield
        except (OSError, http.client.HTTPException) as error:
            where = f"{self._host}:{self._port or (443 if self._tls else 80)}"
            reason = getattr(error, "strerror", None) or error or type(error).__name__
            raise NoAnswer(f"{where}: {reason}") from error
