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
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref import simple_server

from werkzeug.serving import run_simple

from wsgifast import devservers

from .app import app
from .bench import BYTES, HOST, REQUESTS, Contender, Row, Server, Table, raw
from .command import main
from .shapes import REPORT_BYTES, payload, payload_files

__all__ = ["SERVERS", "TABLES"]

LARGE_BYTES = 64 << 20


class _ThreadingWSGIServer(ThreadingMixIn, simple_server.WSGIServer):
    daemon_threads = True


class _PlainHandler(BaseHTTPRequestHandler):
    """The handler of http.server's documentation, with its keep-alive switched on."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = payload(int(self.path.rpartition("/")[2]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _wsgiref(port: int) -> None:
    simple_server.make_server(HOST, port, app, _ThreadingWSGIServer).serve_forever()


def _fast_wsgiref(port: int) -> None:
    devservers.make_server(HOST, port, app, devservers.ThreadingWSGIServer).serve_forever()


def _werkzeug(port: int, **options: Any) -> None:
    run_simple(HOST, port, app, threaded=True, **options)


PLAIN = "http.server, HTTP/1.1"
SERVERS: dict[str, Callable[[int], None]] = {
    "wsgiref": _wsgiref,
    "wsgifast wsgiref": _fast_wsgiref,
    "werkzeug": _werkzeug,
    "wsgifast werkzeug": lambda port: _werkzeug(
        port, request_handler=devservers.WerkzeugRequestHandler
    ),
    PLAIN: lambda port: ThreadingHTTPServer((HOST, port), _PlainHandler).serve_forever(),
}
WAITRESS = (
    "python",
    "-m",
    "waitress",
    f"--listen={HOST}:{{port}}",
    "--threads=4",
    "loadtests.app:app",
)


def _rows(key: str, title: str, path: str, *more: str) -> list[Row]:
    """wsgiref's side and Werkzeug's.

    :param more: what else can answer.
    """
    unit = BYTES if key == "large" else REQUESTS
    found = []
    for stock, others in (("wsgiref", more), ("werkzeug", ())):
        contenders = [
            Contender(
                n, Server(("python", "-m", "loadtests.nodelay", "--serve", n, "{port}")), path
            )
            for n in (stock, f"wsgifast {stock}", *others)
        ]
        contenders.append(Contender("waitress", Server(WAITRESS), path))
        found.append(Row(f"nodelay.{key}.{stock}", title, tuple(contenders), raw(), unit))
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
        SERVERS[sys.argv[2]](int(sys.argv[3]))
    raise SystemExit(main("loadtests.nodelay", __doc__, TABLES))
