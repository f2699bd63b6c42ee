"""Define the table that compares servers with and without CPython's JIT.

CPython has a JIT since 3.13, as an option of the build. Debian's Python 3.14 and 3.15 have the JIT.
It is off unless ``PYTHON_JIT=1`` is set (docs.python.org/3/using/cmdline.html).
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from wsgifast.commands.bench.processes import Server
from wsgifast.commands.bench.serving import served

from . import asgi
from .bench import APP, FAST, Side, row, table, unavailable
from .clients import wrk
from .harness.servers import gunicorn
from .harness.tables import Row
from .servers import granian, nginx
from .wsgi import FLASK, OUR_FILES, OURS, SMALL, SMALL_FILE, static

REMEDY = (
    "this Python has no JIT: use one that was built with --enable-experimental-jit, such as "
    "Debian's python3.15"
)
NGINX = "nginx"


def is_available() -> bool:
    """Return whether this Python has a JIT, whether it is on or off."""
    # https://docs.python.org/3/library/sys.html#sys._jit
    jit: Any = getattr(sys, "_jit", None)
    return jit is not None and bool(jit.is_available())


def rows(available: bool) -> list[Row]:
    """Return the rows. Without a JIT, they fail with a message that says how to get one."""

    def jit_row(key: str, title: str, servers: dict[str, Server], path: str, ours: str) -> Row:
        sides: dict[str, Side] = {}
        for name, server in servers.items():
            if name == NGINX:
                sides[name] = server
                continue
            for suffix, switch in (("", "0"), (", JIT", "1")):
                env = (*server.env, ("PYTHON_JIT", switch))
                sides[f"{name}{suffix}"] = replace(server, env=env)
        if not available:
            sides = unavailable(sides, REMEDY)
        return row(f"jit.{key}", title, sides, path, client=wrk(32), ours=f"{ours}, JIT")

    return [
        jit_row("small", "1 KiB, 32 connections", {
            "gthread": gunicorn(APP),
            OURS: gunicorn(APP, worker_class=FAST),
            "granian": granian(APP, interface="wsgi"),
        }, SMALL, OURS),
        jit_row("static", "1 KiB file, 32 connections", {
            "WhiteNoise on gthread": static("whitenoise()"),
            OUR_FILES: static("static_files()", worker_class=FAST),
            NGINX: nginx(),
        }, SMALL_FILE, OUR_FILES),
        jit_row("flask", "a small page of Flask, 32 connections", {
            "gthread": served(FLASK),
            OURS: served(FLASK, {}, worker_class=FAST),
        }, "/page", OURS),
        jit_row("asgi", "FileResponse 1 KiB, 32 connections", {
            "uvicorn": asgi.SERVERS[asgi.PLAIN],
            asgi.OURS: asgi.SERVERS[asgi.OURS],
            "granian": asgi.SERVERS["granian"],
        }, asgi.SMALL, asgi.OURS),
    ]  # fmt: skip


TABLE = table("jit", "CPython's JIT", rows(is_available()))
