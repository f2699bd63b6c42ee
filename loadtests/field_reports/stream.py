"""A server that sends zeros without an end as fast as the connection takes them: the other end of
the receive report.

    python -m loadtests.field_reports.stream HOST PORT
"""

from __future__ import annotations

import socket
import sys
import threading


def main() -> None:
    host, port = sys.argv[1], int(sys.argv[2])
    with socket.create_server((host, port)) as listener:
        while True:
            sock, _ = listener.accept()
            threading.Thread(target=stream, args=(sock,), daemon=True).start()


def stream(sock: socket.socket) -> None:
    block = bytes(256 * 1024)
    with sock:
        try:
            while True:
                sock.sendall(block)
        except ConnectionError:
            pass  # the client has enough


if __name__ == "__main__":
    main()
