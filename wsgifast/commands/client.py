"""An HTTP client that measures responses, and limits each wait for the server."""

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

# The header of browsers that request a page.
BROWSER_ACCEPT_ENCODING = ("Accept-Encoding", "gzip, deflate, br, zstd")
# The most bytes to read of a body.
_MAX_BYTES = 64 * 1024 * 1024
_BLOCK_BYTES = 1 << 20
# The size of the receive buffer of a slow client.
_SLOW_BUFFER_BYTES = 4096


class NoResponse(WSGIFastError, OSError):
    """The error if the server cannot be reached, closes too early, or does not send HTTP.

    :ivar status: the status of an incomplete response. None without a status.
    :ivar headers: the headers of an incomplete response.
    """

    status: int | None = None
    headers: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Response:
    """A received response.

    :ivar missing: the number of bytes that are missing up to its Content-Length.
    :ivar seconds: the time from the request to the end of the body.
    :ivar body_s: the seconds from the end of the headers to the end of the body.
    :ivar closes: whether the server closes the connection after the response.
    """

    status: int
    headers: Sequence[tuple[str, str]]
    body: bytes
    missing: int
    seconds: float
    body_s: float
    closes: bool

    def header(self, name: str) -> str | None:
        """Return the value of a header. None if the response does not have it."""
        return Headers(self.headers).get(name.lower())


def decoded(body: bytes, codings: str) -> bytes | None:
    """Decode a body (RFC 9110, section 8.4).

    :param codings: the value of Content-Encoding.
    :returns: None if a content coding is unknown, its package is not installed, or the body is
        malformed.
    """
    for coding in reversed(codings.lower().split(",")):
        try:
            body = _DECODERS[coding.strip()](body)
        except Exception:  # noqa: BLE001 - each library has its own error class
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
    """Return a TLS context that does not verify certificates, for servers that bench starts."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class HTTPClient:
    """Sends requests to one server.

    :param headers: the headers of every request.
    :param limit_s: the most seconds for one response.
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
        """Return a client for the server of a URL, and the path and query of the URL.

        :raises ConfigurationError: if the URL is not a valid http or https URL.
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
        """Send a request, and return the response.

        :param on: an open connection. None to open a connection for this request.
        :param take: a function that is called with each block of the body. The body of the returned
            response is then empty.
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
                    # The loop ends after the time limit, even if an endless body continues.
                    while len(stored) < _MAX_BYTES and (block := response.read1(_BLOCK_BYTES)):
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
            (response.length or 0) if len(stored) < _MAX_BYTES else 0,
            ended - began,
            ended - at_headers,
            response.will_close,
        )

    def read_slowly(self, url: str) -> socket.socket:
        """Send a request on a new connection with a small receive buffer, and read nothing."""
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

        :param received: a function that returns the response, if its headers have arrived.
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
