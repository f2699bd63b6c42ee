"""Pollers: each event is reported to one thread, once, until its descriptor is armed again."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from tests.server.pool_harness import PATIENCE_S, poller_of
from tests.support.process import open_descriptors
from tests.support.servers import wait_for
from tests.workers.serving import POLLERS
from wsgifast.server.monitor import is_running
from wsgifast.server.poller import (
    HUNG_UP,
    READ,
    WRITE,
    EpollPoller,
    Poller,
    PollPoller,
    make_poller,
)  # fmt: skip

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture(params=POLLERS)
def poller(request: pytest.FixtureRequest) -> Iterator[Poller]:
    made = poller_of(request.param)
    yield made
    made.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Return a connected pair of sockets.

    Sending on the second makes the first readable. Both are writable.
    """
    near, far = socket.socketpair()
    with near, far:
        yield near, far


class Polling:
    """Poll without a timeout in another thread. `started` is the last call before it."""

    def __init__(self, poller: Poller) -> None:
        self.events: list[tuple[int, int]] = []
        self._poller = poller
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()
        assert self._started.wait(PATIENCE_S)

    def _poll(self) -> None:
        self._started.set()
        self.events = self._poller.poll(None)

    def result(self) -> list[tuple[int, int]]:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the poll did not return"
        return self.events


def poll_until(poller: Poller, wanted: int) -> list[tuple[int, int]]:
    """Return the first events. A poll may return no event after a change of the descriptors."""
    events: list[tuple[int, int]] = []
    for _ in range(10):
        events = poller.poll(PATIENCE_S)
        if events:
            break
    assert [fd for fd, _ in events] == [wanted]
    return events


def assert_silent(poller: Poller) -> None:
    """No poll reports an event, however often it is called."""
    for _ in range(3):
        assert poller.poll(0) == []


def test_event_comes_once(poller: Poller, pair: Pair) -> None:
    near, far = pair
    poller.add(near.fileno(), READ)
    assert_silent(poller)
    far.sendall(b"a")
    assert poll_until(poller, near.fileno()) == [(near.fileno(), READ)]
    assert_silent(poller)
    far.sendall(b"b")
    assert_silent(poller)


def test_event_comes_again_once_armed_again(poller: Poller, pair: Pair) -> None:
    near, far = pair
    poller.add(near.fileno(), READ)
    far.sendall(b"a")
    for _ in range(3):  # the byte is never read: the socket stays readable
        poll_until(poller, near.fileno())
        poller.arm(near.fileno(), READ)
    near.recv(1)
    assert_silent(poller)


def test_arming_changes_which_events_come(poller: Poller, pair: Pair) -> None:
    near, far = pair
    poller.add(near.fileno(), READ)
    assert_silent(poller)
    poller.arm(near.fileno(), WRITE)
    assert poll_until(poller, near.fileno()) == [(near.fileno(), WRITE)]
    poller.arm(near.fileno(), READ | WRITE)
    far.sendall(b"a")
    assert poll_until(poller, near.fileno()) == [(near.fileno(), READ | WRITE)]


def test_events_of_several_descriptors_come_together(poller: Poller) -> None:
    pairs = [socket.socketpair() for _ in range(20)]
    for near, far in pairs:
        poller.add(near.fileno(), READ)
        far.sendall(b"a")
    seen: list[int] = []
    while len(seen) < len(pairs):
        events = poller.poll(PATIENCE_S)
        seen += [fd for fd, _ in events]
    assert sorted(seen) == sorted(near.fileno() for near, _ in pairs)
    assert_silent(poller)
    for near, far in pairs:
        near.close()
        far.close()


@pytest.mark.parametrize("known", [False, True])
def test_descriptor_armed_during_a_poll_is_reported(
    poller: Poller, pair: Pair, known: bool
) -> None:
    near, _ = pair
    if known:
        poller.add(near.fileno(), READ)
        assert_silent(poller)
    polling = Polling(poller)
    (poller.arm if known else poller.add)(near.fileno(), WRITE)
    events = polling.result() or poller.poll(PATIENCE_S)  # the first event was for the change
    assert events == [(near.fileno(), WRITE)]


