"""How a worker of a test bench is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tests.workers.bench import Bench, Client

__all__ = ["MakeBench", "ask", "hello"]

MakeBench = Callable[..., Bench]


def hello(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Length", "5")])
    return [b"hello"]


def ask(bench: Bench, client: Client | None = None, **more: Any) -> tuple[int, bool, bytes]:
    """One request; returns its status, whether the connection is kept, and the body."""
    client = client or bench.connect()
    client.send_request(**more)
    bench.run()
    response = client.read_response()
    if not response.keep_alive:
        assert client.read_to_end() == b""
    return response.status, response.keep_alive, response.body
