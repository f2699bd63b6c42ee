"""A server that sends zeros without an end as fast as the connection takes them: the other end of
the receive report.

    python -m loadtests.field_reports.stream HOST PORT
"""

from __future__ import annotations

import socket
import sys
import tempfile
import threading

from wsgifast.sockets import FileSegment, limit_send_buffer, send_file_segment

# Small enough to stay in the processor's cache.
FILE_BYTES = 256 * 1024


def main() -> None:
    host, port = sys.argv[1], int(sys.argv[2])
    with socket.create_server((host, port)) as listener:
        while True:
            sock, _ = listener.accept()
            threading.Thread(target=stream, args=(sock,), daemon=True).start()


def stream(sock: socket.socket) -> None:
    # From the page cache, so that the sender is not the slower side.
    with sock, tempfile.TemporaryFile() as file:
        file.write(bytes(FILE_BYTES))
        file.flush()
        limit_send_buffer(sock)
        try:
            while True:
                send_file_segment(sock, FileSegment(file.fileno(), 0, FILE_BYTES))
        except ConnectionError:
            pass  # the client has enough


if __name__ == "__main__":
    main()
