"""What an app leaves unread of a body that it was to read from the client."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from wsgifast.workers.connection import _DRAIN_BYTES, Connection


class Unread:
    """A body of which so many bytes are there at once, as from a client that is fast enough."""

    def __init__(self, size: int) -> None:
        self.left = size

    def read(self, size: int) -> bytes:
        size = min(size, self.left)
        self.left -= size
        return bytes(size)


@pytest.mark.parametrize(
    ("size", "kept"), [(0, True), (_DRAIN_BYTES, True), (100 * _DRAIN_BYTES, False)]
)
def test_no_client_holds_a_thread_with_a_body_that_nobody_wants(size: int, kept: bool) -> None:
    connection: Any = Connection.__new__(Connection)
    connection.received = SimpleNamespace(wait=None)
    connection.sock = SimpleNamespace(recv=None)
    body = Unread(size)
    assert connection._drain_stream(SimpleNamespace(body=body)) is kept
    assert size - body.left <= 2 * _DRAIN_BYTES
