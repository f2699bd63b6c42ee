"""The detector of blocking calls detects them."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from .support import RWF_NOWAIT, BlockingCall, forbid_blocking_calls

BLOCKING: dict[str, Callable[[str, int], object]] = {
    "open": lambda path, fd: open(path, "rb").close(),
    "os.open": lambda path, fd: os.close(os.open(path, os.O_RDONLY)),
    "read": lambda path, fd: os.read(fd, 1),
    "pread": lambda path, fd: os.pread(fd, 1, 0),
    "preadv": lambda path, fd: os.preadv(fd, [bytearray(1)], 0),
    "stat": lambda path, fd: os.stat(path),
    "listdir": lambda path, fd: os.listdir(os.path.dirname(path)),
    "sleep": lambda path, fd: time.sleep(0),
}
if sys.version_info >= (3, 11):  # an older pathlib holds the os.stat that it was imported with
    BLOCKING["Path.stat"] = lambda path, fd: Path(path).stat()


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "file").write_bytes(b"data")
    return str(tmp_path / "file")


@pytest.mark.parametrize("name", BLOCKING)
def test_blocking_calls_fail_on_the_loop_only(
    name: str, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocking = BLOCKING[name]
    fd = os.open(file, os.O_RDONLY)

    async def on_the_loop() -> None:
        with pytest.raises(BlockingCall):
            blocking(file, fd)
        await asyncio.to_thread(blocking, file, fd)

    try:
        forbid_blocking_calls(monkeypatch)
        blocking(file, fd)
        asyncio.run(on_the_loop())
    finally:
        os.close(fd)


@pytest.mark.skipif(not RWF_NOWAIT, reason="Linux only")
def test_reads_that_cannot_wait_are_let_through(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fd = os.open(file, os.O_RDONLY)
    buffer = bytearray(4)

    async def read() -> int:
        return os.preadv(fd, [buffer], 0, RWF_NOWAIT)

    try:
        forbid_blocking_calls(monkeypatch)
        assert asyncio.run(read()) == 4
        assert buffer == b"data"
    finally:
        os.close(fd)
