"""Slow downloads on one uvicorn worker: its memory for each, and what other requests notice.

    python -m loadtests.asgi_slow [--downloads 2000] [--seconds 10] [--rate 65536]

Every download is a file of 10 MiB that its client reads at `rate` bytes a second: Starlette's
FileResponse; and, to see whose memory it is, our StaticFiles and an app without a framework.
"""

from __future__ import annotations

import os
import resource
import socket
import statistics
import threading
import time
from pathlib import Path

import psutil

from .asgi import SERVERS
from .command_line import command_line
from .measuring import free_port, running, save, table, temporary_folder

# Server and path.
_CONTENDERS = (
    ("uvicorn", "/file/large"),
    ("uvicorn, our protocol", "/file/large"),
    ("uvicorn, our protocol", "/our-static/large"),
    ("our protocol, bare app", "/large"),
)
_FILE_BYTES = 10 * 1024 * 1024
# So small that the kernel's buffers do not hide that the client is slow.
_RECEIVE_BUFFER_BYTES = 16 * 1024
# Clients read this often, so that each read is of rate * _TICK_S bytes.
_TICK_S = 0.1


def main(arguments: list[str] | None = None) -> None:
    parser = command_line("loadtests.asgi_slow", __doc__)
    parser.add_argument("--downloads", type=int, default=2000, help="at the same time")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--rate", type=int, default=64 * 1024, help="bytes a second for each")
    options = parser.parse_args(arguments)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    rows = []
    figures = {}
    for name, path in _CONTENDERS:
        row = _measure(name, path, options.downloads, options.seconds, options.rate)
        figures[f"{name} {path}"] = row
        rows.append([f"{name} {path}", *row.values()])
    print(table(["", *next(iter(figures.values()))], rows))
    print(f"saved {save('asgi-slow', figures)}")


def _measure(name: str, path: str, downloads: int, seconds: float, rate: int) -> dict[str, float]:
    with temporary_folder("load") as folder:
        Path(folder, "large").write_bytes(os.urandom(_FILE_BYTES))
        port = free_port()
        command = ["python", *SERVERS[name].format(port=port).split()]
        address = ("127.0.0.1", port)
        with running(command, address, name=name, env={"ASGI_LOAD_FILES": folder}) as server:
            process = psutil.Process(server.pid)
            for small in ("small", "plain"):  # of which the bare app knows only the file
                Path(folder, small).write_bytes(b"x" * 1024)
            _plain_ms(address, 50)
            _fill_thread_pool(address)
            before = process.memory_info().rss
            clients = [_download(address, path) for _ in range(downloads)]
            stop = threading.Event()
            failures: list[str] = []
            reader = threading.Thread(target=_read_slowly, args=(clients, rate, stop, failures))
            reader.start()
            try:
                deadline = time.monotonic() + seconds
                latencies: list[float] = []
                while time.monotonic() < deadline:
                    latencies += _plain_ms(address, 20)
                    time.sleep(0.05)
                memory = (process.memory_info().rss - before) / downloads / 1024
            finally:
                stop.set()
                reader.join()
                for client in clients:
                    client.close()
    hundredths = statistics.quantiles(latencies, n=100)
    return {
        "KiB memory/download": memory,
        "others' p50 ms": hundredths[49],
        "p99 ms": hundredths[98],
        "failures": len(failures),
    }


def _fill_thread_pool(address: tuple[str, int]) -> None:
    """Have Starlette start its threads, whose stacks are no download's memory."""
    clients = [_request(address, b"/file/small") for _ in range(200)]
    for client in clients:
        client.recv(65536)
        client.close()


def _download(address: tuple[str, int], path: str) -> socket.socket:
    sock = _request(address, path.encode())
    sock.setblocking(False)
    return sock


def _request(address: tuple[str, int], target: bytes) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
    sock.settimeout(30.0)
    sock.connect(address)
    sock.sendall(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % target)
    return sock


def _read_slowly(
    clients: list[socket.socket], rate: int, stop: threading.Event, failures: list[str]
) -> None:
    step = int(rate * _TICK_S)
    while not stop.is_set():
        began = time.monotonic()
        for client in clients:
            try:
                if not client.recv(step):
                    failures.append("ended early")
            except BlockingIOError:
                pass
            except OSError as error:
                failures.append(str(error))
        stop.wait(max(0.0, began + _TICK_S - time.monotonic()))


def _plain_ms(address: tuple[str, int], count: int) -> list[float]:
    """Milliseconds of requests for 1 KiB, one after the other on one connection."""
    found = []
    with socket.create_connection(address, 30.0) as sock:
        for _ in range(count):
            began = time.perf_counter()
            sock.sendall(b"GET /plain HTTP/1.1\r\nHost: x\r\n\r\n")
            data = b""
            while len(data.partition(b"\r\n\r\n")[2]) < 1024:
                part = sock.recv(65536)
                if not part:
                    raise ConnectionError("the server closed a plain request")
                data += part
            found.append((time.perf_counter() - began) * 1e3)
    return found


if __name__ == "__main__":
    main()
