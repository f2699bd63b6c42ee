"""Flask's bodies behind WSGIFast and FastWorker; and the ranges of files that frameworks read.

    python -m loadtests.frameworks [flask | ranges] [--profile release]

gunicorn, one process, four threads. What Flask has whole or as a file goes out as such without an
option; only a generator's chunks are gathered by FastWorker or `coalesce=True`. Werkzeug's
send_file and WhiteNoise answer a range by reading; behind WSGIFast the same ranges go out by
sendfile.
"""

from __future__ import annotations

from typing import Any

from flask import Flask, Response, send_file

from .bench import BYTES, REQUESTS, Client, Contender, Row, Table, Unit, gunicorn, raw, served, wrk
from .command import main
from .peers import FAST
from .shapes import FILE_BYTES, MIB, payload, payload_file, payload_files, table_lines

__all__ = ["TABLES", "app"]

RANGE = (f"Range: bytes={3 * MIB}-{4 * MIB - 1}",)
app = Flask(__name__)


@app.get("/open")
def _open() -> Response:
    return Response(payload_file(FILE_BYTES).open("rb"))


@app.get("/lines")
def _lines() -> Response:
    return Response(table_lines(), mimetype="text/csv")


@app.get("/file")
def _file() -> Response:
    return send_file(payload_file(FILE_BYTES), conditional=True)


@app.get("/page")
def _page() -> Response:
    return Response(payload(512))


NAME = "loadtests.frameworks:app"
RAW = served(NAME)


def _flask(
    key: str, title: str, path: str, unit: Unit, client: Client, worker: str, **options: Any
) -> Row:
    ours = served(NAME, options, worker_class=worker)
    coalesces = ", coalesce=True" if options else ""
    wrapped = f"WSGIFast{coalesces}{' on FastWorker' if worker == FAST else ''}"
    contenders = (Contender("Flask on gthread", RAW, path), Contender(wrapped, ours, path))
    return Row(f"flask.{key}", title, contenders, client, unit)


def _ranges(key: str, title: str, headers: tuple[str, ...]) -> Row:
    contenders = (
        Contender("send_file", RAW, "/file"),
        Contender("send_file, WSGIFast", served(NAME, {}), "/file"),
        Contender(
            "WhiteNoise",
            gunicorn("loadtests.static_files:whitenoise_app()"),
            f"/{FILE_BYTES}.bin",
        ),
    )
    return Row(f"ranges.{key}", title, contenders, raw(), BYTES, headers=headers)


ROWS = [
    _flask("open", "Response(open(...)), 10 MiB", "/open", BYTES, raw(), "gthread"),
    _flask(
        "lines", "a generator of 1,000 lines", "/lines", REQUESTS, raw(), "gthread", coalesce=True
    ),
    _flask("lines-fast", "a generator of 1,000 lines", "/lines", REQUESTS, raw(), FAST),
    _flask("send-file", "send_file, 10 MiB", "/file", BYTES, raw(), FAST),
    _flask("page", "a small page", "/page", REQUESTS, wrk(8), "gthread"),
    _flask("page-fast", "a small page", "/page", REQUESTS, wrk(8), FAST),
    _ranges("whole", "10 MiB", ()),
    _ranges("1MiB", "1 MiB of it", RANGE),
]


TABLES = [Table("frameworks", "Bodies and ranges of frameworks", ROWS, payload_files(FILE_BYTES))]

if __name__ == "__main__":
    raise SystemExit(main("loadtests.frameworks", __doc__, TABLES))
