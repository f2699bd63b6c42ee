"""Measure how crowds of slow clients delay a usual client, and how much memory they need.

A crowd consists of many clients of one kind in a separate process. The usual client runs in this
process, and its times are reported. It sends one request after another, and every tenth request on
a new connection. Each run has a new server. The rows `attack.` have the crowds of
tests.support.slow_clients, on FastWorker, gthread and nginx. The rows `attack.asgi.` have the
crowds that send slowly, on asgifast's protocols, uvicorn and granian.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import stat
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from tests.support.crowds import SlowClients
from tests.support.slow_clients import KINDS, Others, others, slow_clients
from wsgifast.commands.bench.loads import Load, family

from .asgi import APP as ASGI_APP
from .asgi import HTTP2
from .bench import FAST, Side, pair, resident_bytes, row, table
from .clients import percentiles, raw
from .harness.locust import Locust
from .harness.servers import gunicorn, uvicorn
from .harness.tables import Client, Row, Table, Task, Unit
from .payloads import FIELD, FILE_BYTES, LIST_BYTES, MIB
from .servers import granian, nginx
from .uploads import ROOM

# The length of a run with a crowd, as a multiple of the profile's seconds.
SECONDS_FACTOR = 5
SOCKSTAT = Path("/proc/net/sockstat")
# An upload that takes longer has failed.
_MAX_UPLOAD_S = {False: 60.0, True: 290.0}
# The minimum length of a run. With fewer than 100 responses, the slowest response would be the 99th
# percentile.
MIN_S = 3.0
OTHERS = Unit(
    "others' p99 ms", lambda m: m.latency_ms[99],
    "server CPU", lambda m: m.server_cpu_s / m.seconds, less=True,
)  # fmt: skip
# A warm-up, which for example starts all threads. Otherwise the memory of the threads would count
# as memory for slow clients.
_WARM = raw(connections=200, requests=1, receive_bytes=65_536)


def beside_crowds(
    *crowds: tuple[str, int | None] | tuple[str, int, str],
    measured_path: str | None = "/small/1024",
    warm_up_path: str | None = None,
    settle_s: float = 0.0,
) -> Client:
    """Return a usual client that sends requests while crowds of slow clients are connected.

    :param crowds: the kind, the number of clients and optionally the path of each crowd.
        tests.support.slow_clients defines the kinds. If the number is None, the kind's default is
        used. If there is no path, the contender's path is used.
    :param measured_path: the path that the usual client requests. None for the contender's path.
    :param warm_up_path: the path of many simultaneous requests before the measurement. None for
        `measured_path`.
    :param settle_s: the seconds between the start of the crowds and the measurement. Meanwhile the
        kernel's buffers become full.
    """

    def run(task: Task) -> Load:
        port = task.address[1]
        path = measured_path or task.path
        seconds = max(task.seconds * SECONDS_FACTOR, MIN_S)
        others(port, path=path, seconds=0.3, tls=task.tls)
        _WARM(replace(task, path=warm_up_path or path, body_bytes=None, seconds=30.0))
        time.sleep(0.1)
        with contextlib.ExitStack() as stack:
            before = costs(task.pid)
            present = []
            for kind, clients, *crowd_path in crowds:
                crowd = slow_clients(
                    kind, port, clients=_allowed(clients), path=(*crowd_path, task.path)[0],
                    tls=task.tls,
                )  # fmt: skip
                present.append((KINDS[kind].streams, stack.enter_context(crowd)))
            others(port, path=path, seconds=settle_s, tls=task.tls)
            seen = others(port, path=path, seconds=seconds, tls=task.tls)
            after = costs(task.pid) if crowds else before
            growth = {name: size - before[name] for name, size in after.items()}
            facts = _facts(present, growth) if crowds else {}
        return Load(
            requests=len(seen.times_ms) - seen.failures,
            failures=seen.failures,
            body_bytes=0,
            seconds=seconds,
            latency_ms={p: seen.percentile(p) for p in (50, 95, 99)},
            facts=facts,
        )

    return run


def costs(pid: int) -> dict[str, int]:
    """Return a server's bytes in memory and in temporary files, and the kernel's memory for TCP.

    The kernel's memory includes that of all other programs.
    """
    return {
        "": resident_bytes(pid),
        "kernel ": _kernel_bytes(),
        "disk ": sum(map(_temporary_bytes, family(pid))),
    }


def _kernel_bytes() -> int:
    """Return the kernel's memory for TCP, from /proc/net/sockstat (see proc(5))."""
    (line,) = re.findall(r"^TCP: .* mem (\d+)", SOCKSTAT.read_text(), re.M)
    return int(line) * resource.getpagesize()


