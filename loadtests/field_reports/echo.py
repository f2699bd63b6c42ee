"""An echo server that sends back all it has received, in large pieces: the other end of the
coalescing report. In a process of its own, so that it has its own interpreter lock.

    python -m loadtests.field_reports.echo HOST PORT
"""

from __future__ import annotations

import socket
import threading

from loadtests.command_line import command_line


def main() -> None:
    parser = command_line("loadtests.field_reports.echo", __doc__)
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    given = parser.parse_args()
    with socket.create_server((given.host, given.port)) as listener:
        while True:
            sock, _ = listener.accept()
            threading.Thread(target=echo, args=(sock,), daemon=True).start()


def echo(sock: socket.socket) -> None:
    buffer = memoryview(bytearray(256 * 1024))
    with sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            while received := sock.recv_into(buffer):
                sock.sendall(buffer[:received])
        except ConnectionError:
            pass  # the client has what it wanted


if __name__ == "__main__":
    main()
