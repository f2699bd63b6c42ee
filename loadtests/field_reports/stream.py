"""A server that sends zeros without an end as fast as the connection takes them: the other end of
the receive report.

    python -m loadtests.field_reports.stream HOST PORT [quick | usual]

quick: sendfile from the page cache and a send buffer for near peers, so that the sender is not the
slower side. usual: sendall() with the system's defaults.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import tempfile
import threading

from wsgifast.sockets import FileSegment, limit_send_buffer, send_file_segment

# Small enough to stay in the processor's cache.
FILE_BYTES = 256 * 1024
USUAL_BYTES = 1 << 20


def main() -> None:
    host, port, *kind = sys.argv[1:]
    stream = usual if kind == ["usual"] else quick
    with socket.create_server((host, int(port))) as listener:
        while True:
            sock, _ = listener.accept()
            threading.Thread(target=stream, args=(sock,), daemon=True).start()


def quick(sock: socket.socket) -> None:
    with sock, tempfile.TemporaryFile() as file, contextlib.suppress(ConnectionError):
        file.write(bytes(FILE_BYTES))
        file.flush()
        limit_send_buffer(sock)
        while True:
            send_file_segment(sock, FileSegment(file.fileno(), 0, FILE_BYTES))


def usual(sock: socket.socket) -> None:
    block = bytes(USUAL_BYTES)
    with sock, contextlib.suppress(ConnectionError):  # the client has enough
        while True:
            sock.sendall(block)


if __name__ == "__main__":
    main()
