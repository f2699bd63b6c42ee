"""Apps over HTTP/2 on FastWorker's bench, and a client of theirs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gunicorn.http.wsgi import FileWrapper

from tests.server.http2_bench import HTTP2, Peer
from tests.support.servers import wait_for
from tests.workers.bench import LARGE, Bench, echo

MakeBench = Callable[..., Bench]
App = Callable[[dict[str, Any], Any], Iterable[bytes]]

NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, CANCEL, REFUSED = 0, 1, 2, 8, 7
ENHANCE_YOUR_CALM = 11


@pytest.fixture
def begin(make_bench: MakeBench) -> Callable[..., Peer]:
    """A client of an app; `attributes` and gunicorn's settings may be named."""

    def make(app: App = echo, client: dict[str, Any] | None = None, **options: Any) -> Peer:
        options = {"keepalive": 5, "worker_connections": 100, **HTTP2, **options}
        return Peer(make_bench(app, **options), **(client or {}))

    return make


Begin = Callable[..., Peer]


def app_of(body: Callable[[], Iterable[bytes]], *headers: tuple[str, str]) -> App:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", list(headers))
        return body()

    return app


def generator() -> Iterator[bytes]:
    for _ in range(16):
        yield bytes(LARGE // 16)


def large_file(folder: Path) -> Callable[[], Iterable[bytes]]:
    path = folder / "large"
    path.write_bytes(os.urandom(LARGE))

    def body() -> Iterable[bytes]:
        return FileWrapper(path.open("rb"))  # type: ignore[no-any-return]

    return body


def wait_for_disk(peer: Peer, condition: Callable[[], bool]) -> None:
    """A disk thread may bring what comes next: run until it has."""

    def holds() -> bool:
        peer.run()
        return condition()

    wait_for(holds, "all has come that the window lets through")


def another_thread(peer: Peer) -> None:
    """What another thread does with what has come, while an app runs in this one."""
    server = peer.bench.server
    server.pool.poll_events(0)
    while server.pool.work:
        job = peer.bench.take_up()
        if job is not None:
            peer.bench.answer(job)


def many(peer: Peer, count: int, make: Callable[[], object]) -> None:
    for _ in range(count):
        make()
    peer.run()
