"""Ports for servers under test, which no other process of tests takes meanwhile.

A server opens its port only some time after it has been chosen: others that run tests on this
machine must not choose the same one until then.
"""

from __future__ import annotations

import functools
import itertools
import socket
import sys
from collections.abc import Iterator

from wsgifast.commands.bench import processes

__all__ = ["free_port"]

# Below those that systems give to clients (Linux from 32768 on).
_PORTS = range(10_000, 32_000)
_BLOCK = 250


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nothing has, and that no other call returns for a while."""
    claimed = _claimed()
    if claimed is None:
        return processes.free_port()
    for port in itertools.islice(claimed, _BLOCK):
        with socket.socket() as sock:
            try:
                sock.bind((processes.HOST, port))
            except OSError:
                continue
        return port
    raise AssertionError("no port of this process's own is free")


@functools.cache
def _claimed() -> Iterator[int] | None:
    """The ports of this process, round and round; None where there are none left to claim."""
    if sys.platform != "linux":
        return None
    for start in range(_PORTS.start, _PORTS.stop, _BLOCK):
        claim = socket.socket(socket.AF_UNIX)
        try:
            # An abstract address: one process alone can have it, and it goes with that process.
            claim.bind(f"\0wsgifast-test-ports-{start}")
        except OSError:
            claim.close()
            continue
        _claims.append(claim)
        return itertools.cycle(range(start, start + _BLOCK))
    return None


_claims: list[socket.socket] = []
