"""Measure the cost of a slow reader: memory of the server and the kernel, and temporary files.

    python -m loadtests slow.memory

Over HTTP/1 a client reads 1,000 bytes a second of a body of 8 MB. Over HTTP/2 a client reads 4 KiB
a second of each of 100 streams on one connection, over TLS. A compressed page has 4 MB. An idle
connection has received one small response.
"""

from __future__ import annotations

from wsgifast.commands.bench.loads import Load

from . import http2
from .bench import FAST, Side, row, table
from .harness.servers import gunicorn, uvicorn
from .harness.tables import Row, Unit
from .http2_app import prepare
from .servers import granian, hypercorn, small, waitress
from .slow import beside_crowds

_APP, _ASGI = "tests.support.large_app:app", "tests.support.large_app:asgi_app"
READERS, STREAMS, IDLE = "readers of a list", "readers of HTTP/2 streams", "idle HTTP/2 connections"
COUNT, IDLE_COUNT = 60, 500
# HTTP/2 uses one connection with 100 streams.
_CONNECTIONS = 1
_MEASURED_PATH = "/small"
_ROOM = ("--worker-connections", "20000", "--keep-alive", "120")
# One round is enough, because memory varies less than times.
_SETTLE_S, _ROUNDS = 5.0, 1


def _memory_kib(load: Load) -> float:
    return load.facts["KiB each"] + load.facts["kernel KiB each"]


MEMORY = Unit("memory KiB each", _memory_kib, less=True)
# Maps paths to the kinds of their bodies.
BODIES = {
    "page": "a page",
    "own-blocks": "a list",
    "generator": "a generator",
    "compressed-page": "a compressed page",
    "file": "a file",
}
_WSGI: dict[str, Side] = {
    "FastWorker": gunicorn(_APP, *_ROOM, worker_class=FAST),
    "gthread": gunicorn(_APP, *_ROOM),
    "waitress": waitress(_APP),
    "granian, WSGI": granian(_APP, interface="wsgi"),
    "nginx before gthread": small("nginx-gthread", "{folder}", _APP),
}
_ASGI_SERVERS: dict[str, Side] = {
    "our protocol": uvicorn(_ASGI, ours=True),
    "uvicorn": uvicorn(_ASGI),
    "granian, ASGI": granian(_ASGI),
    "hypercorn": hypercorn(_ASGI, "asyncio"),
}


def _gunicorn(*options: str) -> dict[str, Side]:
    return {
        "FastWorker": gunicorn(_APP, *_ROOM, *options, worker_class=FAST, tls=True),
        "gthread": gunicorn(_APP, *_ROOM, *options, tls=True),
    }


_ZTTP: dict[str, Side] = {"our AutoZttpProtocol": http2.zttp(_ASGI, ours=True)}
_TLS: dict[str, Side] = {**_gunicorn(), **_ZTTP}
_HTTP2: dict[str, Side] = {
    **_gunicorn(*http2.HTTP2),
    **_ZTTP,
    "uvicorn --http zttp": http2.zttp(_ASGI, ours=False),
}
_NGINX_IDLE: Side = (
    http2.SERVERS["nginx"], "/1024.bin",
    beside_crowds((IDLE, IDLE_COUNT), measured_path="/1024.bin", settle_s=_SETTLE_S),
)  # fmt: skip


def _row(protocol: str, body: str, sides: dict[str, Side], crowd: tuple[str, int]) -> Row:
    key = f"slow.memory{protocol}.{body}"
    label = {"": "HTTP/1", "-tls": "HTTP/1 over TLS", "-http2": "HTTP/2 over TLS"}[protocol]
    title = f"{crowd[1] if protocol != '-http2' else 100} readers of {BODIES[body]} over {label}"
    return _memory_row(key, title, f"/{body}", crowd, sides, _MEASURED_PATH)


def _memory_row(
    key: str,
    title: str,
    path: str,
    crowd: tuple[str, int],
    sides: dict[str, Side],
    measured_path: str,
) -> Row:
    client = beside_crowds(crowd, measured_path=measured_path, settle_s=_SETTLE_S)
    return row(key, title, sides, path, MEMORY, client, fresh=True, rounds=_ROUNDS)


TABLE = table("slow-memory", "Memory for each slow reader", [
    *(_row("", body, {**_WSGI, **_ASGI_SERVERS}, (READERS, COUNT)) for body in BODIES),
    *(_row("-tls", body, _TLS, (READERS, COUNT)) for body in BODIES),
    *(_row("-http2", body, _HTTP2, (STREAMS, _CONNECTIONS)) for body in BODIES),
    _memory_row("slow.memory-http2.idle", f"{IDLE_COUNT} idle HTTP/2 connections over TLS",
            "/small/1024", (IDLE, IDLE_COUNT), {**http2.SERVERS, "nginx": _NGINX_IDLE},
            "/small/1024"),
], prepare=prepare)  # fmt: skip
