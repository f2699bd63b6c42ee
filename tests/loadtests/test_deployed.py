"""`python -m loadtests --deployed`: servers with access logs and metrics, requests of a browser."""

from __future__ import annotations

import contextlib
import os
import select
from pathlib import Path

import pytest

from loadtests.bench import row
from loadtests.deployed import NOTE, Deployment, deployed
from loadtests.harness.servers import gunicorn, uvicorn
from loadtests.harness.tables import Table
from loadtests.servers import granian, hypercorn, waitress
from tests.support.http import Connection
from tests.support.servers import wait_for
from wsgifast.commands.bench.processes import Server, running_server
from wsgifast.commands.bench.serving import FAST_WORKER
from wsgifast.commands.client import HTTPClient, NoResponse

APP, ASGI = "loadtests.app:app", "loadtests.asgi_app:app"
# Each server, and whether it has metrics.
SERVERS: dict[str, tuple[Server, bool]] = {
    "FastWorker": (gunicorn(APP, worker_class=FAST_WORKER), True),
    "gthread": (gunicorn(APP), False),
    "our protocol": (uvicorn(ASGI, ours=True), True),
    "uvicorn": (uvicorn(ASGI), False),
    "granian": (granian(ASGI), False),
    "hypercorn": (hypercorn(ASGI, "asyncio"), False),
}


def read_until(pipe: int, text: bytes) -> bytes:
    """Return the output in a pipe, once it contains a text."""
    data = b""
    while text not in data:
        assert select.select([pipe], [], [], 30)[0], data
        data += os.read(pipe, 65536)
    return data


@pytest.mark.long
@pytest.mark.parametrize("name", SERVERS)
def test_deployed_server_writes_to_the_pipe(name: str, tmp_path: Path) -> None:
    server, has_metrics = SERVERS[name]
    pytest.importorskip(server.argv[2])
    os.mkfifo(tmp_path / "pipe")
    pipe = os.open(tmp_path / "pipe", os.O_RDWR)
    made = Deployment(tmp_path / "pipe").server(server)
    address = dict(made.env).get("WSGIFAST_METRICS")
    with running_server(made) as running:
        with Connection(running.address) as client:
            assert client.request("/whole/10").status in (200, 404)
        assert b"/whole/10" in read_until(pipe, b"/whole/10")
        assert (address is not None) is has_metrics
        if address is not None:
            host, _, port = address.partition(":")
            exporter = HTTPClient(host, int(port), limit_s=10.0)

            def is_counted() -> bool:
                with contextlib.suppress(NoResponse):  # it has not started yet
                    return b"http_server_request_duration_seconds" in exporter.ask("/metrics").body
                return False

            wait_for(is_counted, "the exporter has the request")
    os.close(pipe)


def test_deployed_row_has_the_headers_of_a_browser() -> None:
    own = "Accept-Encoding: br"
    before = row("key", "title", {"waitress": waitress(APP)}, headers=(own,))
    with deployed() as deployment:
        table = deployment.table(Table("name", "title", [before]))
        (after,) = table.rows
    assert after.headers[0] == own
    names = [header.partition(":")[0] for header in after.headers]
    assert len(names) == len({*names}) == 11
    assert table.notes == (NOTE,)
    assert after.contenders[0].server == before.contenders[0].server  # it has no access log
