"""What came back of a request to an app, byte by byte."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from tests.server.connections import MakeBench
from tests.workers.bench import Bench, Client
from wsgifast.bodies.files import SegmentedBody
from wsgifast.sockets import FileSegment

Headers = list[tuple[str, str]]
Ask = Callable[..., "Asked"]


class Asked:
    """What came back of one request, and what the worker had to say about it."""

    def __init__(self, bench: Bench, client: Client) -> None:
        self.bench = bench
        self.client = client
        self.raw = client.receive_all_there_is()

    @property
    def head(self) -> list[str]:
        """The lines of the head that are the app's doing."""
        lines = self.raw.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
        return [line for line in lines if not line.startswith(("Server: ", "Date: "))]

    @property
    def body(self) -> bytes:
        return self.raw.partition(b"\r\n\r\n")[2]

    @property
    def warnings(self) -> list[str]:
        """What was logged but for the begin of the worker."""
        # A test has no arbiter, which the first worker of a process reports.
        lines: list[str] = self.bench.log.lines
        return lines[1:]

    @property
    def failed(self) -> bool:
        return self.raw.startswith(b"HTTP/1.1 500 ") and self.is_closed

    @property
    def is_closed(self) -> bool:
        self.client.sock.setblocking(False)
        try:
            return self.client.sock.recv(1) == b""
        except BlockingIOError:
            return False


@pytest.fixture
def ask(make_bench: MakeBench) -> Ask:
    """Asks an app once, on a connection that may stay."""

    def ask(
        app: Callable[..., Any], method: str = "GET", version: str = "1.1", **more: Any
    ) -> Asked:
        bench = make_bench(app, keepalive=5)
        client = bench.connect()
        client.send_request(method=method, version=version, **more)
        bench.run()
        return Asked(bench, client)

    return ask


def segmented(segments: Iterable[bytes | FileSegment]) -> SegmentedBody:
    return SegmentedBody(list(segments), lambda: None)
