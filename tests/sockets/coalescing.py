"""Sockets and writers for tests of coalescing."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from wsgifast.sockets import (
    CoalescingWriter,
)

__all__ = ["IOV_MAX", "NEVER_US", "FakeSocket", "Foreground", "arrived", "fake", "run_python"]

NEVER_US = 1e6  # a window that does not end within a test


IOV_MAX = os.sysconf("SC_IOV_MAX")


class FakeSocket(socket.socket):
    """Takes a limited number of bytes a call, and remembers each call."""

    def __init__(self, takes: Sequence[int | Exception] = (1 << 40,)) -> None:
        super().__init__(socket.AF_UNIX)
        self.takes = itertools.chain(takes[:-1], itertools.repeat(takes[-1]))
        self.calls: list[bytes] = []

    def send(self, data: Any, flags: int = 0) -> int:
        taken = next(self.takes)
        if isinstance(taken, Exception):
            raise taken
        self.calls.append(memoryview(data).tobytes()[:taken])
        return len(self.calls[-1])

    def sendmsg(self, buffers: Any, *args: Any) -> int:
        assert isinstance(buffers, Sequence)
        assert len(buffers) <= IOV_MAX
        return self.send(b"".join(buffers))

    @property
    def sent(self) -> bytes:
        return b"".join(self.calls)


@pytest.fixture
def fake() -> Iterator[Callable[..., FakeSocket]]:
    """Makes fake sockets, closed at the end."""
    with contextlib.ExitStack() as stack:
        yield lambda *takes: stack.enter_context(FakeSocket(takes or (1 << 40,)))


class Foreground(CoalescingWriter):
    """Without the flusher: what is sent when depends on the calls alone."""

    def __init__(self, sock: socket.socket, **options: Any) -> None:
        super().__init__(sock, background=False, **options)


def run_python(code: str) -> None:
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr


def arrived(sock: socket.socket) -> bytes:
    """What a receive would give at this moment."""
    with contextlib.suppress(BlockingIOError):
        return sock.recv(65_536, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    return b""
