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
from typing import Any

from tests.support.slow_clients import KINDS, others, receive_answer, slow_clients
from tests.support.slow_disk import slow_disk
from wsgifast.benchmark.slow_clients import SlowClients

from .asgi import APP as ASGI_APP
from .bench import (
    Client,
    Contender,
    Load,
    Row,
    Server,
    Table,
    Task,
    Unit,
    gunicorn,
    resident_bytes,
    tls_context,
)
from .command import main
from .peers import FAST, uvicorn
from .shapes import FILE_BYTES
from .worker import prepare

__all__ = ["DISK_FOLDER", "OTHERS", "TABLES", "beside", "pair"]

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
    *crowds: tuple[str, int | None] | tuple[str, int, str],
    asks: str | None = "/small/1024",
    warms: str | None = None,
    disk: bool = False,
    settle_s: float = 0.0,
) -> Client:
    """Others beside crowds of slow clients; beside nobody without a crowd.

    :param crowds: of each its kind (of tests.support.slow_clients), how many clients (None: as the
        kind says), and the path that they ask for, if it is not the contender's.
    :param asks: the path that the others ask for; None: the contender's.
    :param warms: the path asked for by many at once before anything is measured.
    :param disk: the crowd's file is on a slow disk, which is mounted for the run.
    :param settle_s: the crowd is left alone for so long before anything is measured: by then the
        kernel's buffers are full, and what is seen does not depend on the crowd's beginning.
    """

    def run(task: Task) -> Load:
        port = task.address[1]
        path = asks or task.path
        seconds = task.seconds * SECONDS_FACTOR
        others(port, path=path, seconds=0.3, tls=task.tls)
        _warm(port, warms or path, tls=task.tls)
        with contextlib.ExitStack() as stack:
            if disk:
                folder = task.folder / DISK_FOLDER
                folder.mkdir(exist_ok=True)
                mounted = slow_disk(folder, size=DISK_BYTES, bytes_per_s=DISK_BYTES_PER_S)
                stack.enter_context(mounted)
            before = resident_bytes(task.pid)
            present = []
            for kind, clients, *theirs in crowds:
                crowd = slow_clients(
                    kind, port, clients=_allowed(clients), path=(*theirs, task.path)[0],
                    tls=task.tls,
                )  # fmt: skip
                present.append((KINDS[kind].streams, stack.enter_context(crowd)))
            others(port, path=path, seconds=settle_s, tls=task.tls)
            seen = others(port, path=path, seconds=seconds, tls=task.tls)
            facts = _facts(present, resident_bytes(task.pid) - before) if crowds else {}
        return Load(
            requests=len(seen.times_ms) - seen.failures,
            failures=seen.failures,
            body_bytes=0,
            seconds=seconds,
            latency_ms={p: seen.percentile(p) for p in (50, 95, 99)},
            facts=facts,
        )

    return run


def _facts(crowds: Sequence[tuple[int, SlowClients]], more_bytes: int) -> dict[str, float]:
    """What crowds have cost and done, which end with this; of each its streams a client."""
    there, weight = 0, 0
    dropped = cpu_share = bytes_per_s = 0.0
    for streams, crowd in crowds:
        told = crowd.end()
        clients = crowd.gathered or 1  # a flood is never there
        there += crowd.gathered * streams
        weight += clients * streams
        bytes_per_s += clients * (told["received B/s each"] + told["sent B/s each"])
        dropped += sum(n for what, n in told.items() if what == "ended" or what[0] == "E")
        cpu_share += told["CPU share"]
    return {
        "slow ones": there or float("nan"),
        "KiB each": more_bytes / 1024 / (there or float("nan")),
        "kB/s each": bytes_per_s / 1e3 / weight,
        "dropped": dropped,
        "crowd CPU": cpu_share,
    }


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


def pair(path: str, *options: str, **more: Any) -> tuple[Contender, Contender]:
    """FastWorker and gthread, each new for every run.

    :param options: gunicorn's.
    :param more: as for :func:`worker`.
    """
    sides = (("FastWorker", FAST), ("gthread", "gthread"))
    fast, plain = (
        Contender(name, worker(kind, *options, **more), path, fresh=True) for name, kind in sides
    )
    return fast, plain


