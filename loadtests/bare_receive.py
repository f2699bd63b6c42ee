"""The bound for uploads: one thread, one buffer, and nothing of a server around it.

python -m loadtests.bare_receive PORT

It takes Content-Length bytes behind each head, forgets them, and says how many they were and by how
many receives, as the load tests' ASGI app does.
"""

from __future__ import annotations

import re
import socket

from loadtests.command import command_line

RECEIVE_BYTES = 256 * 1024


def serve(listener: socket.socket) -> None:
    """Serve until killed, one connection after the other."""
    buffer = memoryview(bytearray(RECEIVE_BYTES))
    while True:
        sock, _ = listener.accept()
        with sock:
            while head := sock.recv(65_536):
                while b"\r\n\r\n" not in head:
                    head += sock.recv(65_536)
                start, _, body = head.partition(b"\r\n\r\n")
                found = re.search(rb"(?i)content-length: ?([0-9]+)", start)
                size = int(found[1]) if found else 0
                left, messages = size - len(body), int(bool(body))
                while left > 0 and (count := sock.recv_into(buffer)):
                    left -= count
                    messages += 1
                text = b"%d %d" % (size, messages)
                sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text))


def main() -> None:
    parser = command_line("loadtests.bare_receive", __doc__)
    parser.add_argument("port", type=int, help="on 127.0.0.1")
    given = parser.parse_args()
    with socket.create_server(("127.0.0.1", given.port)) as listener:
        serve(listener)


if __name__ == "__main__":
    main()
