"""Field report 1: wsgiref and large payloads.

The report's 688,128 bytes as a string, as a list holding it and as a file: on the standard
library's wsgiref as it is, with WSGIFast around the app, and on wsgifast's own wsgiref server.
"""

from __future__ import annotations

from loadtests.bench import Contender, Row, Server, Table, raw, served
from loadtests.shapes import REPORT_BYTES, payload_files

__all__ = ["TABLE"]

APP = "loadtests.app:app"
OURS = Server(
    ("python", "-m", "tests.support.serve", "fast-wsgiref", "{port}", "loadtests.app:wrapped")
)
# On Python 3 wsgiref refuses a string. What it did with one then, a write for each character, it
# does today with a list of single bytes.
SHAPES = {
    "string": ("the string", "/str"),
    "single-bytes": ("single bytes", "/list-of-1"),
    "list": ("a list holding it", "/undeclared"),
    "file": ("the open file", f"/file/{REPORT_BYTES}"),
    "wrapper": ("the file in FileWrapper", f"/file-wrapper/{REPORT_BYTES}"),
}


def _row(name: str, title: str, path: str) -> Row:
    contenders = (
        Contender("wsgiref", served(APP, None, "wsgiref"), path),
        Contender("wsgiref, WSGIFast", served(APP, {}, "wsgiref"), path),
        Contender("wsgifast's wsgiref, WSGIFast", OURS, path),
    )
    return Row(f"field.wsgiref.{name}", title, contenders, raw(), body_bytes=REPORT_BYTES)


TABLE = Table(
    "field-report-wsgiref",
    "wsgiref and large payloads",
    [_row(name, *shape) for name, shape in SHAPES.items()],
    payload_files(REPORT_BYTES),
    then=(
        f"Then: Python 2, one response of {REPORT_BYTES:,} bytes from wsgiref",
        ["the app returns", "s"],
        [["the string", 16.84], ["a list holding the string", 0.01], ["the open file", 0.07]],
    ),
    notes=[
        "What has changed: Python 3's wsgiref refuses the string that took 17 s (an error, and no "
        "body). The write for each chunk is still there, and a list of single bytes is the string "
        "of then. A list holding the whole is as good as it was, an open file is still iterated "
        "by lines; WSGIFast brings all of them to the time of the list.",
        "What limits it today: the server, what it costs to accept a connection, parse and answer "
        "at all. A list of single bytes still has to be walked through.",
    ],
)
