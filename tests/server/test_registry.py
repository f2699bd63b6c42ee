"""Connections that wait: claimed by an event or by the sweep, and a kernel that will not watch."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

from wsgifast.server.poller import HUNG_UP, READ, make_poller
from wsgifast.server.registry import Registry

LATE = float("inf")


class Waits:
    """A connection that waits, as far as the registry looks at it."""

    def __init__(
        self, sock: Any = None, *, fd: int = -1, overdue: bool = False, retrying: bool = False
    ) -> None:
        self.sock: Any = sock
        self.fd = fd if sock is None else sock.fileno()
        self.deadline = float("-inf") if overdue else LATE
        self.retries = retrying
        self.known = self.watched = False
        self.ended = 0
        self.retried = 0
        self.meanwhile: Callable[[], object] = lambda: None

    def on_overdue(self) -> None:
        self.ended += 1
        self.meanwhile()

    def retry(self) -> None:
        self.retried += 1

    def close(self) -> None:
        self.sock.close()


class Armed:
    """A poller that does nothing; `meanwhile` happens in the middle of arming."""

    must_forget = False

    def __init__(self) -> None:
        self.watches = True
        self.events: list[tuple[str, int, int]] = []
        self.meanwhile: Callable[[], object] = lambda: None

    def add(self, fd: int, events: int) -> None:
        self.meanwhile()
        self.events.append(("add", fd, events))

    def arm(self, fd: int, events: int) -> None:
        self.meanwhile()
        self.events.append(("arm", fd, events))

    def watch(self, fd: int, *, known: bool) -> None:
        self.meanwhile()
        self.events.append(("watch", fd, int(known)))

    def forget(self, fd: int) -> None:
        self.events.append(("forget", fd, 0))


@pytest.fixture
def poller() -> Any:
    return Armed()


@pytest.fixture
def pushed() -> list[tuple[int, int]]:
    """Events that are to be taken up again."""
    return []


@pytest.fixture
def registry(poller: Any, pushed: list[tuple[int, int]]) -> Registry[Waits]:
    return Registry(
        poller, on_closed=lambda: None, push=pushed.append, log=logging.getLogger("test")
    )


def wait(registry: Registry[Waits], *connections: Waits) -> None:
    for connection in connections:
        registry.wait(connection, READ)


def test_an_event_claims_what_waits_and_only_once(registry: Registry[Waits], poller: Any) -> None:
    connection = Waits(fd=7)
    assert registry.claim(7) is None
    wait(registry, connection)
    assert registry.claim(8) is None
    assert registry.claim(7) is connection
    assert registry.claim(7) is None
    wait(registry, connection)
    assert poller.events == [("add", 7, READ), ("arm", 7, READ)]


def test_only_what_is_overdue_or_retrying_is_swept(registry: Registry[Waits]) -> None:
    late, retrying, waiting = Waits(fd=7, overdue=True), Waits(fd=8, retrying=True), Waits(fd=9)
    wait(registry, late, retrying, waiting)
    registry.sweep(0.0)
    assert (late.ended, retrying.retried) == (1, 1)
    assert registry.waiting == {9: waiting}


def test_what_has_an_event_meanwhile_is_left_to_it(registry: Registry[Waits]) -> None:
    first, second = Waits(fd=7, overdue=True), Waits(fd=8, overdue=True)
    wait(registry, first, second)
    first.meanwhile = lambda: registry.claim(8)
    registry.sweep(0.0)
    assert (first.ended, second.ended) == (1, 0)


@pytest.mark.parametrize("why", ["overdue", "retrying"])
def test_a_descriptor_that_is_used_again_meanwhile_is_left_alone(
    registry: Registry[Waits], why: str
) -> None:
    first, closed, other = Waits(fd=7, overdue=True), Waits(fd=8, **{why: True}), Waits(fd=8)
    wait(registry, first, closed)

    def used_again() -> None:
        assert registry.claim(8) is closed
        wait(registry, other)

    first.meanwhile = used_again
    registry.sweep(0.0)
    assert (closed.ended, closed.retried, other.ended, other.retried) == (0, 0, 0, 0)
    assert registry.claim(8) is other


def test_an_error_at_a_connections_end_closes_it_and_stops_no_sweep(
    registry: Registry[Waits],
) -> None:
    sock, peer = socket.socketpair()
    with peer:
        failing, other = Waits(sock, overdue=True), Waits(fd=-7, overdue=True)

        def fail() -> None:
            raise RuntimeError("an error of our own")

        failing.meanwhile = fail
        wait(registry, failing, other)
        registry.sweep(0.0)
        assert sock.fileno() == -1
        assert other.ended == 1


@pytest.mark.parametrize("kind", ["epoll", "selectors"])
@pytest.mark.parametrize("known", [False, True])
def test_a_sweep_between_publishing_and_arming_closes_nothing(kind: str, known: bool) -> None:
    """Its number would be another connection's by the time that it is armed."""
    poller: Any = make_poller(kind)
    registry: Registry[Waits] = Registry(
        poller, on_closed=lambda: None, push=lambda event: None, log=logging.getLogger("test")
    )
    sock, peer = socket.socketpair()
    connection = Waits(sock)
    swept: list[threading.Thread] = []
    armed = False
    name = "arm" if known else "add"
    original = getattr(poller, name)

    def arm(fd: int, events: int) -> None:
        nonlocal armed
        setattr(poller, name, original)
        thread = threading.Thread(target=registry.sweep, args=(0.0,))
        swept.append(thread)
        thread.start()
        thread.join(0.2)  # far more than it needs; it has to wait
        os.fstat(fd)
        assert not connection.ended
        original(fd, events)
        armed = True

    def end() -> None:
        assert armed
        registry.forget(connection)
        sock.close()

    with peer:
        if known:
            registry.wait(connection, READ)
            assert registry.claim(connection.fd) is connection
        connection.deadline = float("-inf")
        connection.meanwhile = end
        setattr(poller, name, arm)
        registry.wait(connection, READ)
        for thread in swept:
            thread.join(60)
        assert connection.ended == 1
        assert not registry.waiting
    poller.close()