def test_descriptor_armed_for_nothing_reports_hang_up(poller: Poller, pair: Pair) -> None:
    near, far = pair
    poller.add(near.fileno(), READ)
    poller.arm(near.fileno(), 0)
    far.sendall(b"a")
    assert_silent(poller)
    far.close()
    assert [mask & select.POLLHUP for _, mask in poller.poll(0)] == [select.POLLHUP]
    poller.arm(near.fileno(), READ)
    poll_until(poller, near.fileno())


def test_connection_end_is_reported_to_both_sides(poller: Poller) -> None:
    for events in (READ, WRITE):
        near, far = socket.socketpair()
        with near:
            poller.add(near.fileno(), events)
            far.close()
            ((_, mask),) = poll_until(poller, near.fileno())
            assert mask
            poller.forget(near.fileno())


def test_hang_up_is_reported_to_readers_alone() -> None:
    poller = EpollPoller()
    near, far = socket.socketpair()
    with near, far:
        poller.add(near.fileno(), READ)
        far.sendall(b"a")
        assert poll_until(poller, near.fileno()) == [(near.fileno(), READ)]
        far.shutdown(socket.SHUT_WR)
        poller.arm(near.fileno(), READ)
        assert poll_until(poller, near.fileno()) == [(near.fileno(), READ | HUNG_UP)]
        poller.arm(near.fileno(), WRITE)
        assert poll_until(poller, near.fileno()) == [(near.fileno(), WRITE)]
        # Otherwise it would be reported again and again while there is no room.
        poller.arm(near.fileno(), 0)
        assert_silent(poller)
    poller.close()


def test_forgotten_descriptor_is_silent(poller: Poller, pair: Pair) -> None:
    near, far = pair
    poller.add(near.fileno(), READ)
    assert_silent(poller)
    far.sendall(b"a")
    poller.forget(near.fileno())
    assert_silent(poller)
    poller.forget(near.fileno())  # twice, or a descriptor that was never added
    assert_silent(poller)
    poller.add(near.fileno(), READ)
    poll_until(poller, near.fileno())


def test_number_used_again_is_watched_as_the_new_one(poller: Poller, pair: Pair) -> None:
    """A descriptor is closed and opened between two polls.

    The new one is watched, and not mistaken for the old one.
    """
    near, _ = pair
    poller.add(near.fileno(), READ)
    assert_silent(poller)
    new, far = socket.socketpair()
    with new, far:
        os.dup2(new.fileno(), near.fileno())  # closes the old one
        poller.add(near.fileno(), READ)
        assert_silent(poller)
        far.sendall(b"a")
        assert poll_until(poller, near.fileno()) == [(near.fileno(), READ)]


def test_listener_stays_armed(poller: Poller) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        poller.listen(listener.fileno())
        assert_silent(poller)
        with socket.create_connection(listener.getsockname()):
            for _ in range(3):
                poll_until(poller, listener.fileno())
            listener.accept()[0].close()
            assert_silent(poller)
        with socket.create_connection(listener.getsockname()):
            poll_until(poller, listener.fileno())
            poller.forget(listener.fileno())
            assert_silent(poller)
            poller.listen(listener.fileno())
            poll_until(poller, listener.fileno())


def test_wake_ends_the_poll_that_waits(poller: Poller) -> None:
    polling = Polling(poller)
    poller.wake()
    assert polling.result() == []


def test_wake_ends_the_next_poll_alone(poller: Poller, pair: Pair) -> None:
    for _ in range(70_000):  # more than a pipe contains: a full pipe must not block or fail
        poller.wake()
    near, far = pair
    poller.add(near.fileno(), READ)
    far.sendall(b"a")
    seen = []
    for _ in range(1000):
        events = poller.poll(None)
        seen += events
        if not events and poller.poll(0) == []:
            break
    assert seen == [(near.fileno(), READ)]  # neither lost among the wake-ups, nor reported twice


def test_wake_of_a_closed_poller_does_nothing() -> None:
    for kind in POLLERS:
        before = open_descriptors()
        poller = poller_of(kind)
        made = open_descriptors() - before
        assert len(made) == (3 if kind == "epoll" else 2)
        poller.close()
        assert not made & open_descriptors(), f"{kind} keeps a descriptor"
        # They have its descriptors' numbers now.
        ends = [end for _ in range(2) for end in socket.socketpair()]
        poller.wake()
        assert not select.select(ends, [], [], 0)[0]
        for end in ends:
            end.close()


