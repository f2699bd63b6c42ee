"""What the tests of connections send, and what they measure."""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from tests.workers.bench import Bench, echo

__all__ = [
    "CHUNKED", "EXPECTS", "HEAD", "KNOWN", "NONSENSE", "STREAMED", "App", "MakeBench", "bench",
    "descriptors", "fill",
]  # fmt: skip

HEAD = b"POST / HTTP/1.1\r\nHost: a\r\n"
KNOWN = HEAD + b"Content-Length: 10\r\n\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
EXPECTS = HEAD + b"Content-Length: 4\r\nExpect: 100-continue\r\n\r\n"
NONSENSE = b"G=T / HTTP/1.1\r\n\r\n"
STREAMED = {"buffer_bodies": False}

MakeBench = Callable[..., Bench]
App = Callable[[dict[str, Any], Any], Iterable[bytes]]


@pytest.fixture
def bench(make_bench: MakeBench) -> Bench:
    return make_bench(echo, keepalive=5, worker_connections=100)


def fill(sock: socket.socket) -> int:
    """Send zeros until a non-blocking socket takes no more, and return how many."""
    sent = 0
    try:
        while True:
            sent += sock.send(bytes(65_536))
    except BlockingIOError:
        return sent


def descriptors() -> int:
    gc.collect()  # no other test's garbage closes its own meanwhile
    return len(os.listdir("/proc/self/fd"))