def test_an_event_that_comes_while_it_is_armed_is_not_lost(
    registry: Registry[Waits], poller: Any
) -> None:
    connection = Waits(fd=7)
    claimed: list[Waits | None] = []
    poller.meanwhile = lambda: claimed.append(registry.claim(7))
    wait(registry, connection)
    assert claimed == [connection]
    assert not registry.waiting


@pytest.mark.parametrize("watches", [True, False])
def test_what_is_watched_is_armed_no_more(
    registry: Registry[Waits], poller: Any, watches: bool
) -> None:
    poller.watches = watches
    connection = Waits(fd=7)
    for _ in range(3):
        registry.wait_for_more(connection)
        assert registry.claim(7) is connection
    watched = [("watch", 7, 0), ("watch", 7, 1), ("watch", 7, 1)]
    assert poller.events == (watched[:1] if watches else watched)
    # To wait for something else is to be armed, and then watched again.
    poller.events.clear()
    wait(registry, connection)
    assert registry.claim(7) is connection
    registry.wait_for_more(connection)
    assert poller.events == [("arm", 7, READ), ("watch", 7, 1)]
    # Where somebody else reads, nothing is to be told.
    poller.events.clear()
    registry.unwatch(connection)
    registry.unwatch(connection)
    assert poller.events == ([("forget", 7, 0)] if watches else [])
    assert connection.known is not watches


def test_an_event_that_finds_nobody_is_taken_up_again(
    registry: Registry[Waits], pushed: list[tuple[int, int]]
) -> None:
    connection = Waits(fd=7)
    registry.wait_for_more(connection)
    assert registry.claim(7) is connection
    assert registry.miss(7, READ) is None
    assert registry.miss(7, HUNG_UP) is None
    assert not pushed
    registry.wait_for_more(connection)
    assert pushed == [(7, READ | HUNG_UP)]
    assert registry.claim(7) is connection
    registry.wait_for_more(connection)
    assert len(pushed) == 1  # once


