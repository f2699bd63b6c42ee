"""The texts of the benchmarks' pages: what each page compares, and the terms of its tables.

A figure in a text is written as in gains.py. A sentence is left out if its figure is not published.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Page(NamedTuple):
    """One page.

    :ivar compared: what the page compares.
    :ivar results: sentences with its main figures.
    :ivar tables: the names of its tables.
    """

    title: str
    compared: str
    results: tuple[str, ...]
    tables: tuple[str, ...]


_WRAPPED = "WSGIFast on gthread"
# In the order of the navigation. Tables of no page are on the last one.
PAGES = {
    "bodies": Page(
        "What an app returns",
        "This page compares apps with and without `WSGIFast` or `ASGIFast`, on the same server. "
        "Each row is a kind of body that an app may return. The page shows which kinds become "
        "faster, and how much the middleware costs for other kinds.",
        (
            f"With `WSGIFast`, gthread sends an open file {{bodies.file|{_WRAPPED}}} times as "
            "fast.",
            "With `WSGIFast`, gthread sends a list of 100-byte chunks "
            f"{{bodies.list-of-100|{_WRAPPED}}} times as fast.",
            "As deployed, a generator of lines with `coalesce=True` takes "
            f"{{deployed.bodies.rows|{_WRAPPED}|cost ratio}} % of the CPU time that it takes "
            "without `WSGIFast`.",
            "`WSGIFast` costs a little CPU time for a list with one small block: gthread sends "
            f"{{bodies.small|{_WRAPPED}}} times as many responses.",
        ),
        ("bodies", "frameworks"),
    ),
    "fastworker": Page(
        "FastWorker",
        "This page compares FastWorker with gthread, granian and nginx. It also shows the cost of "
        "metrics and the gain from CPython's JIT. The page shows how many requests a worker can "
        "handle, and how much CPU time a request takes.",
        (
            "FastWorker sends {worker.rates.small-32|gthread} times as many responses of 1 KiB as "
            "gthread, and {worker.rates.small-32|granian} times as many as granian.",
            "As deployed, such a response takes {deployed.worker.rates.small-32|gthread|cost ratio}"
            " % of the CPU time that it takes on gthread.",
            "`StaticFiles` on FastWorker serves {worker.rates.static|WhiteNoise on gthread} times "
            "as many files of 1 KiB as WhiteNoise on gthread, and {worker.rates.static|nginx} "
            "times as many as nginx.",
            "With the JIT of CPython 3.15, FastWorker sends {jit.small|FastWorker} times as many "
            "responses of 1 KiB as without the JIT.",
        ),
        ("worker", "metrics", "jit"),
    ),
    "peers": Page(
        "Other WSGI servers",
        "This page compares FastWorker with six other WSGI servers. It also compares FastWorker "
        "with gthread for two released applications. The page shows which servers are faster, and "
        "which servers respond to quick clients while slow clients are connected.",
        (
            "FastWorker sends {peers.small|waitress} times as many responses of 1 KiB as waitress, "
            "and {peers.small|bjoern} times as many as bjoern, which is written in C.",
        ),
        ("peers", "released"),
    ),
    "http2": Page(
        "HTTP/2",
        "This page compares HTTP/2 with HTTP/1.1 on FastWorker, and seven servers over HTTP/2. All "
        "of them use TLS. The page shows how much CPU time HTTP/2 takes.",
        (),
        ("http2",),
    ),
    "slow-clients": Page(
        "Slow clients",
        "This page compares servers while many slow clients are connected. It shows how much "
        "memory a slow client costs, and how long quick clients wait. Some slow clients are "
        "attackers.",
        (
            "While {slow.worker.downloads-10000|FastWorker|slow ones} clients download slowly from "
            "FastWorker, half of the requests of quick clients take at most "
            "{slow.worker.downloads-10000|FastWorker|p50} ms.",
            "A slow reader of a page takes {slow.memory.page|FastWorker|KiB each} KiB of "
            "FastWorker's memory, and {slow.memory.page|granian, WSGI|KiB each} KiB of granian's.",
        ),
        ("slow-memory", "slow", "slow-attack", "asgi-attack", "upload-link", "goodput"),
    ),
    "files": Page(
        "Static files and Django",
        "This page compares `StaticFiles` and `wsgifast.django` with WhiteNoise, ServeStatic, "
        "nginx and Django's own classes. The page shows how fast files are served, and how long "
        "Django takes to start.",
        (
            "`StaticFiles` serves {static.small|StaticFiles} times as many files of 1 KiB as "
            "WhiteNoise, on the same server.",
            "Under ASGI, `wsgifast.django` sends a file of 10 MiB {django.asgi.file|ours} times as "
            "fast as Django's own classes.",
            "With 10,000 files, Django starts in {django.start|ours} times the time that it needs "
            "with WhiteNoise.",
        ),
        ("static-files", "django-files", "django-start"),
    ),
    "asgi": Page(
        "ASGI",
        "This page compares `ASGIFast` and asgifast's protocols with uvicorn, granian and other "
        "ASGI servers. The page shows which responses and uploads become faster on your server, "
        "and which do not.",
        (
            "Starlette's `FileResponse` of 10 MiB is sent {asgi.file-large|our protocol} times as "
            "fast with asgifast's protocol, and {asgi.file-large|uvicorn + ASGIFast} times as fast "
            "with `ASGIFast` alone.",
            "As deployed, this response takes {deployed.asgi.file-large|our protocol|cost ratio} % "
            "of the CPU time.",
            "asgifast's protocol sends 100,000 messages of 100 bytes {asgi.crumbs|our protocol} "
            "times as fast.",
        ),
        ("asgi", "asgi-loops", "asgi-others", "asgi-middleware"),
    ),
    "compression": Page(
        "Compression",
        "This page compares uncompressed responses with those of `compress=True`, and with other "
        "compression middleware, over a slow link. The page shows how much sooner a client has a "
        "compressed response, and how much CPU time this takes.",
        (
            "A JSON response of 842 kB arrives {compress-link.wsgi.json.zstd|raw} times as fast "
            "over 20 Mbit/s, compressed with zstd.",
        ),
        ("compress", "compress-link"),
    ),
    "sockets": Page(
        "Sockets, mail and development servers",
        "This page compares `wsgifast.devservers`, `wsgifast.sockets` and `wsgifast.mail` with the "
        "modules that they replace.",
        (
            "wsgifast's version of wsgiref sends {nodelay.small.wsgiref|wsgifast wsgiref} times "
            "as many responses of 200 bytes as wsgiref.",
            "Behind a TCP forwarder, the IMAP client sends {field.imap.forwarded|wsgifast} times "
            "as many messages as imaplib.",
            "With BDAT, an attachment of 20 MB is sent {field.smtp.attachment|wsgifast, BDAT} "
            "times as fast as by smtplib.",
        ),
        ("nodelay",),
    ),
}
# Terms in the titles of rows and in the names of servers. A page explains those that it contains.
TERMS: Mapping[str, str] = {
    "gthread": "gunicorn's worker with threads",
    "FastWorker": "wsgifast's worker for gunicorn",
    "our protocol": "uvicorn with asgifast's protocol (`asgifast.uvicorn.HttpToolsProtocol`)",
    "our AutoZttpProtocol": "uvicorn with asgifast's protocol for HTTP/1.1 and HTTP/2",
    "our ZttpProtocol": "uvicorn with asgifast's protocol for HTTP/1.1, which zttp parses",
    "our H11Protocol": "uvicorn with asgifast's protocol for HTTP/1.1, which h11 parses",
    "uvicorn": "uvicorn with its own protocol",
    "--http zttp": "uvicorn's own protocol with the parser zttp",
    "granian": "a WSGI and ASGI server written in Rust",
    "backpressure": "granian's limit for the requests that it handles at the same time",
    "waitress": "a WSGI server in Python that buffers slow clients",
    "uWSGI": "a WSGI server written in C",
    "bjoern": "a WSGI server written in C",
    "fastwsgi": "a WSGI server written in C",
    "nginx before gthread": "nginx as a reverse proxy of gthread",
    "bare epoll + sendfile loop": "a minimal program that only sends the file: the upper limit",
    "a bare loop": "a minimal program that only receives the bytes: the upper limit",
    "a bare middleware": "an ASGI middleware that copies the scope and wraps `send()`",
    "one that does nothing": "an ASGI middleware that only calls the app",
    "/our-file/": "a path where the app returns asgifast's `FileResponse`",
    "/file/": "a path where the app returns Starlette's `FileResponse`",
    "/our-static/": "a path that asgifast's `StaticFiles` serves",
    "/static/": "a path that Starlette's `StaticFiles` serves",
    "limited, bodies buffered": "with `body_limit_bytes`, `body_timeout_s`, `buffer_bodies=True`",
    "queue_timeout_s": "the option that refuses requests that have waited too long",
    "capacity": "the number of requests that the app can handle in a second",
    "coalesce": "joined by `coalesce=True`",
    "WhiteNoise": "middleware for static files",
    "ServeStatic": "a fork of WhiteNoise",
    "ours": "`wsgifast.django`: on gthread for static files, on FastWorker for other WSGI rows, "
    "with asgifast's protocol for ASGI rows",
    "JIT": "CPython with `PYTHON_JIT=1`",
    "off again": "a second run without metrics, which shows the noise of the machine",
    "raw": "the app without wsgifast, uncompressed",
    "Flask-Compress": "compression middleware for Flask",
    "starlette-compress": "compression middleware for Starlette",
    "zttp": "a parser of HTTP/1.1 and HTTP/2",
    "wsgifast wsgiref": "`wsgifast.devservers.simple_server`",
    "wsgifast werkzeug": "`wsgifast.devservers.werkzeug_server`",
    "coalescing": "a writer of `wsgifast.sockets` that joins small messages",
    "no_delay": "a socket with TCP_NODELAY, and a send for each message",
    "nagle": "a socket without TCP_NODELAY: the kernel joins small messages",
    "recv_exactly": "a function of `wsgifast.sockets`",
    "bound: recv_into": "the fastest possible receive, which recv_into() does with one buffer",
    "DATA": "the SMTP command that sends a message line by line",
    "BDAT": "the SMTP command that sends a message in blocks of a known size (CHUNKING)",
}
# Columns of the tables, as the first page explains them.
COLUMNS = (
    ("requests/s", "successful requests in a second"),
    ("MB/s", "10^6 bytes of bodies in a second"),
    ("ratio", "the first figure of this server, divided by that of the first server of the row"),
    ("ours / this", "the first figure of wsgifast's server, divided by that of this server"),
    ("p50 ms, p99 ms", "50 % and 99 % of the requests take at most this time"),
    ("CPU us/req, CPU s/GB", "the CPU time of the server for a request, or for 10^9 bytes"),
    ("CPU ratio", "the CPU time of this server, divided by that of the first server"),
    ("CPU ours / this", "the CPU time of wsgifast's server, divided by that of this server"),
    ("failed", "the number of failed requests"),
    ("busy", "the bottleneck: the client, the server, or both"),
    ("others' p99 ms", "p99 of the quick clients, while the slow clients are connected"),
    ("slow ones", "the number of slow clients"),
    ("memory KiB each", "the memory of the server and of the kernel for each slow client"),
    ("KiB each", "the growth of the server's memory for each slow client"),
    ("kernel KiB each", "the growth of the kernel's memory for TCP for each slow client"),
    ("disk KiB each", "the growth of temporary files for each slow client"),
    ("kB/s each", "the rate at which each slow client received or sent"),
    ("dropped", "the number of connections that ended early"),
    ("server CPU, crowd CPU", "the number of CPUs that the server or the slow clients used"),
    (
        "offered/s, refused/s, too late/s",
        "requests that were sent, got 503, or got a late response",
    ),
    ("messages", "the number of ASGI messages in which the app received an upload"),
    ("MiB more", "the growth of the server's memory"),
    ("in time/s", "responses in a second that arrived before the client gave up"),
)
