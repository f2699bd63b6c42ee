"""Both pollers: each event goes to one thread, once, until its descriptor is armed again."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.server.pools import poller_of
from tests.support.descriptors import open_descriptors
from tests.workers.serving import POLLERS
from wsgifast.server.poller import (
    HUNG_UP,
    READ,
    WRITE,
    EpollPoller,
    Poller,
    SelectorsPoller,
    make_poller,
)

# A poll that is expected to find something; one that hangs fails the test instead of the run.
PATIENCE_S = 60.0

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture(params=POLLERS)
def poller(request: pytest.FixtureRequest) -> Iterator[Poller]:
    made = poller_of(request.param)
    yield made
    made.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A connected pair: what the second sends makes the first readable; both can be written to."""
    near, far = socket.socketpair()
    with near, far:
        yield near, far


class Polling:
    """A poll without end in another thread; `started` is the last thing done before it."""

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
    """The first events that come; a poll may return empty-handed for a change that it takes up."""
    events: list[tuple[int, int]] = []
    for _ in range(10):
        events = poller.poll(PATIENCE_S)
        if events:
            break
    assert [fd for fd, _ in events] == [wanted]
    return events


def assert_silent(poller: Poller) -> None:
    """Nothing is reported, however often one asks."""
    for _ in range(3):
        assert poller.poll(0) == []


def test_an_event_comes_once(poller: Poller, pair: Pair) -> None:
    near, far = pair
    poller.add(near.fileno(), READ)
    assert_silent(poller)
    far.sendall(b"a")
    assert poll_until(poller, near.fileno()) == [(near.fileno(), READ)]
    assert_silent(poller)
    far.sendall(b"b")
    assert_silent(poller)


def test_armed_again_it_comes_again(poller: Poller, pair: Pair) -> None:
    near, far = pair
    poller.add(near.fileno(), READ)
    far.sendall(b"a")
    for _ in range(3):  # the byte is never read: still readable
        poll_until(poller, near.fileno())
        poller.arm(near.fileno(), READ)
    near.recv(1)
    assert_silent(poller)


def test_arming_changes_what_is_waited_for(poller: Poller, pair: Pair) -> None:
    near, far = pair
    poller.add(near.fileno(), READ)
    assert_silent(poller)
    poller.arm(near.fileno(), WRITE)
    assert poll_until(poller, near.fileno()) == [(near.fileno(), WRITE)]
    poller.arm(near.fileno(), READ | WRITE)
    far.sendall(b"a")
    assert poll_until(poller, near.fileno()) == [(near.fileno(), READ | WRITE)]


def test_several_descriptors_come_together(poller: Poller) -> None:
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
def test_arming_while_another_thread_polls(poller: Poller, pair: Pair, known: bool) -> None:
    near, _ = pair
    if known:
        poller.add(near.fileno(), READ)
        assert_silent(poller)
    polling = Polling(poller)
    (poller.arm if known else poller.add)(near.fileno(), WRITE)
    events = polling.result() or poller.poll(PATIENCE_S)  # the first was for the change
    assert events == [(near.fileno(), WRITE)]


def test_armed_for_nothing(poller: Poller, pair: Pair) -> None:
    """epoll reports a hang-up even so; elsewhere whoever does this needs a time limit."""
    near, far = pair
    poller.add(near.fileno(), READ)
    poller.arm(near.fileno(), 0)
    far.sendall(b"a")
    assert_silent(poller)
    far.close()
    hung_up = [mask & select.EPOLLHUP for _, mask in poller.poll(0)]
    assert hung_up == ([select.EPOLLHUP] if isinstance(poller, EpollPoller) else [])
    poller.arm(near.fileno(), READ)
    poll_until(poller, near.fileno())


def test_the_end_of_a_connection_wakes_who_waits_for_either(poller: Poller) -> None:
    for events in (READ, WRITE):
        near, far = socket.socketpair()
        with near:
            poller.add(near.fileno(), events)
            far.close()
            ((_, mask),) = poll_until(poller, near.fileno())
            assert mask
            poller.forget(near.fileno())


