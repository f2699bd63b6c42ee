"""The other ends of the field reports, each a process with an interpreter lock of its own.

    python -m loadtests.field_reports.servers echo PORT
    python -m loadtests.field_reports.servers sendfile | sendall PORT [MBIT]
    python -m loadtests.field_reports.servers smtp-stock | smtp-fast PORT
    python -m loadtests.field_reports.servers forward PORT TO_PORT

echo sends back all it has received. sendfile and sendall send zeros without an end: from the page
cache with a send buffer for near peers, so that the sender is not the slower side; and as most
programs send, with the system's defaults. MBIT: as over a link of so many megabits a second. smtp
takes every message and forgets it, by aiosmtpd's server or by ours. forward is a plain TCP
forwarder, as stands in front of many servers: it reads, and writes what it has read.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import tempfile
import threading
from collections.abc import Callable
from typing import Any

from loadtests.bench import HOST, Server
from loadtests.command import command_line
from wsgifast.sockets import FileSegment, limit_send_buffer, send_file_segment

__all__ = ["echo", "server"]

# Small enough to stay in the processor's cache.
FILE_BYTES = 256 * 1024
BLOCK_BYTES = 1 << 20
# asm-generic/socket.h; bytes a second. Python has no name for it.
SO_MAX_PACING_RATE = 47
# Room for the messages of 20 MB; aiosmtpd's default is 32 MiB.
DATA_SIZE_LIMIT_BYTES = 64 * 1024 * 1024


def server(kind: str, *arguments: object) -> Server:
    """One of these for a contender."""
    module = "loadtests.field_reports.servers"
    return Server(("python", "-m", module, kind, "{port}", *map(str, arguments)))


def echo(sock: socket.socket) -> None:
    """Send back all that comes, in large pieces."""
    buffer = memoryview(bytearray(256 * 1024))
    with sock, contextlib.suppress(ConnectionError):  # the client has what it wanted
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while received := sock.recv_into(buffer):
            sock.sendall(buffer[:received])


def _sendfile(sock: socket.socket) -> None:
    with sock, tempfile.TemporaryFile() as file, contextlib.suppress(ConnectionError):
        file.write(bytes(FILE_BYTES))
        file.flush()
        limit_send_buffer(sock)
        while True:
            send_file_segment(sock, FileSegment(file.fileno(), 0, FILE_BYTES))


def _sendall(sock: socket.socket) -> None:
    block = bytes(BLOCK_BYTES)
    with sock, contextlib.suppress(ConnectionError):  # the client has enough
        while True:
            sock.sendall(block)


def _serve(port: int, target: Callable[[socket.socket], None], rate_mbit: int = 0) -> None:
    """A thread for each connection."""
    with socket.create_server((HOST, port)) as listener:
        while True:
            sock, _ = listener.accept()
            if rate_mbit:
                rate = rate_mbit * 1_000_000 // 8
                sock.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, rate)
            threading.Thread(target=target, args=(sock,), daemon=True).start()


async def _smtp(stock: bool, port: int) -> None:
    from aiosmtpd.smtp import SMTP

    from wsgifast.mail.server import SMTPServer

    class Sink:
        """Answers with the size, so that the client can see that all of it came."""

        async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
            return f"250 {len(envelope.content)}"

    # As in production: aiosmtpd logs each line at the level that is off by default.
    logging.getLogger("mail.log").setLevel(logging.ERROR)
    loop = asyncio.get_running_loop()
    options: dict[str, Any] = {"loop": loop, "hostname": "localhost"}
    options["data_size_limit"] = DATA_SIZE_LIMIT_BYTES
    kind = SMTP if stock else SMTPServer
    server = await loop.create_server(lambda: kind(Sink(), **options), HOST, port)
    await server.serve_forever()


async def _forward(port: int, to_port: int) -> None:
    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward_reader, onward_writer = await asyncio.open_connection(HOST, to_port)
        await asyncio.gather(pump(reader, onward_writer), pump(onward_reader, writer))

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(accepted, HOST, port)
    await server.serve_forever()


def main() -> None:
    kinds: dict[str, Callable[[int, int], None]] = {
        "echo": lambda port, _: _serve(port, echo),
        "sendfile": lambda port, mbit: _serve(port, _sendfile, mbit),
        "sendall": lambda port, mbit: _serve(port, _sendall, mbit),
        "smtp-stock": lambda port, _: asyncio.run(_smtp(True, port)),
        "smtp-fast": lambda port, _: asyncio.run(_smtp(False, port)),
        "forward": lambda port, to_port: asyncio.run(_forward(port, to_port)),
    }
    parser = command_line("loadtests.field_reports.servers", __doc__)
    parser.add_argument("kind", choices=kinds)
    parser.add_argument("port", type=int, help=f"on {HOST}")
    parser.add_argument("number", nargs="?", type=int, default=0, help="MBIT or TO_PORT")
    given = parser.parse_args()
    kinds[given.kind](given.port, given.number)


if __name__ == "__main__":
    main()
