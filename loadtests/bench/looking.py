"""One plain request before any load: what a server answers, and whether it is what it says."""

from __future__ import annotations

import hashlib
import re
import socket
import ssl
from dataclasses import dataclass

from .load import Task

__all__ = ["Seen", "look"]

# Raw bodies may take seconds.
LOOK_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Seen:
    """The status line, or what went wrong; and the body."""

    answer: str
    body_bytes: int
    digest: str
    ok: bool


def look(task: Task) -> Seen:
    """Ask in HTTP/1.0: the end of the connection is the end of the body, without framing."""
    received = bytearray()
    problem = ""
    host, port = task.address
    request = "\r\n".join(
        [f"GET {task.path} HTTP/1.0", f"Host: {host}:{port}", "Connection: close", *task.headers]
    )
    try:
        with _connected(task) as sock:
            sock.sendall(f"{request}\r\n\r\n".encode())
            while not _is_whole(received) and (block := sock.recv(1 << 20)):
                received += block
    except OSError as error:
        problem = str(error) or type(error).__name__
    head, separator, body = bytes(received).partition(b"\r\n\r\n")
    status_line, *fields = head.decode("latin-1").split("\r\n")
    if any(field.lower() == "transfer-encoding: chunked" for field in fields):
        body = _dechunked(body)  # uvicorn chunks for HTTP/1.0 too
    lengths = [f.partition(":")[2] for f in fields if f.lower().startswith("content-length:")]
    if not separator:
        problem = problem or "connection closed without an answer"
    elif lengths and int(lengths[0]) != len(body):
        problem = problem or f"{status_line}, then the end after {len(body)} of{lengths[0]} bytes"
    status = status_line.split(" ")[1] if " " in status_line else "none"
    ok = not problem and status < "400"
    return Seen(problem or status_line, len(body), hashlib.sha256(body).hexdigest(), ok)


def _is_whole(received: bytearray) -> bool:
    """Whether all is there that the head promises; not every server closes as it is asked to."""
    end = received.find(b"\r\n\r\n", 0, 1 << 16)
    head = received[: max(0, end)]
    found = re.search(rb"\r\ncontent-length: *([0-9]+)", head, re.IGNORECASE)
    return found is not None and len(received) - end - 4 >= int(found[1])


def _connected(task: Task) -> socket.socket:
    sock = socket.create_connection(task.address, LOOK_TIMEOUT_S)
    if not task.tls:
        return sock
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context.wrap_socket(sock)


def _dechunked(body: bytes) -> bytes:
    """Take the chunks' sizes out; what is no chunk any more is left out."""
    chunks = []
    start = 0
    while (end := body.find(b"\r\n", start)) >= 0:
        length = int(body[start:end].partition(b";")[0] or b"0", 16)
        chunks.append(body[end + 2 : end + 2 + length])
        start = end + 2 + length + 2
    return b"".join(chunks)
