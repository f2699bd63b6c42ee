"""Define the tables for ASGI: asgifast on uvicorn and other servers, and with frameworks.

Each server has one worker. Connections are persistent. There is no access log unless the row names
one. uvicorn and other servers use uvloop unless the row names a loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from wsgifast.commands.bench.processes import Server

from .asgi_frameworks import FRAMEWORKS
from .bench import Case, Side, row, rows, table, unavailable
from .clients import raw, wrk
from .harness.servers import gunicorn, uvicorn
from .harness.tables import BYTES, REQUESTS, Row
from .payloads import FILE_BYTES, MIB
from .servers import daphne, granian, hypercorn, small
from .uploads import upload

APP, FAST = "loadtests.asgi_app:app", "loadtests.asgi_app:fast"
FRAMEWORK = "loadtests.asgi_frameworks"
# gunicorn's options for HTTP/2 by prior knowledge.
HTTP2 = ("--http-protocols", "h2,h1", "--http2-cleartext", "both")
LARGE, SMALL, CRUMBS = f"/file/{FILE_BYTES}.bin", "/file/1024.bin", "/crumbs/"
OUR_LARGE, OUR_STATIC = f"/our-file/{FILE_BYTES}.bin", "/our-static/1024.bin"
PLAIN, OURS = "uvicorn", "our protocol"
ALONE, BOTH = "uvicorn + ASGIFast", "our protocol + ASGIFast"
_MIDDLEWARE = {
    "uvicorn + a bare middleware": uvicorn("loadtests.asgi_app:limit"),
    "uvicorn + one that does nothing": uvicorn("loadtests.asgi_app:nothing"),
}
SERVERS = {
    PLAIN: uvicorn(APP),
    OURS: uvicorn(APP, ours=True),
    ALONE: uvicorn(FAST),
    BOTH: uvicorn(FAST, ours=True),
    **_MIDDLEWARE,
    "granian": granian(APP),
    "asyncio's loop": uvicorn(APP, "--loop=asyncio"),
    "our protocol, asyncio's loop": uvicorn(APP, "--loop=asyncio", ours=True),
    "asyncio's loop + ASGIFast": uvicorn(FAST, "--loop=asyncio"),
}


def _sides(path: str, *names: str) -> dict[str, Side]:
    return {name: (SERVERS[name], path) for name in names}


# Temporary files are in memory, so that the disk does not affect the figures.
_IN_MEMORY = (("TMPDIR", "/dev/shm"),) if Path("/dev/shm").is_dir() else ()


def _upload(key: str, title: str, sides: dict[str, Server], **kind: bool) -> Row:
    """Return a row for one upload in each run.

    :param kind: the kind of upload. See :func:`~loadtests.uploads.upload`.
    """
    contenders = {name: replace(server, env=_IN_MEMORY) for name, server in sides.items()}
    title = f"1 GiB {title} (in a short run 128 MiB)"
    return row(f"asgi.upload.{key}", title, contenders, "/upload", BYTES, upload(**kind))


CASES: list[Case] = [
    ("file", "FileResponse 10 MiB", LARGE, BYTES),
    ("crumbs", "100,000 messages of 100 bytes", CRUMBS, BYTES),
    ("response", "Response 1 KiB", "/plain", REQUESTS),
]
_UPLOADED = {name: SERVERS[name] for name in (PLAIN, OURS, "granian")}
_UPLOADED_HTTP2 = {
    "uvicorn --http zttp": uvicorn(APP, "--http=zttp", "--http2"),
    "our AutoZttpProtocol": uvicorn(APP, "--http=asgifast.uvicorn:AutoZttpProtocol"),
    "gunicorn -k asgi": gunicorn(APP, *HTTP2, worker_class="asgi"),
    "hypercorn": hypercorn(APP, "uvloop"),
    "granian": SERVERS["granian"],
}
_ASYNCIO = "asyncio's loop", "our protocol, asyncio's loop", "asyncio's loop + ASGIFast"
_ASGI = table("asgi", "ASGIFast and asgifast's protocol on uvloop, beside uvicorn and granian", [
    row("asgi.file-large", "FileResponse 10 MiB", _sides(LARGE, PLAIN, OURS, ALONE, "granian"),
        unit=BYTES),
    row("asgi.file-ranges", "FileResponse 10 MiB by 1 MiB ranges",
        {**_sides(LARGE, PLAIN), **_sides(OUR_LARGE, OURS, ALONE), **_sides(LARGE, "granian")},
        unit=BYTES, headers=(f"Range: bytes={3 * MIB}-{4 * MIB - 1}",)),
    row("asgi.file-small", "FileResponse 1 KiB",
        {**_sides(SMALL, PLAIN), f"{OURS} {SMALL}": (SERVERS[OURS], SMALL),
         f"{OURS} /our-file/1024.bin": (SERVERS[OURS], "/our-file/1024.bin"),
         **_sides(SMALL, "granian")}),
    row("asgi.static-small", "StaticFiles 1 KiB",
        {f"{name} {path}": (SERVERS[name], path)
         for path in ("/static/1024.bin", OUR_STATIC) for name in (PLAIN, OURS)}),
    row("asgi.crumbs", "100,000 messages of 100 bytes", _sides(CRUMBS, PLAIN, OURS, ALONE),
        unit=BYTES),
    row("asgi.crumbs-asyncio", "100,000 messages of 100 bytes on asyncio's loop",
        _sides(CRUMBS, *_ASYNCIO), unit=BYTES),
    row("asgi.response", "Response 1 KiB",
        _sides("/plain", PLAIN, OURS, ALONE, *_MIDDLEWARE, BOTH)),
    row("asgi.response-asyncio", "Response 1 KiB on asyncio's loop", _sides("/plain", *_ASYNCIO)),
    _upload("stream", "read by request.stream()",
            {**_UPLOADED, "a bare loop": small("receive-loop")}),
    _upload("multipart", "in a form, read by request.form()", _UPLOADED, form=True),
    _upload("h11", "read by request.stream() under h11",
            {"uvicorn --http h11": uvicorn(APP, "--http=h11"),
             "our H11Protocol": uvicorn(APP, "--http=asgifast.uvicorn:H11Protocol")}),
    _upload("http2", "over HTTP/2, read by request.stream()", _UPLOADED_HTTP2, http2=True),
    _upload("http2-multipart", "over HTTP/2 in a form", _UPLOADED_HTTP2, form=True, http2=True),
    # These rows compare uvicorn's zttp protocol with asgifast's.
    *rows("asgi.zttp", "uvicorn --http zttp: ", {
        "uvicorn --http zttp": uvicorn(APP, "--http=zttp"),
        "our ZttpProtocol": uvicorn(APP, "--http=asgifast.uvicorn:ZttpProtocol"),
    }, CASES),
])  # fmt: skip

_LOGS = {"": (), "-log": ("--access-log", "--log-level=info")}


def _loop_rows(loop: str, log: str) -> list[Row]:
    """Return rows that compare asgifast's protocol with uvicorn's, on one event loop."""
    options = (f"--loop={loop}", *_LOGS[log])
    sides: dict[str, Side] = {
        PLAIN: uvicorn(APP, *options),
        OURS: uvicorn(APP, *options, ours=True),
    }
    title = f"{loop}{', access log' if log else ''}: "
    return rows(f"asgi.loops.{loop}{log}", title, sides, [
        ("response", "Response 1 KiB", "/plain", REQUESTS, wrk(16)),
        ("json", "JSONResponse 10 kB", "/json", REQUESTS, wrk(16)),
        ("stream", "StreamingResponse, 20 messages of 1 kB", "/messages", REQUESTS, wrk(16)),
    ])  # fmt: skip


_LOOPS = table("asgi-loops", "asgifast's protocol beside uvicorn's, on both event loops", [
    each for loop in ("uvloop", "asyncio") for log in _LOGS for each in _loop_rows(loop, log)
])  # fmt: skip

OTHERS: dict[str, Callable[[str], Server]] = {
    "hypercorn-asyncio": lambda app: hypercorn(app, "asyncio"),
    "hypercorn-uvloop": lambda app: hypercorn(app, "uvloop"),
    "hypercorn-trio": lambda app: hypercorn(app, "trio"),
    "granian": granian,
    "gunicorn-asgi": lambda app: gunicorn(app, worker_class="asgi"),
    # With asyncio, anycorn truncates files that are larger than the send buffer.
    "anycorn-trio": lambda app: hypercorn(app, "trio", "--workers=0", package="anycorn"),
    "daphne": daphne,
}
_OTHERS = table("asgi-others", "ASGIFast on other ASGI servers", [
    each
    for name, server in OTHERS.items()
    for each in rows(f"others.{name}", f"{name}: ",
                     {name: server(APP), f"{name} + ASGIFast": server(FAST)}, CASES)
])  # fmt: skip


def middleware_rows(framework: str, title: str) -> list[Row]:
    """Return rows for a file, a stream and a small response through a framework's middleware."""
    sides: dict[str, Side] = {
        PLAIN: uvicorn(f"{FRAMEWORK}:plain_{framework}"),
        BOTH: uvicorn(f"{FRAMEWORK}:fast_{framework}", ours=True),
    }
    if not find_spec(framework):
        remedy = f"{framework} is not installed: .venv/bin/pip install --group frameworks"
        sides = unavailable(sides, remedy)
    return rows(f"asgi.middleware.{framework}", f"{title}: ", sides, [
        ("file", "a file of 10 MiB", "/file", BYTES, raw()),
        ("stream", "1 MiB in blocks of 1 KiB", "/stream", BYTES, raw()),
        ("small", "a response of 1 KiB", "/small", REQUESTS, wrk(8)),
    ])  # fmt: skip


TABLES = [
    _ASGI,
    _LOOPS,
    _OTHERS,
    table(
        "asgi-middleware",
        "Apps with the middleware of their ASGI frameworks",
        [each for name, (title, *_) in FRAMEWORKS.items() for each in middleware_rows(name, title)],
    ),
]
