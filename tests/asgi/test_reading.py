"""Reading files on an event loop: to their end, and without waiting for the disk."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from asgifast.files import read_block

from wsgifast.sockets import sending

DATA = bytes(range(256)) * 40


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "file").write_bytes(DATA)
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    yield fd
    os.close(fd)


@pytest.mark.parametrize("can_be_asked", [True, False])
def test_block_that_is_read_ends_with_the_file(
    fd: int, can_be_asked: bool, monkeypatch: pytest.MonkeyPatch, blocking_calls: list[str]
) -> None:
    if not can_be_asked:
        monkeypatch.setattr(sending, "_NOWAIT", 0)
    for offset, size in ((0, 10), (len(DATA) - 3, 10), (len(DATA), 10)):
        assert asyncio.run(read_block(fd, offset, size)) == DATA[offset : offset + size]
    assert not blocking_calls