# In the clear by prior knowledge, which needs no client that speaks TLS; the others' HTTP/1 too.
_HTTP2 = ("--http-protocols", "h2,h1", "--http2-cleartext", "both")
_FILE, _GENERATOR, _SMALL = "/server-wrapper", "/stream/500000", "/small/1024"
_READERS, _STREAMS = "slow readers", "readers of HTTP/2 streams"
_MIXED = (
    ("idle", 2500, _SMALL), (_READERS, 2500, _FILE), (_READERS, 2500, _GENERATOR),
    (_STREAMS, 25, _FILE),
)  # fmt: skip
_DJANGO = "loadtests.django_files:wsgi(wrapped=True)"
_AT_4_KIB = "2,000 HTTP/2 streams, 100 a connection, 4 KiB/s"


def _crowd(kind: str, clients: int, asks: str = _SMALL) -> Client:
    return beside((kind, clients), asks=asks, settle_s=2.0)


_WORKERS: list[tuple[str, str, tuple[Contender, Contender], Client]] = [
    ("downloads-2000", "2,000 downloads, 64 KiB/s", pair(_FILE), _crowd("downloads", 2000)),
    ("downloads-10000", "10,000 downloads", pair(_FILE), _crowd("downloads", 10_000)),
    (
        "generators", "2,000 readers of a generator, 4 KiB/s", pair(_GENERATOR),
        _crowd(_READERS, 2000),
    ),
    ("http2-files", f"{_AT_4_KIB}: a file", pair(_FILE, *_HTTP2), _crowd(_STREAMS, 20)),
    (
        "http2-generators", f"{_AT_4_KIB}: a generator", pair(_GENERATOR, *_HTTP2),
        _crowd(_STREAMS, 20),
    ),
    ("http2-lists", f"{_AT_4_KIB}: a list", pair("/whole/500000", *_HTTP2), _crowd(_STREAMS, 20)),
    (
        "tls", "2,000 downloads under TLS, 4 KiB/s", pair(_FILE, tls=True),
        _crowd(_READERS, 2000),
    ),
    (
        "django", "2,000 readers of a Django StreamingHttpResponse, 4 KiB/s",
        pair("/export", app=_DJANGO), _crowd(_READERS, 2000, "/page"),
    ),
    (
        "mixed", "10,000 mixed: idle, readers of files, generators and HTTP/2 streams, 4 KiB/s",
        pair(_SMALL, *_HTTP2), beside(*_MIXED, asks=None, settle_s=5.0),
    ),
    ("uploads", "200 uploads, 64 KiB/s", pair("/upload"), _crowd("uploads", 200)),
    ("idle", "10,000 idle connections", pair(_SMALL), _crowd("idle", 10_000)),
]  # fmt: skip
_LARGE = f"/file/{FILE_BYTES}.bin"
_OURS = uvicorn(ASGI_APP, ours=True)
_ASGI = (
    Contender("uvicorn, FileResponse", uvicorn(ASGI_APP), _LARGE, fresh=True),
    Contender("our protocol, FileResponse", _OURS, _LARGE, fresh=True),
    Contender("our protocol, StaticFiles", _OURS, f"/our-static/{FILE_BYTES}.bin", fresh=True),
    Contender(
        "our protocol, bare app", uvicorn("loadtests.asgi_app:bare", ours=True),
        f"/{FILE_BYTES}.bin", client=_crowd("downloads", 2000, "/1024.bin"), fresh=True,
    ),
)  # fmt: skip


def _asgi_row(key: str, title: str, contenders: tuple[Contender, ...], clients: int) -> Row:
    crowd = ("downloads", clients)
    client = beside(crowd, asks="/plain", warms="/file/1024.bin", settle_s=2.0)
    return Row(f"slow.asgi.{key}", f"{title}, 64 KiB/s", contenders, client, OTHERS)


ROWS = [
    *(
        Row(f"slow.worker.{key}", title, sides, crowd, OTHERS)
        for key, title, sides, crowd in _WORKERS
    ),
    _asgi_row("downloads", "2,000 downloads", _ASGI, 2000),
    _asgi_row("downloads-10000", "10,000 downloads", _ASGI[:2], 10_000),
]


TABLES = [Table("slow", "Others beside slow clients", ROWS, prepare)]

if __name__ == "__main__":
    raise SystemExit(main("loadtests.slow", __doc__, TABLES))
