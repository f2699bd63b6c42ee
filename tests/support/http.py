"""A plain HTTP/1.1 client over a raw socket: tests see every byte that a server sends."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from io import BufferedReader
from typing import Any

# (host, port), or the path of a Unix socket.
Address = tuple[str, int] | str
# No response of a test takes this long. A server that hangs fails the test, and not the run.
TIMEOUT_S = 60.0


@dataclass
class Response:
    """One parsed response."""

    status: int
    reason: str
    headers: list[tuple[str, str]]
    body: bytes
    version: str = "HTTP/1.1"
    # Whether the server has announced that the connection stays open.
    keep_alive: bool = True
    trailers: list[tuple[str, str]] = field(default_factory=list)

    def header(self, name: str) -> str | None:
        """Return the value of a header, or None. A header that was sent twice is an error."""
        values = [value for key, value in self.headers if key.lower() == name.lower()]
        assert len(values) <= 1, f"{name} was sent {len(values)} times: {values}"
        return values[0] if values else None

    def __str__(self) -> str:
        headers = "".join(f"{key}: {value}\n" for key, value in self.headers)
        return f"{self.version} {self.status} {self.reason}\n{headers}\n{self.body[:200]!r}"


class ResponseReader:
    """Reads the bytes of a server, one response at a time.

    :param bare_lf: allow a bare LF at the end of headers. tests.support.gunicorn names the servers.
    """

    def __init__(self, stream: BufferedReader, *, bare_lf: bool = False) -> None:
        self._bare_lf = bare_lf
        self.stream = stream

    def read_response(self, method: str = "GET") -> Response:
        """Read one response whole, as RFC 9112 section 6 delimits it.

        :raises EOFError: if the connection ends before the response does.
        """
        response = self.read_headers()
        self.read_body(response, method)
        return response

    def read_body(self, response: Response, method: str = "GET") -> None:
        """Read the body that belongs to a response's headers.

        :raises EOFError: if the connection ends before the body does.
        """
        lengths = {v for k, v in response.headers if k.lower() == "content-length"}
        codings = [v.lower() for k, v in response.headers if k.lower() == "transfer-encoding"]
        assert not (lengths and codings), f"Content-Length and Transfer-Encoding:\n{response}"
        if method == "HEAD" or response.status in (204, 304) or response.status < 200:
            return
        if codings:
            assert codings == ["chunked"], f"unknown transfer coding {codings}"
            response.body = self._read_chunks(response)
        elif lengths:
            assert len(lengths) == 1, f"several Content-Length values: {lengths}"
            response.body = self.read(int(lengths.pop()))
        else:
            response.keep_alive = False
            response.body = self.stream.read()

    def read_headers(self) -> Response:
        """Read a status line and its headers."""
        line = self._line()
        version, _, rest = line.partition(" ")
        assert version.startswith("HTTP/1."), f"not a status line: {line!r}"
        status, _, reason = rest.partition(" ")
        headers: list[tuple[str, str]] = []
        while field_line := self._line():
            name, colon, value = field_line.partition(":")
            assert colon, f"a header line without a colon: {field_line!r}"
            headers.append((name, value.strip()))
        said = {v.lower() for k, v in headers if k.lower() == "connection"}
        keep_alive = "close" not in said if version == "HTTP/1.1" else "keep-alive" in said
        return Response(int(status), reason, headers, b"", version, keep_alive)

    def read(self, size: int) -> bytes:
        """Read exactly `size` bytes.

        :raises EOFError: if the connection ends first. The message says how much arrived.
        """
        data = self.stream.read(size)
        if len(data) < size:
            raise EOFError(f"the connection ended after {len(data)} of {size} bytes")
        return data

    def read_to_end(self) -> bytes:
        """Read until the server closes the connection."""
        return self.stream.read()

    def read_to_end_of_chunks(self) -> bytes:
        """Read the remaining chunks of a chunked body."""
        return self._read_chunks(Response(0, "", [], b""))

    def read_chunk(self) -> bytes:
        """Read the next chunk of a chunked body as soon as it is there.

        The last chunk is not read.
        """
        size = int(self._line().partition(";")[0], 16)
        assert size, "the body is at its end"
        return self._chunk(size)

    def _line(self) -> str:
        line = self.stream.readline()
        if not line.endswith(b"\n"):
            raise EOFError(f"the connection ended inside a head: {line!r}")
        if line == b"\n" and self._bare_lf:
            return ""
        assert line.endswith(b"\r\n"), f"a line that ends without CR LF: {line!r}"
        return line[:-2].decode("latin-1")

    def _chunk(self, size: int) -> bytes:
        data = self.read(size)
        assert self.read(2) == b"\r\n", "a chunk does not end where its size says"
        return data

    def _read_chunks(self, response: Response) -> bytes:
        chunks = []
        while size := int(self._line().partition(";")[0], 16):
            chunks.append(self._chunk(size))
        while trailer := self._line():
            name, _, value = trailer.partition(":")
            response.trailers.append((name, value.strip()))
        return b"".join(chunks)


class Connection(ResponseReader):
    """A client connection that can send anything and reads responses one at a time."""

    def __init__(
        self,
        address: Address,
        *,
        tls: ssl.SSLContext | None = None,
        timeout: float = TIMEOUT_S,
        receive_buffer: int | None = None,
        bare_lf: bool = False,
    ) -> None:
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.settimeout(timeout)
            if receive_buffer is not None:  # before connect, where the window is negotiated
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            sock.connect(address)
            if tls is not None:
                sock = tls.wrap_socket(sock, server_hostname="localhost")
        except BaseException:
            sock.close()
            raise
        self.sock = sock
        super().__init__(sock.makefile("rb"), bare_lf=bare_lf)

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        self.stream.close()
        self.sock.close()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def request(self, target: str = "/", *, method: str = "GET", **options: Any) -> Response:
        """Send one request, as :meth:`send_request` does, and read its response."""
        self.send_request(target, method=method, **options)
        return self.read_response(method)

    def send_request(
        self,
        target: str = "/",
        *,
        method: str = "GET",
        headers: Iterable[tuple[str, str]] = (),
        body: bytes | list[bytes] = b"",
        version: str = "1.1",
    ) -> None:
        """Send one request.

        :param body: a list is sent in chunks.
        """
        fields = list(headers)
        names = {name.lower() for name, _ in fields}
        if "host" not in names:
            fields.insert(0, ("Host", "localhost"))
        if isinstance(body, list):
            fields.append(("Transfer-Encoding", "chunked"))
            chunks = [b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in body]
            body = b"".join(chunks) + b"0\r\n\r\n"
        elif body and not names & {"content-length", "transfer-encoding"}:
            fields.append(("Content-Length", str(len(body))))
        lines = f"{method} {target} HTTP/{version}\r\n"
        lines += "".join(f"{name}: {value}\r\n" for name, value in fields)
        self.send(lines.encode("latin-1") + b"\r\n" + body)


def get(
    address: Address,
    target: str = "/",
    *,
    headers: Iterable[tuple[str, str]] = (),
    tls: ssl.SSLContext | None = None,
    bare_lf: bool = False,
    **options: Any,
) -> Response:
    """Send one request on a new connection. See :meth:`Connection.send_request`."""
    with Connection(address, tls=tls, bare_lf=bare_lf) as connection:
        return connection.request(target, headers=[*headers, ("Connection", "close")], **options)


def reset_on_close(sock: socket.socket) -> None:
    """Have close() reset the connection. The peer loses all unread bytes."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@contextlib.contextmanager
def answering(*connections: list[bytes]) -> Iterator[tuple[str, int]]:
    """A server. Each connection gets these responses, one a request, and is closed."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for responses in connections:
                sock = listener.accept()[0]
                with sock:
                    for response in responses:
                        sock.recv(1000)
                        if response == b"reset":
                            reset_on_close(sock)
                            break
                        sock.sendall(response)

        # A test that fails leaves the server in accept().
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()
        thread.join()
