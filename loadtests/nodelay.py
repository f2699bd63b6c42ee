"""The development servers before and after: a head and a body in two writes, and large bodies.

    python -m loadtests.nodelay [--profile release]

Stock wsgiref and Werkzeug close every connection, which hides the stall behind the price of a new
connection and thread for each request. It shows where a stock server keeps the connection: in
http.server with `protocol_version = "HTTP/1.1"`. Its second small write waits for the client's
acknowledgement of the first (Nagle's algorithm), and the client delays that by 40 ms, hoping for
data to send along.
"""

from __future__ import annotations

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from .bench import BYTES, HOST, REQUESTS, Contender, Row, Server, Table, raw, served
from .command import main
from .shapes import REPORT_BYTES, payload, payload_files

__all__ = ["TABLES"]

LARGE_BYTES = 64 << 20


class _PlainHandler(BaseHTTPRequestHandler):
    """The handler of http.server's documentation, with its keep-alive switched on."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = payload(int(self.path.rpartition("/")[2]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _small(kind: str) -> Server:
    return Server(("python", "-m", "tests.support.serve", kind, "{port}", "loadtests.app:app"))


PLAIN = "http.server, HTTP/1.1"
SERVERS = {
    "wsgiref": _small("threading-wsgiref"),
    "wsgifast wsgiref": _small("fast-wsgiref"),
    "werkzeug": _small("werkzeug"),
    "wsgifast werkzeug": _small("fast-werkzeug"),
    PLAIN: Server(("python", "-m", "loadtests.nodelay", "--serve", "{port}")),
    "waitress": served("loadtests.app:app", None, "waitress"),
}


def _rows(key: str, title: str, path: str, *more: str) -> list[Row]:
    """wsgiref's side and Werkzeug's.

    :param more: what else can answer.
    """
    unit = BYTES if key == "large" else REQUESTS
    found = []
    for stock, others in (("wsgiref", more), ("werkzeug", ())):
        names = (stock, f"wsgifast {stock}", *others, "waitress")
        contenders = tuple(Contender(name, SERVERS[name], path) for name in names)
        found.append(Row(f"nodelay.{key}.{stock}", title, contenders, raw(), unit))
    return found


ROWS = [
    *_rows("small", "200 bytes with a Content-Length", "/small/200", PLAIN),
    *_rows("stream", "20 chunks of 50 bytes from a generator", "/crumbs"),
    *_rows("report", "688,128 bytes in one block", f"/whole/{REPORT_BYTES}", PLAIN),
    *_rows("file", "a file of 688,128 bytes", f"/server-wrapper/{REPORT_BYTES}"),
    *_rows("large", "a file of 64 MiB", f"/server-wrapper/{LARGE_BYTES}"),
]


prepare = payload_files(REPORT_BYTES, LARGE_BYTES)
TABLES = [Table("nodelay", "Development servers, stock and ours", ROWS, prepare)]

if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        ThreadingHTTPServer((HOST, int(sys.argv[2])), _PlainHandler).serve_forever()
    raise SystemExit(main("loadtests.nodelay", __doc__, TABLES))
