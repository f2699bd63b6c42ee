"""Compare wsgifast's compression with other packages, and with an app that does not compress.

    python -m loadtests compress.                       over loopback, to measure the CPU time
    python -m loadtests compress-link. --link 20        over a link of 20 Mbit/s
    python -m loadtests compress.json.zstd --profile release

Locust sends requests over four persistent connections. wsgifast's padding is off, because the other
packages have no padding. Install the other packages with `pip install starlette-compress
flask-compress`. The row of a missing package fails with a message.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import replace

from wsgifast.commands.bench.loads import Load
from wsgifast.commands.bench.processes import Server

from .bench import FAST, LINKS, Side, row, table, unavailable
from .harness.locust import Locust
from .harness.servers import gunicorn, uvicorn
from .harness.tables import Client, Row, Table, Task, Unit

_CODINGS = ("zstd", "br", "gzip")
_BODIES = {
    "json": "JSON, 800 kB", "html": "HTML, 60 kB", "small": "HTML, 3 kB", "csv": "a CSV stream",
    "ndjson": "a stream of NDJSON", "events": "an event stream", "script.js": "a script's file",
}  # fmt: skip
_CONNECTIONS = 4
_FLASK = "loadtests.compress_app:flask_app()"
_STARLETTE = "loadtests.compress_app:asgi_app"
# Maps each interface to the package with the best ratio of compression to cost. The values are its
# name in the table and on PyPI.
_PEERS = {"wsgi": ("Flask-Compress", "flask-compress"), "asgi": ("starlette-compress",) * 2}
RESPONSES = Unit(
    "responses/s", lambda m: m.requests_per_s,
    "CPU ms a response", lambda m: m.cpu_us_per_request / 1e3,
)  # fmt: skip


def compress_table(locust: Locust, name: str = "compress") -> Table:
    """Return the table with all rows. The client is Locust, which may use a link."""
    rows = [
        _row(f"{name}.{kind}", kind, body, coding, locust)
        for kind in _PEERS
        for body in _BODIES
        for coding in _CODINGS
    ]
    suffix = f" over a link of {LINKS[name]} Mbit/s" if name in LINKS else ""
    return table(name, f"Compression{suffix}", rows)


def _row(prefix: str, kind: str, body: str, coding: str, locust: Locust) -> Row:
    key = f"{prefix}.{body.partition('.')[0]}.{coding}"
    title = f"{kind.upper()}: {_BODIES[body]}, {coding}"
    return row(
        key, title, _sides(kind), f"/{body}", RESPONSES, _with_sizes(locust),
        headers=(f"Accept-Encoding: {coding}",), ours="wsgifast",
    )  # fmt: skip


def _sides(kind: str) -> Mapping[str, Side]:
    name, package = _PEERS[kind]
    if kind == "wsgi":
        raw, peer, ours = (gunicorn(_FLASK, worker_class=c) for c in ("gthread", "gthread", FAST))
    else:
        raw = peer = uvicorn(_STARLETTE, "--factory")
        ours = uvicorn(_STARLETTE, "--factory", ours=True)
    sides: dict[str, Side] = {
        "raw": _compressed_by("raw", raw),
        "wsgifast": _compressed_by("wsgifast", ours),
    }
    if importlib.util.find_spec(package.replace("-", "_")) is None:
        return sides | unavailable([name], f"{package} is not installed: pip install {package}")
    return sides | {name: _compressed_by(package, peer)}


def _compressed_by(contender: str, server: Server) -> Server:
    return replace(server, env=(("COMPRESS", contender),))


def _with_sizes(locust: Locust) -> Client:
    client = locust.client(_CONNECTIONS)

    def run(task: Task) -> Load:
        # The size of a compressed stream depends on the times of its chunks, so the client does not
        # check the size.
        load = client(replace(task, body_bytes=None))
        return replace(load, facts={"bytes": load.body_bytes / max(1, load.requests)})

    return run
