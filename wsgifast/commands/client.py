"""An HTTP client for servers that may misbehave: it limits every wait, and measures."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import importlib
import socket
import ssl
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

from ..compression.codings import ZSTD_MODULE
from ..errors import ConfigurationError, WSGIFastError
from ..http.headers import Headers

# As browsers ask for a page.
BROWSER_ACCEPT_ENCODING = ("Accept-Encoding", "gzip, deflate, br, zstd")
# Further bytes of a body are not read.
_MOST_BYTES = 64 * 1024 * 1024
_BLOCK_BYTES = 1 << 20
# Of a client that reads slowly.
_SLOW_BUFFER_BYTES = 4096


class NoResponse(WSGIFastError, OSError):
    """The server cannot be reached, breaks off, or does not speak HTTP.

    :ivar status: of the headers, if there was one. `headers` are its headers.
    """

    status: int | None = None
    headers: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Response:
    """One response, as a client sees it.

    :ivar missing: how many bytes of its Content-Length did not come.
    :ivar body_s: seconds from the end of the headers to the end of the body.
    :ivar closes: the connection ends with it.
    """

    status: int
    headers: Sequence[tuple[str, str]]
    body: bytes
    missing: int
    seconds: float
    body_s: float
    closes: bool

    def header(self, name: str) -> str | None:
        return Headers(self.headers).get(name.lower())


def decoded(body: bytes, codings: str) -> bytes | None:
    """A body without its codings (RFC 9110, section 8.4).

    :param codings: the Content-Encoding.
    :returns: None where that is not possible here: the coding is unknown, its package is not
        installed, or the body is broken.
    """
    for coding in reversed(codings.lower().split(",")):
        try:
            body = _DECODERS[coding.strip()](body)
        except Exception:  # noqa: BLE001 - of several libraries
            return None
    return body


def _by_module(name: str) -> Callable[[bytes], bytes]:
    return lambda body: cast(bytes, importlib.import_module(name).decompress(body))


_DECODERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    "identity": bytes,
    "gzip": gzip.decompress,
    "x-gzip": gzip.decompress,
    "deflate": zlib.decompress,
    "br": _by_module("brotli"),
    "zstd": _by_module(ZSTD_MODULE),
}


def unverified_tls() -> ssl.SSLContext:
    """TLS without verification: for servers of our own."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class HTTPClient:
    """Requests from one server, on one connection each or on a shared one.

    :param headers: for every request.
    :param limit_s: seconds for one response.
    """

    def __init__(
        self,
        host: str,
        port: int | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        headers: Iterable[tuple[str, str]] = (),
        limit_s: float,
    ) -> None:
        self._host, self._port, self._tls = host, port, tls
        self._headers = tuple(headers)
        self._limit_s = limit_s

    @classmethod
    def of_url(
        cls, url: str, *, headers: Iterable[tuple[str, str]] = (), limit_s: float
    ) -> tuple[HTTPClient, str]:
        """A client for a URL's server, and the path and query in it.

        :raises ConfigurationError: if it is not an http or https URL.
        """
        parts = urlsplit(url if "//" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise ConfigurationError(f"{url}: expected a URL such as http://127.0.0.1:8000")
        tls = ssl.create_default_context() if parts.scheme == "https" else None
        client = cls(parts.hostname, port, tls=tls, headers=headers, limit_s=limit_s)
        return client, parts.path + (f"?{parts.query}" if parts.query else "")

    def connect(self) -> http.client.HTTPConnection:
        """Open a connection.

        :raises NoResponse: if the server cannot be reached.
        """
        host, port, limit_s = self._host, self._port, self._limit_s
        if self._tls is None:
            connection = http.client.HTTPConnection(host, port, timeout=limit_s)
        else:
            connection = http.client.HTTPSConnection(host, port, timeout=limit_s, context=self._tls)
        with self._no_response():
            connection.connect()
        return connection

    def ask(
        self,
        url: str,
        *,
        method: str = "GET",
        headers: Iterable[tuple[str, str]] = (),
        body: bytes = b"",
        on: http.client.HTTPConnection | None = None,
        take: Callable[[bytes], object] | None = None,
    ) -> Response:
        """One request, on a connection of its own or on an open one.

        :param take: gets the whole body, in blocks. Without it the response has the beginning.
        :raises NoResponse: if the response does not end in time, or is not HTTP.
        """
        connection = self.connect() if on is None else on
        stored = bytearray()
        received: http.client.HTTPResponse | None = None
        try:
            with self._no_response(lambda: received):
                began = time.perf_counter()
                self._send(connection, url, method, headers, body)
                with connection.getresponse() as response:
                    received = response
                    at_headers = time.perf_counter()
                    # Of an endless body some may come again and again.
                    while len(stored) < _MOST_BYTES and (block := response.read1(_BLOCK_BYTES)):
                        (take or stored.extend)(block)
                        if time.perf_counter() > began + self._limit_s:
                            raise TimeoutError
                ended = time.perf_counter()
        finally:
            if on is None:
                connection.close()
        return Response(
            response.status,
            response.getheaders(),
            bytes(stored),
            (response.length or 0) if len(stored) < _MOST_BYTES else 0,
            ended - began,
            ended - at_headers,
            response.will_close,
        )

    def read_slowly(self, url: str) -> socket.socket:
        """Request a body, and do not read it."""
        connection = self.connect()
        sock: socket.socket = connection.sock
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SLOW_BUFFER_BYTES)
        with self._no_response():
            self._send(connection, url)
        return sock

    def _send(
        self,
        connection: http.client.HTTPConnection,
        url: str,
        method: str = "GET",
        headers: Iterable[tuple[str, str]] = (),
        body: bytes = b"",
    ) -> None:
        given = (*self._headers, *headers)
        has_host = Headers(given).get("host") is not None
        connection.putrequest(method, url, skip_host=has_host, skip_accept_encoding=True)
        for name, value in given:
            connection.putheader(name, value)
        if body:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body or None)

    @contextlib.contextmanager
    def _no_response(
        self, received: Callable[[], http.client.HTTPResponse | None] = lambda: None
    ) -> Iterator[None]:
        """Raise NoResponse for errors of the connection.

        :param received: the received part of the response.
        """
        try:
            yield
        except (OSError, http.client.HTTPException) as error:
            where = f"{self._host}:{self._port or (443 if self._tls else 80)}"
            reason = getattr(error, "strerror", None) or error or type(error).__name__
            response = received()
            if isinstance(error, TimeoutError):
                reason = (
                    f"no {'end of the ' if response else ''}response within {self._limit_s:g} s"
                )
            elif not isinstance(error, OSError):
                reason = f"the response is not HTTP ({reason})"
            raised = NoResponse(f"{where}: {reason}")
            if response is not None:
                raised.status, raised.headers = response.status, response.getheaders()
            raise raised from error
