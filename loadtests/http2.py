"""Compare FastWorker's HTTP/2 over TLS with other servers, and with its own HTTP/1.1.

The client for HTTP/2 is h2load of nghttp2. The client for HTTP/1.1 is wrk with the same number of
connections. All servers run the same app, except nginx, which serves files with the same bytes.
nginx compresses the page at the same level as wsgifast. A page load is a new connection with 100
simultaneous requests.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from wsgifast.commands.bench.processes import Server

from .bench import FAST, Side, row
from .clients import h2load, page_loads, wrk
from .harness.servers import gunicorn, uvicorn
from .harness.tables import BYTES, REQUESTS, Client, Row, Table, Unit
from .http2_app import BURST_BYTES, LIST_BYTES, PAGE, prepare
from .payloads import FILE_BYTES
from .servers import granian, hypercorn, small

APP, ASGI_APP = "loadtests.http2_app:app", "loadtests.http2_app:asgi_app"
HTTP2 = ("--http-protocols", "h2,h1")
_PEM = "{folder}/server.pem"
PAGE_LOADS = Unit(
    "page loads/s", lambda m: m.requests_per_s, "CPU us/load", lambda m: m.cpu_us_per_request
)
_GZIP = ("Accept-Encoding: gzip",)
_SMALL, _LIST, _FILE = "/small/1024", "/list", f"/{FILE_BYTES}.bin"


def over_tls(server: Server) -> Server:
    return replace(server, tls=True)


def _fast(*options: str) -> Server:
    return gunicorn(APP, *options, worker_class=FAST, tls=True)


def zttp(app: str, *, ours: bool) -> Server:
    """Return uvicorn with its zttp protocol or ours, and with HTTP/2 over TLS."""
    options = ("--http=asgifast.uvicorn:AutoZttpProtocol",) if ours else ("--http=zttp", "--http2")
    options = (*options, "--timeout-keep-alive=120")
    return over_tls(uvicorn(app, *options, f"--ssl-certfile={_PEM}", f"--ssl-keyfile={_PEM}"))


OURS = "FastWorker"
SERVERS: dict[str, Server] = {
    OURS: _fast(*HTTP2),
    # Each thread of gthread serves one connection.
    "gthread, 16 threads": gunicorn(APP, *HTTP2, threads=16, tls=True),
    "granian": over_tls(
        granian(APP, f"--ssl-certificate={_PEM}", f"--ssl-keyfile={_PEM}", interface="wsgi")
    ),
    "hypercorn": over_tls(
        hypercorn(ASGI_APP, "uvloop", "--keep-alive=120", f"--certfile={_PEM}", f"--keyfile={_PEM}")
    ),
    "uvicorn --http zttp": zttp(ASGI_APP, ours=False),
    "our AutoZttpProtocol": zttp(ASGI_APP, ours=True),
    "nginx": over_tls(small("nginx", "{folder}", "on", "", _PEM)),
}


def _row(
    key: str,
    title: str,
    path: str,
    client: Client,
    unit: Unit = REQUESTS,
    *,
    nginx: str = "",
    **more: Any,
) -> Row:
    """Return a row with all servers.

    :param nginx: the path for nginx, if it differs from the path for the app.
    """
    sides: dict[str, Side] = {**SERVERS, "nginx": (SERVERS["nginx"], nginx or path)}
    return row(f"peers.http2.{key}", title, sides, path, unit, client, ours=OURS, **more)


def _version_row(
    key: str, title: str, path: str, clients: tuple[Client, Client], unit: Unit = REQUESTS
) -> Row:
    """Return a row that compares FastWorker's HTTP/2 with its HTTP/1.1.

    :param clients: the clients for HTTP/1.1 and for HTTP/2.
    """
    sides: dict[str, Side] = {
        name: (SERVERS[OURS], client)
        for name, client in zip(("HTTP/1.1", "HTTP/2"), clients, strict=True)
    }
    headers = _GZIP if path == f"/{PAGE}" else ()
    return row(f"worker.http2.{key}", title, sides, path, unit, headers=headers)


_ONE_CONNECTION, _TEN_CONNECTIONS = "1 connection, 10 streams", "10 connections, 10 streams each"
_PAGE_TITLE = "a page of 60 kB, compressed"

TABLE = Table("http2", "HTTP/2 over TLS", [
    _version_row("small", "1 KiB, 10 connections, 10 streams each", _SMALL, (wrk(10), h2load())),
    _version_row("small-one", "1 KiB, 1 connection, 10 streams", _SMALL, (wrk(1), h2load(1))),
    _version_row("page", _PAGE_TITLE, f"/{PAGE}", (wrk(10), h2load())),
    _version_row("list", "a list of 1 MB", _LIST, (wrk(10), h2load(10, 1)), BYTES),
    _version_row("file", "a file of 10 MiB", _FILE, (wrk(4), h2load(4, 1)), BYTES),
    _row("small", f"1 KiB, {_TEN_CONNECTIONS}", _SMALL, h2load(), nginx="/1024.bin"),
    _row("small-one", f"1 KiB, {_ONE_CONNECTION}", _SMALL, h2load(1), nginx="/1024.bin"),
    _row("page", f"{_PAGE_TITLE}, {_TEN_CONNECTIONS}", f"/{PAGE}", h2load(), headers=_GZIP),
    _row("page-one", f"{_PAGE_TITLE}, {_ONE_CONNECTION}", f"/{PAGE}", h2load(1), headers=_GZIP),
    _row("list", "a list of 1 MB, 10 connections", _LIST, h2load(10, 1), BYTES,
         nginx=f"/{LIST_BYTES}.bin"),
    _row("list-one", "a list of 1 MB, 1 connection", _LIST, h2load(1, 1), BYTES,
         nginx=f"/{LIST_BYTES}.bin"),
    _row("file", "a file of 10 MiB, 10 connections", _FILE, h2load(10, 1), BYTES),
    _row("file-one", "a file of 10 MiB, 1 connection", _FILE, h2load(1, 1), BYTES),
    _row("burst", "100 files of 1 to 21 kB on a new connection", "/1000.bin",
         page_loads([f"/{size}.bin" for size in BURST_BYTES]), PAGE_LOADS),
], prepare=prepare)  # fmt: skip
