"""FastWorker beside gunicorn's gthread worker, granian for short answers, and nginx for files.

    python -m loadtests.worker [rates] [two] [memory] [tls] [files] [--profile release]

One worker process and four threads each, but where two workers stand beside one; the contenders
take turns. wrk is the client; it shares the machine with the server, so the server's CPU time
stands beside each rate. Large files are received by clients that read 8 KiB at a time (wrk, and a
client in Python), 64 KiB and 256 KiB; beside the servers stands the bound, a bare loop of epoll and
sendfile. Over loopback the kernel moves a packet in whichever process makes room for it, the
server's or the client's, so the client's CPU time is told too: a server that leaves its packets to
the client's process seems to need none. Memory is what a server's processes have more (resident)
for each connection that is kept and idle.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
from pathlib import Path
from typing import Any

from .bench import (
    BYTES,
    Client,
    Contender,
    Load,
    Row,
    Table,
    Task,
    Unit,
    certificate,
    gunicorn,
    raw,
    resident_bytes,
    wrk,
)
from .command import main
from .peers import FAST, bare_sendfile, granian, nginx
from .shapes import FILE_BYTES, payload_file

__all__ = ["TABLES"]

APP = "loadtests.app:app"
GTHREAD, OURS = "gthread", "FastWorker"
OUR_FILES = "StaticFiles on FastWorker"
SMALL = "/small/1024"
LARGE = f"/{FILE_BYTES}.bin"


def _pair(path: str, **options: Any) -> tuple[Contender, Contender]:
    return (
        Contender(GTHREAD, gunicorn(APP, **options), path),
        Contender(OURS, gunicorn(APP, worker_class=FAST, **options), path),
    )


def _rate(name: str, title: str, path: str, connections: int) -> Row:
    return Row(f"worker.rates.{name}", title, _pair(path), wrk(connections))


def _two(name: str, title: str, path: str) -> Row:
    """What a second worker is worth, on a machine with two cores."""
    gthread, ours = _pair(path)
    gthreads, both = (
        dataclasses.replace(pair, name=f"{pair.name}, 2 workers") for pair in _pair(path, workers=2)
    )
    return Row(f"worker.two.{name}", title, (ours, both, gthread, gthreads), wrk(32))


def _tls(name: str, title: str, path: str, connections: int) -> Row:
    return Row(f"worker.tls.{name}", title, _pair(path, tls=True), wrk(connections))


def _file(name: str, client: Client) -> Row:
    gthread, ours = _pair("/server-wrapper")
    contenders = (
        ours,
        gthread,
        Contender("nginx, sendfile on", nginx(), LARGE),
        Contender("nginx, sendfile off", nginx(sendfile=False), LARGE),
        Contender("bare epoll + sendfile loop", bare_sendfile(FILE_BYTES), LARGE),
    )
    key, title = f"worker.files.{name.split(',')[0].replace(' ', '')}", f"10 MiB, by {name}"
    key += "-wrk" if "wrk" in name else ""
    return Row(key, title, contenders, _with_its_cpu(client), BYTES, ours=OURS, seconds=0.6)


def _with_its_cpu(client: Client) -> Client:
    """The client, which tells its own CPU time too."""

    def run(task: Task) -> Load:
        load = client(task)
        if not load.body_bytes:
            return load
        cost = load.client_cpu_s * 1e9 / load.body_bytes
        return dataclasses.replace(load, facts={**load.facts, "client's CPU s/GB": cost})

    return run


def _static(factory: str) -> str:
    return f"loadtests.static_files:{factory}()"


IDLE_CONNECTIONS = 2000
IDLE = Unit("bytes a connection", lambda m: m.load.facts["bytes a connection"])


def _idle_connections(task: Task) -> Load:
    """Ask once on each of many connections, keep them, and look at the server's memory."""
    with contextlib.ExitStack() as stack:

        def ask() -> None:
            connection = http.client.HTTPConnection(*task.address, timeout=60)
            stack.callback(connection.close)
            connection.request("GET", task.path)
            connection.getresponse().read()

        for _ in range(IDLE_CONNECTIONS // 10):  # what is made once
            ask()
        before = resident_bytes(task.pid)
        for _ in range(IDLE_CONNECTIONS):
            ask()
        more = resident_bytes(task.pid) - before
    facts = {"bytes a connection": more / IDLE_CONNECTIONS}
    return Load(IDLE_CONNECTIONS, 0, 0, 1.0, facts=facts)


def _idle(name: str, worker_class: str) -> Contender:
    server = gunicorn(APP, "--worker-connections=5000", worker_class=worker_class)
    return Contender(name, server, SMALL, fresh=True)


ROWS = [
    _rate("small-4", "1 KiB, 4 connections", SMALL, 4),
    Row(
        "worker.rates.small-32",
        "1 KiB, 32 connections",
        (*_pair(SMALL), Contender("granian", granian(APP, interface="wsgi"), SMALL)),
        wrk(32),
        ours=OURS,
    ),
    _rate("sleep", "app sleeps 10 ms, 32", "/sleep", 32),
    _rate("compute", "app computes 3 ms, 32", "/compute", 32),
    Row(
        "worker.rates.static",
        "1 KiB file, 32",
        (
            Contender("WhiteNoise on gthread", gunicorn(_static("whitenoise_app")), "/1024.bin"),
            Contender(OUR_FILES, gunicorn(_static("static_app"), worker_class=FAST), "/1024.bin"),
            Contender("nginx", nginx(), "/1024.bin"),
        ),
        wrk(32),
        ours=OUR_FILES,
    ),
    # wrk needs next to nothing of the cores here, and half of them there.
    _two("compute", "two workers: app computes 3 ms, 32", "/compute"),
    _two("small-32", "two workers: 1 KiB, 32, of which wrk has its share", SMALL),
    Row(
        "worker.memory.idle",
        "an idle connection, kept alive",
        (_idle(OURS, FAST), _idle(GTHREAD, "gthread")),
        _idle_connections,
        IDLE,
    ),
    _tls("small-4", "TLS 1 KiB, 4 connections", SMALL, 4),
    _tls("small-32", "TLS 1 KiB, 32 connections", SMALL, 32),
    _tls("large", "TLS 10 MiB, 4 connections", "/server-wrapper", 4),
    _file("8 KiB, wrk", wrk(4)),
    *(_file(f"{kib} KiB", raw(connections=4, receive_bytes=kib * 1024)) for kib in (8, 64, 256)),
]


def prepare(folder: Path) -> None:
    """The payload files, and a certificate for the servers that speak TLS."""
    for size in (1024, FILE_BYTES):
        payload_file(size)
    certificate(folder)


TABLES = [Table("worker", "FastWorker beside gthread, granian and nginx", ROWS, prepare)]

if __name__ == "__main__":
    raise SystemExit(main("loadtests.worker", __doc__, TABLES))
