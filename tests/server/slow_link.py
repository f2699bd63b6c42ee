"""Print how many bytes of a download arrive before each small response, over a slow link.

Unlike times, bytes do not depend on the load of the machine. At 20 Mbit/s, 100,000 bytes take 40
ms.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.support.http2 import Connected
from tests.support.servers import wait_for

SIZE = 50 << 20
PORT = 8000

_file = tempfile.TemporaryFile()
_file.truncate(SIZE)


def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    if environ["PATH_INFO"] == "/large":
        start_response("200 OK", [("Content-Length", str(SIZE))])
        body: Iterable[bytes] = environ["wsgi.file_wrapper"](
            open(_file.fileno(), "rb", closefd=False)
        )
        return body
    start_response("200 OK", [("Content-Length", "1024")])
    return [bytes(1024)]


def responds() -> bool:
    try:
        socket.create_connection(("127.0.0.1", PORT)).close()
    except OSError:
        return False
    return True


def measure() -> None:
    sock = socket.create_connection(("127.0.0.1", PORT))
    sock.settimeout(30)
    client = Connected(sock, window=SIZE)
    client.begin()
    client.open(SIZE)
    large = client.responses[client.send("/large")]
    while len(large.received) < 4 << 20:
        client.receive()
    for _ in range(7):
        before = len(large.received)
        small = client.responses[client.send("/small")]
        while not small.headers:
            client.receive()
        print(len(large.received) - before)
        while len(large.received) < before + (1 << 20):
            client.receive()


if __name__ == "__main__":
    server = subprocess.Popen(
        [
            *(sys.executable, "-m", "gunicorn", "-k", "wsgifast.FastWorker"),
            *("-b", f"127.0.0.1:{PORT}", "--log-level", "warning"),
            *("--http-protocols", "h2,h1", "--http2-cleartext", "prior-knowledge"),
            f"{__spec__.name}:app",
        ],
        cwd=Path(__file__).parents[2],
    )
    try:
        wait_for(responds, "the server accepts connections")
        measure()
    finally:
        server.kill()
        server.wait()