def _temporary_bytes(process: psutil.Process) -> int:
    """Return the size on the disk of those open files of a process that have no name."""
    found = {}
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{process.pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                file = link.stat()
                if stat.S_ISREG(file.st_mode) and not file.st_nlink:
                    found[file.st_dev, file.st_ino] = file.st_blocks * 512
    return sum(found.values())


def _facts(
    crowds: Sequence[tuple[int, SlowClients]], growth: Mapping[str, int]
) -> dict[str, float]:
    """End the crowds. Return their costs and figures for each client or stream.

    :param growth: the additional bytes, with the keys of :func:`costs`.
    """
    connected, weight = 0, 0
    dropped = cpu_share = bytes_per_s = 0.0
    for streams, crowd in crowds:
        reported = crowd.end()
        clients = crowd.gathered or 1  # the clients of a flood do not stay connected
        connected += crowd.gathered * streams
        weight += clients * streams
        bytes_per_s += clients * (reported["received B/s each"] + reported["sent B/s each"])
        dropped += _dropped(reported)
        cpu_share += reported["CPU share"]
    return {
        "slow ones": connected or float("nan"),
        **{f"{name}KiB each": n / 1024 / (connected or float("nan")) for name, n in growth.items()},
        "kB/s each": bytes_per_s / 1e3 / weight,
        "dropped": dropped,
        "crowd CPU": cpu_share,
    }


def _dropped(reported: Mapping[str, float]) -> float:
    """Return how many connections of a crowd the server has closed or reset."""
    return sum(n for name, n in reported.items() if name == "ended" or name[0] == "E")


def _allowed(clients: int | None) -> int | None:
    """Return the number of clients, limited by the server's descriptors."""
    max_clients = (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 200) // 2
    return clients and min(clients, max_clients)


def _pair(*options: str, **more: Any) -> dict[str, Side]:
    """Return FastWorker and gthread, with enough connections for the crowd."""
    connection_options = ("--worker-connections", "20000", "--keep-alive", "120")
    return pair(*connection_options, *options, first="FastWorker", **more)


def beside(
    key: str,
    title: str,
    path: str,
    *crowds: Any,
    sides: dict[str, Side],
    settle_s: float = 2.0,
    **options: Any,
) -> Row:
    """Return a row that measures a usual client while crowds of slow clients are connected.

    :param path: the path that the crowds request.
    :param options: see :func:`beside_crowds`.
    """
    client = beside_crowds(*crowds, settle_s=settle_s, **options)
    return row(key, title, sides, path, OTHERS, client, fresh=True)


def _row(
    key: str,
    title: str,
    path: str,
    *crowds: Any,
    sides: dict[str, Side] | None = None,
    **options: Any,
) -> Row:
    return beside(f"slow.{key}", title, path, *crowds, sides=sides or _pair(), **options)


# These servers support HTTP/2 without TLS (by prior knowledge), so that the crowd needs no TLS. The
# usual client uses HTTP/1.
_HTTP2 = _pair(*HTTP2)
_FILE, _GENERATOR, _SMALL = "/server-wrapper", "/stream/500000", "/small/1024"
_DOWNLOADS, _READERS, _STREAMS = "downloads", "slow readers", "readers of HTTP/2 streams"
_AT_4_KIB = "2,000 HTTP/2 streams, 100 a connection, 4 KiB/s"
_LARGE = f"/file/{FILE_BYTES}.bin"
_OURS = uvicorn(ASGI_APP, ours=True)
_ASGI: dict[str, Side] = {
    "uvicorn, FileResponse": uvicorn(ASGI_APP),
    "our protocol, FileResponse": _OURS,
}
_MORE_ASGI: dict[str, Side] = {
    **_ASGI,
    "our protocol, StaticFiles": (_OURS, f"/our-static/{FILE_BYTES}.bin"),
    "our protocol, bare app": (
        uvicorn("loadtests.asgi_app:bare", ours=True), f"/{FILE_BYTES}.bin",
        beside_crowds((_DOWNLOADS, 2000), measured_path="/1024.bin", settle_s=2.0),
    ),
}  # fmt: skip


def _asgi_row(key: str, title: str, clients: int, sides: dict[str, Side]) -> Row:
    options: Any = {"measured_path": "/plain", "warm_up_path": "/file/1024.bin"}
    return _row(f"asgi.{key}", title, _LARGE, (_DOWNLOADS, clients), sides=sides, **options)


_SLOW = table("slow", "Quick clients beside slow clients", [
    _row("worker.downloads-2000", "2,000 downloads, 64 KiB/s", _FILE, (_DOWNLOADS, 2000)),
    _row("worker.downloads-10000", "10,000 downloads", _FILE, (_DOWNLOADS, 10_000)),
    _row("worker.generators", "2,000 readers of a generator, 4 KiB/s", _GENERATOR,
         (_READERS, 2000)),
    _row("worker.http2-files", f"{_AT_4_KIB}: a file", _FILE, (_STREAMS, 20), sides=_HTTP2),
    _row("worker.http2-generators", f"{_AT_4_KIB}: a generator", _GENERATOR, (_STREAMS, 20),
         sides=_HTTP2),
    _row("worker.http2-lists", f"{_AT_4_KIB}: a list", "/whole/500000", (_STREAMS, 20),
         sides=_HTTP2),
    _row("worker.tls", "2,000 downloads under TLS, 4 KiB/s", _FILE, (_READERS, 2000),
         sides=_pair(tls=True)),
    _row("worker.django", "2,000 readers of a Django StreamingHttpResponse, 4 KiB/s", "/export",
         (_READERS, 2000), sides=_pair(app="loadtests.django_app:wsgi(wrapped=True)"),
         measured_path="/page"),
    _row("worker.mixed",
         "10,000 mixed: idle, readers of files, generators and HTTP/2 streams, 4 KiB/s", _SMALL,
         ("idle", 2500, _SMALL), (_READERS, 2500, _FILE), (_READERS, 2500, _GENERATOR),
         (_STREAMS, 25, _FILE), sides=_HTTP2, measured_path=None, settle_s=5.0),
    _row("worker.uploads", "200 uploads, 64 KiB/s", "/upload", ("uploads", 200)),
    _row("worker.idle", "10,000 idle connections", _SMALL, ("idle", 10_000)),
    _asgi_row("downloads", "2,000 downloads, 64 KiB/s", 2000, _MORE_ASGI),
    _asgi_row("downloads-10000", "10,000 downloads, 64 KiB/s", 10_000, _ASGI),
])  # fmt: skip

# The paths that each crowd requests from our app and from nginx. None if nginx has no such body.
ATTACKS: dict[str, tuple[str, str | None]] = {
    "none": (_SMALL, "/1024.bin"),
    "headers byte by byte": (_SMALL, "/1024.bin"),
    "790 kB headers": (_SMALL, "/1024.bin"),
    "one-byte chunks": ("/upload", "/upload"),
    "silent bodies": ("/upload", "/upload"),
    "readers of a list": (f"/whole/{LIST_BYTES}", f"/{LIST_BYTES}.bin"),
    "readers of a file": (_FILE, f"/{FILE_BYTES}.bin"),
    "readers of a generator": ("/stream", None),
    "silent connections": (_SMALL, "/1024.bin"),
    "connection flood": (_SMALL, "/1024.bin"),
}


def _attack(kind: str) -> Row:
    path, nginx_path = ATTACKS[kind]
    sides = _pair()
    if nginx_path is not None:
        sides["nginx"] = (
            nginx(),
            nginx_path,
            beside_crowds(*_crowds(kind), measured_path="/1024.bin"),
        )
    return _attack_row("attack", kind, path, sides)


def _crowds(kind: str) -> list[tuple[str, None]]:
    return [(kind, None)] if kind in KINDS else []


def _attack_row(prefix: str, kind: str, path: str, sides: dict[str, Side], **options: Any) -> Row:
    title = f"{KINDS[kind].clients:,} clients: {kind}" if kind in KINDS else "no slow clients"
    key = f"{prefix}.{kind.replace(' ', '-')}"
    return row(
        key, title, sides, path, OTHERS, beside_crowds(*_crowds(kind), **options), fresh=True
    )


# The size of the upload. At 200 Mbit/s, the upload takes 215 s, and 5 s in a short run.
_UPLOAD_BYTES = {False: 128 * MIB, True: 5 * 1024 * MIB}


def _beside_upload(locust: Locust) -> Client:
    """Return a usual client that runs during a large upload by curl and 200 slow uploads."""

    def run(task: Task) -> Load:
        host, port = task.address
        size = _UPLOAD_BYTES[task.full]
        file = task.folder / "large.bin"
        file.touch()
        os.truncate(file, size)
        options: Any = {"host": host, "path": "/plain"}
        others(port, seconds=1.0, **options)
        before = peak = resident_bytes(task.pid)
        seen: list[Others] = []
        begun = time.monotonic()
        command = ["curl", "--silent", "--show-error", "--form", f"{FIELD}=@{file}"]
        command += ["--header", "Expect:", f"http://{host}:{port}{task.path}"]
        with slow_clients("dribblers", port, host=host, seconds=300.0) as crowd:
            with subprocess.Popen(
                [*locust.within, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            ) as curl:
                while curl.poll() is None and time.monotonic() - begun < _MAX_UPLOAD_S[task.full]:
                    seen.append(others(port, seconds=2.0, **options))
                    peak = max(peak, resident_bytes(task.pid))
                seconds = time.monotonic() - begun
                curl.terminate()
                response = curl.communicate()[0]
            reported = crowd.end()
        good = response.startswith(b"%d " % size)
        times = [each for result in seen for each in result.times_ms]
        return Load(
            requests=len(times),
            failures=sum(each.failures for each in seen) + (not good),
            body_bytes=size if good else 0,
            seconds=seconds,
            latency_ms=percentiles(times),
            errors={} if good else {f"the upload: {response[:80]!r}": 1},
            facts={
                "MiB before": before / MIB,
                "MiB more": (peak - before) / MIB,
                "upload s": seconds if good else float("nan"),
                "dropped": _dropped(reported),
            },
        )

    return run


def upload_table(locust: Locust) -> Table:
    """Return a table with one row. Run it with `python -m loadtests upload.large --link 200`."""
    app, limited = "loadtests.upload_app:fastapi", "loadtests.upload_app:fast_fastapi"
    sides: dict[str, Side] = {
        "our protocol + ASGIFast": uvicorn(limited, "--factory", ours=True),
        "uvicorn": uvicorn(app, "--factory"),
        "granian": granian(app, "--factory"),
        "gthread": gunicorn("loadtests.upload_app:flask()", worker_class="gthread"),
        "FastWorker": gunicorn("loadtests.upload_app:flask()", worker_class=FAST, env=ROOM),
    }
    title = "an upload of 5 GiB (in a short run 128 MiB), and 200 slow uploads"
    client = _beside_upload(locust)
    large = row("upload.large", title, sides, "/upload", OTHERS, client, fresh=True)
    return table("upload-link", "Quick clients beside a large upload over 200 Mbit/s", [large])


# The values are FastWorker's defaults.
_LIMITS = (("WSGIFAST_BODY_LIMIT_BYTES", "1073741824"), ("WSGIFAST_BODY_TIMEOUT_S", "30"))
_BUFFERED = uvicorn("loadtests.asgi_app:buffered", ours=True)
_ASGI_ATTACKED: dict[str, Side] = {
    "our protocol": _OURS,
    "our protocol, limited, bodies buffered": replace(_BUFFERED, env=_LIMITS),
    "uvicorn": uvicorn(ASGI_APP),
    "granian": granian(ASGI_APP),
}
# The path that each crowd requests.
ASGI_ATTACKS = {
    "none": "/plain",
    "headers byte by byte": "/plain",
    "one-byte chunks": "/upload",
    "silent bodies": "/upload",
    "unread uploads": "/unread",
    "silent connections": "/plain",
}


def _asgi_attack(kind: str) -> Row:
    # The figures include the memory for the bytes that the crowd has sent during settle_s.
    options: Any = {"measured_path": "/plain", "warm_up_path": "/plain", "settle_s": 2.0}
    return _attack_row("attack.asgi", kind, ASGI_ATTACKS[kind], _ASGI_ATTACKED, **options)


TABLES = [
    _SLOW,
    table("slow-attack", "Quick clients during an attack", [*map(_attack, ATTACKS)]),
    table(
        "asgi-attack",
        "Quick clients during an attack on ASGI servers",
        [*map(_asgi_attack, ASGI_ATTACKS)],
    ),
]
