"""A server that sends zeros without an end as fast as the connection takes them: the other end of
the receive report.

    python -m loadtests.field_reports.stream HOST PORT sendfile | sendall | link MBIT

sendfile: from the page cache, with a send buffer for near peers, so that the sender is not the
slower side. sendall: as most programs send, with the system's defaults. link: as over a link of
so many megabits a second.
"""

from __future__ import annotations

import contextlib
import socket
import tempfile
import threading

from loadtests.command_line import command_line
from wsgifast.sockets import FileSegment, limit_send_buffer, send_file_segment

# Small enough to stay in the processor's cache.
FILE_BYTES = 256 * 1024
BLOCK_BYTES = 1 << 20
# asm-generic/socket.h; bytes a second. Python has no name for it.
SO_MAX_PACING_RATE = 47


def main() -> None:
    parser = command_line("loadtests.field_reports.stream", __doc__)
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("kind", choices=("sendfile", "sendall", "link"))
    parser.add_argument("rate_mbit", nargs="?", type=int, metavar="MBIT", help="of a link")
    given = parser.parse_args()
    with socket.create_server((given.host, given.port)) as listener:
        while True:
            sock, _ = listener.accept()
            if given.rate_mbit:
                rate = given.rate_mbit * 1_000_000 // 8
                sock.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, rate)
            target = by_sendfile if given.kind == "sendfile" else by_sendall
            threading.Thread(target=target, args=(sock,), daemon=True).start()


def by_sendfile(sock: socket.socket) -> None:
    with sock, tempfile.TemporaryFile() as file, contextlib.suppress(ConnectionError):
        file.write(bytes(FILE_BYTES))
        file.flush()
        limit_send_buffer(sock)
        while True:
            send_file_segment(sock, FileSegment(file.fileno(), 0, FILE_BYTES))


def by_sendall(sock: socket.socket) -> None:
    block = bytes(BLOCK_BYTES)
    with sock, contextlib.suppress(ConnectionError):  # the client has enough
        while True:
            sock.sendall(block)


if __name__ == "__main__":
    main()
