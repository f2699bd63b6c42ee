"""epoll alone: listeners that several processes share, and what the kernel reports in parts."""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from tests.support.servers import wait_for
from wsgifast.server.monitor import is_running
from wsgifast.server.poller import (
    READ,
    WRITE,
    EpollPoller,
)

# A poll that finds nothing fails the test instead of the run.
PATIENCE_S = 60.0


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield listener


@pytest.mark.skipif(not hasattr(select, "EPOLLEXCLUSIVE"), reason="Linux only")
def test_one_of_those_that_share_a_listener_is_told_and_each_in_its_turn(
    listener: socket.socket,
) -> None:
    """Two pollers are to the kernel what two processes are."""
    pollers = [EpollPoller(), EpollPoller()]
    fd = listener.fileno()
    woken: list[int] = []
    for poller in pollers:
        poller.listen(fd)

    def poll(number: int) -> None:
        while events := pollers[number].poll(PATIENCE_S):
            assert events == [(fd, READ)]
            woken.append(number)
            listener.accept()[0].close()
            pollers[number].queue_behind_others(fd)
            accepted.release()

    accepted = threading.Semaphore(0)
    threads = [threading.Thread(target=poll, args=(number,), daemon=True) for number in range(2)]
    for thread in threads:
        thread.start()
    for count in range(1, 11):
        # No event wakes who does not wait: on a busy machine a thread may not be there yet.
        wait_for(lambda: not any(map(is_running, threads)), "both of them wait")
        with socket.create_connection(listener.getsockname(), PATIENCE_S):
            assert accepted.acquire(timeout=PATIENCE_S)
            # Who was woken in vain would fail at accept(), in its thread.
            assert len(woken) == count
    for poller in pollers:
        poller.wake()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    for poller in pollers:
        poller.close()
    assert set(woken) == {0, 1}


@pytest.mark.skipif(not hasattr(select, "EPOLLEXCLUSIVE"), reason="Linux only")
def test_a_kernel_that_can_only_tell_them_all(listener: socket.socket) -> None:
    poller = EpollPoller()
    register = poller._register
    masks: list[int] = []

    def old_kernel(fd: int, events: int) -> None:
        masks.append(events)
        if events & select.EPOLLEXCLUSIVE:
            raise OSError(errno.EINVAL, "Invalid argument")
        register(fd, events)

    poller._register = old_kernel  # type: ignore[assignment]
    poller.listen(listener.fileno())
    assert masks == [select.EPOLLIN | select.EPOLLEXCLUSIVE, select.EPOLLIN]
    poller.queue_behind_others(listener.fileno())
    with socket.create_connection(listener.getsockname(), PATIENCE_S):
        assert poller.poll(PATIENCE_S) == [(listener.fileno(), READ)]
    with pytest.raises(OSError, match="exists"):
        poller.listen(listener.fileno())
    poller.close()


def test_a_poll_gathers_what_the_kernel_tells_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short request may be behind thousands of downloads that have room; but there is an end."""
    monkeypatch.setattr("wsgifast.server.poller._MOST_AT_ONCE", 2)
    monkeypatch.setattr("wsgifast.server.poller._MOST_EVENTS", 6)
    poller = EpollPoller()
    parts: list[list[tuple[int, int]]] = []
    timeouts: list[float | None] = []

    def poll(timeout: float | None) -> list[tuple[int, int]]:
        timeouts.append(timeout)
        return parts.pop(0)

    epoll, poller._epoll = poller._epoll, SimpleNamespace(poll=poll)  # type: ignore[assignment]
    try:
        for sizes, reported in (([1], 1), ([2, 0], 2), ([2, 2, 1], 5), ([2] * 6, 8)):
            timeouts.clear()
            numbers = iter(range(100, 200))
            parts[:] = [[(next(numbers), WRITE) for _ in range(size)] for size in sizes]
            assert poller.poll(7.0) == [(100 + number, WRITE) for number in range(reported)]
            assert timeouts == [7.0, *[0] * (min(len(sizes), 4) - 1)]
    finally:
        poller._epoll = epoll
        poller.close()


def test_who_wakes_a_poll_is_no_event_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although the kernel reports it in each part of the events."""
    monkeypatch.setattr("wsgifast.server.poller._MOST_AT_ONCE", 2)
    poller = EpollPoller()
    epoll = poller._epoll
    with contextlib.ExitStack() as stack:
        stack.callback(poller.close)
        poller.wake()
        numbers = set()
        for _ in range(6):
            near, far = socket.socketpair()
            stack.enter_context(near)
            stack.enter_context(far)
            poller.add(near.fileno(), WRITE)
            numbers.add(near.fileno())
        in_parts = SimpleNamespace(poll=lambda timeout: epoll.poll(timeout, 2), close=epoll.close)
        poller._epoll = in_parts  # type: ignore[assignment]
        assert sorted(poller.poll(PATIENCE_S)) == sorted((fd, WRITE) for fd in numbers)
