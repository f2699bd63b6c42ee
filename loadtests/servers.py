"""Start servers for comparisons, configured as their documentation advises, and minimal servers.

    python -m loadtests.servers KIND PORT [ARGUMENT ...]

The kinds:

- nginx. With a certificate, it has HTTP/2.
- nginx-gthread: nginx in front of gthread.
- http.server, with keep-alive.
- echo: sends back all received bytes.
- sendfile-loop: the upper bound for large files, with one thread, epoll and os.sendfile.
- receive-loop: the upper bound for uploads.
- sendall and sendfile: send zeros without an end, at an optional rate in Mbit/s.
- bjoern and fastwsgi: serve loadtests.app.
- smtp-stock and smtp-fast: accept every message and drop it.
- forward PORT TO_PORT: a TCP forwarder.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import logging
import os
import pwd
import re
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from wsgifast.commands.bench.processes import HOST, Server
from wsgifast.sockets import FileSegment, send_file_segment
from wsgifast.sockets.options import set_nodelay

from .payloads import PAYLOADS, payload

# See nginx.org/en/docs/http/ngx_http_core_module.html. tcp_nopush fills packets. sendfile_max_chunk
# is limited, so that a fast client does not occupy the worker. Without sendfile, output buffers are
# large. nginx has one worker process, like all contenders.
_NGINX = """\
daemon off; worker_processes 1; pid {folder}/pid; error_log stderr crit; user {user};
worker_rlimit_nofile 16384;
events {{ worker_connections 16384; multi_accept on; }}
http {{
  access_log off; sendfile {sendfile}; sendfile_max_chunk 512k;
  tcp_nopush on; tcp_nodelay on;
  output_buffers 2 512k; keepalive_timeout 120s; keepalive_requests 10000000;
  client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  server {{
    listen {host}:{port}{ssl} backlog=2048; root {payloads};
    default_type application/octet-stream; {tls}
    location / {{ {location} }}
    location /upload {{ client_max_body_size 1g; proxy_pass http://{host}:{port}/1024.bin; }}
  }}
}}
"""
# These lines add TLS, and compression of pages at the level of wsgifast.
_NGINX_TLS = """\
ssl_certificate {pem}; ssl_certificate_key {pem};
    gzip on; gzip_comp_level 4; types {{ text/html html; }}"""
# An option of sockets for the rate in bytes a second (asm-generic/socket.h). Python's socket module
# does not define this option.
_SO_MAX_PACING_RATE = 47
_BLOCK_BYTES = 1 << 20
# A block of this size fits into the processor's cache.
_SENT_FILE_BYTES = _RECEIVE_BYTES = 256 * 1024
# The rows send messages of 20 MB. The default of aiosmtpd is 32 MiB.
_MESSAGE_LIMIT_BYTES = 64 * 1024 * 1024


def small(kind: str, *arguments: object) -> Server:
    """Return a server of this module."""
    return _python("loadtests.servers", kind, "{port}", *map(str, arguments))


def _python(*arguments: str) -> Server:
    return Server(("python", "-m", *arguments))


def nginx(*, sendfile: bool = True) -> Server:
    """Return nginx with the payload files, such as /10485760.bin, and /upload."""
    return small("nginx", "{folder}", "on" if sendfile else "off")


def granian(app: str, *more: str, interface: str = "asgi", workers: int = 1) -> Server:
    options = (*more, "--no-ws", "--log-level=warning", f"--workers={workers}")
    bind = ("--host={host}", "--port={port}")
    return _python("granian", f"--interface={interface}", *options, *bind, app)


def hypercorn(app: str, loop: str, *options: str, package: str = "hypercorn") -> Server:
    """Return hypercorn, or its fork anycorn."""
    bind = f"--bind={HOST}:{{port}}"
    return _python(package, f"--worker-class={loop}", *options, "--log-level=error", bind, app)


def waitress(app: str) -> Server:
    return _python("waitress", f"--listen={HOST}:{{port}}", app)


def daphne(app: str) -> Server:
    return _python("daphne", "--verbosity=0", f"--bind={HOST}", "--port={port}", app)


def _become_nginx(port: int, folder: str, sendfile: str, location: str = "", pem: str = "") -> None:
    program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if program is None:
        raise SystemExit("nginx is not installed: apt-get install nginx-light (Debian, Ubuntu)")
    directory = tempfile.mkdtemp(dir=folder)
    user = pwd.getpwuid(os.geteuid()).pw_name
    settings = {"folder": directory, "user": user, "sendfile": sendfile, "location": location}
    settings["ssl"] = " ssl http2" if pem else ""
    settings["tls"] = _NGINX_TLS.format(pem=pem) if pem else ""
    conf = Path(directory, "nginx.conf")
    conf.write_text(_NGINX.format(**settings, host=HOST, port=port, payloads=PAYLOADS))
    os.execv(program, [program, "-e", "stderr", "-c", str(conf)])


def _become_nginx_before(port: int, folder: str, app: str) -> None:
    """Start gthread on a Unix socket, and become nginx as its proxy."""
    directory = tempfile.mkdtemp(dir=folder)
    bind = ("--bind", f"unix:{directory}/socket", "--no-control-socket", "--log-level", "warning")
    threads = ("--worker-class", "gthread", "--threads", "4")
    subprocess.Popen([sys.executable, "-m", "gunicorn", app, *threads, *bind])
    while not os.path.exists(f"{directory}/socket"):
        time.sleep(0.1)
    _become_nginx(port, folder, "on", f"proxy_pass http://unix:{directory}/socket;")


def _in_threads(port: int, serve: Callable[[socket.socket], None], rate_mbit: str = "0") -> None:
    """Serve each connection in its own thread."""

    def run(sock: socket.socket) -> None:
        with sock, contextlib.suppress(ConnectionError):  # the client has left
            serve(sock)

    with socket.create_server((HOST, port)) as listener:
        while True:
            sock, _ = listener.accept()
            if rate := int(rate_mbit) * 1_000_000 // 8:
                sock.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, rate)
            threading.Thread(target=run, args=(sock,), daemon=True).start()


def echo(sock: socket.socket) -> None:
    """Send back all received bytes, in large pieces."""
    buffer = memoryview(bytearray(_RECEIVE_BYTES))
    set_nodelay(sock)
    while received := sock.recv_into(buffer):
        sock.sendall(buffer[:received])


def _sendfile(sock: socket.socket) -> None:
    """Send the same file from the page cache, again and again."""
    with tempfile.TemporaryFile() as file:
        file.write(bytes(_SENT_FILE_BYTES))
        file.flush()
        while True:
            send_file_segment(sock, FileSegment(file.fileno(), 0, _SENT_FILE_BYTES))


def _sendall(sock: socket.socket) -> None:
    """Send the same block again and again. Set no option of the socket, like most programs."""
    block = bytes(_BLOCK_BYTES)
    while True:
        sock.sendall(block)


def _receive(sock: socket.socket) -> None:
    """Receive request bodies, and drop them. Send their size, and the number of receives."""
    buffer = memoryview(bytearray(_RECEIVE_BYTES))
    while received := sock.recv(65_536):
        while b"\r\n\r\n" not in received:
            received += sock.recv(65_536)
        start, _, body = received.partition(b"\r\n\r\n")
        found = re.search(rb"(?i)content-length: ?([0-9]+)", start)
        size = int(found[1]) if found else 0
        missing, messages = size - len(body), int(bool(body))
        while missing > 0 and (count := sock.recv_into(buffer)):
            missing -= count
            messages += 1
        text = b"%d %d" % (size, messages)
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text))


def _sendfile_loop(port: int, file: str) -> None:
    """Send the whole file for every request. No server in Python can be cheaper."""
    once = select.EPOLLONESHOT
    fd = os.open(file, os.O_RDONLY)
    size = os.fstat(fd).st_size
    received = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size
    listener = socket.create_server((HOST, port))
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
                clients[sock.fileno()] = sock
                epoll.register(sock.fileno(), select.EPOLLIN | once)
                continue
            sock = clients[number]
            try:
                if number not in offsets:
                    if not sock.recv(65_536):
                        raise ConnectionError("the client is done")
                    sock.send(received, socket.MSG_MORE)
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
            epoll.modify(number, (select.EPOLLOUT if number in offsets else select.EPOLLIN) | once)


class _Handler(BaseHTTPRequestHandler):
    """The handler in http.server's documentation, with keep-alive."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = payload(int(self.path.rpartition("/")[2]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


async def _smtp(stock: bool, port: int) -> None:
    from aiosmtpd.smtp import SMTP

    from wsgifast.mail.server import SMTPServer

    class Sink:
        """A handler that replies with the size. So the client can check the whole message."""

        async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
            return f"250 {len(envelope.content)}"

    # Usually WARNING is the level in production. At INFO, aiosmtpd would log each line.
    logging.getLogger("mail.log").setLevel(logging.ERROR)
    loop = asyncio.get_running_loop()
    options: dict[str, Any] = {"loop": loop, "hostname": "localhost"}
    options["data_size_limit"] = _MESSAGE_LIMIT_BYTES
    kind = SMTP if stock else SMTPServer
    server = await loop.create_server(lambda: kind(Sink(), **options), HOST, port)
    await server.serve_forever()


async def _forward(port: int, target_port: int) -> None:
    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward_reader, onward_writer = await asyncio.open_connection(HOST, target_port)
        await asyncio.gather(pump(reader, onward_writer), pump(onward_reader, writer))

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(accepted, HOST, port)
    await server.serve_forever()


def _in_c(package: str, port: int) -> None:
    """Run a server in C, which has no command line."""
    from .app import app

    if package == "bjoern":
        bjoern: Any = importlib.import_module("bjoern")
        bjoern.run(app, HOST, port)
    else:
        fastwsgi: Any = importlib.import_module("fastwsgi")
        fastwsgi.run(wsgi_app=app, host=HOST, port=port, loglevel=0)


# Each function gets the port as an int, and the further arguments of the command line as str.
_KINDS: dict[str, Callable[..., None]] = {
    "nginx": _become_nginx,
    "nginx-gthread": _become_nginx_before,
    "bjoern": partial(_in_c, "bjoern"),
    "fastwsgi": partial(_in_c, "fastwsgi"),
    "http.server": lambda port: ThreadingHTTPServer((HOST, port), _Handler).serve_forever(),
    "echo": lambda port: _in_threads(port, echo),
    "sendfile-loop": _sendfile_loop,
    "receive-loop": lambda port: _in_threads(port, _receive),
    "sendall": lambda port, *mbit: _in_threads(port, _sendall, *mbit),
    "sendfile": lambda port, *mbit: _in_threads(port, _sendfile, *mbit),
    "smtp-stock": lambda port: asyncio.run(_smtp(True, port)),
    "smtp-fast": lambda port: asyncio.run(_smtp(False, port)),
    "forward": lambda port, target_port: asyncio.run(_forward(port, int(target_port))),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.servers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kind", choices=_KINDS)
    parser.add_argument("port", type=int, help=f"on {HOST}")
    parser.add_argument("arguments", nargs="*", help="see above")
    options = parser.parse_args()
    _KINDS[options.kind](options.port, *options.arguments)


if __name__ == "__main__":
    main()
