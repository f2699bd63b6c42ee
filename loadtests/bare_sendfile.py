"""The bound for large files: one thread, epoll and os.sendfile, and nothing of a server around it.

python -m loadtests.bare_sendfile PORT FILE

It answers whatever it is sent with the whole file, does not look at the request and logs nothing,
so a server of Python code that sends with sendfile cannot be cheaper for each byte.
"""

from __future__ import annotations

import os
import select
import socket

from loadtests.command import command_line
from wsgifast.sockets.options import limit_send_buffer, set_nodelay

ONCE = select.EPOLLONESHOT


def serve(listener: socket.socket, fd: int) -> None:
    """Serve until killed."""
    size = os.fstat(fd).st_size
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size
    epoll = select.epoll()
    epoll.register(listener.fileno(), select.EPOLLIN)
    clients: dict[int, socket.socket] = {}
    offsets: dict[int, int] = {}
    while True:
        for number, _ in epoll.poll():
            if number == listener.fileno():
                sock, _ = listener.accept()
                sock.setblocking(False)
                set_nodelay(sock)
                limit_send_buffer(sock)
                clients[sock.fileno()] = sock
                epoll.register(sock.fileno(), select.EPOLLIN | ONCE)
                continue
            sock = clients[number]
            try:
                if number not in offsets:
                    if not sock.recv(65_536):
                        raise ConnectionError("the client is done")
                    sock.send(head, socket.MSG_MORE)
                    offsets[number] = 0
                offsets[number] += os.sendfile(number, fd, offsets[number], size - offsets[number])
            except BlockingIOError:
                pass
            except OSError:
                offsets.pop(number, None)
                clients.pop(number).close()
                continue
            if offsets.get(number) == size:
                del offsets[number]
            epoll.modify(number, (select.EPOLLOUT if number in offsets else select.EPOLLIN) | ONCE)


def main() -> None:
    parser = command_line("loadtests.bare_sendfile", __doc__)
    parser.add_argument("port", type=int, help="on 127.0.0.1")
    parser.add_argument("file", help="sent in answer to everything")
    given = parser.parse_args()
    with socket.create_server(("127.0.0.1", given.port)) as listener:
        serve(listener, os.open(given.file, os.O_RDONLY))


if __name__ == "__main__":
    main()
