"""What a slow reader costs: memory of the server and of the kernel, and temporary files.

    python -m loadtests slow.memory

Readers take 1,000 bytes a second of a body of 8 MB. Over HTTP/2 they take 4 KiB. A compressed page
has 4 MB.
"""

from __future__ import annotations

from wsgifast.commands.bench.processes import Server
from wsgifast.commands.bench.serving import gunicorn, uvicorn

from .asgi import HTTP2
from .bench import FAST, Side, table
from .harness.tables import Row
from .servers import granian, hypercorn, small, waitress
from .slow import beside

_APP, _ASGI = "tests.support.large_app:app", "tests.support.large_app:asgi_app"
READERS, STREAMS = "readers of a list", "readers of HTTP/2 streams"
COUNT = 60
# One connection with 100 streams.
_CONNECTIONS = 1
_ASKS = "/small"
_ROOM = ("--worker-connections", "20000", "--keep-alive", "120")
_PEM = ("--ssl-certfile={folder}/server.pem", "--ssl-keyfile={folder}/server.pem")
# The path of each kind of body.
BODIES = {
    "page": "a page",
    "own-blocks": "a list",
    "generator": "a generator",
    "compressed-page": "a compressed page",
    "file": "a file",
}
_WSGI: dict[str, Side] = {
    "FastWorker": gunicorn(_APP, *_ROOM, worker_class=FAST),
    "gthread": gunicorn(_APP, *_ROOM),
    "waitress": waitress(_APP),
    "granian, WSGI": granian(_APP, interface="wsgi"),
    "nginx before gthread": small("nginx-gthread", "{folder}", _APP),
}
_OVER_ASGI: dict[str, Side] = {
    "our protocol": uvicorn(_ASGI, ours=True),
    "uvicorn": uvicorn(_ASGI),
    "granian, ASGI": granian(_ASGI),
    "hypercorn": hypercorn(_ASGI, "asyncio"),
}


def _zttp(*options: str, tls: bool = False) -> Server:
    server = uvicorn(_ASGI, "--http=asgifast.uvicorn:ZttpProtocol", *options)
    return Server(server.argv, server.env, tls)


_TLS: dict[str, Side] = {
    "FastWorker": gunicorn(_APP, *_ROOM, worker_class=FAST, tls=True),
    "gthread": gunicorn(_APP, *_ROOM, tls=True),
    "our zttp protocol": _zttp(*_PEM, tls=True),
}
_HTTP2: dict[str, Side] = {
    "FastWorker": gunicorn(_APP, *_ROOM, *HTTP2, worker_class=FAST),
    "gthread": gunicorn(_APP, *_ROOM, *HTTP2),
    "our zttp protocol": _zttp("--http2"),
}


def _row(how: str, body: str, sides: dict[str, Side], crowd: tuple[str, int]) -> Row:
    key = f"slow.memory{how}.{body}"
    over = {"": "HTTP/1", "-tls": "TLS", "-http2": "HTTP/2"}[how]
    title = f"{crowd[1] if how != '-http2' else 100} readers of {BODIES[body]} over {over}"
    return beside(key, title, f"/{body}", crowd, sides=sides, asks=_ASKS, settle_s=5.0)


TABLE = table("slow-memory", "What one slow reader costs", [
    *(_row("", body, {**_WSGI, **_OVER_ASGI}, (READERS, COUNT)) for body in BODIES),
    *(_row("-tls", body, _TLS, (READERS, COUNT)) for body in BODIES),
    *(_row("-http2", body, _HTTP2, (STREAMS, _CONNECTIONS)) for body in BODIES),
])  # fmt: skip
