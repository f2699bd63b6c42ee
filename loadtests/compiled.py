"""The table of the compiled wheel: the same servers with FastWorker's sources and with its modules
compiled by mypyc, which ``make compiled`` puts into a folder.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from wsgifast.benchmark.serving import gunicorn, served
from wsgifast.benchmark.tables import Row, Server

from .bench import APP, FAST, Side, row, table, unavailable
from .clients import wrk
from .servers import granian, nginx
from .wsgi import FLASK, OUR_FILES, OURS, SMALL, SMALL_FILE, static

FOLDER = Path(__file__).parents[1] / "build" / "compiled" / "wheel"
WAY_OUT = "there are no compiled modules of this Python: make compiled, which needs a C compiler"
# Where gunicorn is started, here, is where it looks first for what has not been imported yet.
_START = (
    f"import runpy, sys; sys.path.insert(0, {str(FOLDER)!r}); import wsgifast; "
    "runpy.run_module('gunicorn', run_name='__main__', alter_sys=True)"
)


def is_available() -> bool:
    """Whether they are there, for this Python."""
    from importlib.machinery import EXTENSION_SUFFIXES

    name = f"server{EXTENSION_SUFFIXES[0]}"
    return (FOLDER / "wsgifast" / "server" / name).is_file()


def rows(available: bool) -> list[Row]:
    """The rows; without compiled modules all that they measure is a failure, which tells how to get
    them."""

    def both(
        key: str, title: str, ours: str, server: Server, others: dict[str, Server], path: str
    ) -> Row:
        compiled = replace(server, argv=("python", "-c", _START, *server.argv[3:]))
        sides: dict[str, Side] = {**others, ours: server, f"{ours}, compiled": compiled}
        if not available:
            sides = unavailable(sides, WAY_OUT)
        return row(f"compiled.{key}", title, sides, path, client=wrk(32), ours=f"{ours}, compiled")

    return [
        both("small", "1 KiB, 32 connections", OURS, gunicorn(APP, worker_class=FAST), {
            "gthread": gunicorn(APP), "granian": granian(APP, interface="wsgi"),
        }, SMALL),
        both("static", "1 KiB file, 32", OUR_FILES, static("static_files()", worker_class=FAST), {
            "WhiteNoise on gthread": static("whitenoise()"), "nginx": nginx(),
        }, SMALL_FILE),
        both("flask", "a small page of Flask, 32", OURS, served(FLASK, {}, worker_class=FAST), {
            "gthread": served(FLASK),
        }, "/page"),
        both("tls", "TLS 1 KiB, 32", OURS, gunicorn(APP, worker_class=FAST, tls=True), {
            "gthread": gunicorn(APP, tls=True),
        }, SMALL),
    ]  # fmt: skip


TABLE = table("compiled", "FastWorker's modules compiled", rows(is_available()))
