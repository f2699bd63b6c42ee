"""Waiting for room in many sockets at once."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import pairwise

import pytest
from asgifast.protocols import file_transfer

SOCKETS = 5 * file_transfer.EVENTS_AT_ONCE


@pytest.fixture
def descriptors() -> Iterator[list[int]]:
    """Of sockets that have writable."""
    with contextlib.ExitStack() as stack:
        pairs = [socket.socketpair() for _ in range(SOCKETS)]
        for sock in (sock for pair in pairs for sock in pair):
            stack.enter_context(sock)
        yield [sock.fileno() for sock, _ in pairs]


@pytest.fixture(params=["epoll", "selectors"])
def _selector(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "selectors":
        monkeypatch.setattr(file_transfer, "HAS_EPOLL", False)
    elif not hasattr(select, "epoll"):
        pytest.skip("only Linux has it")


@pytest.mark.usefixtures("_selector")
async def test_many_sockets_with_room_share_the_loop_with_others(
    descriptors: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_transfer, "TURN_S", 0.0)
    called: Counter[int] = Counter()
    seen: list[int] = []

    loop = asyncio.get_running_loop()
    for fd in descriptors:
        file_transfer.call_while_writable(loop, fd, partial(called.update, [fd]))
    while called.total() < 3 * SOCKETS:
        seen.append(called.total())
        await asyncio.sleep(0)
    for fd in descriptors:
        file_transfer.stop_calling(loop, fd)
    assert max(after - before for before, after in pairwise(seen)) == file_transfer.EVENTS_AT_ONCE
    assert set(called.values()) == {3}, "some were called before others that had waited longer"


@pytest.mark.usefixtures("_selector")
async def test_callback_may_stop_watching_all_sockets(descriptors: list[int]) -> None:
    called = []

    loop = asyncio.get_running_loop()

    def stop(fd: int) -> None:
        called.append(fd)
        for each in descriptors:
            file_transfer.stop_calling(loop, each)

    for fd in descriptors:
        file_transfer.call_while_writable(loop, fd, partial(stop, fd))
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(called) == 1
