"""The dev servers before and after: the 40 ms of a head and a body in two writes; large bodies.

    python -m loadtests.nodelay     a minute and a half; prints tables, writes reports/nodelay.json
    python -m loadtests.nodelay --rounds 1 --seconds 0.3

Stock wsgiref and Werkzeug close every connection, which hides the stall behind the price of a new
connection and thread for each request. It shows where a stock server keeps the connection: in
http.server with `protocol_version = "HTTP/1.1"`, and in the recipe that puts http.server's loop
around wsgiref's handler. Their second small write waits for the client's acknowledgement of the
first (Nagle's algorithm), and the client delays that by 40 ms, hoping for data to send along.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import ThreadingMixIn
from statistics import median
from typing import IO, TYPE_CHECKING, cast
from wsgiref import simple_server
from wsgiref.util import FileWrapper

from werkzeug.serving import run_simple

from wsgifast import devservers

from .command_line import command_line
from .measuring import (
    Measured,
    Ratio,
    RunningServer,
    alternate,
    drive,
    free_port,
    measured,
    running,
    save,
    table,
    temporary_folder,
    waitress_command,
)

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

FILES_VARIABLE = "WSGIFAST_NODELAY_FILES"
SMALL = b"x" * 200
CHUNKS = [b"y" * 50] * 20
# The size of the field report on wsgiref.
REPORT_BYTES = 688_128
LARGE_BYTES = 64 << 20
# What each path answers with, in bytes.
PATHS = {
    "/small": len(SMALL),
    "/stream": sum(map(len, CHUNKS)),
    "/report": REPORT_BYTES,
    "/file": REPORT_BYTES,
    "/large": LARGE_BYTES,
}
TITLES = {
    "/small": "200 bytes with a Content-Length",
    "/stream": "20 chunks of 50 bytes from a generator",
    "/report": "688,128 bytes in one block",
    "/file": "a file of 688,128 bytes",
    "/large": "a file of 64 MiB",
}
_BLOCK = b"z" * REPORT_BYTES


def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """Each path of PATHS; the same for every server."""
    path = environ["PATH_INFO"]
    headers = [("Content-Type", "application/octet-stream")]
    if path != "/stream":
        headers.append(("Content-Length", str(PATHS[path])))
    start_response("200 OK", headers)
    if path == "/small":
        return [SMALL]
    if path == "/stream":
        return iter(CHUNKS)
    if path == "/report":
        return [_BLOCK]
    file = Path(os.environ[FILES_VARIABLE], path[1:]).open("rb")
    wrapped: Iterable[bytes] = environ.get("wsgi.file_wrapper", FileWrapper)(file)
    return wrapped


class _ThreadingWSGIServer(ThreadingMixIn, simple_server.WSGIServer):
    daemon_threads = True


class _KeepAliveRecipe(simple_server.WSGIRequestHandler):
    """http.server's loop around wsgiref's handler, as it is found on the net."""

    protocol_version = "HTTP/1.1"

    def handle(self) -> None:
        BaseHTTPRequestHandler.handle(self)

    def handle_one_request(self) -> None:
        self.raw_requestline = self.rfile.readline(65_537)
        if not self.raw_requestline or not self.parse_request():
            self.close_connection = True
            return
        out = cast(IO[bytes], self.wfile)
        handler = simple_server.ServerHandler(
            self.rfile, out, self.get_stderr(), self.get_environ()
        )
        handler.http_version = "1.1"
        handler.request_handler = self  # type: ignore[attr-defined]
        handler.run(self.server.get_app())  # type: ignore[attr-defined]


class _PlainHandler(BaseHTTPRequestHandler):
    """The handler of http.server's documentation, with its keep-alive switched on."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = SMALL if self.path == "/small" else _BLOCK
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _serve_wsgiref(port: int) -> None:
    simple_server.make_server("127.0.0.1", port, app, _ThreadingWSGIServer).serve_forever()


def _serve_recipe(port: int) -> None:
    simple_server.make_server(
        "127.0.0.1", port, app, _ThreadingWSGIServer, _KeepAliveRecipe
    ).serve_forever()


def _serve_plain(port: int) -> None:
    ThreadingHTTPServer(("127.0.0.1", port), _PlainHandler).serve_forever()


def _serve_fast_wsgiref(port: int) -> None:
    devservers.make_server("127.0.0.1", port, app, devservers.ThreadingWSGIServer).serve_forever()


def _serve_werkzeug(port: int) -> None:
    run_simple("127.0.0.1", port, app, threaded=True)


