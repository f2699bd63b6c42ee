"""Others beside a crowd of slow clients: how long they wait, and what memory a slow one takes.

    python -m loadtests.slow [worker | asgi] [--profile release]

The crowd is one process, the client whose times are told is this one; each run has a new server.
"""

from __future__ import annotations

import contextlib
import resource
import socket
import time
from collections.abc import Sequence

import psutil

from tests.support.slow_clients import KINDS, Others, others, receive_answer, slow_clients
from tests.support.slow_disk import slow_disk
from wsgifast.benchmark.slow_clients import tls_context

from .asgi import APP as ASGI_APP
from .bench import Client, Contender, Load, Row, Server, Table, Task, Unit, gunicorn
from .command import main
from .peers import FAST, uvicorn
from .shapes import FILE_BYTES
from .worker import prepare

__all__ = ["OTHERS", "TABLES", "beside", "worker"]

# The profile's seconds are of a run of many requests; a crowd is looked at so many times as long.
SECONDS_FACTOR = 5
OTHERS = Unit(
    "others' p99 ms", lambda m: m.load.latency_ms[99],
    "server CPU", lambda m: m.server_cpu_s / m.load.seconds,
)  # fmt: skip
# Makes what is made once, such as threads and their stacks: it is no slow client's memory.
WARMING_CLIENTS = 200
# The slow disk that servers find as {folder}/disk/file: 0.5 s for each 128 KiB.
DISK_BYTES, DISK_BYTES_PER_S = 100 << 20, 256 * 1024
DISK_FOLDER = "disk"


def beside(
    kind: str | None,
    *,
    asks: str = "/small/1024",
    clients: int | None = None,
    warms: str | None = None,
    disk: bool = False,
    settle_s: float = 0.0,
) -> Client:
    """Others beside a crowd of a kind that asks for the contender's path.

    :param kind: of tests.support.slow_clients; None: nobody is beside them.
    :param asks: the path that the others ask for.
    :param clients: how many slow ones; by default as the kind says.
    :param warms: the path asked for by many at once before anything is measured.
    :param disk: the crowd's file is on a slow disk, which is mounted for the run.
    :param settle_s: the crowd is left alone for so long before anything is measured: by then the
        kernel's buffers are full, and what is seen does not depend on the crowd's beginning.
    """

    def run(task: Task) -> Load:
        port = task.address[1]
        seconds = task.seconds * SECONDS_FACTOR
        others(port, path=asks, seconds=0.3, tls=task.tls)
        _warm(port, warms or asks, tls=task.tls)
        if kind is None:
            return _load(others(port, path=asks, seconds=seconds, tls=task.tls), seconds, {})
        with contextlib.ExitStack() as stack:
            if disk:
                folder = task.folder / DISK_FOLDER
                folder.mkdir(exist_ok=True)
                stack.enter_context(
                    slow_disk(folder, size=DISK_BYTES, bytes_per_s=DISK_BYTES_PER_S)
                )
            before = _resident_bytes(task.pid)
            crowd = stack.enter_context(
                slow_clients(
                    kind,
                    port,
                    clients=_allowed(clients),
                    path=task.path,
                    seconds=60.0,
                    tls=task.tls,
                )
            )
            others(port, path=asks, seconds=settle_s, tls=task.tls)
            seen = others(port, path=asks, seconds=seconds, tls=task.tls)
            more = _resident_bytes(task.pid) - before
            told = crowd.end()
        dropped = sum(count for what, count in told.items() if what == "ended" or what[0] == "E")
        streams = KINDS[kind].streams
        present = crowd.gathered * streams or float("nan")  # a flood is never there
        facts = {
            "slow ones": present,
            "KiB each": more / 1024 / present,
            "kB/s each": (told["received B/s each"] + told["sent B/s each"]) / 1e3 / streams,
            "dropped": float(dropped),
            "crowd CPU": told["CPU share"],
        }
        return _load(seen, seconds, facts)

    return run


def beside_all(crowds: Sequence[tuple[str, int, str]], *, settle_s: float) -> Client:
    """Others beside several crowds at once.

    :param crowds: of each its kind, how many clients, and the path that they ask for.
    :param settle_s: as for :func:`beside`.
    """

    def run(task: Task) -> Load:
        port, asks = task.address[1], task.path
        seconds = task.seconds * SECONDS_FACTOR
        _warm(port, asks, tls=task.tls)
        with contextlib.ExitStack() as stack:
            before = _resident_bytes(task.pid)
            present = 0
            for kind, clients, path in crowds:
                crowd = slow_clients(kind, port, clients=clients, path=path, tls=task.tls)
                present += stack.enter_context(crowd).gathered * KINDS[kind].streams
            others(port, path=asks, seconds=settle_s, tls=task.tls)
            seen = others(port, path=asks, seconds=seconds, tls=task.tls)
            more = _resident_bytes(task.pid) - before
        return _load(seen, seconds, {"slow ones": present, "KiB each": more / 1024 / present})

    return run


def _load(seen: Others, seconds: float, facts: dict[str, float]) -> Load:
    return Load(
        requests=len(seen.times_ms) - seen.failures,
        failures=seen.failures,
        body_bytes=0,
        seconds=seconds,
        latency_ms={p: seen.percentile(p) for p in (50, 95, 99)},
        facts=facts,
    )


