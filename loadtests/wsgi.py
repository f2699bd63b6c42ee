"""Define the tables for WSGI: bodies, frameworks, files, Django, FastWorker, development servers.

gunicorn has one worker process and four threads, unless a row compares one worker with two. Locust
is the client of the rows of `bodies`. The other rows have clients that are faster than Locust. For
large files, a minimal loop of epoll and sendfile shows the upper bound.

Over loopback, the kernel copies a packet in the process of the server or in that of the client. So
the client's CPU time is reported for large files too. Otherwise a server whose packets are copied
in the client's process would seem to need no CPU time.
"""

from __future__ import annotations

import subprocess
import sys
from itertools import takewhile
from pathlib import Path
from typing import Any

from wsgifast.commands.bench.loads import Load
from wsgifast.commands.bench.processes import Server
from wsgifast.commands.bench.serving import served, sides

from .app import SHAPES
from .bench import APP, FAST, Case, Side, pair, row, rows, table, with_client_cpu
from .clients import raw, wrk
from .django_app import MIDDLEWARE
from .harness.locust import Locust
from .harness.servers import gunicorn, uvicorn
from .harness.tables import BYTES, REQUESTS, Client, Row, Task, Unit
from .payloads import FILE_BYTES, LARGE_FILE_BYTES, MIB, PAYLOADS, REPORT_BYTES
from .servers import granian, nginx, small, waitress

ASGI_APP, FLASK = "loadtests.asgi_app:app", "loadtests.flask_app:app"
DJANGO, STATIC = "loadtests.django_app", "loadtests.static_app"
RANGE = (f"Range: bytes={3 * MIB}-{4 * MIB - 1}",)
LARGE, SMALL, SMALL_FILE = f"/{FILE_BYTES}.bin", "/small/1024", "/1024.bin"

# --- What an app returns

LOCUST = Locust()
# Several users request small responses at once. A single user would measure the round-trip time.
SMALL_USERS = 8
# The shapes that are measured with coalesce=True.
COALESCED = ("generator-of-1", "rows")
# The shapes from "ticks" on are for other tables.
SHOWN = [*takewhile(lambda name: name != "ticks", SHAPES)]


def _shape(name: str) -> Row:
    shape, is_coalesced = SHAPES[name], name in COALESCED
    found = sides(APP, "gunicorn", ["gthread"], {"coalesce": True} if is_coalesced else {})
    text = f"{shape.text}, coalesced" if is_coalesced else shape.text
    client = LOCUST.client(SMALL_USERS if name == "small" else 1)
    return row(f"bodies.{name}", text, found, f"/{name}", client=client, body_bytes=shape.size)


_ASGI = sides(ASGI_APP, "uvicorn")
_BODIES = [
    *map(_shape, SHOWN),
    *rows("bodies", "ASGI: ", _ASGI, [
        ("asgi-file", "Starlette's FileResponse", f"/file/{FILE_BYTES}.bin", REQUESTS,
         LOCUST.client()),
        ("asgi-crumbs", "messages of 100 bytes", f"/stream/{MIB}", REQUESTS, LOCUST.client()),
        ("asgi-small", "a small Response", "/plain", REQUESTS, LOCUST.client(SMALL_USERS)),
    ]),
]  # fmt: skip

# --- What frameworks return


def _flask(key: str, title: str, path: str, worker: str = "gthread", **options: Any) -> Row:
    unit = BYTES if path in ("open", "file") else REQUESTS
    client = raw() if path == "lines" else None
    coalesces = ", coalesce=True" if options else ""
    ours = f"WSGIFast{coalesces}{' on FastWorker' if worker == FAST else ''}"
    found = {"Flask on gthread": served(FLASK), ours: served(FLASK, options, worker_class=worker)}
    return row(f"flask.{key}", title, found, f"/{path}", unit, client)


def static(factory: str, **options: Any) -> Server:
    """Return gunicorn with an app of static_app."""
    return gunicorn(f"{STATIC}:{factory}", **options)


# For a range, Werkzeug's send_file and WhiteNoise read the file. WSGIFast sends the range by
# sendfile.
_RANGES: dict[str, Side] = {
    "send_file": served(FLASK),
    "send_file, WSGIFast": served(FLASK, {}),
    "WhiteNoise": (static("whitenoise()"), LARGE),
}
BODIES = [
    table("bodies", "What an app returns", _BODIES),
    table("frameworks", "Bodies of Flask, and ranges of files", [
        _flask("open", "Response(open(...)), 10 MiB", "open"),
        _flask("lines", "a generator of 1,000 lines", "lines", coalesce=True),
        _flask("lines-fast", "a generator of 1,000 lines", "lines", FAST),
        _flask("send-file", "send_file, 10 MiB", "file", FAST),
        _flask("page", "a small page", "page"),
        _flask("page-fast", "a small page", "page", FAST),
        row("ranges.1MiB", "a range of 1 MiB of 10 MiB", _RANGES, "/file", BYTES, headers=RANGE),
    ]),
]  # fmt: skip

# --- Static files and Django

