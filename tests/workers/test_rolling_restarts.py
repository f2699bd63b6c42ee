"""Two servers behind HAProxy, which polls their readiness. They restart one after the other."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.http import Address, get
from tests.support.programs import program
from tests.support.servers import LiveServer, free_port, live_server, wait_for
from tests.workers.serving import fast_worker

pytestmark = pytest.mark.long

RESTARTS = int(os.environ.get("WSGIFAST_TEST_RESTARTS", "2"))
# HAProxy does not retry: a request that reaches a closed port is lost.
_CONFIGURATION = """\
defaults
    mode http
    retries 0
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    timeout check 10s

frontend web
    bind 127.0.0.1:{front}
    default_backend shop

backend shop
    option httpchk GET /readyz
    http-reuse always
    default-server check inter 50ms fall 2 rise 1
    server a 127.0.0.1:{a}
    server b 127.0.0.1:{b}
"""


class Visitors:
    """Clients that send one request after the other, each on a new connection.

    :ivar lost: the errors and bytes in place of responses.
    :ivar served: the number of responses.
    """

    def __init__(self, front: Address, count: int) -> None:
        self._front = front
        self._is_over = threading.Event()
        self.lost: list[str] = []
        self.served = 0
        self._threads = [threading.Thread(target=self._visit) for _ in range(count)]

    def __enter__(self) -> Visitors:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def wait_for_more(self, count: int) -> None:
        """Wait until this many more responses have arrived."""
        least = self.served + count
        wait_for(lambda: self.served >= least, f"{count} more responses have come")

    def _visit(self) -> None:
        while not self._is_over.wait(0.002):
            try:
                response = get(self._front, "/sleep/0.01")
            except (OSError, EOFError) as error:
                self.lost.append(repr(error))
                continue
            if response.status != 200:
                self.lost.append(f"{response.status} {response.reason}")
            self.served += 1


@contextlib.contextmanager
def wsgi(port: int) -> Iterator[LiveServer]:
    attributes = {"ready_path": "/readyz", "drain_delay_s": 2}
    with fast_worker("--workers=2", attributes=attributes, address=("127.0.0.1", port)) as server:
        yield server


@contextlib.contextmanager
def asgi(port: int) -> Iterator[LiveServer]:
    argv = ["python", "-m", "asgifast.uvicorn", "--workers=2", f"--port={port}"]
    argv += ["--http=asgifast.uvicorn:HttpToolsProtocol", "tests.support.operators_app:asgi"]
    env = {"WSGIFAST_READY_PATH": "/readyz", "WSGIFAST_DRAIN_DELAY_S": "2"}
    with live_server(argv, ("127.0.0.1", port), env=env, forked=False) as server:
        yield server


@contextlib.contextmanager
def instance(serves: Any, port: int) -> Iterator[None]:
    """Run a server that drains. SIGTERM ends it at the end of the block."""
    with serves(port) as server:
        wait_for(lambda: server.get("/readyz").status == 200, "it is ready")
        yield
        assert server.stop() in (0, -signal.SIGTERM)


@pytest.mark.parametrize("serves", [wsgi, asgi])
def test_no_request_is_lost_by_rolling_restarts(serves: Any, tmp_path: Path) -> None:
    ports = {name: free_port() for name in ("front", "a", "b")}
    front = ("127.0.0.1", ports["front"])
    conf = tmp_path / "haproxy.cfg"
    conf.write_text(_CONFIGURATION.format(**ports))

    def is_served() -> bool:
        with contextlib.suppress(OSError, EOFError):
            return get(front, "/small/5").status == 200
        return False

    with contextlib.ExitStack() as stack:
        running = {name: stack.enter_context(contextlib.ExitStack()) for name in ("a", "b")}
        for name, server in running.items():
            server.enter_context(instance(serves, ports[name]))
        stack.enter_context(live_server([program("haproxy"), "-db", "-f", str(conf)], front))
        wait_for(is_served, "HAProxy has found them")
        visitors = stack.enter_context(Visitors(front, 4))
        for restart in range(RESTARTS):
            name = "ab"[restart % 2]
            running[name].close()
            running[name].enter_context(instance(serves, ports[name]))
            # The other server stops only after HAProxy has had time to find this one.
            visitors.wait_for_more(50)
    assert not visitors.lost, visitors.lost[:5]
    assert visitors.served