def _serve_fast_werkzeug(port: int) -> None:
    run_simple(
        "127.0.0.1",
        port,
        app,
        threaded=True,
        request_handler=devservers.WerkzeugRequestHandler,
    )


SERVERS: dict[str, Callable[[int], None]] = {
    "http.server, HTTP/1.1": _serve_plain,
    "wsgiref": _serve_wsgiref,
    "wsgiref, keep-alive recipe": _serve_recipe,
    "wsgifast wsgiref": _serve_fast_wsgiref,
    "werkzeug": _serve_werkzeug,
    "wsgifast werkzeug": _serve_fast_werkzeug,
}
PEER = "waitress"
# Which server each one's ratio refers to.
BASES = {
    "wsgiref, keep-alive recipe": "wsgiref",
    "wsgifast wsgiref": "wsgiref",
    "wsgifast werkzeug": "werkzeug",
}
# What the others cannot answer: no end of a stream is told by the recipe, no file by http.server.
ONLY_SOME = {
    "http.server, HTTP/1.1": {"/small", "/report"},
    "wsgiref, keep-alive recipe": {"/small", "/report", "/file", "/large"},
}


def main() -> None:
    parser = command_line("loadtests.nodelay", __doc__)
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each")
    parser.add_argument("--seconds", type=float, default=0.4, help="of each measurement")
    parser.add_argument(
        "--paths", nargs="*", default=list(PATHS), choices=list(PATHS), help="only these"
    )
    parser.add_argument("--name", default="nodelay", help="of the JSON file")
    parser.add_argument("--serve", nargs=2, metavar=("SERVER", "PORT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        SERVERS[options.serve[0]](int(options.serve[1]))
        return
    with temporary_folder("nodelay") as folder:
        for path in ("/file", "/large"):
            Path(folder, path[1:]).write_bytes(b"f" * PATHS[path])
        runs = _measure(folder, options.paths, options.rounds, options.seconds)
    figures = {}
    for path, results in runs.items():
        rows, figures[path] = _rows(results)
        print(f"\n{path}: {TITLES[path]}")
        print(table(["", "requests/s", "MB/s", "p50 ms", "CPU us/req", "vs stock", "failed"], rows))
    print(f"\n{save(options.name, {'paths': figures})}")


def _measure(
    folder: str, paths: Iterable[str], rounds: int, seconds: float
) -> dict[str, dict[str, list[Measured]]]:
    runs = {}
    with ExitStack() as stack:
        servers = {}
        for name in [*SERVERS, PEER]:
            address = ("127.0.0.1", free_port())
            command = ["python", "-m", "loadtests.nodelay", "--serve", name, str(address[1])]
            if name == PEER:
                command = waitress_command("loadtests.nodelay:app", address)
            servers[name] = stack.enter_context(
                running(command, address, name=name, env={FILES_VARIABLE: folder})
            )
        for path in paths:
            contenders = {
                name: partial(_run, server, path, seconds)
                for name, server in servers.items()
                if path in ONLY_SOME.get(name, PATHS)
            }
            runs[path] = alternate(contenders, rounds=rounds, progress=partial(_progress, path))
    print(file=sys.stderr)
    return runs


def _run(server: RunningServer, path: str, seconds: float) -> Measured:
    run = partial(drive, server.address, path, seconds=seconds, body_bytes=PATHS[path])
    return measured(server, run)


def _progress(path: str, what: str) -> None:
    print(f"\r{path} {what:40}", end="", file=sys.stderr, flush=True)


def _rows(
    results: Mapping[str, list[Measured]],
) -> tuple[list[list[object]], dict[str, dict[str, object]]]:
    rows: list[list[object]] = []
    figures: dict[str, dict[str, object]] = {}
    rates = {name: [run.load.requests_per_s for run in runs] for name, runs in results.items()}
    for name, runs in results.items():
        base = BASES.get(name)
        facts: dict[str, object] = {
            "requests_per_s": median(rates[name]),
            "megabytes_per_s": median(run.load.megabytes_per_s for run in runs),
            "p50_ms": median(run.load.latency_ms.get(50, float("inf")) for run in runs),
            "cpu_us_per_request": median(run.cpu_us_per_request for run in runs),
            "vs_stock": Ratio.of(rates[name], rates[base]) if base else None,
            "failures": sum(run.load.failures for run in runs),
        }
        rows.append([name, *facts.values()])
        figures[name] = facts
    return rows, figures


if __name__ == "__main__":
    main()
