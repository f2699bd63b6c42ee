"""The detector of blocking calls detects them, on every event loop."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.support.servers import wait_for

from .blocking import RWF_NOWAIT, watch
from .servers import SERVERS, asgi_server


class Subject:
    """Return the arguments for the blocking functions."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "file")
        Path(self.path).write_bytes(b"data")
        self.fd = os.open(self.path, os.O_RDWR)
        self.ours, self.peer = socket.socketpair()

    def close(self) -> None:
        os.close(self.fd)
        self.ours.close()
        self.peer.close()


@pytest.fixture
def subject(tmp_path: Path) -> Iterator[Subject]:
    subject = Subject(tmp_path)
    yield subject
    subject.close()


BLOCKING: dict[str, Callable[[Subject], object]] = {
    "open": lambda s: open(s.path, "rb").close(),
    "os.open": lambda s: os.close(os.open(s.path, os.O_RDONLY)),
    "os.read": lambda s: os.read(s.fd, 1),
    "os.readv": lambda s: os.readv(s.fd, [bytearray(1)]),
    "os.pread": lambda s: os.pread(s.fd, 1, 0),
    "os.preadv": lambda s: os.preadv(s.fd, [bytearray(1)], 0),
    "os.stat": lambda s: os.stat(s.path),
    "os.lstat": lambda s: os.lstat(s.path),
    "os.access": lambda s: os.access(s.path, os.R_OK),
    "os.path.exists": lambda s: os.path.exists(s.path),
    "os.path.realpath": lambda s: os.path.realpath(s.path),
    "os.listdir": lambda s: os.listdir(os.path.dirname(s.path)),
    "os.scandir": lambda s: os.scandir(os.path.dirname(s.path)).close(),
    "os.fsync": lambda s: os.fsync(s.fd),
    "time.sleep": lambda s: time.sleep(0),
    "sendfile to a blocking socket": lambda s: os.sendfile(s.ours.fileno(), s.fd, 0, 4),
    "send to a blocking socket": lambda s: s.ours.send(b"data"),
    "Path.open": lambda s: Path(s.path).open("rb").close(),
    "Path.stat": lambda s: Path(s.path).stat(),
}


def found_in(run: Callable[[], object], *, blamed: str = __file__) -> list[str]:
    """Return the blocking calls of a module while a function runs."""
    found: list[str] = []
    with watch(found.append, blamed=(blamed,)):
        run()
    return found


async def _calling(blocking: Callable[[Subject], object], subject: Subject) -> None:
    blocking(subject)


@pytest.mark.parametrize("run", [asyncio.run, None], ids=["asyncio", "trio"])
def test_blocking_calls_are_found(run: Any, subject: Subject) -> None:
    for name, blocking in BLOCKING.items():
        found = found_in(lambda blocking=blocking: _run(run, _calling, blocking, subject))  # type: ignore[misc]
        assert found, name
        assert "test_support.py" in found[0], f"the stack tells where: {name}"


def _run(run: Any, function: Callable[..., Awaitable[None]], *args: Any) -> None:
    if run is None:
        trio.run(function, *args)
    else:
        run(function(*args))


@pytest.mark.parametrize("name", BLOCKING)
def test_blocking_calls_elsewhere_are_let_through(name: str, subject: Subject) -> None:
    blocking = BLOCKING[name]

    async def in_asyncios_thread() -> None:
        await asyncio.to_thread(blocking, subject)

    async def in_trios_thread() -> None:
        await trio.to_thread.run_sync(blocking, subject)

    assert not found_in(lambda: blocking(subject)), "no event loop runs"
    assert not found_in(lambda: asyncio.run(in_asyncios_thread()))
    assert not found_in(lambda: trio.run(in_trios_thread))
    by_others = found_in(lambda: asyncio.run(_calling(blocking, subject)), blamed="/elsewhere/")
    assert not by_others


@pytest.mark.skipif(not RWF_NOWAIT, reason="Linux only")
def test_calls_that_cannot_wait_are_let_through(subject: Subject) -> None:
    buffer = bytearray(4)
    subject.ours.setblocking(False)

    async def run() -> None:
        assert os.preadv(subject.fd, [buffer], 0, RWF_NOWAIT) == 4
        assert os.sendfile(subject.ours.fileno(), subject.fd, 0, 4) == 4
        assert subject.ours.send(b"more") == 4

    assert not found_in(lambda: asyncio.run(run()))
    assert buffer == b"data"
    assert subject.peer.recv(100) == b"datamore"


@pytest.mark.skipif(not RWF_NOWAIT, reason="Linux only")
def test_sendfile_from_the_disk_is_found(subject: Subject) -> None:
    subject.ours.setblocking(False)
    found: list[str] = []

    async def run() -> None:
        os.sendfile(subject.ours.fileno(), subject.fd, 0, 4)

    def attempt() -> list[str]:
        os.fsync(subject.fd)
        # The kernel may ignore it while it uses the pages.
        os.posix_fadvise(subject.fd, 0, 0, os.POSIX_FADV_DONTNEED)
        found.extend(found_in(lambda: asyncio.run(run())))
        # Unread bytes would keep the page in memory.
        assert subject.peer.recv(100) == b"data"
        return found

    wait_for(attempt, "sendfile was found to wait for the disk")
    assert len(found) == 1
    assert found[0].startswith("os.sendfile of 4 bytes from 0 on, not in memory: [0")


@pytest.mark.parametrize("name", sorted(SERVERS))
def test_server_that_blocks_fails_its_test(name: str, files: Path) -> None:
    with (  # noqa: PT012 - the end of the inner block raises
        pytest.raises(AssertionError, match=r"time\.sleep\(0,\) on an event loop"),
        asgi_server(name, "tests.asgi.app:fast", files) as server,
    ):
        assert server.get("/hello").body == b"hello"
        assert server.get("/stall").body == b"hello"
