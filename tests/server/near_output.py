"""An output queue to a near client, blocks right behind each other, and files to send."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.output_bench import Near, opened, rules
from wsgifast.server import coalescing

__all__ = [
    "CONTENT",
    "SIZE",
    "blocks",
    "content",
    "file",
    "in_quick_succession",
    "near",
    "needs_near_buffers",
]

SIZE = 8 * 1024 * 1024
needs_near_buffers = pytest.mark.skipif(
    not hasattr(socket, "TCP_INFO"), reason="only Linux reports how far away a peer is"
)


@pytest.fixture
def near() -> Iterator[Near]:
    near = Near(rules())
    yield near
    near.close()


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    with opened(tmp_path / "file", os.urandom(SIZE)) as fd:
        yield fd


@pytest.fixture(autouse=True)
def in_quick_succession(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block comes right behind the one before."""
    monkeypatch.setattr(coalescing, "_COALESCE_S", math.inf)


CONTENT = bytes(range(256)) * 4096


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with opened(tmp_path_factory.mktemp("output") / "content", CONTENT) as fd:
        yield fd


def blocks(count: int, size: int = 1000) -> Iterator[bytes]:
    for number in range(count):
        yield b"%0*d" % (size, number)