def test_an_event_that_finds_nobody_for_a_moment_claims(
    registry: Registry[Waits], pushed: list[tuple[int, int]]
) -> None:
    connection = Waits(fd=7)
    registry.wait_for_more(connection)
    assert registry.claim(7) is connection
    assert registry.claim(7) is None
    registry.wait_for_more(connection)  # before the event is noted
    assert registry.miss(7, READ) is connection
    registry.wait_for_more(connection)
    assert not pushed


def test_a_missed_event_is_told_again_by_the_kernel_or_is_another_ones(
    registry: Registry[Waits], pushed: list[tuple[int, int]]
) -> None:
    connection, other = Waits(socket.socket()), Waits(fd=8)
    fd = connection.fd
    registry.wait_for_more(connection)
    assert registry.claim(fd) is connection
    registry.miss(fd, READ)
    registry.wait(connection, READ)
    assert registry.claim(fd) is connection
    registry.miss(fd, READ)
    registry.forget(connection)
    connection.close()
    other.fd = fd
    registry.wait_for_more(other)
    assert not pushed


def test_a_number_that_is_anothers_by_now(
    registry: Registry[Waits], pushed: list[tuple[int, int]]
) -> None:
    """The app has closed a socket that it had taken over: its connection ends with that."""
    connection = Waits(socket.socket())
    fd = connection.fd
    registry.wait(connection, READ)
    connection.sock.close()
    its_own = socket.socket()
    if its_own.fileno() != fd:
        with its_own:
            os.dup2(its_own.fileno(), fd)
        its_own = socket.socket(fileno=fd)
    other = Waits(its_own)
    registry.wait_for_more(other)
    assert (connection.ended, other.ended) == (1, 0)
    assert registry.claim(fd) is other
    registry.miss(fd, READ)
    registry.forget(connection)
    registry.wait_for_more(other)
    assert pushed == [(fd, READ)]
    other.close()


def test_whose_socket_is_closed_ends_no_other_of_its_number(registry: Registry[Waits]) -> None:
    connection = Waits(socket.socket())
    connection.sock.close()
    other = Waits(fd=connection.fd)
    registry.wait(other, READ)
    with pytest.raises(OSError, match="Bad file descriptor"):
        registry.wait(connection, READ)
    assert other.ended == 0
    assert registry.claim(other.fd) is other


def test_what_has_had_a_turn_while_it_is_swept_is_left_alone(
    registry: Registry[Waits], pushed: list[tuple[int, int]]
) -> None:
    """Its event is not lost either, which comes while the sweep has it."""
    first, second, other = Waits(fd=7, overdue=True), Waits(fd=8, overdue=True), Waits(fd=8)
    registry.wait_for_more(first)
    registry.wait_for_more(second)

    other.known = other.watched = True  # it has waited before, and needs no arming
    meanwhile: list[Callable[[], object]] = []

    class Between(dict[int, Waits]):
        """Something happens between the sweep's look and its claim."""

        def get(self, fd: int, default: Any = None) -> Any:
            found = super().get(fd, default)
            if found is second and meanwhile:
                meanwhile.pop()()
            return found

    def has_a_turn() -> None:
        assert registry.claim(8) is second
        second.deadline = LATE
        registry.wait_for_more(second)

    def is_closed() -> None:
        assert registry.claim(8) is second
        registry.wait_for_more(other)

    registry.waiting = Between(registry.waiting)
    for happens in (has_a_turn, is_closed):
        second.deadline = float("-inf")
        meanwhile.append(happens)
        registry.sweep(0.0)
        assert (second.ended, other.ended) == (0, 0)
    assert first.ended == 1
    assert registry.claim(8) is other
