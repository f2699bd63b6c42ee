"""The response of an app to a request, byte by byte."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from tests.server.connections import MakeStepped
from tests.workers.stepped_worker import Client, SteppedWorker
from wsgifast.bodies.files import SegmentedBody
from wsgifast.sockets import FileSegment

Headers = list[tuple[str, str]]
Ask = Callable[..., "Received"]


class Received:
    """The response to one request, and the worker's log lines about it."""

    def __init__(self, stepped: SteppedWorker, client: Client) -> None:
        self.stepped = stepped
        self.client = client
        self.raw = client.receive_all_there_is()

    @property
    def headers(self) -> list[str]:
        """Return the header lines that the app has set."""
        lines = self.raw.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
        return [line for line in lines if not line.startswith(("Server: ", "Date: "))]

    @property
    def body(self) -> bytes:
        return self.raw.partition(b"\r\n\r\n")[2]

    @property
    def warnings(self) -> list[str]:
        """Return the log lines, without those from the start of the worker."""
        # A test has no arbiter. The first worker of a process logs that it is missing.
        lines: list[str] = self.stepped.log.lines
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
def ask(make_stepped: MakeStepped) -> Ask:
    """Send one request to an app, on a connection that may stay open."""

    def ask(
        app: Callable[..., Any], method: str = "GET", version: str = "1.1", **more: Any
    ) -> Received:
        stepped = make_stepped(app, keepalive=5)
        client = stepped.connect()
        client.send_request(method=method, version=version, **more)
        stepped.run()
        return Received(stepped, client)

    return ask


def segmented(segments: Iterable[bytes | FileSegment]) -> SegmentedBody:
    return SegmentedBody(list(segments), lambda: None)
