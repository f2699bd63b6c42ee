"""Compare FastWorker with other servers for WSGI apps.

Each server has one process, and four threads if it uses threads. Install bjoern, fastwsgi and uWSGI
for this table: `pip install bjoern fastwsgi pyuwsgi`. bjoern needs libev's headers (libev-dev).
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from wsgifast.commands.bench.processes import Server

from .bench import APP, Side, pair, row, table, unavailable
from .clients import raw, wrk
from .harness.tables import BYTES
from .servers import granian, small, waitress
from .slow import beside

_UWSGI = Server(
    (
        *(str(Path(sys.executable).with_name("uwsgi")), "--http11-socket={host}:{port}"),
        *("--module", APP, "--threads=4", "--disable-logging", "--die-on-term", "--so-keepalive"),
        *("--need-app", "--listen=100", "--buffer-size=32768"),
    )
)


def _peers() -> dict[str, Side]:
    installed = {
        "uWSGI": ("uwsgi", _UWSGI),
        "bjoern": ("bjoern", small("bjoern")),
        "fastwsgi": ("fastwsgi", small("fastwsgi")),
    }
    found: dict[str, Side] = {
        **pair(first="FastWorker"),
        "waitress": waitress(APP),
        "granian": granian(APP, interface="wsgi"),
    }
    for name, (module, server) in installed.items():
        if importlib.util.find_spec(module) or Path(server.argv[0]).exists():
            found[name] = server
        else:
            found |= unavailable([name], f"pip install {module}")
    return found


TABLE = table(
    "peers",
    "FastWorker beside other servers",
    [
        row("peers.small", "1 KiB, 32 connections", _peers(), "/small/1024", client=wrk(32),
            ours="FastWorker"),
        row("peers.file", "10 MiB in wsgi.file_wrapper, 4 connections", _peers(), "/server-wrapper",
            BYTES, raw(connections=4, receive_bytes=65_536), ours="FastWorker"),
        beside("peers.slow", "beside 50 slow readers of 10 MiB", "/server-wrapper",
               ("slow readers", 50), sides=_peers(), measured_path="/small/1024"),
    ],
)  # fmt: skip