DJANGO_FILES = 10_000
MILLISECONDS = Unit("start, ms", lambda m: m.seconds * 1e3, less=True)
_DJANGO_START = """
import sys, time, warnings
warnings.simplefilter("ignore")
from loadtests.django_app import wsgi
import django.core.handlers.wsgi, django.contrib.staticfiles, whitenoise.middleware
import servestatic.middleware, wsgifast.files.site
start = time.perf_counter()
wsgi(sys.argv[2], sys.argv[1])
print(time.perf_counter() - start)
"""


def _start_up(middleware: str) -> Client:
    """Return a client that measures the time to make the app, in a new process."""

    def run(task: Task) -> Load:
        command = [sys.executable, "-c", _DJANGO_START, str(task.folder), middleware]
        ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        return Load(1, 0, 0, float(ran.stdout))

    return run


def _tree(folder: Path) -> None:
    """Make files of 1 KiB, a thousand in each folder."""
    for number in range(DJANGO_FILES):
        path = folder / str(number // 1000) / f"{number % 1000}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(1024))


_STATIC: dict[str, Side] = {
    "WhiteNoise": static("whitenoise()"), "StaticFiles": static("static_files()"),
    "nginx": nginx(),
}  # fmt: skip
_MIDDLEWARE: dict[str, Side] = {
    **{name: gunicorn(f"{DJANGO}:wsgi({name!r})") for name in MIDDLEWARE},
    "ours, FastWorker": gunicorn(f"{DJANGO}:wsgi(wrapped=True)", worker_class=FAST),
}
_DJANGO_CASES: list[Case] = [
    ("file", "FileResponse, 10 MiB", "/file", BYTES),
    ("lines", "a generator of 1,000 lines", "/lines", REQUESTS, raw()),
    ("page", "a small page", "/page", REQUESTS),
]
FILES = [
    table("static-files", "StaticFiles beside WhiteNoise on a gthread worker", [
        row("static.small", "1 KiB", _STATIC, SMALL_FILE),
        row("static.large", "10 MiB", _STATIC, LARGE, BYTES),
        row("static.ranges", "a range of 1 MiB of 10 MiB", _STATIC, LARGE, BYTES, headers=RANGE),
    ]),
    table("django-files", "Responses and static files of Django", [
        row("django.static.small", "static file, 1 KiB", _MIDDLEWARE, f"/static{SMALL_FILE}"),
        row("django.static.large", "static file, 10 MiB", _MIDDLEWARE, f"/static{LARGE}", BYTES),
        *rows("django.wsgi", "wsgi: ", {
            "Django": gunicorn(f"{DJANGO}:wsgi()"), "ours": _MIDDLEWARE["ours, FastWorker"],
        }, _DJANGO_CASES),
        *rows("django.asgi", "asgi: ", {
            "Django": uvicorn(f"{DJANGO}:asgi", "--factory"),
            "ours": uvicorn(f"{DJANGO}:fast_asgi", "--factory", ours=True),
        }, _DJANGO_CASES),
    ]),
    table("django-start", "Start of Django", [
        row("django.start", f"start with {DJANGO_FILES:,} files",
            {name: _start_up(name) for name in MIDDLEWARE}, unit=MILLISECONDS),
    ], prepare=_tree),
]  # fmt: skip

# --- FastWorker

OURS, OUR_FILES = "FastWorker", "StaticFiles on FastWorker"
# These contenders show the gain from a second worker, on a machine with two cores.
_TWO_WORKERS: dict[str, Side] = {
    f"{name}{suffix}": pair(workers=workers)[name]
    for name in (OURS, "gthread")
    for suffix, workers in (("", 1), (", 2 workers", 2))
}
_LARGE_FILE: dict[str, Side] = {
    **pair(first=OURS),
    "nginx, sendfile on": (nginx(), LARGE),
    "nginx, sendfile off": (nginx(sendfile=False), LARGE),
    "bare epoll + sendfile loop": (small("sendfile-loop", PAYLOADS / f"{FILE_BYTES}.bin"), LARGE),
}


def _file(key: str, kib: str, client: Client) -> Row:
    """Return a row with a large file, for a client that reads in blocks of this size."""
    return row(
        f"worker.files.{key}", f"10 MiB, reads of {kib}", _LARGE_FILE, "/server-wrapper", BYTES,
        with_client_cpu(client), ours=OURS, seconds=0.6,
    )  # fmt: skip


WORKER = table("worker", "FastWorker beside gthread, granian and nginx", [
    row("worker.rates.small-4", "1 KiB, 4 connections", pair(), SMALL, client=wrk(4)),
    row("worker.rates.small-32", "1 KiB, 32 connections",
        {**pair(), "granian": granian(APP, interface="wsgi")}, SMALL, client=wrk(32), ours=OURS),
    row("worker.rates.sleep", "app sleeps 10 ms, 32 connections", pair(), "/sleep", client=wrk(32)),
    row("worker.rates.compute", "app computes 3 ms, 32 connections", pair(), "/compute",
        client=wrk(32)),
    row("worker.rates.static", "1 KiB file, 32 connections", {
        "WhiteNoise on gthread": static("whitenoise()"),
        OUR_FILES: static("static_files()", worker_class=FAST),
        "nginx": nginx(),
    }, SMALL_FILE, client=wrk(32), ours=OUR_FILES),
    # wrk needs almost no CPU time in the first row, and half of the CPU time in the second.
    row("worker.two.compute", "two workers: app computes 3 ms, 32 connections", _TWO_WORKERS,
        "/compute", client=wrk(32)),
    row("worker.two.small-32", "two workers: 1 KiB, client on the same CPUs", _TWO_WORKERS, SMALL,
        client=wrk(32)),
    *rows("worker.tls", "TLS ", pair(tls=True), [
        ("small-4", "1 KiB, 4 connections", SMALL, REQUESTS, wrk(4)),
        ("small-32", "1 KiB, 32 connections", SMALL, REQUESTS, wrk(32)),
        ("large", "10 MiB, 4 connections", "/server-wrapper", REQUESTS, wrk(4)),
    ]),
    _file("8KiB-wrk", "8 KiB, wrk", wrk(4)),
    *(_file(f"{kib}KiB", f"{kib} KiB", raw(connections=4, receive_bytes=kib * 1024))
      for kib in (8, 64, 256)),
])  # fmt: skip

# --- Development servers

PLAIN = "http.server, HTTP/1.1"


def _stock(kind: str, app: str = APP) -> Server:
    return Server(("python", "-m", "tests.support.serve", kind, "{port}", app))


_STOCK: dict[str, Side] = {
    "wsgiref": _stock("threading-wsgiref"),
    "wsgifast wsgiref": _stock("fast-wsgiref"),
    "werkzeug": _stock("werkzeug"),
    "wsgifast werkzeug": _stock("fast-werkzeug"),
    # http.server shows a delay on persistent connections: the second small write waits until the
    # client acknowledges the first (Nagle's algorithm). The client delays this acknowledgement by
    # 40 ms. wsgiref and Werkzeug do not show the delay, because they close every connection after
    # one request.
    PLAIN: small("http.server"),
    "waitress": waitress(APP),
}


def _development_rows(key: str, title: str, path: str, *more: str) -> list[Row]:
    """Return a row for wsgiref and a row for Werkzeug, each with wsgifast's replacement.

    :param more: the names of further contenders in the row for wsgiref.
    """
    names = {"wsgiref": more, "werkzeug": ()}
    unit = BYTES if key == "large" else REQUESTS
    return [
        row(
            f"nodelay.{key}.{stock}", title,
            {n: _STOCK[n] for n in (stock, f"wsgifast {stock}", *others, "waitress")},
            path, unit, raw(),
        )
        for stock, others in names.items()
    ]  # fmt: skip


_PAYLOADS: dict[str, Side] = {
    "wsgiref": _stock("wsgiref"),
    "wsgiref, WSGIFast": _stock("wsgiref", "loadtests.app:wrapped"),
    "wsgifast's wsgiref, WSGIFast": _stock("fast-wsgiref", "loadtests.app:wrapped"),
}
DEVELOPMENT = [
    table("nodelay", "Development servers with and without wsgifast", [
        *_development_rows("small", "200 bytes with a Content-Length", "/small/200", PLAIN),
        *_development_rows("stream", "20 chunks of 50 bytes from a generator", "/crumbs"),
        *_development_rows("report", "688,128 bytes in one block", f"/whole/{REPORT_BYTES}", PLAIN),
        *_development_rows("file", "a file of 688,128 bytes", f"/server-wrapper/{REPORT_BYTES}"),
        *_development_rows("large", "a file of 64 MiB", f"/server-wrapper/{LARGE_FILE_BYTES}"),
    ]),
    table("field-report-wsgiref", "wsgiref and large payloads", [
        row(f"field.wsgiref.{key}", title, _PAYLOADS, path, client=raw(), body_bytes=REPORT_BYTES)
        for key, title, path in (
            # On Python 3 wsgiref rejects a str. On Python 2 it wrote each character separately,
            # like a list of single bytes today.
            ("string", "the body as a str", "/str"),
            ("single-bytes", "a list of single bytes", "/list-of-1"),
            ("list", "a list with the whole body", "/undeclared"),
            ("file", "an open file", f"/file/{REPORT_BYTES}"),
            ("wrapper", "a file in wsgiref's FileWrapper", f"/file-wrapper/{REPORT_BYTES}"),
        )
    ], old_table=(
        f"Then: Python 2, one response of {REPORT_BYTES:,} bytes from wsgiref",
        ["the app returns", "s"],
        [["the string", 16.84], ["a list holding the string", 0.01], ["the open file", 0.07]],
    ), notes=[
        "What has changed: wsgiref in Python 3 refuses the string that took 17 s, and sends no "
        "body. It still makes a write for each chunk. So today a list of single bytes is as slow "
        "as the string was. A list with one large block is still fast, and an open file is still "
        "sent line by line. With WSGIFast, all these bodies take about as long as that list.",
        "The limit today is the work of the server for each connection and request. A list of "
        "single bytes also has to be read item by item.",
    ]),
]  # fmt: skip