def _warm(port: int, path: str, *, tls: bool) -> None:
    """Let many ask at once, and read their answers."""
    context = tls_context() if tls else None
    clients = []
    try:
        for _ in range(WARMING_CLIENTS):
            sock = socket.create_connection(("127.0.0.1", port), 30.0)
            if context is not None:
                sock = context.wrap_socket(sock)
            clients.append(sock)
            sock.sendall(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        for sock in clients:
            receive_answer(sock)
    finally:
        for sock in clients:
            sock.close()
    time.sleep(0.1)


def _allowed(clients: int | None) -> int | None:
    """As many as the server may have descriptors for: a socket, and a file that it downloads."""
    most = (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 200) // 2
    return clients and min(clients, most)


def _resident_bytes(pid: int) -> int:
    root = psutil.Process(pid)
    return sum(one.memory_info().rss for one in (root, *root.children(recursive=True)))


# For the crowd.
_ROOM = ("--worker-connections", "20000", "--keep-alive", "120")


def worker(
    worker_class: str = FAST,
    *more: str,
    app: str = "loadtests.app:app",
    env: dict[str, str] | None = None,
    tls: bool = False,
) -> Server:
    """gunicorn with room for the crowd."""
    return gunicorn(app, *_ROOM, *more, worker_class=worker_class, env=env, tls=tls)


def _worker_row(
    key: str,
    title: str,
    path: str,
    kind: str,
    clients: int,
    options: tuple[str, ...] = (),
    *,
    tls: bool = False,
) -> Row:
    contenders = (
        Contender("FastWorker", worker(FAST, *options, tls=tls), path, fresh=True),
        Contender("gthread", worker("gthread", *options, tls=tls), path, fresh=True),
    )
    return Row(
        f"slow.worker.{key}", title, contenders, beside(kind, clients=clients, settle_s=2.0), OTHERS
    )


# In the clear by prior knowledge, which needs no client that speaks TLS; the others' HTTP/1 too.
_HTTP2 = ("--http-protocols", "h2,h1", "--http2-cleartext", "both")
_MIXED = (
    ("idle", 2500, "/small/1024"),
    ("slow readers", 2500, "/server-wrapper"),
    ("slow readers", 2500, "/stream/500000"),
    ("readers of HTTP/2 streams", 25, "/server-wrapper"),
)
_DJANGO = "loadtests.django_files:wsgi(wrapped=True)"
LARGE = f"/file/{FILE_BYTES}.bin"
_ASGI = beside("downloads", asks="/plain", clients=2000, warms="/file/1024.bin", settle_s=2.0)
_BARE = beside("downloads", asks="/1024.bin", clients=2000, settle_s=2.0)
OURS = uvicorn(ASGI_APP, ours=True)
ROWS = [
    _worker_row(
        "downloads-2000", "2,000 downloads, 64 KiB/s", "/server-wrapper", "downloads", 2000
    ),
    _worker_row("downloads-10000", "10,000 downloads", "/server-wrapper", "downloads", 10_000),
    _worker_row(
        "generators",
        "2,000 readers of a generator, 4 KiB/s",
        "/stream/500000",
        "slow readers",
        2000,
    ),
    *(
        _worker_row(
            f"http2-{key}",
            f"2,000 HTTP/2 streams, 100 a connection, 4 KiB/s: {what}",
            path,
            "readers of HTTP/2 streams",
            20,
            _HTTP2,
        )
        for key, what, path in (
            ("files", "a file", "/server-wrapper"),
            ("generators", "a generator", "/stream/500000"),
            ("lists", "a list", "/whole/500000"),
        )
    ),
    _worker_row(
        "tls",
        "2,000 downloads under TLS, 4 KiB/s",
        "/server-wrapper",
        "slow readers",
        2000,
        tls=True,
    ),
    Row(
        "slow.worker.django",
        "2,000 readers of a Django StreamingHttpResponse, 4 KiB/s",
        tuple(
            Contender(name, worker(kind, app=_DJANGO), "/export", fresh=True)
            for name, kind in (("FastWorker", FAST), ("gthread", "gthread"))
        ),
        beside("slow readers", asks="/page", clients=2000, settle_s=2.0),
        OTHERS,
    ),
    Row(
        "slow.worker.mixed",
        "10,000 mixed: idle, readers of files, generators and HTTP/2 streams, 4 KiB/s",
        tuple(
            Contender(name, worker(kind, *_HTTP2), "/small/1024", fresh=True)
            for name, kind in (("FastWorker", FAST), ("gthread", "gthread"))
        ),
        beside_all(_MIXED, settle_s=5.0),
        OTHERS,
    ),
    _worker_row("uploads", "200 uploads, 64 KiB/s", "/upload", "uploads", 200),
    _worker_row("idle", "10,000 idle connections", "/small/1024", "idle", 10_000),
    Row(
        "slow.asgi.downloads",
        "2,000 downloads, 64 KiB/s",
        (
            Contender("uvicorn, FileResponse", uvicorn(ASGI_APP), LARGE, fresh=True),
            Contender("our protocol, FileResponse", OURS, LARGE, fresh=True),
            Contender(
                "our protocol, StaticFiles", OURS, f"/our-static/{FILE_BYTES}.bin", fresh=True
            ),
            Contender(
                "our protocol, bare app",
                uvicorn("loadtests.asgi_app:bare", ours=True),
                f"/{FILE_BYTES}.bin",
                client=_BARE,
                fresh=True,
            ),
        ),
        _ASGI,
        OTHERS,
    ),
    Row(
        "slow.asgi.downloads-10000",
        "10,000 downloads, 64 KiB/s",
        (
            Contender("uvicorn, FileResponse", uvicorn(ASGI_APP), LARGE, fresh=True),
            Contender("our protocol, FileResponse", OURS, LARGE, fresh=True),
        ),
        beside("downloads", asks="/plain", clients=10_000, warms="/file/1024.bin", settle_s=2.0),
        OTHERS,
    ),
]


TABLES = [Table("slow", "Others beside slow clients", ROWS, prepare)]

if __name__ == "__main__":
    raise SystemExit(main("loadtests.slow", __doc__, TABLES))