def test_wake_is_taken_up_by_one_poll(poller: Poller) -> None:
    """The next poll would be a busy loop.

    A thread that was woken together with another finds nothing.
    """
    pipe = poller._pipe
    poller.wake()
    assert poller.poll(PATIENCE_S) == []
    assert not select.select([pipe.fd], [], [], 0)[0]
    pipe.empty()


def test_number_of_a_listener_may_be_reused(poller: Poller, pair: Pair) -> None:
    near, far = pair
    far.sendall(b"a")
    poller.listen(near.fileno())
    poll_until(poller, near.fileno())
    poller.forget(near.fileno())
    poller.add(near.fileno(), READ)
    poll_until(poller, near.fileno())
    assert_silent(poller)


def test_closed_descriptor_is_reported_once_at_most(poller: Poller) -> None:
    near, far = socket.socketpair()
    with far:
        poller.add(near.fileno(), READ)
        near.close()
        assert len(poller.poll(0)) <= 1
        assert_silent(poller)


def test_event_goes_to_one_thread(poller: Poller) -> None:
    """Four threads poll.

    Each of many descriptors is armed many times, and one thread at a time owns it.
    """
    rounds = 50
    pairs = [socket.socketpair() for _ in range(20)]
    owned = {near.fileno(): threading.Lock() for near, _ in pairs}
    left = {near.fileno(): rounds for near, _ in pairs}
    faults: list[str] = []
    done = threading.Event()

    def serve() -> None:
        while not done.is_set():
            for fd, _ in poller.poll(None):
                if not owned[fd].acquire(blocking=False):
                    faults.append(f"{fd} was given to two threads")
                    continue
                left[fd] -= 1
                finished = left[fd] <= 0
                owned[fd].release()
                if not finished:
                    poller.arm(fd, READ)
                elif not any(left.values()):
                    done.set()
        poller.wake()  # the next one, until all threads have seen it

    threads = [threading.Thread(target=serve, daemon=True) for _ in range(4)]
    for near, far in pairs:
        far.sendall(b"a")  # never read, so always readable
        poller.add(near.fileno(), READ)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads), f"events were lost: {left}"
    assert not faults, faults
    assert set(left.values()) == {0}
    for near, far in pairs:
        near.close()
        far.close()


def test_poller_is_of_epoll_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.closing(make_poller()) as poller:
        assert type(poller) is EpollPoller
    monkeypatch.delattr(select, "epoll")
    with contextlib.closing(make_poller()) as poller:
        assert type(poller) is PollPoller


# Only epoll: listeners that several processes share, and events reported in parts


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield listener


def test_pollers_of_a_listener_take_turns(listener: socket.socket) -> None:
    """To the kernel, two pollers are like two processes."""
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
            pollers[number].requeue(fd)
            accepted.release()

    accepted = threading.Semaphore(0)
    threads = [threading.Thread(target=poll, args=(number,), daemon=True) for number in range(2)]
    for thread in threads:
        thread.start()
    for count in range(1, 11):
        # An event wakes only threads that wait. On a busy machine, a thread may not wait yet.
        wait_for(lambda: not any(map(is_running, threads)), "both of them wait")
        with socket.create_connection(listener.getsockname(), PATIENCE_S):
            assert accepted.acquire(timeout=PATIENCE_S)
            # A thread that was woken in vain would fail at accept().
            assert len(woken) == count
    for poller in pollers:
        poller.wake()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    for poller in pollers:
        poller.close()
    assert set(woken) == {0, 1}


def test_poll_gathers_events_reported_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short request may wait for thousands of writable downloads, but not for ever."""
    monkeypatch.setattr("wsgifast.server.poller._CALL_EVENTS", 2)
    monkeypatch.setattr("wsgifast.server.poller._POLL_EVENTS", 6)
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


def test_wake_is_no_event_of_the_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wsgifast.server.poller._CALL_EVENTS", 2)
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