def test_who_has_hung_up_is_told_apart_but_not_while_it_is_written_to() -> None:
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
        # Or it would be reported again and again while there is no room.
        poller.arm(near.fileno(), 0)
        assert_silent(poller)
    poller.close()


def test_forgotten_descriptors_are_silent(poller: Poller, pair: Pair) -> None:
    near, far = pair
    poller.add(near.fileno(), READ)
    assert_silent(poller)
    far.sendall(b"a")
    poller.forget(near.fileno())
    assert_silent(poller)
    poller.forget(near.fileno())  # twice, or one that was never here
    assert_silent(poller)
    poller.add(near.fileno(), READ)
    poll_until(poller, near.fileno())


def test_a_number_that_is_used_again(poller: Poller, pair: Pair) -> None:
    """Closed and opened between two polls: the new one is watched, not mistaken for the old."""
    near, _ = pair
    poller.add(near.fileno(), READ)
    assert_silent(poller)
    new, far = socket.socketpair()
    with new, far:
        if poller.must_forget:
            poller.forget(near.fileno())
        os.dup2(new.fileno(), near.fileno())  # closes the old one
        poller.add(near.fileno(), READ)
        assert_silent(poller)
        far.sendall(b"a")
        assert poll_until(poller, near.fileno()) == [(near.fileno(), READ)]


def test_listeners_stay_armed(poller: Poller) -> None:
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


def test_a_wake_returns_the_poll_that_waits(poller: Poller) -> None:
    polling = Polling(poller)
    poller.wake()
    assert polling.result() == []


def test_a_wake_returns_the_next_poll_and_only_that(poller: Poller, pair: Pair) -> None:
    for _ in range(70_000):  # more than a pipe holds: a full one must not block or fail
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
    assert seen == [(near.fileno(), READ)]  # neither lost among the wakes, nor seen twice


def test_a_wake_of_a_closed_poller_is_nothing() -> None:
    for kind in POLLERS:
        before = open_descriptors()
        poller = poller_of(kind)
        made = open_descriptors() - before
        assert len(made) == 3
        poller.close()
        assert not made & open_descriptors(), f"{kind} keeps a descriptor"
        # They have its descriptors' numbers now.
        ends = [end for _ in range(2) for end in socket.socketpair()]
        poller.wake()
        assert not select.select(ends, [], [], 0)[0]
        for end in ends:
            end.close()


def test_a_wake_is_taken_up_by_one_poll(poller: Poller) -> None:
    """The next one would spin; and who has been woken along with another finds nothing."""
    pipe = poller._pipe
    poller.wake()
    assert poller.poll(PATIENCE_S) == []
    assert not select.select([pipe.fd], [], [], 0)[0]
    pipe.empty()


def test_a_listener_s_number_may_be_a_connection_s_next(poller: Poller, pair: Pair) -> None:
    near, far = pair
    far.sendall(b"a")
    poller.listen(near.fileno())
    poll_until(poller, near.fileno())
    poller.forget(near.fileno())
    poller.add(near.fileno(), READ)
    poll_until(poller, near.fileno())
    assert_silent(poller)


def test_a_descriptor_that_is_closed_before_its_change_is_taken_up() -> None:
    poller = poller_of("selectors")
    near, far = socket.socketpair()
    with far:
        poller.add(near.fileno(), READ)
        near.close()
        assert_silent(poller)
    poller.close()


def test_each_event_goes_to_one_thread(poller: Poller) -> None:
    """Four threads poll; each of many descriptors is armed so often, and owned by one at a time."""
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
        poller.wake()  # the next one, until all have seen it

    threads = [threading.Thread(target=serve, daemon=True) for _ in range(4)]
    for near, far in pairs:
        far.sendall(b"a")  # never read, so always ready
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


def test_epoll_is_used_where_there_is_one() -> None:
    poller = make_poller()
    assert type(poller) is EpollPoller
    poller.close()


def test_without_epoll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(select, "epoll")
    poller = make_poller()  # selectors' own choice was made when it was imported
    assert type(poller) is SelectorsPoller
    poller.close()
