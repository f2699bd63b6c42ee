"""The ASGI servers that the behaviour suite runs over, by name."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers import LiveServer, free_port, live_server

__all__ = [
    "BARE", "OTHER_SERVERS", "OURS", "OURS_ON_GUNICORN", "SERVERS", "asgi_server", "servers_with",
]  # fmt: skip


_UVICORN = (
    "-m uvicorn --host 127.0.0.1 --port {port} --log-level warning "
    "--http {http} --loop {loop} {app}"
)
_HYPERCORN = "-m hypercorn --bind 127.0.0.1:{port} --worker-class {loop} {app}"

# name -> arguments of Python
OURS = {
    f"ours-{http}-{loop}": _UVICORN.replace("{http}", f"asgifast.uvicorn:{protocol}").replace(
        "{loop}", loop
    )
    for http, protocol in (("h11", "H11Protocol"), ("httptools", "HttpToolsProtocol"))
    for loop in ("asyncio", "uvloop")
}
# The newest releases of uvicorn have a third protocol.
if find_spec("zttp") and find_spec("uvicorn.protocols.http.zttp_impl"):
    for protocol in ("ZttpProtocol", "AutoZttpProtocol"):
        loop = "asyncio" if protocol == "ZttpProtocol" else "uvloop"
        http = f"asgifast.uvicorn:{protocol}"
        OURS[f"ours-{protocol}-{loop}"] = _UVICORN.replace("{http}", http).replace("{loop}", loop)
_GUNICORN = (
    "-m gunicorn -k {worker} --bind 127.0.0.1:{port} --no-control-socket --log-level warning {app}"
)
OURS_ON_GUNICORN = {
    "ours-gunicorn-uvicorn": _GUNICORN.replace("{worker}", "asgifast.workers.FastUvicornWorker")
}
OTHER_SERVERS = {
    "uvicorn-h11-asyncio": _UVICORN.replace("{http}", "h11").replace("{loop}", "asyncio"),
    "uvicorn-httptools-uvloop": _UVICORN.replace("{http}", "httptools").replace("{loop}", "uvloop"),
    # In one process, which saves one start of Python. On trio, one process does not receive the
    # shutdown signal.
    "hypercorn-asyncio": _HYPERCORN.replace("{loop}", "asyncio --workers 0"),
    "hypercorn-trio": _HYPERCORN.replace("{loop}", "trio"),
    "granian": (
        "-m granian --interface asgi --host 127.0.0.1 --port {port} --log-level warning {app}"
    ),
    "gunicorn-asgi": _GUNICORN.replace("{worker}", "asgi"),
    # On asyncio, anycorn's sendfile truncates files that are larger than the send buffer.
    "anycorn-trio": "-m anycorn --bind 127.0.0.1:{port} --worker-class trio {app}",
    "daphne": "-m daphne --bind 127.0.0.1 --port {port} --verbosity 0 {app}",
}
SERVERS = {**OURS, **OURS_ON_GUNICORN, **OTHER_SERVERS}
# asgifast's protocols with an app outside ASGIFast: see the fixture `server`.
BARE = sorted(f"bare {name}" for name in OURS | OURS_ON_GUNICORN)


@contextlib.contextmanager
def asgi_server(
    name: str,
    app: str,
    files: Path,
    *,
    extra: tuple[str, ...] = (),
    env: Mapping[str, str] = {},
    unix_socket: str | None = None,
    forked: bool = True,
) -> Iterator[LiveServer]:
    """Run an app of tests.asgi.app on a server, with `files` as its folder.

    At the end of the block no blocking call may have been made on the server's event loop.

    :param unix_socket: a server of OURS listens on this path in place of a port.
    :param forked: as for :func:`live_server`.
    """
    port = free_port()
    argv = [sys.executable, *SERVERS[name].format(port=port, app=app).split(), *extra]
    if unix_socket is not None:
        argv += ["--uds", unix_socket]
    with tempfile.NamedTemporaryFile("r", prefix="blocking-calls-") as blocking_calls:
        variables = {
            "ASGIFAST_TEST_FILES": str(files),
            "ASGIFAST_TEST_BLOCKING": blocking_calls.name,
            "PYTHONASYNCIODEBUG": "",
            **env,
        }
        address = unix_socket or ("127.0.0.1", port)
        with live_server(argv, address, env=variables, forked=forked) as server:
            yield server
        found = blocking_calls.read()
    assert not found, f"{name}: {found}"


def servers_with(app: str, names: Iterable[str] = SERVERS) -> Any:
    """Return a fixture for a module: an app on each of these servers, one after the other."""

    @pytest.fixture(scope="module", params=[*names])
    def server(request: pytest.FixtureRequest, folder: Path) -> Iterator[LiveServer]:
        with asgi_server(request.param, app, folder) as running:
            yield running

    return server
